// The steps that all policies share: documents above a policy's limit, the order of micro-batches, the clock
// and the validator.
#include "policies/make_plan.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "policies/least_loaded.h"
#include "policies/loader.h"
#include "policies/steps.h"
#include "policies/validator.h"

namespace equipoise {
namespace {

void verify(const Policy& policy, const PackingProblem& problem, const Plan& plan, std::int64_t limit) {
  PlanLimits limits;
  limits.micro_batch_tokens = limit;
  limits.context = policy.packs_for_time ? problem.options.context : 0;
  const bool by_bucket = policy.derives == Derives::bucket_size && problem.options.rollback;
  limits.rank_tokens = by_bucket ? problem.options.bucket_size : 0;
  limits.gpus = grid_gpus(problem.options);
  const std::optional<std::string> violation = plan_violation(problem.batches, plan, limits);
  if (violation) {
    throw std::logic_error("policy " + std::string(policy.name) +
                           " made a plan that is not legal: " + *violation);
  }
}

double workload_of(const MicroBatch& micro_batch, const Workload& workload) {
  return sum_of(work_of(micro_batch.slices, workload));
}

std::vector<std::uint32_t> bell(const std::vector<std::uint32_t>& descending) {
  std::vector<std::uint32_t> order;
  order.reserve(descending.size());
  const std::size_t even = (descending.size() + 1) / 2;
  for (std::size_t i = even; i-- > 0;) order.push_back(descending[2 * i]);
  for (std::size_t i = 1; i < descending.size(); i += 2) order.push_back(descending[i]);
  return order;
}

void order_lane(Lane& lane, Order order, const Workload& workload) {
  std::vector<std::size_t> places;  // places of the micro-batches that may move
  std::vector<double> work;
  for (std::size_t i = 0; i < lane.micro_batches.size(); ++i) {
    if (lane.micro_batches[i].chunk.count > 1) continue;
    places.push_back(i);
    work.push_back(workload_of(lane.micro_batches[i], workload));
  }
  std::vector<std::uint32_t> ranks = heaviest_first(work);
  if (order == Order::bell) ranks = bell(ranks);
  std::vector<MicroBatch> moved;
  moved.reserve(ranks.size());
  for (const std::uint32_t r : ranks) moved.push_back(std::move(lane.micro_batches[places[r]]));
  for (std::size_t i = 0; i < places.size(); ++i) lane.micro_batches[places[i]] = std::move(moved[i]);
}

}  // namespace

Plan make_plan(const Policy& policy, const PackingProblem& problem) {
  if (problem.options.documents_per_step > 0 && problem.options.global_tokens == 0) {
    PackOptions options = problem.options;
    options.global_tokens = std::max<std::int64_t>(1, mean_global_tokens(problem.batches, options));
    return make_plan(policy, {problem.batches, options, problem.workload, problem.sink});
  }
  std::vector<Slice> dropped;
  const std::int64_t limit = policy.hard_limit == nullptr ? 0 : policy.hard_limit(problem.options);
  std::optional<Batches> shortened;
  if (limit > 0)
    shortened = without_oversize(problem.batches, limit, problem.options.oversize, policy.name, dropped);
  const PackingProblem placeable{shortened ? *shortened : problem.batches, problem.options, problem.workload};

  const bool verifies = is_verified(problem.options);
  using Clock = std::chrono::steady_clock;
  auto begin = Clock::now();
  Clock::duration loading{};  // which is not the policy's time
  const Batches timed(placeable.batches.size(), [&](std::size_t k) {
    const auto from = Clock::now();
    GlobalBatch batch = placeable.batches[k];
    loading += Clock::now() - from;
    return batch;
  });
  // Every step gets an equal share of the time since the last were taken, so that the mean per global batch
  // is the sum over steps divided by the number of batches.
  const auto finish = [&](std::vector<Step>& steps) {
    const std::chrono::duration<double, std::milli> spent = Clock::now() - begin - loading;
    for (Step& step : steps) step.pack_ms = spent.count() / static_cast<double>(steps.size());
    order_micro_batches(steps, problem.options.order, problem.workload);
  };
  const auto pass_on = [&](std::vector<Step>& steps) {
    finish(steps);
    problem.sink->take(steps);
    begin = Clock::now();
    loading = {};
  };
  const bool streams = problem.sink != nullptr && policy.streams && !verifies;
  const StepSink sink{streams ? problem.sink->block : 0, pass_on};
  Plan plan = policy.plan({timed, placeable.options, placeable.workload, streams ? &sink : nullptr});
  finish(plan.steps);

  if (limit > 0 && !shortened && problem.options.oversize != Oversize::error &&
      cut_by_windows(problem.batches))
    plan.notes.push_back({"oversize_after_cut",
                          "",
                          {{"oversize", kOversizeNames[static_cast<std::size_t>(problem.options.oversize)]},
                           {"limit", limit}}});
  plan.policy = std::string(policy.name);
  plan.sees_whole_set = policy.sees_whole_set;
  plan.dropped.insert(plan.dropped.begin(), dropped.begin(), dropped.end());
  if (verifies) verify(policy, placeable, plan, limit);
  if (problem.sink != nullptr) {
    problem.sink->take(plan.steps);
    plan.steps.clear();
  }
  return plan;
}

void order_micro_batches(std::span<Step> steps, Order order, const Workload& workload) {
  if (order == Order::as_packed) return;
  for (Step& step : steps)
    for (Lane& lane : step.lanes) order_lane(lane, order, workload);
}

}  // namespace equipoise
