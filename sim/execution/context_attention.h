// Attention over the context-parallel (CP) ranks of a lane: which token is in which row of which rank, where
// its keys are in the buffer that attention reads, and what every form of the exchange has.
//
// A rank's rows are its segments: first those of slices that it holds whole (placed there), then those of
// slices that the group shares, each by slice and position. A gathered key buffer holds the keys of the
// shared slices, slice after slice, from the first token that the slice attends to. A dependent chunk's keys
// begin with those of the chunks before it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "policies/base/index.h"
#include "policies/plan.h"
#include "policies/sharding/sharding.h"
#include "sim/execution/rank_context.h"

namespace equipoise::execution {

// `count` rows of a rank that hold consecutive tokens of a slice.
struct RowRun {
  Segment segment;
  std::int64_t row = 0;  // the first
  std::int64_t key = 0;  // its place in the gathered key buffer, for shared slices

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
  std::vector<std::int64_t> slice_keys;  // by slice: number of keys
  std::int64_t keys = 0;                 // in the gathered buffer
  std::int64_t earlier = 0;              // those of them in earlier chunks
  std::int64_t most_rows = 0;            // on the fullest rank
  std::int64_t shared_tokens = 0;        // over all ranks
  bool any_local = false;                // whether a rank holds a slice whole
  // Whether the ranks exchange K and V: the simulator's rule.
  [[nodiscard]] bool exchanges() const { return ranks.size() > 1 && shared_tokens + earlier > 0; }
};

// The rows of every rank. `sharding` is the micro-batch's, or that of its inner groups.
MicroBatchRows rows_of(const MicroBatch& micro_batch, const Sharding& sharding);

// Attention of the runs over keys in the order of the gathered buffer. Query rows count from `first_row`.
std::vector<kernels::Piece> pieces_over_keys(const MicroBatchRows& rows, std::span<const RowRun> runs,
                                             std::int64_t first_row);
// Attention of runs over keys in these same rows.
std::vector<kernels::Piece> pieces_among(std::span<const RowRun> runs, std::int64_t first_row);

// --- Attention of one layer of a micro-batch over the CP ranks of its lane, cut where the op program cuts
// it: at the exchanges of K and V. One class a form: all-gather, ring, group-cast, disaggregated, and
// Ulysses, which is round one of the first two where it is nested. Where a lane has one rank, or nothing to
// exchange, there is nothing but attention, and what stages of a pipeline share out of it.

// What a chunk of a group keeps for the other chunks, on one layer: its K and V, which later chunks attend
// to, and the gradients that their backwards have added so far.
struct ChunkState {
  Memory keys;       // K, then V, each with as many rows as the chunk
  Memory gradients;  // in the same layout, or empty so far
};

// One layer of a micro-batch on this rank. Rows are those of the CP rank, rounded up to a multiple of TP.
struct AttentionRun {
  Memory query;    // (rows, query heads, head dim), rotated
  Memory keys;     // K rows, then V rows from row `capacity` on, each (KV heads, head dim)
  Memory out;      // as query
  Memory log_sum;  // (rows, query heads)
  // If ranks share heads: the same run for this rank's heads and all rows of its inner group.
  std::shared_ptr<AttentionRun> of_heads;
};

// The gradients on their way through a backward.
struct AttentionGradient {
  Memory out;    // input: gradient of attention's output
  Memory query;  // found
  Memory keys;   // result: dK rows, then dV rows from `capacity` on
};

// A micro-batch as its attention sees it, equal for all layers.
struct AttentionRows {
  MicroBatchRows rows;  // for all CP ranks
  const MicroBatch* micro_batch = nullptr;
  int rank = 0;                  // in the CP group
  Group group;                   // the CP ranks; the stages, if stages even out their attention
  Group inner;                   // the ranks that share heads
  std::int64_t padded_rows = 0;  // rows of this rank, rounded up to a multiple of TP
  std::int64_t capacity = 0;     // rows for which K and V buffers have room, equal on all CP ranks
  // The chunks before this one, in order. Their rows and states by layer are looked up by micro-batch.
  std::vector<int> earlier;
  bool in_group = false;  // whether it is a dependent chunk
  [[nodiscard]] const RankRows& own() const { return rows.ranks[at(rank)]; }
};

// Gives attention access to the chunks of a group.
class ChunkStates {
 public:
  ChunkStates() = default;
  ChunkStates(const ChunkStates&) = delete;
  ChunkStates& operator=(const ChunkStates&) = delete;
  virtual ~ChunkStates() = default;
  virtual const AttentionRows& rows(int micro_batch) = 0;
  // The rows of the inner groups of ranks that share heads, each group as one rank.
  virtual const AttentionRows& inner_rows(int micro_batch) = 0;
  virtual ChunkState& state(int micro_batch, int layer) = 0;
};

class ContextAttention {
 public:
  ContextAttention() = default;
  ContextAttention(const ContextAttention&) = delete;
  ContextAttention& operator=(const ContextAttention&) = delete;
  virtual ~ContextAttention() = default;

