// The metrics of a plan that need no simulator. docs/explanation/policies.md defines them under the same
// names as the JSON keys. A metric that is undefined for the plan is nullopt.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policies/plan.h"
#include "policies/policy.h"
#include "policies/workload.h"

namespace equipoise {

struct StepMetrics {
  std::int64_t tokens = 0;
  std::int64_t carried_tokens = 0;
  std::optional<double> attention_imbalance;  // max / mean over micro-batches of the sum of len^2
  std::optional<double>
      abr;  // sum_i (A_max - A_i) / (A_max * N) over the devices, A_i = sum of len^2 / degree
  std::optional<double> dbr;    // the same for tokens
  std::optional<double> pr;     // 1 - real / padded tokens; null without padded micro-batches
  std::optional<double> cr;     // share of tokens spread over more than one CP rank
  std::optional<double> ave_t;  // mean tokens per lane
};

StepMetrics step_metrics(const Step& step);

// Means over the full steps of the plan, or over all steps if none is full; delays are means over all
// executed tokens. For a policy that sees the whole set, abr, dbr and cr are over all steps, including the
// last ones of its groups.
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
  std::optional<double> token_delay_held;    // the longest delay of tokens in tail steps; 0: none were held
  std::optional<double> token_delay_steady;  // mean over full steps; empty where a queue never emptied
  std::optional<double> queue_emptied;       // 1 or 0: Plan::queue_emptied
  std::optional<double> tokens_per_step;
  std::optional<double> lost_tokens;  // tokens dropped or truncated
};

// How long the executed tokens of a step have waited, in iterations.
struct StepDelays {
  double sum = 0, tokens = 0;  // sums of whole numbers, exact in any order: delay x tokens, and tokens
  std::int64_t longest = 0;
};

// When slices arrive: batch k at iteration k. Kept are the places where the batch changes, in the order of
// documents, so a set in the trace's order needs one for each batch.
class Arrivals {
 public:
  explicit Arrivals(const Batches& batches);
  // The batch of the slice that contains this one; `near` is looked at first.
  [[nodiscard]] std::int64_t batch_of(const Slice& slice, std::int64_t near) const;
  // Iterations that a slice of step k waited. A token that is executed before its batch arrives (a pack
  // window reads ahead) has delay 0.
  [[nodiscard]] std::int64_t delay(const Slice& slice, std::size_t k) const;
  [[nodiscard]] StepDelays delays(const Step& step, std::size_t k) const;

 private:
  struct Begin {
    std::int64_t document, begin, batch;
  };
  [[nodiscard]] bool holds(std::size_t i, const Slice& slice) const;

  std::vector<Begin> begins_;
};

// What plan_metrics needs of a step of a plan.
struct StepOfPlan {
  StepMetrics metrics;
  StepDelays delays;
  bool tail = false;
};
// Step k of the plan. Without `arrivals`, as for a policy that sees the whole set, it has no delays.
StepOfPlan step_of_plan(const Step& step, std::size_t k, const Arrivals* arrivals);

inline bool is_tail(const Step& step) {
  return step.tail;
}
inline bool is_tail(const StepOfPlan& step) {
  return step.tail;
}
// Whether a step counts in means over all these steps: a tail does only where all steps are tails.
class CountsInMeans {
 public:
  template <class Steps>
  explicit CountsInMeans(const Steps& steps)
      : only_tails_(std::ranges::all_of(steps, [](const auto& step) { return is_tail(step); })) {}
  bool operator()(const auto& step) const { return only_tails_ || !is_tail(step); }

 private:
  bool only_tails_;
};

// The metrics of a plan from all its steps, which the plan itself need not have kept.
PlanMetrics plan_metrics(const Plan& plan, std::span<const StepOfPlan> steps);

// The metrics of a plan with its steps. `batches`: those that the plan was made from. O(n log n). The result
// does not depend on `threads`.
PlanMetrics plan_metrics(const Batches& batches, const Plan& plan, int threads = 1);

// The executed tokens by their delay in iterations; [0] counts those without delay. Empty where the policy
// saw all documents first, so that delay is undefined. `batches`: as above.
std::vector<std::int64_t> tokens_by_delay(const Batches& batches, const Plan& plan);

// max * count / sum of the forward latencies of a step's micro-batches. 1 is perfect balance; null if all are
// 0.
std::optional<double> imbalance_degree(std::span<const double> latencies);

// The mean imbalance over the full steps. `latencies` has one value for each micro-batch of the plan, ordered
// by step and lane.
std::optional<double> imbalance_degree(const Plan& plan, std::span<const double> latencies);

// W of every micro-batch (the sum over its slices) in that order, which serves as latency without a
// simulator.
std::vector<double> micro_batch_workloads(const Plan& plan, const Workload& workload);

}  // namespace equipoise
