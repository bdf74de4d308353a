// Context-parallel sharding assigns the queries of a micro-batch to CP ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policies/options.h"
#include "policies/parameter.h"
#include "policies/plan.h"
#include "policies/workload.h"

namespace equipoise {

// The part of a slice that one CP rank computes in one attention call: queries [q_begin, q_end) of the
// document, which see the keys [kv_begin, query]. kv_begin is the slice's own begin, or chunk.group_begin
// where chunk.count > 1.
struct Segment {
  std::int32_t slice = 0;    // position in the micro-batch
  std::int64_t q_begin = 0;  // in document coordinates
  std::int64_t q_end = 0;
  std::int64_t kv_begin = 0;

  [[nodiscard]] constexpr std::int64_t queries() const { return q_end - q_begin; }
  [[nodiscard]] constexpr std::int64_t keys() const { return q_end - kv_begin; }
  // The causal pairs of q queries with p visible positions before them: q*p + q*(q+1)/2.
  [[nodiscard]] constexpr std::int64_t pairs() const {
    const std::int64_t q = queries();
    return q * (q_begin - kv_begin) + q * (q + 1) / 2;
  }
  friend bool operator==(const Segment&, const Segment&) = default;
};

// Work space of per-document for one slice: the tokens of a slot, how many slots hold one more and the first
// of these (cyclic), the begin of its next early slot and the end of its next late one.
struct SliceCut {
  std::int64_t base = 0, extra = 0, first = 0, early = 0, late = 0;
};

// How the segments of a rank make the pieces of a kernel call.
struct PieceForm {
  bool strided = false;  // single tokens of a document are one piece (striped)
  bool rows = false;     // slices are rows of a padded batch: no two share a sequence, whatever mask is taken
};

// The sharding of one micro-batch over c ranks. Rank r owns segments[rank_begin[r] .. rank_begin[r + 1]). The
// arrays are flat, so that a caller can reuse one Sharding for many micro-batches without allocating.
struct Sharding {
  std::vector<Segment> segments;
  std::vector<std::uint32_t> rank_begin;        // c + 1
  std::vector<std::int64_t> rank_tokens;        // c, padding included (it is computed)
  std::vector<std::int64_t> rank_local_tokens;  // c, tokens of slices placed on this one rank (Skrull)
  std::int64_t padding_tokens = 0;              // computed tokens that belong to no document
  std::string_view chosen;     // the rule that made it; for adaptive per-sequence or per-document
  std::vector<int> placement;  // dacp: its placement of each slice; empty for other rules
  bool fits = true;            // dacp with a bucket size: whether no rank holds more than its bucket
  PieceForm pieces;

  // Work space of the rules, which the next micro-batch reuses. Readers ignore it.
  std::vector<std::uint32_t> cursor;
  std::vector<std::int64_t> work;
  std::vector<SliceCut> cuts;
  std::vector<Sharding> alternative;  // adaptive: the rule that lost

  [[nodiscard]] int ranks() const { return static_cast<int>(rank_tokens.size()); }
  [[nodiscard]] std::span<const Segment> of_rank(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return std::span(segments).subspan(rank_begin[r], rank_begin[r + 1] - rank_begin[r]);
  }
  // Exchanges segments and work space, but neither the members per rank nor `placement`. A caller that has
  // finished with one micro-batch's segments uses it to write the next one's into the same warm memory.
  void swap_buffers(Sharding& other) {
    segments.swap(other.segments);
    rank_begin.swap(other.rank_begin);
    cursor.swap(other.cursor);
    work.swap(other.work);
    cuts.swap(other.cuts);
    alternative.swap(other.alternative);
  }
  // Compares results and ignores work space.
  friend bool operator==(const Sharding& a, const Sharding& b) {
    return a.segments == b.segments && a.rank_begin == b.rank_begin && a.rank_tokens == b.rank_tokens &&
           a.rank_local_tokens == b.rank_local_tokens && a.padding_tokens == b.padding_tokens &&
           a.chosen == b.chosen && a.placement == b.placement && a.fits == b.fits &&
           a.pieces.strided == b.pieces.strided;
  }
};

// Writes the segments and rank_begin of a group in which `each` neighbouring ranks of `from` are one: sorted
// by slice and place, and adjacent ones joined that see keys from the same one on, since a kernel is called
// once for adjacent queries of a slice. O(segments + ranks * slices) where all ranks have their pieces of a
// slice in one order, as under the zig-zags and striped; else O(segments * log(segments) + ranks * slices).
void join_ranks(const Sharding& from, int each, Sharding& out);
// Joins the adjacent segments of each rank.
void join_touching(Sharding& sharding);

// The predicted attention seconds of one rank's segments. The cost model implements it, or tile-padded pairs
// where there is none. It is called once per rank, never per token.
class AttentionCost {
 public:
  AttentionCost() = default;
  AttentionCost(const AttentionCost&) = default;
  AttentionCost& operator=(const AttentionCost&) = default;
  virtual ~AttentionCost() = default;
  [[nodiscard]] virtual double seconds(std::span<const Segment> segments) const = 0;
};

// Prices a segment without a profile (WLB-LLM 5.3), in query-key pairs under the causal mask, with the
// queries rounded up to the kernel's tile: Q padded queries after p visible keys have Q p + Q (Q + 1) / 2
// pairs. Since kernels compute whole tiles, many short segments cost more than one long one with equal pairs.
// Segments are priced separately and never merged.
class TileAttentionCost final : public AttentionCost {
 public:
  explicit TileAttentionCost(std::int64_t tile = 128) : tile_(tile) {}
  [[nodiscard]] double seconds(std::span<const Segment> segments) const override;

