// Core attention disaggregation (DistCA, arXiv 2510.18121) computes attention on other ranks than those that
// own its tokens.
//
// A sharding rule distributes a micro-batch's tokens over the ranks of a pool. Their attention is cut into
// tasks (queries of a document with the keys that they see), and a task may run on any rank: Q, K and V are
// sent there, and the output is sent back. So attention is balanced whatever tokens a rank holds.
//
// Every rank's target is the mean of all work (causal pairs). While a rank is further from it than epsilon
// allows, the rank with the largest deficit takes work from a rank above the target, at most the giver's
// surplus and the taker's deficit. It takes the queries with the least (bytes of those queries + bytes of the
// whole document's K and V) / work. When only part of a task moves, it is a strip at the head and one at the
// tail of the queries, each with half of the work; the middle stays. Ties go to the lower rank, then to the
// earlier slice and query.
//
// Departures: the authors' planner sends strips of equally many queries from both sides of the middle and
// visits the takers once; here both strips have equal work, and the search goes on until all ranks are within
// epsilon. Nano-batches are cut as theirs: two halves of the tokens, inside a document if necessary, each
// spread over all ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policies/base/index.h"
#include "policies/sharding/sharding.h"

namespace equipoise {

// The bytes that a task moves per token, for its query and for its key and value.
struct TaskBytes {
  double query = 1, key_value = 1;
};

// The tokens that a rank sends to others for their tasks, and receives for its own. Keys that several tasks
// of a rank see are received once.
struct TaskTraffic {
  std::int64_t queries_sent = 0, queries_received = 0, keys_sent = 0, keys_received = 0;
  friend bool operator==(const TaskTraffic&, const TaskTraffic&) = default;
};

// A part of a slice. One rank computes its queries; the same or another rank owns them.
struct AttentionTask {
  Segment queries;
  int owner = 0, rank = 0;
  std::int64_t pairs = 0;
  friend bool operator==(const AttentionTask&, const AttentionTask&) = default;
};

struct AttentionTasks {
  std::vector<AttentionTask> tasks;  // tasks ordered by rank, slice and query
  std::vector<std::int64_t> pairs;   // by rank
  std::vector<TaskTraffic> traffic;  // by rank
  [[nodiscard]] bool travels() const;

  // Work space that is reused for the next micro-batch.
  std::vector<Segment> held;
  std::vector<int> held_by;
  std::vector<std::int64_t> slice_keys;
};

// A place in a micro-batch, given by the first token after it.
struct NanoCut {
  std::int32_t slice = 0;
  std::int64_t token =
      0;  // relative to the slice, so that micro-batches with slices of equal lengths share a cut
  [[nodiscard]] bool behind(const Segment& s) const {
    return s.slice != slice ? s.slice > slice : s.q_begin - s.kv_begin >= token;
  }
  // The tokens of a rank's segments before the cut, which divides none of them.
  [[nodiscard]] std::int64_t tokens_before(std::span<const Segment> segments) const {
    std::int64_t sum = 0;
    for (const Segment& s : segments) sum += behind(s) ? 0 : s.queries();
    return sum;
  }
};
inline constexpr int kMostNanoBatches = 2;

// The cut after half of a micro-batch's tokens, at a multiple of 2 x ranks; between two slices where slices
// are padded.
NanoCut nano_cut(const MicroBatch& micro_batch, int ranks);

// Shards the two halves of the micro-batch, which each rank runs in sequence. A slice that the cut divides
// sees, in the second half, its keys of the first. Placements are the packer's, if any.
void shard_in_halves(const ShardPolicy& rule, const MicroBatch& micro_batch, int ranks,
                     const ShardOptions& options, const AttentionCost& cost, Sharding& out);

// The half that a task belongs to. A pool of several micro-batches has a cut in each.
struct NanoBatch {
  std::span<const std::int64_t> cut;  // by slice: its tokens before the cut
  int number = 0;
  [[nodiscard]] bool has(const Segment& s) const {
    return (s.q_begin - s.kv_begin >= cut[at(s.slice)]) == (number == 1);
  }
};
// Appends these numbers for all slices of the micro-batch.
void append_cut(const NanoCut& cut, std::size_t slices, std::vector<std::int64_t>& out);
// The tasks of the queries in `owners`, all of them or those of a nano-batch; keys may lie anywhere.
// O(moves x segments + ranks x segments).
void disaggregate(const Sharding& owners, const NanoBatch* only, double epsilon, TaskBytes bytes,
                  AttentionTasks& out);

}  // namespace equipoise
