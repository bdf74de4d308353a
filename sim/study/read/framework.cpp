#include "sim/study/read/framework.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "policies/base/number_text.h"
#include "sim/study/read/json_object.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;

namespace {

bool has_attention_kernel(const Profile& profile, const std::string& kernel) {
  return profile.json().contains(json::json_pointer("/tables/attention/kernels") / kernel);
}

// A preset's name, or a path relative to the study.
FrameworkPreset load_preset(const std::string& name, const std::string& where, const std::string& directory) {
  const bool is_path = name.find('/') != std::string::npos || name.ends_with(".json");
  return naming(where, [&] {
    return FrameworkPreset::load(is_path ? (std::filesystem::path(directory) / name).string() : name);
  });
}

void read_differences(JsonObject& object, FrameworkOptions& options) {
  const auto size = [&](const char* key, double value, std::int64_t least, std::int64_t most) {
    return static_cast<double>(object.integer(key, static_cast<std::int64_t>(value), least, most));
  };
  options.tp_overlap_forward = object.flag("tp_overlap", options.tp_overlap_forward);
  options.overlap_param_gather = object.flag("overlap_param_gather", options.overlap_param_gather);
  options.gradient_bytes = size("gradient_bytes", options.gradient_bytes, 2, 4);
  options.optimizer_bytes = object.number("optimizer_bytes", options.optimizer_bytes, 1, 32);
  options.logit_bytes = size("logit_bytes", options.logit_bytes, 4, 16);
  if (object.has("seconds_per_op")) options.seconds_per_op = object.number("seconds_per_op", 0, 0, 1);
  (void)object.find("seconds_per_op");
  options.attention_kernel = object.text("attention_kernel", options.attention_kernel);
  options.gemm_slowdown = object.number("gemm_slowdown", options.gemm_slowdown, 0.1, 100);
  options.attention_slowdown = object.number("attention_slowdown", options.attention_slowdown, 0.1, 100);
  options.elementwise_slowdown =
      object.number("elementwise_slowdown", options.elementwise_slowdown, 0.1, 100);
  options.recompute_ahead = object.flag("recompute_ahead", options.recompute_ahead);
  options.expert_gemm_slowdown =
      object.number("expert_gemm_slowdown", options.expert_gemm_slowdown, 0.1, 100);
  options.expert_product_seconds =
      object.number("expert_product_seconds", options.expert_product_seconds, 0, 1);
  options.expert_streams =
      static_cast<int>(object.integer("expert_streams", options.expert_streams, 0, kMostExpertStreams));
  options.exchange_sms = static_cast<int>(object.integer("exchange_sms", options.exchange_sms, 0, 1024));
  options.exchange_sm_margin = object.flag("exchange_sm_margin", options.exchange_sm_margin);
  options.routing_kernels =
      static_cast<int>(object.integer("routing_kernels", options.routing_kernels, 0, kMostRoutingKernels));
  options.expert_imbalance = object.number("expert_imbalance", options.expert_imbalance, 1, 1000);
  options.expert_skew = object.number("expert_skew", options.expert_skew, 0, 10);
  options.expert_seed = static_cast<std::uint64_t>(
      object.integer("expert_seed", static_cast<std::int64_t>(options.expert_seed), 0, INT64_MAX));
  const auto choice = [&]<class Enum>(const char* key, Enum value, std::span<const std::string_view> names) {
    return static_cast<Enum>(object.choice(key, static_cast<std::size_t>(value), names));
  };
  options.expert_overlap = choice("expert_overlap", options.expert_overlap, kExpertOverlapNames);
  // What hides nothing but is named after a dispatcher is that dispatcher.
  if (options.expert_overlap == ExpertOverlap::deepep) options.expert_dispatcher = ExpertDispatcher::deepep;
  options.expert_dispatcher = choice("expert_dispatcher", options.expert_dispatcher, kExpertDispatcherNames);
  options.expert_nodes = static_cast<int>(object.integer("expert_nodes", options.expert_nodes, 0, 1 << 20));
  options.dispatch_bytes = object.number("dispatch_bytes", options.dispatch_bytes, 0, 8);
}

}  // namespace

FrameworkOptions Framework::on(const Profile& profile) const {
  FrameworkOptions options = preset.fitted_on(profile) ? on_fitted_gpus : elsewhere;
  if (!says_kernel && !has_attention_kernel(profile, options.attention_kernel))
    options.attention_kernel.clear();
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
                    ", and the host's time is the profile's; what it overlaps and shards stays");
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

Framework framework_of(std::string_view preset) {
  Framework framework;
  framework.preset = FrameworkPreset::load(preset);
  framework.reduce_each_micro_batch = framework.preset.reduce_each_micro_batch;
  framework.on_fitted_gpus = framework.preset.options;
  framework.elsewhere = framework.preset.elsewhere();
  return framework;
}

Framework read_framework(const json* node, const std::string& where, const std::string& directory) {
  Framework framework;
  const auto take = [&](const std::string& name) {
    framework.preset = load_preset(name, where, directory);
    framework.reduce_each_micro_batch = framework.preset.reduce_each_micro_batch;
    framework.on_fitted_gpus = framework.preset.options;
    framework.elsewhere = framework.preset.elsewhere();
  };
  if (node == nullptr || node->is_string()) {
    take(node == nullptr ? std::string(kDefaultFramework) : node->get<std::string>());
    return framework;
  }
  if (!node->is_object())
    throw UserError(where + ": expected a preset's name, a file or an object, found " + shown_json(*node));
  JsonObject object(*node, where);
  take(object.text("preset", kDefaultFramework));
  framework.reduce_each_micro_batch =
      object.flag("reduce_each_micro_batch", framework.reduce_each_micro_batch);
  read_differences(object, framework.on_fitted_gpus);
  read_differences(object, framework.elsewhere);
  object.finish();
  framework.says_kernel = object.has("attention_kernel");
  framework.says_slowdowns = object.has("gemm_slowdown") || object.has("attention_slowdown") ||
                             object.has("elementwise_slowdown") || object.has("expert_gemm_slowdown") ||
                             object.has("expert_product_seconds");
  return framework;
}

}  // namespace equipoise
