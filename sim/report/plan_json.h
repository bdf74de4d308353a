// Plans as JSON (equipoise.plan/1).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "policies/plan.h"
#include "policies/plan_metrics.h"
#include "sim/metrics/metrics.h"
#include "sim/workload/stage_layers.h"

namespace equipoise {

// `metrics` is put in as it is. The file says beside what a micro-batch states (recompute_layers_of_model)
// what that makes of the fullest pipeline stage (recompute_layers, as specified): `recomputed` knows both;
// null where there is no model, where it is taken for one stage.
nlohmann::json plan_json(const Plan& plan, const nlohmann::json& metrics, const RecomputedLayers* recomputed);

// Metrics by their keys; absent ones are null. Only those that need no simulator for the second form.
nlohmann::json metrics_json(const Metrics& metrics);
nlohmann::json metrics_json(const PlanMetrics& metrics, std::optional<double> imbalance);

}  // namespace equipoise
