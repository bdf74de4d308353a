#include "sim/framework/expected_error.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "policies/base/text.h"
#include "profiler/profile/profile.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;

namespace {

// The kinds of published steps, narrowest first.
const json& table() {
  static const json known = read_json_file(
      shipped_path("framework/published_errors.json", EQUIPOISE_PUBLISHED_ERRORS).string());
  return known;
}

bool is_of(const json& gpus, const std::string& gpu) {
  return std::ranges::any_of(
      gpus, [&](const json& word) { return gpu.find(word.get_ref<const std::string&>()) != std::string::npos; });
}

// A kind names what its steps have in common; a property that it does not name may be anything. Only
// other mixers have to be named, since no published step of the table has any, and their kernels are
// modelled.
bool holds(const json& kind, const StepFamily& steps) {
  const auto is = [&](const char* key, const auto& value) { return !kind.contains(key) || kind[key] == value; };
  return kind.value("mixers", "") == steps.mixers && is("framework", steps.framework) &&
         is("experts", steps.experts) && is("lora", steps.lora) &&
         is("precision", name_of(steps.precision)) &&
         (!kind.contains("gpus") || is_of(kind["gpus"], steps.gpu));
}

std::string text_of_kind(const json& kind) {
  std::vector<std::string> parts;
  if (kind.contains("framework")) parts.push_back(kind["framework"]);
  if (kind.contains("experts")) parts.emplace_back(kind["experts"] ? "with experts" : "dense");
  if (kind.contains("lora")) parts.emplace_back(kind["lora"] ? "LoRA" : "all weights");
  if (kind.contains("gpus")) parts.push_back(kind["architecture"]);
  if (kind.contains("precision")) parts.push_back(kind["precision"]);
  return parts.empty() ? "all published steps" : all_joined(parts);
}

ErrorInterval interval_of(const json& node) {
  return {node["low"], node["high"], node["rows"], node["sources"]};
}

// The interval of the ratio of two such rows: of policies on one layout, or of two layouts.
std::optional<ErrorInterval> interval_of_ratio(const StepFamily& steps, bool policies) {
  const json& kinds = table()["ratios"];
  const auto kind = std::ranges::find_if(
      kinds, [&](const json& k) { return holds(k, steps) && k.value("policies", policies) == policies; });
  return kind == kinds.end() ? std::nullopt : std::optional(interval_of(*kind));
}

}  // namespace

std::string StepFamily::text() const {
  return concatenated(framework, ", ", experts ? "with experts" : "dense",
                      mixers.empty() ? "" : ", with " + mixers, lora ? ", LoRA" : "", ", ", gpu, ", ",
                      name_of(precision));
}

std::optional<ExpectedError> expected_error(const StepFamily& steps) {
  const auto is_framework = [&](const json& name) { return name == steps.framework; };
  if (std::ranges::none_of(table()["frameworks"], is_framework)) return std::nullopt;
  const json& kinds = table()["kinds"];
  const auto kind = std::ranges::find_if(kinds, [&](const json& k) { return holds(k, steps); });
  if (kind == kinds.end()) return std::nullopt;
  ExpectedError error;
  error.nearest = text_of_kind(*kind);
  error.nearest_error = (*kind)["mean_abs_error"];
  const bool known_gpu =
      std::ranges::any_of(table()["gpus"], [&](const json& gpus) { return is_of(gpus, steps.gpu); });
  if (!known_gpu) return error;
  error.step = interval_of(*kind);
  error.speed_up = interval_of_ratio(steps, true);
  error.speed_up_of_layouts = interval_of_ratio(steps, false);
  return error;
}

}  // namespace equipoise
