#include "sim/metrics/step_figures.h"

#include <algorithm>
#include <utility>

namespace equipoise {

static std::optional<double> latency_imbalance(const Step& step, const StepTimes& times) {
  std::vector<double> latencies;
  std::size_t places = 0;
  for (const Lane& lane : step.lanes) places += lane.micro_batches.size();
  latencies.reserve(places);
  for (const Picoseconds t : times.forward_latency) latencies.push_back(to_seconds(t));
  latencies.resize(std::max(places, latencies.size()), 0);  // lanes without micro-batches
  return imbalance_degree(latencies);
}

StepFigures step_figures(const Step& step, const StepOfPlan& of_plan, StepResult result) {
  return {result.work,
          result.times,
          of_plan,
          latency_imbalance(step, result.times),
          result.times.forward_latency.size(),
          std::move(result.times.gpu_compute)};
}

}  // namespace equipoise
