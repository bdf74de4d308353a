#include "sim/study/read/framework.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "policies/base/text.h"
#include "sim/report/words/words.h"

namespace equipoise {

using nlohmann::json;

namespace {

bool has_attention_kernel(const Profile& profile, const std::string& kernel) {
  return profile.json().contains(json::json_pointer("/tables/attention/kernels") / kernel);
}

// How far carried slowdowns are off, as far as published steps of the GPU say.
std::string error_text(const FrameworkPreset& preset, const Profile& profile) {
  const std::string seen = kernels_are_measured(profile) ? "" : preset.error_on(profile);
  return seen.empty() ? "error there unknown" : seen;
}

// The attention kernel that is used there; empty: the profile's default.
std::string kernel_on(const Framework& framework, const Profile& profile) {
  const std::string& kernel = framework.in_training.attention_kernel;
  return framework.says_kernel || has_attention_kernel(profile, kernel) ? kernel : std::string();
}

// Which kernels were measured on the profile, where GEMM was.
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

// What slowdowns stay although GEMM was measured: those of kernels that were not. "attention x1.89".
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

FrameworkOptions Framework::on(const Profile& profile) const {
  FrameworkOptions options = rule_on(profile) == SlowdownRule::alone ? alone : in_training;
  const Kept kept = kept_on(*this, profile);
  if (kept.attention) options.attention_slowdown = in_training.attention_slowdown;
  if (kept.elementwise) options.elementwise_slowdown = in_training.elementwise_slowdown;
  options.attention_kernel = kernel_on(*this, profile);
  if (!says_launch && profile.device().seconds_per_launch)
    options.host.seconds_per_launch = *profile.device().seconds_per_launch;
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
      numbers.emplace("error", error_text(preset, profile));
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

std::string Framework::kernels_text_on(const Profile& profile) const {
  if (says_slowdowns) return slowdowns_text(on(profile)) + ", as the study says";
  if (preset.kernels == KernelTimes::benchmark) return preset.kernels_text();
  switch (rule_on(profile)) {
    case SlowdownRule::alone:
      return std::string("kernels as fast as the profile has them") +
             (!kernels_are_measured(profile) ? "" : ", " + joined_texts(measured_on(*this, profile), ", ")) +
             (kept_on(*this, profile).any()
                  ? "; " + joined_texts(kept_notes(*this, kept_on(*this, profile)), " and ") + ", fitted"
                  : "");
    case SlowdownRule::carried:
      return slowdowns_text(in_training) + ", carried over from " + all_joined(preset.gpu_families) + ", " +
             error_text(preset, profile);
    case SlowdownRule::fitted:
      break;
  }
  const std::string seen = preset.error_on(profile);
  return preset.kernels_text() + (seen.empty() ? "" : "; " + seen);
}

const FamilyError* Framework::expected_error(const StepFamily& steps, const Profile& profile) const {
  const bool own = !says_slowdowns && rule_on(profile) != SlowdownRule::alone;
  return own ? preset.expected_error(steps) : nullptr;
}

std::string Framework::kernel_errors_on(const Profile& profile, const std::string& network) const {
  if (rule_on(profile) != SlowdownRule::alone) return "";
  return measured_errors(profile, kernel_on(*this, profile), network);
}

std::string Framework::routing_text_on(const Profile& profile) const {
  const FrameworkOptions options = on(profile);
  if (options.expert_router != ExpertRouter::stated && options.expert_capacity_factor == 0)
    return "router as trained: " + std::string(kExpertRouterNames[at(options.expert_router)]) +
           (options.expert_skew > 0 ? ", times loads of skew " + fixed(options.expert_skew, 2) : "") +
           (options.expert_imbalance > 1 ? ", times " + fixed(options.expert_imbalance, 2) : "");
  if (options.expert_skew > 0)
    return "experts' loads drawn with skew " + fixed(options.expert_skew, 2) +
           (options.expert_imbalance > 1 ? ", times " + fixed(options.expert_imbalance, 2) : "");
  if (options.expert_imbalance > 1)
    return "the busiest rank of experts has " + fixed(options.expert_imbalance, 2) + " times the mean";
  if (options.expert_skew != preset.options.expert_skew || preset.skew_source.empty())
    return "router taken as balanced";
  return "router taken as " + preset.skew_source + " (framework.expert_skew)";
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

// --- The keys of a study's `framework`.

}  // namespace equipoise
