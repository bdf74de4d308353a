// Context-parallel sharding: which queries of a micro-batch sit on which CP rank.
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

// One attention call's share of a slice on one CP rank: queries [q_begin, q_end) of the document, which see
// the keys [kv_begin, query]. kv_begin is the slice's own begin, or chunk.group_begin where chunk.count > 1.
struct Segment {
  std::int32_t slice = 0;    // position in the micro-batch
  std::int64_t q_begin = 0;  // in document coordinates
  std::int64_t q_end = 0;
  std::int64_t kv_begin = 0;

  [[nodiscard]] constexpr std::int64_t queries() const { return q_end - q_begin; }
  [[nodiscard]] constexpr std::int64_t keys() const { return q_end - kv_begin; }
  // Causal pairs of q queries with p visible positions before them: q*p + q*(q+1)/2.
  [[nodiscard]] constexpr std::int64_t pairs() const {
    const std::int64_t q = queries();
    return q * (q_begin - kv_begin) + q * (q + 1) / 2;
  }
  friend bool operator==(const Segment&, const Segment&) = default;
};

// Work space of per-document: a slice on its way. Tokens of a slot, how many slots hold one more and which is
// the first of those, cyclic; where its next early slot begins and its next late one ends.
struct SliceCut {
  std::int64_t base = 0, extra = 0, first = 0, early = 0, late = 0;
};

// The sharding of one micro-batch over c ranks. Flat, so that a caller can reuse one for many micro-batches
// without allocating: rank r owns segments[rank_begin[r] .. rank_begin[r + 1]).
struct Sharding {
  std::vector<Segment> segments;
  std::vector<std::uint32_t> rank_begin;        // c + 1
  std::vector<std::int64_t> rank_tokens;        // c, padding included (it is computed)
  std::vector<std::int64_t> rank_local_tokens;  // c, tokens of slices placed on this one rank (Skrull)
  std::int64_t padding_tokens = 0;              // computed tokens that are nobody's
  std::string_view chosen;     // the rule that made it: per-sequence or per-document for adaptive
  std::vector<int> placement;  // dacp: what it decided, per slice; empty for every other rule
  bool fits = true;            // dacp with a bucket size: no rank holds more than its bucket
  bool strided = false;        // a rank's single tokens of a document form one kernel call (striped)

  // Work space of the rules, kept from one micro-batch to the next; of no meaning to a reader.
  std::vector<std::uint32_t> cursor;
  std::vector<std::int64_t> work;
  std::vector<SliceCut> cuts;
  std::vector<Sharding> alternative;  // adaptive: the rule that lost

  [[nodiscard]] int ranks() const { return static_cast<int>(rank_tokens.size()); }
  [[nodiscard]] std::span<const Segment> of_rank(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return std::span(segments).subspan(rank_begin[r], rank_begin[r + 1] - rank_begin[r]);
  }
  // Exchanges segments and work space, but neither what it says by rank nor `placement`: for who is done with
  // the segments of one micro-batch, so that the next one's are written to the same warm memory.
  void swap_buffers(Sharding& other) {
    segments.swap(other.segments);
    rank_begin.swap(other.rank_begin);
    cursor.swap(other.cursor);
    work.swap(other.work);
    cuts.swap(other.cuts);
    alternative.swap(other.alternative);
  }
  // The same result, whatever the work space holds.
  friend bool operator==(const Sharding& a, const Sharding& b) {
    return a.segments == b.segments && a.rank_begin == b.rank_begin && a.rank_tokens == b.rank_tokens &&
           a.rank_local_tokens == b.rank_local_tokens && a.padding_tokens == b.padding_tokens &&
           a.chosen == b.chosen && a.placement == b.placement && a.fits == b.fits && a.strided == b.strided;
  }
};

// Makes one segment of those of a rank that touch, by slice and place: a kernel is called once for queries of
// a slice that lie side by side. O(n log n).
void join_touching(Sharding& sharding);