  // Runs exchange number `sync` and attention number `call` of a forward, in the program's order.
  // begin_forward must come first.
  virtual void begin_forward(AttentionRun& run, int layer) = 0;
  virtual void forward_sync(int sync) = 0;
  virtual void forward_attend(int call) = 0;
  // Runs those of a backward. With `again` every call repeats its forward first (selective recompute).
  virtual void begin_backward(AttentionRun& run, AttentionGradient& gradient, int layer, bool again) = 0;
  virtual void backward_sync(int sync) = 0;
  virtual void backward_attend(int call) = 0;
  // Completes what the layer's ops need afterwards; a dependent chunk then has later chunks' gradients, too.
  virtual void end_backward() = 0;
};

// For one micro-batch; keeps references to rank, rows and chunks.
std::unique_ptr<ContextAttention> make_context_attention(const RankContext& rank, const AttentionRows& rows,
                                                         int index, ChunkStates& chunks);
// How many CP ranks of a lane of `context` ranks share its heads.
int head_shares(const Layout& layout, int context);

// --- The forms of context-parallel attention, and the kernel calls that they share.

// A packed attention call over fixed pieces, which makes its plans when first used. It may have no pieces.
class AttentionCall {
 public:
  AttentionCall(kernels::Backend& backend, const kernels::AttentionShape& shape,
                std::vector<kernels::Piece> pieces)
      : backend_(backend), shape_(shape), pieces_(std::move(pieces)) {}

  [[nodiscard]] std::int64_t key_rows() const { return pieces_.empty() ? 0 : kernels::key_rows_of(pieces_); }
  [[nodiscard]] std::int64_t query_rows() const {
    return pieces_.empty() ? 0 : kernels::query_rows_of(pieces_);
  }
  [[nodiscard]] bool empty() const { return pieces_.empty(); }

  void forward(const void* query, const void* key, const void* value, void* out, float* log_sum) {
    if (pieces_.empty()) return;
    if (!forward_) forward_ = backend_.plan_attention(shape_, pieces_, kernels::Pass::forward);
    backend_.attention_forward(*forward_, query, key, value, out, log_sum);
  }
  // Writes the rows of the gradients below query_rows() and key_rows(), and no others.
  void backward(const void* query, const void* key, const void* value, const void* out, const float* log_sum,
                const void* out_gradient, const kernels::AttentionGradients& gradients) {
    if (pieces_.empty()) return;
    if (!backward_) backward_ = backend_.plan_attention(shape_, pieces_, kernels::Pass::backward);
    backend_.attention_backward(*backward_, query, key, value, out, log_sum, out_gradient, gradients);
  }

