// Which token lies in which row: how the CP ranks of a lane hold a micro-batch, and where its keys lie in the
// buffer that attention reads.
//
// A rank's rows are its segments: first those of slices that it holds whole (placed there), then those of
// slices that the group shares, each by slice and position. A gathered key buffer holds the keys of the
// shared slices, slice after slice, each from the first token that the slice attends to; a dependent chunk's
// keys begin with those of the chunks before it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "policies/plan.h"
#include "policies/sharding/sharding.h"

namespace equipoise::execution {

// `count` rows of a rank that hold consecutive tokens of a slice.
struct RowRun {
  Segment segment;
  std::int64_t row = 0;  // the first
  std::int64_t key = 0;  // its place in the gathered key buffer; of shared slices

  [[nodiscard]] std::int64_t count() const { return segment.queries(); }
};

struct RankRows {
  std::vector<RowRun> local, shared;
  std::int64_t rows = 0;
  std::int64_t local_rows = 0;

  [[nodiscard]] std::int64_t shared_rows() const { return rows - local_rows; }
};

struct MicroBatchRows {
  std::vector<RankRows> ranks;
  std::vector<std::int64_t> slice_key;   // by slice: its first key in the gathered buffer
  std::vector<std::int64_t> slice_keys;  // by slice: how many
  std::int64_t keys = 0;                 // of the gathered buffer
  std::int64_t earlier = 0;              // of those, tokens of the chunks before this one
  std::int64_t most_rows = 0;            // of any rank
  std::int64_t shared_tokens = 0;        // of all ranks
  bool any_local = false;                // a rank holds a slice whole
  // Whether the ranks exchange K and V: the simulator's rule.
  [[nodiscard]] bool exchanges() const { return ranks.size() > 1 && shared_tokens + earlier > 0; }
};

// The rows of every rank. `sharding` is that of the micro-batch.
MicroBatchRows rows_of(const MicroBatch& micro_batch, const Sharding& sharding);

// The same where every rank comes to see all tokens (Ulysses): all slices are shared ones.
MicroBatchRows all_shared(const MicroBatch& micro_batch, const Sharding& sharding);

// Attention of the runs over keys that lie as in the gathered buffer. Query rows count from `first_row`.
std::vector<kernels::Piece> pieces_over_keys(const MicroBatchRows& rows, std::span<const RowRun> runs,
                                             std::int64_t first_row);
// Attention of runs whose keys are these rows themselves.
std::vector<kernels::Piece> pieces_among(std::span<const RowRun> runs, std::int64_t first_row);

}  // namespace equipoise::execution
