#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "policies/micro_batch_order.h"
#include "policies/oversize.h"
#include "policies/policy.h"
#include "policies/step_shape.h"
#include "policies/validator.h"

namespace equipoise {
namespace {

#ifdef NDEBUG
constexpr bool kAlwaysVerify = false;
#else
constexpr bool kAlwaysVerify = true;
#endif

void verify(const Policy& policy, const PackingProblem& problem, const Plan& plan, std::int64_t limit) {
  PlanLimits limits;
  limits.micro_batch_tokens = limit;
  limits.rank_tokens = problem.options.rollback ? problem.options.bucket_size : 0;
  limits.gpus = grid_gpus(problem.options);
  const std::optional<std::string> violation = plan_violation(problem.batches, plan, limits);
  if (violation) {
    throw std::logic_error("policy " + std::string(policy.name) +
                           " made a plan that is not legal: " + *violation);
  }
}

}  // namespace

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
  // A share for each step: the mean per global batch is their sum over the batches, however many steps there
  // are.
  for (Step& step : plan.steps) step.pack_ms = spent.count() / static_cast<double>(plan.steps.size());
  order_micro_batches(plan, problem.options.order, problem.workload);
  if (kAlwaysVerify || problem.options.verify) verify(policy, placeable, plan, limit);
  return plan;
}

}  // namespace equipoise
