// The metrics of a policy's run, by the names of policies/README.md's vocabulary. Absent ones are null: they
// make no sense for the policy.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "policies/options.h"
#include "policies/plan.h"
#include "policies/plan_metrics.h"
#include "sim/step/step_result.h"
#include "sim/workload/layout.h"
#include "sim/workload/model.h"

namespace equipoise {

using Metric = std::optional<double>;

struct Metrics : PlanMetrics {
  Metric step_seconds, speedup, tokens_per_second_per_gpu, mfu, bubble_ratio, imbalance_degree, cp_imbalance,
      kv_useful_ratio, peak_memory_bytes;
  // Over all GPUs: slowest / mean, and slowest / fastest (null where the fastest has nothing to do).
  Metric gpu_compute_imbalance, gpu_attention_imbalance, gpu_compute_slowest_over_fastest,
      gpu_attention_slowest_over_fastest;
  Metric gpu_hours_per_billion_tokens;
  Metric dollars_per_billion_tokens;  // where the study states a price
  std::array<Metric, kStreams> exposed_comm_ratio;  // by Stream; compute is unused
  Metric recompute_ratio;                           // recompute / step time
  // What the blame line names: shares of a step in which each second of a GPU counts once.
  struct Losses {
    Metric waiting;     // for other stages and ranks of the own lane, transfers and recompute apart
    Metric lanes_wait;  // for the slowest lane
    Metric recompute;   // its communication apart, which is in exposed_comm_ratio
  } losses;
  Metric speedup_low, speedup_high;  // 95% interval of `speedup` (speedup.h)
  Metric expected_error;             // of step_seconds, mean absolute, as published steps of its family show
  double seconds = 0;                // all steps
  double tokens = 0;
  int steps = 0;
  int tail_steps = 0;
};

struct MetricInputs {
  const ModelShape& model;
  const Layout& layout;
  double peak_flops = 0;  // of one GPU at the study's precision
  std::span<const GlobalBatch> batches;
  const Plan& plan;
  std::span<const StepResult> steps;  // by step of the plan
  int threads = 1;                    // the metrics do not depend on it
};

// Everything but the comparison with a baseline (speedup.h) and memory. Means over full steps; time and
// tokens over all.
Metrics metrics_of(const MetricInputs& inputs);

}  // namespace equipoise
