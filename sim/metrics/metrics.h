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
#include "sim/engine/stage/stage_types.h"
#include "sim/workload/layout.h"
#include "sim/workload/model.h"

namespace equipoise {

using Metric = std::optional<double>;

struct Metrics {
  Metric step_seconds, speedup, tokens_per_second_per_gpu, mfu, bubble_ratio, imbalance_degree,
      attention_imbalance, gpu_compute_imbalance, abr, dbr, pr, cr, ave_t, cp_imbalance, kv_useful_ratio,
      token_delay_mean, token_delay_max, carried_tokens, peak_memory_bytes;
  std::array<Metric, kStreams> exposed_comm_ratio;  // by Stream; compute is unused
  Metric recompute_ratio;                           // recompute / step time
  Metric speedup_low, speedup_high;                 // 5th and 95th percentile over full steps
  double seconds = 0;                               // all steps
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
};

// Everything but the comparison with a baseline and memory. Means over full steps; time and tokens over all.
Metrics measure(const MetricInputs& inputs);

// Fills speedup and its spread: baseline seconds per token over this run's, whole runs; the spread is that of
// this policy's full steps against the baseline's mean.
void compare(const Metrics& baseline, std::span<const StepResult> steps, std::span<const char> tail,
             Metrics& metrics);

}  // namespace equipoise
