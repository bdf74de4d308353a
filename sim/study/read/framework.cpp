#include "sim/study/read/framework.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "policies/base/text.h"

namespace equipoise {

using nlohmann::json;

namespace {

bool has_attention_kernel(const Profile& profile, const std::string& kernel) {
  return profile.json().contains(json::json_pointer("/tables/attention/kernels") / kernel);
}

// The error of carried slowdowns, if published steps of the GPU show it.
Note error_there(const FrameworkPreset& preset, const Profile& profile) {
  if (!kernels_are_measured(profile))
    if (std::optional<Note> seen = preset.error_on(profile)) return *std::move(seen);
  return {"error_there_unknown", "", {}};
}

// The attention kernel in use on the profile; empty for the profile's default.
std::string kernel_on(const Framework& framework, const Profile& profile) {
  const std::string& kernel = framework.in_training.attention_kernel;
  return framework.says_kernel || has_attention_kernel(profile, kernel) ? kernel : std::string();
}

// Which kernels were measured on the profile, if GEMM was.
Notes measured_on(const Framework& framework, const Profile& profile) {
  const Measured attention = attention_measured(profile, kernel_on(framework, profile));
  const Measured elementwise = elementwise_measured(profile);
  if (attention == Measured::all && elementwise == Measured::all) return {{"all_measured", "", {}}};
  Notes measured{{"kernels", "", {{"kernels", "GEMM"}}}}, others;
  for (const auto& [kind, how] : {std::pair("attention", attention), std::pair("elementwise", elementwise)})
    (how == Measured::none ? others : measured)
        .push_back({how == Measured::some ? "kernels_in_part" : "kernels", "", {{"kernels", kind}}});
  Notes notes{{measured.size() == 1 ? "one_measured" : "some_measured", "", {{"kernels", measured}}}};
  if (!others.empty())
    notes.push_back(
        {others.size() == 1 ? "one_not_measured" : "some_not_measured", "", {{"kernels", others}}});
  return notes;
}

// Slowdowns that stay in spite of measured GEMMs, because their kernels were not measured: "attention x1.89".
struct Kept {
  bool attention = false, elementwise = false;
  [[nodiscard]] bool any() const { return attention || elementwise; }
};
Kept kept_on(const Framework& framework, const Profile& profile) {
  if (framework.rule_on(profile) != SlowdownRule::alone || framework.says_slowdowns ||
      framework.carry_slowdowns || framework.preset.kernels == KernelTimes::benchmark)
    return {};
  const FrameworkOptions& slowed = framework.in_training;
  return {slowed.attention_slowdown != 1 &&
              attention_measured(profile, kernel_on(framework, profile)) == Measured::none,
          slowed.elementwise_slowdown != 1 && elementwise_measured(profile) == Measured::none};
}
Notes kept_notes(const Framework& framework, const Kept& kept) {
  Notes notes;
  const auto add_kept = [&](const char* kernels, double slowdown) {
    notes.push_back({"kept", "", {{"kernels", kernels}, {"slowdown", slowdown}}});
  };
  if (kept.attention) add_kept("attention", framework.in_training.attention_slowdown);
  if (kept.elementwise) add_kept("elementwise", framework.in_training.elementwise_slowdown);
  return notes;
}

}  // namespace

SlowdownRule Framework::rule_on(const Profile& profile) const {
  const SlowdownRule rule = preset.rule_on(profile);
  if (!carry_slowdowns || rule == SlowdownRule::fitted || preset.kernels == KernelTimes::benchmark)
    return rule;
  return *carry_slowdowns ? SlowdownRule::carried : SlowdownRule::alone;
}

FrameworkOptions Framework::on(const Profile& profile, Precision precision) const {
  const SlowdownRule rule = rule_on(profile);
  FrameworkOptions options = rule == SlowdownRule::alone ? alone : in_training;
  if (rule != SlowdownRule::alone && !says_slowdowns)
    preset.slow_down(options, profile.device().name, precision);
  const Kept kept = kept_on(*this, profile);
  if (kept.attention) options.attention_slowdown = in_training.attention_slowdown;
  if (kept.elementwise) options.elementwise_slowdown = in_training.elementwise_slowdown;
  options.attention_kernel = kernel_on(*this, profile);
  if (!says_launch && profile.device().seconds_per_launch) {
    options.host.seconds_per_launch = *profile.device().seconds_per_launch;
    if (!says_own_kernel) options.host.seconds_per_kernel.reset();  // the host was measured kernel by kernel
  }
  if (anchor)
    for (double* time : {&options.gemm_slowdown, &options.attention_slowdown, &options.elementwise_slowdown,
                         &options.expert_product_seconds})
      *time *= anchor->factor;
  return options;
}

Notes Framework::notes_on(const Profile& profile) const {
  const std::string name = "framework " + preset.name;
  if (preset.kernels == KernelTimes::benchmark && !says_slowdowns) return {{"benchmark_speed", name, {}}};
  if (preset.kernels == KernelTimes::benchmark) return {};
  Notes found;
  const auto say = [&](const char* kind) -> auto& {
    found.push_back({kind, name, {{"profile", profile.name()}, {"gpu", profile.device().name}}});
    return found.back().numbers;
  };
  const std::string families = all_joined(preset.gpu_families);
  switch (rule_on(profile)) {
    case SlowdownRule::alone: {
      Notes more;
      if (says_slowdowns) more.push_back({"where_none_stated", "", {}});
      more.push_back({"host_stays", "", {}});
      if (!carry_slowdowns) more.push_back({"carry_key", "", {}});
      if (const Kept kept = kept_on(*this, profile); kept.any())
        say("slowdowns_kept").emplace("kept", kept_notes(*this, kept));
      else if (kernels_are_measured(profile))
        say("slowdowns_measured").emplace("measured", measured_on(*this, profile));
      else
        say("slowdowns_not_carried").emplace("families", families);
      found.back().numbers.emplace("more", std::move(more));
      break;
    }
    case SlowdownRule::carried: {
      auto& numbers = say("slowdowns_carried");
      numbers.emplace("families", families);
      numbers.emplace("error", Notes{error_there(preset, profile)});
      break;
    }
    case SlowdownRule::fitted:
      if (preset.kernels == KernelTimes::borrowed)
        found.push_back({"slowdowns_borrowed", name, {{"from", preset.borrowed_from}}});
  }
  const std::string& kernel = in_training.attention_kernel;
  if (!says_kernel && !kernel.empty() && !has_attention_kernel(profile, kernel))
    found.push_back({"no_attention_kernel", name, {{"profile", profile.name()}, {"kernel", kernel}}});
  return found;
}

Notes Framework::kernel_notes_on(const Profile& profile, Precision precision) const {
  const FrameworkOptions options = on(profile, precision);
  if (says_slowdowns) return {slowdowns_note(options, {{"as_stated", "", {}}})};
  if (preset.kernels == KernelTimes::benchmark) return {preset.kernel_note(options)};
  switch (rule_on(profile)) {
    case SlowdownRule::alone: {
      Notes more;
      if (kernels_are_measured(profile))
        more.push_back({"of_them_measured", "", {{"measured", measured_on(*this, profile)}}});
      if (const Kept kept = kept_on(*this, profile); kept.any())
        more.push_back({"kept_fitted", "", {{"kept", kept_notes(*this, kept)}}});
      return {{"kernels_as_profile", "", {{"more", more}}}};
    }
    case SlowdownRule::carried:
      return {slowdowns_note(options, {{"carried_over",
                                            "",
                                            {{"families", all_joined(preset.gpu_families)},
                                             {"error", Notes{error_there(preset, profile)}}}}})};
    case SlowdownRule::fitted:
      break;
  }
  Notes found{preset.kernel_note(options)};
  add(found, preset.error_on(profile));
  return found;
}

std::optional<ExpectedError> Framework::error_of(const StepFamily& steps, const Layout& layout,
                                                 const Profile& profile) const {
  if (says_slowdowns || rule_on(profile) == SlowdownRule::alone) return std::nullopt;
  std::optional<ExpectedError> error = expected_error(steps);
  if (!error || !anchor) return error;
  error->step = anchor->layout == degrees_text(layout) ? error->speed_up : error->speed_up_of_layouts;
  if (!error->step) return std::nullopt;
  error->is_of_ratio = true;
  return error;
}

Notes Framework::kernel_errors_on(const Profile& profile, const std::string& network) const {
  if (rule_on(profile) != SlowdownRule::alone) return {};
  return measured_errors(profile, kernel_on(*this, profile), network);
}

Note Framework::routing_note_on(const Profile& profile) const {
  const FrameworkOptions options = on(profile);
  const bool as_trained =
      options.expert_router != ExpertRouter::stated && options.expert_capacity_factor == 0;
  Notes more;
  if (as_trained && options.expert_skew > 0)
    more.push_back({"times_skewed", "", {{"skew", options.expert_skew}}});
  if (options.expert_imbalance > 1)
    more.push_back({"times_factor", "", {{"factor", options.expert_imbalance}}});
  if (as_trained)
    return {"router_as_trained",
            "",
            {{"router", kExpertRouterNames[at(options.expert_router)]}, {"more", std::move(more)}}};
  if (options.expert_skew > 0)
    return {"loads_drawn", "", {{"skew", options.expert_skew}, {"more", std::move(more)}}};
  if (options.expert_imbalance > 1) return {"busiest_rank", "", {{"factor", options.expert_imbalance}}};
  if (options.expert_skew != preset.options.expert_skew || preset.skew_source.empty())
    return {"router_balanced", "", {}};
  return {"router_taken_as", "", {{"source", preset.skew_source}}};
}

Framework framework_with(FrameworkPreset preset) {
  Framework framework;
  framework.preset = std::move(preset);
  framework.reduce_each_micro_batch = framework.preset.reduce_each_micro_batch;
  framework.in_training = framework.preset.options;
  framework.alone = framework.preset.alone();
  return framework;
}

Framework framework_of(std::string_view preset) {
  return framework_with(FrameworkPreset::load(preset));
}

}  // namespace equipoise
