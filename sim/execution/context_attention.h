// Attention of one layer of a micro-batch over the CP ranks of its lane, cut where the op program cuts it: at
// the exchanges of K and V. One class a form: all-gather, ring, Ulysses. Where a lane has one rank, or
// nothing to exchange, there is nothing but attention.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "policies/base/index.h"
#include "policies/plan.h"
#include "sim/execution/rank_context.h"
#include "sim/execution/rows.h"

namespace equipoise::execution {

// What a chunk of a group leaves for the others, on one layer: its K and V, which later chunks attend to, and
// what their backwards found for its gradients so far.
struct ChunkState {
  Memory keys;                // K, then V, `capacity` rows each
  std::int64_t capacity = 0;  // Ulysses only; else that of the chunk's rows
  Memory gradients;           // of the same, or nothing yet
};

// One layer of a micro-batch on this rank. Rows are those of the CP rank, rounded up to a multiple of TP.
struct AttentionRun {
  Memory query;    // (rows, query heads, head dim), rotated
  Memory keys;     // K rows, then V rows from row `capacity` on, each (KV heads, head dim)
  Memory out;      // as query
  Memory log_sum;  // (rows, query heads)
  // Ulysses: all rows of this rank's heads.
  Memory all_query, all_keys, all_out, all_log_sum;
};

// The gradients on their way through a backward.
struct AttentionGradient {
  Memory out;    // of the attention's output: given
  Memory query;  // found
  Memory keys;   // found: dK rows, then dV rows from `capacity` on
};

// A micro-batch as its attention sees it: the same for all layers.
struct AttentionRows {
  MicroBatchRows rows;  // of all CP ranks
  int rank = 0;         // of the group
  Group group;
  std::int64_t padded_rows = 0;  // of this rank, a multiple of TP
  std::int64_t capacity = 0;     // rows that K and V buffers have, equal on all CP ranks
  // The chunks before this one, in order: their rows and states by layer are looked up by micro-batch.
  std::vector<int> earlier;
  bool in_group = false;  // of dependent chunks
  [[nodiscard]] const RankRows& own() const { return rows.ranks[at(rank)]; }
};

// Where attention finds the chunks of a group.
class ChunkStates {
 public:
  ChunkStates() = default;
  ChunkStates(const ChunkStates&) = delete;
  ChunkStates& operator=(const ChunkStates&) = delete;
  virtual ~ChunkStates() = default;
  virtual const AttentionRows& rows(int micro_batch) = 0;
  virtual ChunkState& state(int micro_batch, int layer) = 0;
};

class ContextAttention {
 public:
  ContextAttention() = default;
  ContextAttention(const ContextAttention&) = delete;
  ContextAttention& operator=(const ContextAttention&) = delete;
  virtual ~ContextAttention() = default;

  // Exchange number `sync` and attention number `call` of a forward, in the program's order. A forward begins
  // with begin_forward, which nothing may precede.
  virtual void begin_forward(AttentionRun& run, int layer) = 0;
  virtual void forward_sync(int sync) = 0;
  virtual void forward_attend(int call) = 0;
  // The same of a backward. `again`: every attention call repeats its forward first (selective recompute).
  virtual void begin_backward(AttentionRun& run, AttentionGradient& gradient, int layer, bool again) = 0;
  virtual void backward_sync(int sync) = 0;
  virtual void backward_attend(int call) = 0;
  // What the layer's ops need afterwards is complete (a dependent chunk's gradients have those of later
  // chunks).
  virtual void end_backward() = 0;
};

// For one micro-batch; keeps references to rank, rows and chunks. `all`: the rows as Ulysses sees them.
std::unique_ptr<ContextAttention> make_context_attention(const RankContext& rank, const AttentionRows& rows,
                                                         const MicroBatchRows& all, int index,
                                                         ChunkStates& chunks);

}  // namespace equipoise::execution
