// The sharding rules, and how they write their segments; registry.cpp gives them their names.
//
// A rule is a function that visits the slices and emits (rank, run, segment). It is called twice, once to
// count and once to write each segment to its place, so that a Sharding that is reused for the next
// micro-batch allocates nothing. A rank's segments are ordered by run, then by emission. Run 0 is for slices
// that were placed on this one rank: they need no keys from other ranks, so they are computed while the keys
// of others are sent (Skrull). The zig-zag rules use one run for the rank's early chunk and one for its late
// chunk. Cost: two passes, O(segments + ranks).
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

#include "policies/base/index.h"
#include "policies/sharding/sharding.h"

namespace equipoise {

void shard_per_sequence(const MicroBatch&, int ranks, const ShardOptions&, const AttentionCost&,
                        Sharding& out);
void shard_per_document(const MicroBatch&, int ranks, const ShardOptions&, const AttentionCost&,
                        Sharding& out);
void shard_contiguous(const MicroBatch&, int ranks, const ShardOptions&, const AttentionCost&, Sharding& out);
void shard_striped(const MicroBatch&, int ranks, const ShardOptions&, const AttentionCost&, Sharding& out);
void shard_adaptive(const MicroBatch&, int ranks, const ShardOptions&, const AttentionCost&, Sharding& out);
void shard_dacp(const MicroBatch&, int ranks, const ShardOptions&, const AttentionCost&, Sharding& out);
void shard_heap_dispatch(const MicroBatch&, int ranks, const ShardOptions&, const AttentionCost&,
                         Sharding& out);
void shard_snake(const MicroBatch&, int ranks, const ShardOptions&, const AttentionCost&, Sharding& out);
void shard_block_placement(const MicroBatch&, int ranks, const ShardOptions&, const AttentionCost&,
                           Sharding& out);

namespace sharding {

// A micro-batch as the rules see it, whose slices have their computed lengths.
class View {
 public:
  View(const MicroBatch& micro_batch, int ranks) : View(micro_batch, ranks, micro_batch.placement) {}
  View(const MicroBatch& micro_batch, int ranks, std::span<const int> placement)
      : micro_batch_(micro_batch), placement_(placement), ranks_(ranks) {
    assert(ranks >= 1);
    assert(placement.empty() || placement.size() == micro_batch.slices.size());
  }
  [[nodiscard]] std::size_t size() const { return micro_batch_.slices.size(); }
  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] const Slice& slice(std::size_t i) const { return micro_batch_.slices[i]; }
  [[nodiscard]] bool in_rows() const { return micro_batch_.pad_each_to > 0; }
  // The tokens computed for slice i: its own, or more in a padded batch.
  [[nodiscard]] std::int64_t tokens(std::size_t i) const {
    return std::max(slice(i).tokens(), micro_batch_.pad_each_to);
  }
  [[nodiscard]] int rank_of(std::size_t i) const { return placement_.empty() ? kDistributed : placement_[i]; }
  [[nodiscard]] bool distributed(std::size_t i) const { return rank_of(i) == kDistributed; }
  // The tokens of all slices that are distributed over the group.
  [[nodiscard]] std::int64_t distributed_tokens() const {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < size(); ++i) sum += distributed(i) ? tokens(i) : 0;
    return sum;
  }
  // The segment of queries [first, last) of slice i, counted from its own begin.
  [[nodiscard]] Segment segment(std::size_t i, std::int64_t first, std::int64_t last) const {
    const Slice& s = slice(i);
    return {static_cast<std::int32_t>(i), s.begin + first, s.begin + last, kv_begin(i)};
  }
  // The first key that queries of slice i see.
  [[nodiscard]] std::int64_t kv_begin(std::size_t i) const {
    return micro_batch_.chunk.count > 1 ? micro_batch_.chunk.group_begin : slice(i).begin;
  }
  [[nodiscard]] std::int64_t batch_padding() const {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < size(); ++i) sum += tokens(i) - slice(i).tokens();
    return sum;
  }

 private:
  const MicroBatch& micro_batch_;
  std::span<const int> placement_;  // empty: all distributed
  int ranks_;
};

inline constexpr int kLocalRun = 0;

// Resets `out` to no tokens on any rank, no decisions, and only the batch's own padding.
inline void begin_result(const View& view, Sharding& out) {
  const auto ranks = static_cast<std::size_t>(view.ranks());
  out.rank_tokens.assign(ranks, 0);
  out.rank_local_tokens.assign(ranks, 0);
  out.padding_tokens = view.batch_padding();
  out.placement.clear();
  out.fits = true;
  out.pieces = {false, view.in_rows()};
}

// Fills `out` from rule(emit), where emit(rank, run, segment) skips empty segments and 1 <= run < runs.
// Placed slices are emitted here, whole, in run 0; the rule emits only the distributed ones.
template <class Rule>
void lay_out(const View& view, int runs, Sharding& out, const Rule& rule) {
  const auto ranks = static_cast<std::size_t>(view.ranks());
  const std::size_t buckets = ranks * static_cast<std::size_t>(runs);
  const auto bucket = [runs](int rank, int run) {
    return static_cast<std::size_t>(rank) * static_cast<std::size_t>(runs) + static_cast<std::size_t>(run);
  };
  const auto emit_all = [&](const auto& emit) {
    for (std::size_t i = 0; i < view.size(); ++i)
      if (!view.distributed(i)) emit(view.rank_of(i), kLocalRun, view.segment(i, 0, view.tokens(i)));
    rule(emit);
  };

  out.cursor.assign(buckets + 1, 0);
  begin_result(view, out);
  emit_all([&](int rank, int run, const Segment& s) {
    if (s.q_begin == s.q_end) return;
    assert(rank >= 0 && rank < view.ranks() && run < runs);
    ++out.cursor[bucket(rank, run) + 1];
    out.rank_tokens[at(rank)] += s.queries();
    if (run == kLocalRun) out.rank_local_tokens[at(rank)] += s.queries();
  });
  for (std::size_t b = 0; b < buckets; ++b) out.cursor[b + 1] += out.cursor[b];
  out.rank_begin.resize(ranks + 1);
  for (std::size_t r = 0; r <= ranks; ++r) out.rank_begin[r] = out.cursor[r * static_cast<std::size_t>(runs)];
  out.segments.resize(out.cursor[buckets]);
  emit_all([&](int rank, int run, const Segment& s) {
    if (s.q_begin != s.q_end) out.segments[out.cursor[bucket(rank, run)]++] = s;
  });
}

// The per-document rule over a view, for rules that decide placements first.
void per_document(const View& view, Remainder remainder, Sharding& out);

}  // namespace sharding

}  // namespace equipoise
