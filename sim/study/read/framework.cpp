#include "sim/study/read/framework.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "policies/base/number_text.h"

namespace equipoise {

using nlohmann::json;

namespace {

bool has_attention_kernel(const Profile& profile, const std::string& kernel) {
  return profile.json().contains(json::json_pointer("/tables/attention/kernels") / kernel);
}

}  // namespace

FrameworkOptions Framework::on(const Profile& profile) const {
  FrameworkOptions options = preset.fitted_on(profile) ? on_fitted_gpus : elsewhere;
  if (!says_kernel && !has_attention_kernel(profile, options.attention_kernel))
    options.attention_kernel.clear();
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
  if (!preset.fitted_on(profile)) {
    std::string families;
    for (const std::string& family : preset.gpu_families) families += (families.empty() ? "" : ", ") + family;
    found.push_back(name + ": its slowdowns were fitted on published times of " + families + "; on profile " +
                    profile.name() + " (" + profile.device().name + ") they are 1" +
                    (says_slowdowns ? " where the study states none" : "") +
                    "; its host and what it overlaps and shards stay");
  } else if (preset.kernels == KernelTimes::borrowed) {
    found.push_back(name + ": slowdowns borrowed from " + preset.borrowed_from + ", their error is unknown");
  }
  const std::string& kernel = on_fitted_gpus.attention_kernel;
  if (!says_kernel && !kernel.empty() && !has_attention_kernel(profile, kernel))
    found.push_back(name + ": profile " + profile.name() + " has no attention kernel " + kernel +
                    ": its default is taken");
  return found;
}

std::string Framework::kernels_text_on(const Profile& profile) const {
  const bool fitted = preset.fitted_on(profile);
  if (says_slowdowns) return slowdowns_text(fitted ? on_fitted_gpus : elsewhere) + ", as the study says";
  if (fitted || preset.kernels == KernelTimes::benchmark) return preset.kernels_text();
  return "kernels at their benchmark speed, its slowdowns were fitted on other GPUs";
}

std::string Framework::routing_text_on(const Profile& profile) const {
  const FrameworkOptions options = on(profile);
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
  framework.on_fitted_gpus = framework.preset.options;
  framework.elsewhere = framework.preset.elsewhere();
  return framework;
}

Framework framework_of(std::string_view preset) {
  return framework_with(FrameworkPreset::load(preset));
}

}  // namespace equipoise
