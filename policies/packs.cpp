#include "policies/packs.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "policies/step_shape.h"

namespace equipoise {

Packs gather_packs(std::span<const std::uint32_t> order, std::span<const std::uint32_t> pack_of,
                   std::size_t count) {
  Packs packs;
  packs.begin.assign(count + 1, 0);
  for (const std::uint32_t pack : pack_of) ++packs.begin[pack + 1];
  std::partial_sum(packs.begin.begin(), packs.begin.end(), packs.begin.begin());
  packs.item.resize(order.size());
  std::vector<std::uint32_t> next(packs.begin.begin(), packs.begin.end() - 1);
  for (std::size_t i = 0; i < order.size(); ++i) packs.item[next[pack_of[i]]++] = order[i];
  return packs;
}

SliceList whole_set(const PackingProblem& problem) {
  std::size_t count = 0;
  for (const GlobalBatch& batch : problem.batches) count += batch.slices.size();
  SliceList set;
  set.slices.reserve(count);
  set.lengths.reserve(count);
  for (const GlobalBatch& batch : problem.batches) {
    set.slices.insert(set.slices.end(), batch.slices.begin(), batch.slices.end());
  }
  for (const Slice& slice : set.slices) set.lengths.push_back(slice.tokens());
  return set;
}

Step step_of_packs(std::span<const Slice> slices, const Packs& packs, std::span<const std::uint32_t> chosen,
                   const PackStep& shape) {
  const auto lanes = static_cast<std::size_t>(shape.lanes);
  Step step;
  step.lanes.resize(lanes);
  for (Lane& lane : step.lanes) {
    lane.context = shape.context;
    lane.micro_batches.reserve((chosen.size() + lanes - 1) / lanes);
  }
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const std::span<const std::uint32_t> items = packs.of(chosen[i]);
    if (i + 2 < chosen.size())  // slices lie anywhere in memory: fetched early enough, nobody waits for them
      for (const std::uint32_t item : packs.of(chosen[i + 2])) __builtin_prefetch(&slices[item]);
    MicroBatch& micro_batch = step.lanes[i % lanes].micro_batches.emplace_back();
    micro_batch.recompute_layers = shape.recompute_layers;
    micro_batch.pack_length = shape.length;
    micro_batch.slices.reserve(items.size());
    for (const std::uint32_t item : items) micro_batch.slices.push_back(slices[item]);
  }
  return step;
}

namespace {

std::vector<std::uint32_t> in_creation_order(const Packs& packs) {
  std::vector<std::uint32_t> ids(packs.size());
  std::iota(ids.begin(), ids.end(), 0U);
  return ids;
}

Plan plan_of_list(std::span<const Slice> slices, const Packs& packs, std::span<const std::uint32_t> ids,
                  const PackOptions& options) {
  const std::int64_t length = pack_length(options);
  const PackStep shape{static_cast<int>(empty_step(options).lanes.size()), options.context, kStudyRecompute,
                       length};
  const auto per_step = static_cast<std::size_t>(packs_of_iteration(options, length));
  Plan plan;
  plan.steps.reserve(packs.size() / per_step + 1);
  for (std::size_t first = 0; first < ids.size(); first += per_step) {
    const std::size_t count = std::min(per_step, ids.size() - first);
    plan.steps.push_back(step_of_packs(slices, packs, ids.subspan(first, count), shape));
    plan.steps.back().tail = count < per_step;
  }
  return plan;
}

}  // namespace

Plan plan_of_packs(std::span<const Slice> slices, const Packs& packs, const PackOptions& options) {
  return plan_of_list(slices, packs, in_creation_order(packs), options);
}

Plan plan_of_mixed_packs(std::span<const Slice> slices, const Packs& packs, const PackOptions& options,
                         SplitMix64& random) {
  std::vector<std::uint32_t> ids = in_creation_order(packs);
  if (options.shuffle && options.of<PackLengthOptions>().pack_order == PackOrder::shuffled)
    shuffle(ids, random);
  return plan_of_list(slices, packs, ids, options);
}

Room room_by_pack_length(const PackOptions& options, std::int64_t tokens) {
  return room_by<&PackLengthOptions::pack_length>("pack_length", tokens, options);
}

Step step_of_bins(std::vector<std::vector<Slice>>&& bins, const PackOptions& options) {
  Step step = empty_step(options);
  const std::size_t lanes = step.lanes.size();
  for (std::size_t b = 0; b < bins.size(); ++b) {
    step.lanes[b % lanes].micro_batches.emplace_back().slices = std::move(bins[b]);
  }
  return step;
}

}  // namespace equipoise
