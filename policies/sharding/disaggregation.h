// Core attention disaggregation (DistCA, arXiv 2510.18121): attention away from the owners of its tokens.
//
// A micro-batch's tokens lie on the ranks of a pool as a sharding rule put them. Their attention is cut into
// tasks, queries of a document and the keys that they see, and a task may run on any rank: Q, K and V go
// there, the output comes home. So attention is balanced whatever tokens a rank holds.
//
// The rule: every rank's target is the mean of all work (causal pairs). While a rank is further from it than
// epsilon allows, the rank with the largest deficit takes work of a rank above the target: of the queries of
// which least must be sent for the work that can move, (bytes of those queries + bytes of the whole
// document's K and V) / work, where at most the giver's surplus and the taker's deficit can move. What moves
// in part is a strip at the head and one at the tail of the queries, each half of the work; the middle stays.
// Ties go to the lower rank, then to the earlier slice and query.
//
// Departures from the authors' planner, which sends strips of as many queries from both sides of the middle
// and goes through the takers once: strips of equal work at both ends, and on until all are within epsilon.
// The nano-batches' cut is theirs: two halves of the tokens, inside a document if need be, each spread over
// all ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policies/base/index.h"
#include "policies/sharding/sharding.h"

namespace equipoise {

// Bytes of a token that a task moves: of its query, and of its key and value.
struct TaskBytes {
  double query = 1, key_value = 1;
};

// Tokens that a rank sends to others for their tasks, and receives for its own. Keys that several tasks of a
// rank see come once.
struct TaskTraffic {
  std::int64_t queries_sent = 0, queries_received = 0, keys_sent = 0, keys_received = 0;
  friend bool operator==(const TaskTraffic&, const TaskTraffic&) = default;
};

// Part of a slice whose queries one rank computes and another one owns, or the same.
struct AttentionTask {
  Segment queries;
  int owner = 0, rank = 0;
  std::int64_t pairs = 0;
  friend bool operator==(const AttentionTask&, const AttentionTask&) = default;
};

struct AttentionTasks {
  std::vector<AttentionTask> tasks;  // by rank, slice and query
  std::vector<std::int64_t> pairs;   // by rank
  std::vector<TaskTraffic> traffic;  // by rank
  [[nodiscard]] bool travels() const;

  // Work space, kept from one micro-batch to the next.
  std::vector<Segment> held;
  std::vector<int> held_by;
  std::vector<std::int64_t> slice_keys;
};

// A place in a micro-batch: the first token behind it.
struct NanoCut {
  std::int32_t slice = 0;
  std::int64_t token = 0;  // of the slice, so that micro-batches of slices as long have one cut
  [[nodiscard]] bool behind(const Segment& s) const {
    return s.slice != slice ? s.slice > slice : s.q_begin - s.kv_begin >= token;
  }
  // Tokens of a rank's segments before the cut, which goes through none of them.
  [[nodiscard]] std::int64_t tokens_before(std::span<const Segment> segments) const {
    std::int64_t sum = 0;
    for (const Segment& s : segments) sum += behind(s) ? 0 : s.queries();
    return sum;
  }
};
inline constexpr int kMostNanoBatches = 2;

// Half of a micro-batch's tokens, in multiples of 2 x ranks; between two slices where slices are padded.
NanoCut nano_cut(const MicroBatch& micro_batch, int ranks);

// The micro-batch sharded in two halves, one after the other on each rank. Of the second half, a slice that
// the cut goes through sees its keys in the first. Placements are the packer's, if any.
void shard_in_halves(const ShardPolicy& rule, const MicroBatch& micro_batch, int ranks,
                     const ShardOptions& options, const AttentionCost& cost, Sharding& out);

// Which of the two a task is of. A pool of several micro-batches has a cut in each.
struct NanoBatch {
  std::span<const std::int64_t> cut;  // by slice: its tokens before the cut
  int number = 0;
  [[nodiscard]] bool has(const Segment& s) const {
    return (s.q_begin - s.kv_begin >= cut[at(s.slice)]) == (number == 1);
  }
};
// Appends such tokens of so many slices.
void append_cut(const NanoCut& cut, std::size_t slices, std::vector<std::int64_t>& out);
// Tasks of the queries in `owners`, all of them or those of a nano-batch; keys lie wherever they do.
// O(moves x segments + ranks x segments).
void disaggregate(const Sharding& owners, const NanoBatch* only, double epsilon, TaskBytes bytes,
                  AttentionTasks& out);

}  // namespace equipoise