 private:
  kernels::Backend& backend_;
  kernels::AttentionShape shape_;
  std::vector<kernels::Piece> pieces_;
  std::unique_ptr<kernels::AttentionPlan> forward_, backward_;
};

// What every form has: the rank, the micro-batch's rows, the chunks of its group up to this one, and its
// state between begin and end.
class AttentionForm : public ContextAttention {
 protected:
  AttentionForm(const RankContext& rank, const AttentionRows& rows, int index, ChunkStates& chunks)
      : rank_(rank),
        rows_(rows),
        index_(index),
        chunks_(chunks),
        shape_{rank.model.head_dim, rank.heads.query, rank.heads.kv},
        query_width_(std::int64_t{shape_.query_heads} * shape_.head_dim),
        key_width_(std::int64_t{shape_.kv_heads} * shape_.head_dim) {
    for (const int chunk : rows.earlier) chain_.push_back(&chunks.rows(chunk));
    chain_.push_back(&rows);
  }

  // K and V for the same rows.
  struct KeyRows {
    void* key = nullptr;
    void* value = nullptr;
  };
  // The rows from `row` on, in a buffer with K first and V from row `capacity` on.
  [[nodiscard]] KeyRows keys_at(void* keys, std::int64_t row, std::int64_t capacity) const {
    return {rank_.at(keys, row * key_width_), rank_.at(keys, (capacity + row) * key_width_)};
  }
  [[nodiscard]] KeyRows keys_at(const Memory& keys, std::int64_t row, std::int64_t capacity) const {
    return keys_at(keys.data(), row, capacity);
  }
  void* value_row(const Memory& keys, std::int64_t row, std::int64_t capacity) const {
    return keys_at(keys, row, capacity).value;
  }
  void copy_rows(const KeyRows& to, const KeyRows& from, std::int64_t rows) const {
    rank_.copy(to.key, from.key, rows * key_width_);
    rank_.copy(to.value, from.value, rows * key_width_);
  }
  void add_rows(const KeyRows& to, const KeyRows& from, std::int64_t rows) const {
    rank_.add(to.key, from.key, rows * key_width_);
    rank_.add(to.value, from.value, rows * key_width_);
  }
  void zero_rows(const KeyRows& keys, std::int64_t rows) const {
    rank_.zero(keys.key, rows * key_width_);
    rank_.zero(keys.value, rows * key_width_);
  }
  [[nodiscard]] Memory zeroed_keys(std::int64_t capacity) const {
    Memory keys = rank_.elements(2 * capacity * key_width_);
    rank_.zero(keys.data(), 2 * capacity * key_width_);
    return keys;
  }
  // K and V that this rank holds of a chunk of the chain.
  [[nodiscard]] const Memory& keys_of(std::size_t chunk) const {
    return chunk + 1 == chain_.size() ? run_->keys : chunks_.state(rows_.earlier[chunk], layer_).keys;
  }
  virtual void begin(AttentionRun& run, int layer) {
    run_ = &run;
    layer_ = layer;
  }
  // Sets where a backward adds gradients.
  void begin_gradients(AttentionGradient& gradient, bool again) {
    gradient_ = &gradient;
    again_ = again;
    gradient.query = rank_.elements(rows_.padded_rows * query_width_);
    rank_.zero(gradient.query.data(), rows_.padded_rows * query_width_);
    gradient.keys = zeroed_keys(rows_.capacity);
  }
  // Keeps the keys for later chunks of the group, which attend to them.
  void keep_keys() {
    if (rows_.in_group) chunks_.state(index_, layer_).keys = run_->keys;
  }
  // Where gradients of the rows from `row` on of a chunk of the chain, which this rank holds, are added up.
  [[nodiscard]] KeyRows gradients_at(std::size_t chunk, std::int64_t row) const;
  // Adds the gradients that later chunks found for this one's keys.
  void add_later_chunks() {
    ChunkState& state = chunks_.state(index_, layer_);
    if (!state.gradients) return;
    rank_.add(gradient_->keys.data(), state.gradients.data(), 2 * rows_.capacity * key_width_);
    state.gradients.reset();
  }

