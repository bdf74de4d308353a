// The metrics of a plan that need no simulator. Definitions: "Metrics" in policies/README.md; names are the
// JSON keys. A metric that makes no sense for the plan is nullopt.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policies/plan.h"
#include "policies/policy.h"
#include "policies/workload.h"

namespace equipoise {

// What one step of a plan does.
struct StepMetrics {
  std::int64_t tokens = 0;
  std::int64_t carried_tokens = 0;
  std::optional<double> attention_imbalance;  // max / mean over micro-batches of the sum of len^2
  std::optional<double> abr;    // sum_i (A_max - A_i) / (A_max * N) over the devices, A_i = sum of len^2 / degree
  std::optional<double> dbr;    // the same of tokens
  std::optional<double> pr;     // 1 - real / padded tokens; null without padded micro-batches
  std::optional<double> cr;     // share of tokens spread over more than one CP rank
  std::optional<double> ave_t;  // mean tokens per lane
};

StepMetrics step_metrics(const Step& step);

// Means over the full steps of the plan (all of them if it has none), delays over all executed tokens; abr, dbr and cr of a
// policy that sees the whole set over all steps, the last ones of its groups too.
struct PlanMetrics {
  std::optional<double> attention_imbalance;
  std::optional<double> abr;
  std::optional<double> dbr;
  std::optional<double> pr;
  std::optional<double> cr;
  std::optional<double> ave_t;
  std::optional<double> carried_tokens;
  std::optional<double> token_delay_mean;
  std::optional<double> token_delay_max;
  std::optional<double> token_delay_held;    // longest of what ran in tail steps; 0: nothing was held
  std::optional<double> token_delay_steady;  // mean of full steps; none where a queue never emptied
  std::optional<double> queue_emptied;       // 1 or 0: Plan::queue_emptied
  std::optional<double> tokens_per_step;
  std::optional<double> lost_tokens;  // dropped or truncated
};

// `batches` are those the plan was made from: batch k arrives at iteration k. A token executed before its
// batch would have arrived (a pack window reads ahead) has delay 0. O(n log n). The result does not depend on
// `threads`.
PlanMetrics plan_metrics(std::span<const GlobalBatch> batches, const Plan& plan, int threads = 1);

// Executed tokens by their delay in iterations, [0] those without any; empty where the policy saw all
// documents first, so that delay makes no sense. `batches` as above.
std::vector<std::int64_t> tokens_by_delay(std::span<const GlobalBatch> batches, const Plan& plan);

// max * count / sum of the forward latencies of a step's micro-batches; 1 = perfect, null if all are 0.
std::optional<double> imbalance_degree(std::span<const double> latencies);

// Mean of it over the full steps; `latencies` holds one value for each micro-batch of the plan, step by step,
// lane by lane.
std::optional<double> imbalance_degree(const Plan& plan, std::span<const double> latencies);

// W of every micro-batch (sum over its slices), in that order: the latency to use without a simulator.
std::vector<double> micro_batch_workloads(const Plan& plan, const Workload& workload);

}  // namespace equipoise
