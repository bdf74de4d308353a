// Metrics as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "policies/plan_metrics.h"
#include "sim/metrics/metrics.h"

namespace equipoise {

// Metrics by their keys; absent ones are null. Only those that need no simulator for the second form.
nlohmann::json metrics_json(const Metrics& metrics);
nlohmann::json metrics_json(const PlanMetrics& metrics, std::optional<double> imbalance);

}  // namespace equipoise
