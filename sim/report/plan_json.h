// Plans as JSON (equipoise.plan/1).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "policies/plan.h"
#include "policies/plan_metrics.h"
#include "sim/metrics/metrics.h"

namespace equipoise {

// `metrics` is put in as it is. `layout_layers`: checkpointed layers of a micro-batch that names none of its
// own.
nlohmann::json plan_json(const Plan& plan, const nlohmann::json& metrics, int layout_layers = 0);

// Metrics by their keys; absent ones are null. Only those that need no simulator for the second form.
nlohmann::json metrics_json(const Metrics& metrics);
nlohmann::json metrics_json(const PlanMetrics& metrics, std::optional<double> imbalance);

}  // namespace equipoise
