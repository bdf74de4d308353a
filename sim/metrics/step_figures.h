// What a result keeps of a simulated step. It has a fixed size, however many documents and lanes the step
// has, so that a study of many steps needs memory for their figures only.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "policies/plan.h"
#include "policies/plan_metrics.h"
#include "sim/step/step_result.h"

namespace equipoise {

struct StepFigures {
  WorkSums work;
  TimeSums times;
  StepOfPlan plan;
  std::optional<double> latency_imbalance;  // imbalance_degree of the forward latencies; null if all are 0
  std::size_t micro_batches = 0;            // that ran
  std::vector<double> gpu_compute;          // StepTimes::gpu_compute
};

// Of step k of a plan. `arrivals`: null if the policy saw the whole set.
StepFigures step_figures(const Step& step, std::size_t k, const Arrivals* arrivals, StepResult result);

}  // namespace equipoise
