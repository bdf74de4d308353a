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

// ", of which GEMM and elementwise in part were measured, attention was not", where GEMM was.
std::string measured_text(const Framework& framework, const Profile& profile) {
  const Measured attention = attention_measured(profile, kernel_on(framework, profile));
  const Measured elementwise = elementwise_measured(profile);
  if (attention == Measured::all && elementwise == Measured::all) return ", which were measured";
  std::vector<std::string> measured = {"GEMM"}, others;
  for (const auto& [kind, how] : {std::pair("attention", attention), std::pair("elementwise", elementwise)})
    (how == Measured::none ? others : measured)
        .push_back(std::string(kind) + (how == Measured::some ? " in part" : ""));
  const auto were = [](const std::vector<std::string>& kinds) {
    return all_joined(kinds, " and ") + (kinds.size() == 1 ? " was" : " were");
  };
  return ", of which " + were(measured) + " measured" + (others.empty() ? "" : ", " + were(others) + " not");
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
std::string kept_text(const Framework& framework, const Kept& kept) {
  std::string text;
  if (kept.attention) text = "attention x" + fixed(framework.in_training.attention_slowdown, 2);
  if (kept.elementwise)
    text += (text.empty() ? "" : " and ") +
            ("elementwise x" + fixed(framework.in_training.elementwise_slowdown, 2));
  return text;
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

std::vector<std::string> Framework::notes_on(const Profile& profile) const {
  const std::string name = "framework " + preset.name;
  if (preset.kernels == KernelTimes::benchmark && !says_slowdowns)
    return {name + ": kernels are taken at their benchmark speed; training runs them slower"};
  if (preset.kernels == KernelTimes::benchmark) return {};
  std::vector<std::string> found;
  const std::string here = " on profile " + profile.name() + " (" + profile.device().name + ")";
  const std::string own = name + ": its slowdowns are 1";
  const std::string fitted = name + ": its slowdowns were fitted on published times of " +
                             all_joined(preset.gpu_families) + ";" + here + " they are ";
  switch (rule_on(profile)) {
    case SlowdownRule::alone:
      if (const Kept kept = kept_on(*this, profile); kept.any())
        found.push_back(own + " for GEMM" + here + ", where it was measured; " + kept_text(*this, kept) +
                        " stay, as these were not");
      else
        found.push_back(kernels_are_measured(profile)
                            ? own + here + " for kernels" + measured_text(*this, profile)
                            : fitted + "1");
      found.back() += std::string(says_slowdowns ? " (where the study states none)" : "") +
                      "; its host and what it overlaps and shards stay" +
                      (carry_slowdowns ? "" : " (framework.carry_slowdowns)");
      break;
    case SlowdownRule::carried:
      found.push_back(fitted + "carried over, " + error_text(preset, profile) +
                      "; measured steps of your own replace them (equipoise fit --steps)");
      break;
    case SlowdownRule::fitted:
      if (preset.kernels == KernelTimes::borrowed)
        found.push_back(name + ": slowdowns borrowed from " + preset.borrowed_from +
                        ", their error is unknown");
  }
  const std::string& kernel = in_training.attention_kernel;
  if (!says_kernel && !kernel.empty() && !has_attention_kernel(profile, kernel))
    found.push_back(name + ": profile " + profile.name() + " has no attention kernel " + kernel +
                    ": its default is taken");
  return found;
}

std::string Framework::kernels_text_on(const Profile& profile) const {
  if (says_slowdowns) return slowdowns_text(on(profile)) + ", as the study says";
  if (preset.kernels == KernelTimes::benchmark) return preset.kernels_text();
  switch (rule_on(profile)) {
    case SlowdownRule::alone:
      return std::string("kernels as fast as the profile has them") +
             (!kernels_are_measured(profile) ? "" : measured_text(*this, profile)) +
             (kept_on(*this, profile).any() ? "; " + kept_text(*this, kept_on(*this, profile)) + ", fitted"
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