  // Values of the backend's type, or floats, that go to another rank or come from it.
  struct Travelling {
    void* data = nullptr;
    std::int64_t count = 0;
    bool adds = false;  // whether they are added to what is there when they arrive
  };
  using TravellingOf = std::function<std::vector<Travelling>(int rank)>;
  // Sends every other rank what outgoing(rank) lists, in one message, and puts what arrives to
  // incoming(rank). Both ranks list the same values in the same order. In each round every rank has one
  // partner. So no ranks wait in a circle even if a rank's messages go one after the other (NCCL).
  void exchange(const TravellingOf& outgoing, const TravellingOf& incoming, bool floats = false) const;
  // Puts a value, from `data` on this rank, to where it arrives.
  void put(const Travelling& to, const void* data, bool floats) const;

  const RankContext& rank_;
  const AttentionRows& rows_;
  int index_;
  ChunkStates& chunks_;
  kernels::AttentionShape shape_;  // with the heads of this rank
  std::int64_t query_width_, key_width_;
  std::vector<const AttentionRows*> chain_;  // the chunks of the group up to this one
  AttentionRun* run_ = nullptr;
  AttentionGradient* gradient_ = nullptr;
  int layer_ = 0;
  bool again_ = false;
};

// Attention that reads the keys block by block and joins the results: a rank's own rows, and rows of others.
// Each block is K rows, then V rows.
class BlockwiseAttention : public AttentionForm {
 public:
  void begin_forward(AttentionRun& run, int layer) final {
    begin(run, layer);
    begin_output(run.out, run.log_sum);
    keep_keys();
  }
  void begin_backward(AttentionRun& run, AttentionGradient& gradient, int layer, bool again) final {
    begin(run, layer);
    begin_gradients(gradient, again);
    if (again) begin_output(again_out_, again_log_sum_);
  }

 protected:
  using AttentionForm::AttentionForm;

  // The rows of a rank, chunk after chunk, as a block: (chunk, run, row in the block).
  template <class Visit>
  void for_runs(int rank, const Visit& visit) const {
    std::int64_t before = 0;
    for (std::size_t j = 0; j < chain_.size(); ++j) {
      const RankRows& held = chain_[j]->rows.ranks[at(rank)];
      for (const auto* runs : {&held.local, &held.shared})
        for (const RowRun& run : *runs) visit(j, run, before + run.row);
      before += held.rows;
    }
  }
  [[nodiscard]] std::int64_t rows_in_block(int rank) const;
  [[nodiscard]] std::vector<kernels::Piece> pieces_over_rows(int rank, int owner) const;
  // Whether queries see a row of a chunk of the chain; it suffices to look at the row's begin.
  [[nodiscard]] bool sees(const Segment& queries, std::size_t chunk, const Segment& keys) const {
    const bool same = chunk + 1 < chain_.size() || keys.slice == queries.slice;
    return same && keys.q_begin < queries.q_end;
  }
  // K and V of this rank's rows, in a block with room for `rows` rows.
  [[nodiscard]] Memory own_block(std::int64_t rows) const;

  void begin_output(Memory& out, Memory& log_sum) const;
  // Log-sums of rows that have attended to nothing yet.
  [[nodiscard]] Memory empty_log_sums(std::int64_t rows) const;
  // Joins the queries' attention over a block of so many rows to `out`. Without pieces it does nothing.
  void attend(AttentionCall& call, const Memory& block, std::int64_t rows, const Memory& out,
              const Memory& log_sum) const;
  // Adds to the queries' gradient and returns the block's.
  [[nodiscard]] Memory differentiate(AttentionCall& call, const Memory& block, std::int64_t rows) const;
  // Distributes gradients of this rank's block to the chunks that own its rows.
  void spread(const Memory& found, std::int64_t rows);

  Memory again_out_, again_log_sum_;  // output of a forward that a backward repeats
};

// Each form has such a function, in the file of its name.
using MakeAttention = decltype(make_context_attention);

}  // namespace equipoise::execution
