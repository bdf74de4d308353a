#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "policies/micro_batch_order.h"
#include "policies/oversize.h"
#include "policies/policy.h"

namespace equipoise {

Plan make_plan(const Policy& policy, const PackingProblem& problem) {
  std::vector<Slice> dropped;
  const std::int64_t limit = policy.hard_limit == nullptr ? 0 : policy.hard_limit(problem.options);
  std::optional<std::vector<GlobalBatch>> shortened;
  if (limit > 0) {
    shortened = without_oversize(problem.batches, limit, problem.options.oversize, policy.name, dropped);
  }
  const PackingProblem placeable{shortened ? std::span<const GlobalBatch>(*shortened) : problem.batches,
                                 problem.options, problem.workload};

  const auto begin = std::chrono::steady_clock::now();
  Plan plan = policy.plan(placeable);
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - begin;

  plan.policy = std::string(policy.name);
  plan.sees_whole_set = policy.sees_whole_set;
  plan.dropped.insert(plan.dropped.begin(), dropped.begin(), dropped.end());
  // Per global batch: what a training job would wait for each time.
  const auto batches = static_cast<double>(problem.batches.empty() ? 1 : problem.batches.size());
  for (Step& step : plan.steps) step.pack_ms = spent.count() / batches;
  order_micro_batches(plan, problem.options.order, problem.workload);
  return plan;
}

}  // namespace equipoise
