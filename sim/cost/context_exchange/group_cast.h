// Group-cast: which tokens a rank receives, and the exchanges of a micro-batch that follow.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "policies/plan.h"
#include "policies/sharding/sharding.h"
#include "sim/topology/rank_grid.h"
#include "sim/workload/layout.h"

namespace equipoise {

// Tokens whose K and V a group-cast sends in one layer; each goes to every rank that needs its block.
struct CastTokens {
  int stages = 0;      // number of exchanges, one after the other
  int node_ranks = 0;  // ranks of a node, which receives through one of them; 0: each receives for itself
  // By stage, tokens sent or received by the rank with the most. Earlier chunks are in the first stage.
  std::array<std::int64_t, kMostCastStages> most{};  // with node_ranks: between nodes
  // Tokens sent inside a node: the rank's own, and those that it passes on to other ranks of the node.
  std::array<std::int64_t, kMostCastStages> inside{}, passed_on{};
  std::int64_t held = 0;      // of the micro-batch, on the rank with the most: its own and received tokens
  std::int64_t received = 0;  // of the micro-batch, summed over all ranks
};

// Neighbouring tokens of the packed sequence that a rank receives from others in one stage.
struct CastRange {
  std::int64_t begin = 0, end = 0;
  int stage = 0;
  std::int64_t place = 0;  // among all tokens that the receiver gets

  [[nodiscard]] std::int64_t tokens() const { return end - begin; }
};
// The part of such tokens in one segment of one rank.
struct CastPiece {
  int from = 0;
  std::int32_t slice = 0;
  std::int64_t begin = 0, end = 0;  // in document coordinates
  int stage = 0;
};

// Which tokens of a sharded micro-batch a rank receives by group-cast.
//
// The packed sequence of the slices that no rank holds whole is cut into blocks of `block` tokens. A rank
// needs a block of which some query of it sees a token that another rank holds; it receives all tokens of the
// block that others hold, an equal part of them in each stage. Blocks of one token are the tokens that are
// seen, no others. O(segments of the rank) per rank, after O(n log n) for all n segments.
class CastBlocks {
 public:
  void prepare(const Sharding& sharding, const std::vector<int>& placement, std::int64_t window,
               std::int64_t block, int stages);
  // In the order of the packed sequence; valid until the next call.
  const std::vector<CastRange>& received_by(int rank);
  // The same ranges, cut where another rank's tokens begin.
  std::vector<CastPiece> pieces_to(int rank);
  // Where a rank begins (+1) or ends (-1) to read tokens.
  struct Edge {
    std::int64_t token = 0;
    int rank = 0, by = 0;
  };
  // Calls visit(owner, tokens, readers) for neighbouring tokens with the same readers, which are then in
  // `reads` by rank. Sorts the edges.
  template <class Visit>
  void for_readers(std::vector<Edge>& edges, std::vector<int>& reads, const Visit& visit) const;
  // Places among the tokens that the last call found: those of a stage, and the first at or after a token.
  struct Range {
    std::int64_t begin = 0, end = 0;
  };
  [[nodiscard]] Range places_of(int stage) const {
    return {std::min(stage * part_, all_), std::min((stage + 1) * part_, all_)};
  }
  [[nodiscard]] std::int64_t place_of(std::int32_t slice, std::int64_t token) const;

 private:
  struct Held {  // a segment in the packed sequence
    std::int64_t begin = 0, end = 0;
    std::int64_t seen_from = 0;  // first key of the micro-batch that its queries see
    int rank = 0;
    std::int32_t slice = 0;
  };
  struct SliceRange {
    std::int64_t begin = 0, end = 0;  // in document coordinates
    std::int64_t packed = 0;          // its begin in the packed sequence
  };
  void find_needed_blocks(std::span<const Held> own);
  void cut_into_stages();

  std::int64_t block_ = 1;
  int stages_ = 1;
  std::int64_t total_ = 0;        // tokens of the packed sequence
  std::vector<Held> held_, own_;  // by place in the packed sequence; rank by rank
  std::vector<SliceRange> slices_;
  std::vector<Range> seen_, needed_;  // for one rank
  std::vector<CastRange> whole_, received_;
  std::int64_t all_ = 0, part_ = 0;  // tokens received in all, and at most in a stage
};
// `earlier` is the number of tokens in the chunks before a dependent one.
CastTokens cast_tokens(const MicroBatch& micro_batch, const Sharding& sharding, std::int64_t window,
                       const Layout& layout, std::int64_t earlier, int node_ranks = 0);
// CastTokens::node_ranks of a CP group of that degree. It is 0 for a group in one node, with one rank in
// each, or with unequal numbers of ranks in its nodes.
int cast_node_ranks(const Layout& layout, const RankGrid& grid, int degree);
// The rank that hands `to` the tokens of `from`: on another node, the one with the number of `from`.
inline int cast_through(int from, int to, int node_ranks) {
  const bool far = node_ranks > 0 && from / node_ranks != to / node_ranks;
  return far ? to / node_ranks * node_ranks + from % node_ranks : from;
}

}  // namespace equipoise
