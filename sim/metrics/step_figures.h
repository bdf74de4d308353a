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

inline bool is_tail(const StepFigures& step) {
  return step.plan.tail;
}

StepFigures step_figures(const Step& step, const StepOfPlan& of_plan, StepResult result);

}  // namespace equipoise