 private:
  std::int64_t tile_;
};

// A sharding rule: fills `out` for the micro-batch on `ranks` CP ranks. Slices with a placement stay whole
// on their rank; the rule shards the others. Throws UserError where the rule cannot shard the micro-batch.
using ShardFn = void (*)(const MicroBatch& micro_batch, int ranks, const ShardOptions& options,
                         const AttentionCost& cost, Sharding& out);

// How the choice between per-sequence and per-document is made: not at all, by the rule's predicted costs, or
// by simulation of every micro-batch (optimal) or of the whole plan (static_best). Without a simulator, the
// latter two decide like `adaptive`.
enum class ShardChoice { fixed, adaptive, optimal, static_best };

struct ShardPolicy {
  std::string_view name;
  std::string_view paper;
  std::string_view summary;
  ShardFn shard = nullptr;
  std::span<const ShardParameter> parameters = {};  // keys of the rule in a study's entry
  ShardChoice choice = ShardChoice::fixed;
  // Whether documents are placed by cost under a bucket (Skrull). A study that gives no bucket derives it.
  bool places_documents = false;
  bool deals_tokens =
      false;  // whether a segment is one token; else it is a chunk of a document or a block of queries
};

std::span<const ShardPolicy> sharding_policies();
const ShardPolicy& sharding_policy(std::string_view name);  // throws UserError with the nearest name

// The pieces with which an attention kernel is called for a rank's segments: queries and keys under a
// bottom-right causal mask.
//
// A segment is one piece, except under striped sharding (PieceForm). There a rank has every c-th
// token of a document (or several in c, where ranks divide heads). Those queries are adjacent in the rank's
// memory, so the kernel takes them as one block with a strided mask. Equal runs of a slice at an even
// distance then make one piece, whose number of keys keeps the queries and causal pairs, up to half a key.
//
// Calls add(queries, keys) for every piece, in order. O(segments).
template <class Add>
void for_each_kernel_piece(std::span<const Segment> segments, bool strided, const Add& add) {
  if (!strided) {
    for (const Segment& segment : segments) add(segment.queries(), segment.keys());
    return;
  }
  for (std::size_t i = 0; i < segments.size();) {
    const Segment& first = segments[i];
    const std::int64_t run = first.queries();
    std::size_t end = i + 1;
    const std::int64_t distance = end < segments.size() ? segments[end].q_begin - first.q_begin : 0;
    while (distance > run && end < segments.size() && segments[end].slice == first.slice &&
           segments[end].queries() == run && segments[end].q_begin - segments[end - 1].q_begin == distance)
      ++end;
    // The number of seen keys rises from the first run to the last, and a block that ends at K keys sees K -
    // (queries - 1) / 2 on average.
    const std::int64_t queries = static_cast<std::int64_t>(end - i) * run;
    add(queries, (first.keys() + segments[end - 1].keys() - run + queries) / 2);
    i = end;
  }
}

}  // namespace equipoise
