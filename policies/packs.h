// Packs as flat arrays, and how they become steps. Packers work on positions in one list of lengths and know
// nothing of plans; the nested Plan is built once, at the end, from what they return.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policies/base/random.h"
#include "policies/options.h"
#include "policies/plan.h"
#include "policies/policy.h"
#include "policies/step_shape.h"

namespace equipoise {

// Pack p holds the documents item[begin[p]] .. item[begin[p + 1] - 1], in the order they were put in.
struct Packs {
  std::vector<std::uint32_t> begin{0};
  std::vector<std::uint32_t> item;

  [[nodiscard]] std::size_t size() const { return begin.size() - 1; }
  [[nodiscard]] std::span<const std::uint32_t> of(std::size_t pack) const {
    return std::span(item).subspan(begin[pack], begin[pack + 1] - begin[pack]);
  }
  // Ends the open pack: what was appended to `item` since the last close.
  void close() { begin.push_back(static_cast<std::uint32_t>(item.size())); }
};

// Packs from one decision a document: order[i] went into pack pack_of[i]; packs are 0 .. count - 1. O(n).
Packs gather_packs(std::span<const std::uint32_t> order, std::span<const std::uint32_t> pack_of,
                   std::size_t count);

// All slices of the set, in arrival order, and their lengths: what a policy that sees the whole set packs.
struct SliceList {
  std::vector<Slice> slices;
  std::vector<std::int64_t> lengths;
};
SliceList whole_set(const PackingProblem& problem);

// How the micro-batches of a step made of packs run.
struct PackStep {
  int lanes = 1;
  int context = 1;
  int recompute_layers = kStudyRecompute;
  std::int64_t length = 0;  // pack length: what `pr` counts padding against
};

// One step of the packs `chosen`: the i-th goes to lane i mod lanes.
Step step_of_packs(std::span<const Slice> slices, const Packs& packs, std::span<const std::uint32_t> chosen,
                   const PackStep& shape);

// Steps of consecutive packs, as many as fill the tokens of an iteration; a short last one is a tail.
Plan plan_of_packs(std::span<const Slice> slices, const Packs& packs, const PackOptions& options);

// The same of packs that are mixed first, as training mixes them before it batches: one shuffle of the list,
// drawn from the packer's own stream after its last draw. Packs of decreasing documents stand in order of
// their longest, so iterations of neighbours would be balanced by accident. options.pack_order `created` and
// options.shuffle = false leave them as they were made.
Plan plan_of_mixed_packs(std::span<const Slice> slices, const Packs& packs, const PackOptions& options,
                         SplitMix64& random);

// A policy that packs the whole set into packs of one length and mixes them: pack(lengths, capacity, random)
// with the stream of its draws, null where documents stay in data order.
template <class Pack>
Plan plan_mixed(const PackingProblem& problem, const Pack& pack) {
  const SliceList set = whole_set(problem);
  SplitMix64 random(problem.options.seed);
  const Packs packs =
      pack(set.lengths, pack_length(problem.options), problem.options.shuffle ? &random : nullptr);
  return plan_of_mixed_packs(set.slices, packs, problem.options, random);
}

// One that makes packs for all lanes at once, in order: pack(lengths, capacity, lanes).
template <class Pack>
Plan plan_for_lanes(const PackingProblem& problem, const Pack& pack) {
  const SliceList set = whole_set(problem);
  const std::size_t lanes = empty_step(problem.options).lanes.size();
  return plan_of_packs(set.slices, pack(set.lengths, pack_length(problem.options), lanes), problem.options);
}

// Of the policies that fill such packs: the pack length that a document needs.
Room room_by_pack_length(const PackOptions& options, std::int64_t tokens);

// A step of N bins in the study's lanes: bin j goes to lane j mod lanes.
Step step_of_bins(std::vector<std::vector<Slice>>&& bins, const PackOptions& options);

}  // namespace equipoise
