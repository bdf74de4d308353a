#include "sim/study/plan_facts.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "policies/base/index.h"
#include "policies/base/rounding.h"
#include "policies/steps.h"
#include "sim/workload/stage_layers.h"

namespace equipoise {

// The most tokens that the row's policy puts into a micro-batch of a lane with so many CP ranks; 0 if it has
// no limit, or none is known.
static std::int64_t limit_of(const MicroBatch& micro_batch, int context, const PolicyRun& run) {
  if (micro_batch.pack_length > 0) return micro_batch.pack_length;
  if (const TokenBudget& budget = run.pack.of<TokenBudget>(); budget.tokens_per_micro_batch > 0)
    return budget.linear_cost > 0 || budget.quadratic_cost > 0 ? 0 : budget.tokens_per_micro_batch;
  // A lane of another CP degree than the layout's has a limit that the policy alone knows.
  return run.policy().derives == Derives::max_tokens && context == run.pack.context ? run.pack.max_tokens : 0;
}

bool fills_documents(const PolicyRun& run, int context) {
  return context > 1 && run.sharding.remainder == Remainder::pad && uses_key(run.rule(), "remainder");
}

void PlanFacts::add(const Step& step, const PolicyRun& run) {
  ++steps;
  for (const Lane& lane : step.lanes) add_lane(lane, run);
  add_idle(step);
  add_unequal(step);
}

void PlanFacts::add_lane(const Lane& lane, const PolicyRun& run) {
  for (const MicroBatch& m : lane.micro_batches) {
    const std::int64_t tokens = m.tokens();
    if (tokens > largest_tokens) {
      largest = m;
      largest_tokens = tokens;
      largest_context = lane.context;
    }
    ++micro_batches;
    rank_tokens += as_double(tokens) / lane.context;
    if (!m.slices.empty()) degrees.insert(lane.context);
    has_chunks = has_chunks || m.chunk.count > 1;
    has_local = has_local || std::ranges::any_of(m.placement, [](int rank) { return rank != kDistributed; });
    pads = pads || m.pad_each_to > 0;
    all_alone = all_alone && m.slices.size() < 2;
    add_recomputed(m);
    add_padded(m, lane.context, run);
  }
}

void PlanFacts::add_padded(const MicroBatch& m, int context, const PolicyRun& run) {
  if (!fills_documents(run, context)) return;
  const std::int64_t most = limit_of(m, context, run);
  if (most == 0) return;
  const std::int64_t multiple = 2 * std::int64_t{context};
  const std::int64_t tokens =
      sum_of(m.slices, [&](const Slice& slice) { return rounded_up(slice.tokens(), multiple); });
  if (tokens <= most) return;
  ++padded_packs.count;
  if (tokens <= padded_packs.longest) return;
  padded_packs.longest = tokens;
  padded_packs.length = most;
  padded_packs.multiple = multiple;
}

void PlanFacts::add_idle(const Step& step) {
  if (step.tail) return;
  std::size_t filled = 0;
  double ranks = 0, without = 0;
  for (const Lane& lane : step.lanes) {
    const auto is_filled = [](const MicroBatch& m) { return !m.slices.empty(); };
    const auto own = std::ranges::count_if(lane.micro_batches, is_filled);
    filled += static_cast<std::size_t>(own);
    ranks += lane.context;
    if (own == 0) without += lane.context;
  }
  ++idle.full;
  if (filled >= step.lanes.size()) return;
  ++idle.steps;
  idle.micro_batches += static_cast<double>(filled);
  idle.lanes += static_cast<double>(step.lanes.size());
  idle.share += without / ranks;
}

void PlanFacts::add_unequal(const Step& step) {
  std::map<int, std::pair<std::int64_t, std::int64_t>> counts;  // fewest and most, by barrier group
  for (const Lane& lane : step.lanes) {
    const auto own = static_cast<std::int64_t>(lane.micro_batches.size());
    const auto [group, fresh] = counts.try_emplace(lane.barrier_group, own, own);
    if (!fresh) group->second = {std::min(group->second.first, own), std::max(group->second.second, own)};
  }
  const auto differ = std::ranges::find_if(
      counts, [](const auto& group) { return group.second.first != group.second.second; });
  if (differ == counts.end()) return;
  ++unequal.steps;
  const auto [fewest, largest_count] = differ->second;
  if (largest_count - fewest <= unequal.most - unequal.least) return;
  unequal.most = largest_count;
  unequal.least = fewest;
}

void PlanFacts::add_recomputed(const MicroBatch& m) {
  if (m.slices.empty()) return;
  const std::vector<std::int16_t>& by_stage = m.recompute_by_stage;
  if (!by_stage.empty())
    recomputed_.insert(std::accumulate(by_stage.begin(), by_stage.end(), 0));
  else if (m.recompute_layers != kStudyRecompute)
    recomputed_.insert(m.recompute_layers);
  else
    as_layout_ = true;
}

std::pair<int, int> PlanFacts::recomputed_layers(const Layout& layout, int layers) const {
  std::set<int> all = recomputed_;
  if (as_layout_ || steps == 0) all.insert(checkpointed_layers(layout, layers));
  if (all.empty()) return {0, 0};
  return {std::min(layers, *all.begin()), *all.rbegin()};
}

}  // namespace equipoise