// Predicted attention seconds of one rank's segments; implemented by the cost model (or tile-padded pairs
// when there is none). Called once per rank, never per token.
class AttentionCost {
 public:
  AttentionCost() = default;
  AttentionCost(const AttentionCost&) = default;
  AttentionCost& operator=(const AttentionCost&) = default;
  virtual ~AttentionCost() = default;
  [[nodiscard]] virtual double seconds(std::span<const Segment> segments) const = 0;
};

// Prices a segment without any profile (WLB-LLM 5.3), in units of query-key pairs: its queries rounded up to
// the kernel's tile, under their causal mask. Q padded queries behind p visible keys have Q p + Q (Q + 1) / 2
// pairs. A kernel computes whole tiles, so this is what makes many short segments dearer than one long one of
// the same pairs. Each segment counts for itself; none are merged.
class TileAttentionCost final : public AttentionCost {
 public:
  explicit TileAttentionCost(std::int64_t tile = 128) : tile_(tile) {}
  [[nodiscard]] double seconds(std::span<const Segment> segments) const override;

 private:
  std::int64_t tile_;
};

// A sharding rule: fills `out` for the micro-batch on `ranks` CP ranks. Slices with a placement stay whole on
// their rank; the rule shards the others. Throws UserError where the micro-batch does not fit the rule.
using ShardFn = void (*)(const MicroBatch& micro_batch, int ranks, const ShardOptions& options,
                         const AttentionCost& cost, Sharding& out);

// Who decides between per-sequence and per-document: nobody, the rule by predicted costs, or simulated runs,
// of every micro-batch (optimal) or of the whole plan (static_best). Where it takes a simulator, the rule's
// own function decides like `adaptive`.
enum class ShardChoice { fixed, adaptive, optimal, static_best };

struct ShardPolicy {
  std::string_view name;
  std::string_view paper;
  std::string_view summary;
  ShardFn shard = nullptr;
  std::span<const ShardParameter> parameters = {};  // what a study's entry may say to it
  ShardChoice choice = ShardChoice::fixed;
  // Skrull's: documents are placed by their cost under a bucket, which a study derives where it is silent.
  bool places_documents = false;
  bool deals_tokens = false;  // a segment a token; else a few a document and rank, or a block of queries
};

std::span<const ShardPolicy> sharding_policies();
const ShardPolicy& sharding_policy(std::string_view name);  // throws UserError with the nearest name

// What an attention kernel is called with for a rank's segments: queries and keys, bottom-right causal.
//
// A segment is one piece. Only striped sharding (Sharding::strided) gives a rank every c-th token of a
// document (ranks that share out heads: several in c): those queries lie next to each other in the rank's
// memory and go through the kernel as one block with a strided mask, not as one tile each. There equal runs
// of a slice at an even distance are one piece; its keys are such that queries and causal pairs stay what
// they are, up to a half key.
//
// add(queries, keys) for every piece, in order. O(segments).
template <class Add>
void for_each_kernel_piece(std::span<const Segment> segments, bool strided, const Add& add) {
  for (std::size_t i = 0; i < segments.size();) {
    const Segment& first = segments[i];
    const std::int64_t run = first.queries();
    std::size_t end = i + 1;
    const std::int64_t distance =
        strided && end < segments.size() ? segments[end].q_begin - first.q_begin : 0;
    while (distance > run && end < segments.size() && segments[end].slice == first.slice &&
           segments[end].queries() == run && segments[end].q_begin - segments[end - 1].q_begin == distance)
      ++end;
    // Keys seen go from those of the first run to those of the last; a block that ends at K keys sees
    // K - (queries - 1) / 2 on average.
    const std::int64_t queries = static_cast<std::int64_t>(end - i) * run;
    add(queries, (first.keys() + segments[end - 1].keys() - run + queries) / 2);
    i = end;
  }
}

}  // namespace equipoise
