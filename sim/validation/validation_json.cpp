#include <cmath>
#include <nlohmann/json.hpp>

#include "policies/base/utf8.h"
#include "sim/validation/validation_report.h"

namespace equipoise {

using nlohmann::ordered_json;

namespace {

ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}
ordered_json number(const std::optional<double>& value) {
  return value ? number(*value) : ordered_json(nullptr);
}

// Where an op was; what it has none of is left out.
ordered_json place_json(const OpPair& op) {
  ordered_json node = {{"label", printable(op.label)}, {"step", op.step}};
  const auto add = [&](const char* key, int value) {
    if (value >= 0) node[key] = value;
  };
  add("lane", op.lane);
  add("stage", op.stage);
  add("micro_batch", op.micro_batch);
  add("rank", op.rank);
  node["predicted_seconds"] = number(op.predicted_seconds);
  node["measured_seconds"] =
      op.measured_seconds.empty() ? ordered_json(nullptr) : number(op.measured_seconds[0]);
  return node;
}

// The keys of specs first, then what else is known.
ordered_json policy_json(const PolicyFigures& p) {
  ordered_json steps = ordered_json::array();
  for (const StepFigures& step : p.steps)
    steps.push_back({{"step", step.step},
                     {"predicted_seconds", number(step.predicted_seconds)},
                     {"measured_seconds", number(step.measured_seconds)},
                     {"error", number(step.error())},
                     {"noise_seconds", number(step.noise_seconds)},
                     {"repetitions", step.repetitions}});
  return {{"label", printable(p.label)},
          {"predicted_seconds", number(p.predicted_seconds)},
          {"measured_seconds", number(p.measured_seconds)},
          {"error", number(p.errors.error())},
          {"error_of_profile_alone", number(p.errors.error_alone())},
          {"noise_seconds", number(p.noise_seconds)},
          {"within_limit", p.within_limit},
          {"mean_abs_step_error", number(p.errors.mean_abs)},
          {"mean_step_error", number(p.errors.mean)},
          {"worst_step_error", number(p.errors.worst)},
          {"runs", p.runs},
          {"dropped_runs", p.dropped_runs},
          {"steps", std::move(steps)}};
}

ordered_json op_json(const OpFigures& op) {
  return {{"op", printable(op.op)},
          {"count", op.errors.count},
          {"mean_abs_error", number(op.errors.mean_abs)},
          {"mean_error", number(op.errors.mean)},
          {"worst", number(op.errors.worst)},
          {"worst_at", place_json(op.worst)},
          {"error", number(op.errors.error())},
          {"error_of_profile_alone", number(op.errors.error_alone())},
          {"predicted_seconds", number(op.errors.predicted_seconds)},
          {"measured_seconds", number(op.errors.measured_seconds)},
          {"within_limit", op.within_limit}};
}

ordered_json micro_batches_json(const ValidationFigures& figures) {
  const Errors& errors = figures.micro_batches;
  ordered_json worst = ordered_json::array();
  for (const MicroBatchFigures& m : figures.worst_micro_batches)
    worst.push_back({{"label", printable(m.label)},
                     {"step", m.step},
                     {"lane", m.lane},
                     {"micro_batch", m.micro_batch},
                     {"predicted_seconds", number(m.predicted_seconds)},
                     {"measured_seconds", number(m.measured_seconds)},
                     {"error", number(m.error())}});
  return {{"count", errors.count},
          {"mean_abs_error", number(errors.mean_abs)},
          {"mean_error", number(errors.mean)},
          {"worst", std::move(worst)}};
}

ordered_json labels_json(const std::vector<std::string>& labels) {
  ordered_json list = ordered_json::array();
  for (const std::string& label : labels) list.push_back(printable(label));
  return list;
}

ordered_json pairs_json(const std::vector<std::pair<std::string, std::string>>& pairs) {
  ordered_json list = ordered_json::array();
  for (const auto& [fast, slow] : pairs) list.push_back({printable(fast), printable(slow)});
  return list;
}

}  // namespace

ordered_json validation_json(const Validation& validation, const ValidationFigures& figures) {
  ordered_json policies = ordered_json::array(), ops = ordered_json::array();
  for (const PolicyFigures& p : figures.policies) policies.push_back(policy_json(p));
  for (const OpFigures& op : figures.ops) ops.push_back(op_json(op));
  const Ranking& ranking = figures.ranking;
  return {{"schema", "equipoise.validation/1"},
          {"study", printable(validation.study)},
          {"device", printable(validation.device)},
          {"profile", printable(validation.profile)},
          {"policies", std::move(policies)},
          {"ops", std::move(ops)},
          {"micro_batches", micro_batches_json(figures)},
          {"ranking",
           {{"predicted", labels_json(ranking.predicted)},
            {"measured", labels_json(ranking.measured)},
            {"same", ranking.same()},
            {"by", ranking.per_token ? "seconds per token" : "seconds per step"},
            {"ties", pairs_json(ranking.ties)},
            {"swaps", pairs_json(ranking.swaps)}}},
          {"limits", {{"step", validation.limits.step}, {"op", validation.limits.op}}},
          {"unmeasured_ops", figures.unmeasured_ops},
          {"notes", labels_json(validation.notes)},
          {"broken", labels_json(figures.broken)},
          {"passed", figures.passed()}};
}

}  // namespace equipoise
