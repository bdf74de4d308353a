// All-gather: the group gathers the K and V of the slices that it shares, each rank attends to them with its
// own queries; the gradients of K and V go back by a reduce-scatter. Slices that a rank holds whole are
// attended to beside the gather. A lone rank is the same without any exchange.
#include <algorithm>
#include <cassert>

#include "sim/execution/context_attention.h"

namespace equipoise::execution {
namespace {

using kernels::Pass;

class GatheredAttention final : public AttentionForm {
 public:
  GatheredAttention(const RankContext& rank, const AttentionRows& rows, int index, ChunkStates& chunks)
      : AttentionForm(rank, rows, index, chunks, {rank.model.head_dim, rank.heads.query, rank.heads.kv}),
        exchanges_(rows.rows.exchanges()),
        assembles_(exchanges_ || !rows.earlier.empty()),
        local_(rank.backend, shape_, pieces_among(rows.own().local, 0)),
        shared_(rank.backend, shape_,
                assembles_ ? pieces_over_keys(rows.rows, rows.own().shared, rows.own().local_rows)
                           : pieces_among(rows.own().shared, rows.own().local_rows)) {
    set_blocks();
  }

  void begin_forward(AttentionRun& run, int layer) override {
    begin(run, layer);
    run.out = rank_.elements(rows_.padded_rows * query_width_);
    run.log_sum = rank_.floats(rows_.padded_rows * shape_.query_heads);
    zero_rest(run.out);
    keep_keys();
  }
  void forward_sync(int) override { assemble_keys(); }
  void forward_attend(int call) override {
    if (part_of(call) != kShared) forward_local();
    if (part_of(call) != kLocal) forward_shared();
  }

  void begin_backward(AttentionRun& run, AttentionGradient& gradient, int layer, bool again) override {
    begin(run, layer);
    gradient_ = &gradient;
    again_ = again;
    gradient.query = rank_.elements(rows_.padded_rows * query_width_);
    gradient.keys = rank_.elements(2 * rows_.capacity * key_width_);
    zero_rest(gradient.query);
    zero_rest_of_keys(gradient.keys);
  }
  void backward_sync(int sync) override {
    if (sync == 0)
      assemble_keys();
    else
      scatter_key_gradients();
  }
  void backward_attend(int call) override {
    if (part_of(call) != kShared) backward_local();
    if (part_of(call) != kLocal) backward_shared();
  }
  void end_backward() override {
    if (!exchanges_ && assembles_) spread_key_gradients(key_gradients_);
    keys_.reset();
    key_gradients_.reset();
    add_later_chunks();
  }

 private:
  enum Which { kLocal, kShared, kBoth };
  // Beside the exchange the local slices, after it the shared ones; without an exchange all at once.
  [[nodiscard]] Which part_of(int call) const {
    if (!exchanges_) return kBoth;
    return call == 0 && rows_.rows.any_local ? kLocal : kShared;
  }

  void begin(AttentionRun& run, int layer) {
    run_ = &run;
    layer_ = layer;
    if (!exchanges_ && assembles_) assemble_keys();
  }
  [[nodiscard]] std::int64_t shared_begin() const { return rows_.own().local_rows; }

  // Rows of the chunks before this one and of this one, as a rank's contribution to the gather.
  void set_blocks() {
    if (!exchanges_) return;
    block_ = 0;
    for (std::size_t r = 0; r < rows_.rows.ranks.size(); ++r) {
      std::int64_t sum = 0;
      for (const AttentionRows* chunk : chain_) sum += chunk->rows.ranks[r].shared_rows();
      block_ = std::max(block_, sum);
    }
    whole_ = chain_.size() == 1 && !rows_.rows.any_local;
    if (whole_) block_ = rows_.capacity;
  }

  template <class Visit>  // (rank, chunk, run, row of the rank's block)
  void for_shared_runs(std::size_t rank, const Visit& visit) const {
    std::int64_t before = 0;
    for (std::size_t j = 0; j < chain_.size(); ++j) {
      const RankRows& held = chain_[j]->rows.ranks[rank];
      for (const RowRun& run : held.shared) visit(j, run, before + run.row - held.local_rows);
      before += held.shared_rows();
    }
  }
  // Chunks of a group are pieces of one slice, so their keys lie one after the other.
  [[nodiscard]] std::int64_t key_of(std::size_t chunk, const RowRun& run) const {
    return chunk + 1 == chain_.size() ? run.key : run.segment.q_begin - run.segment.kv_begin;
  }

  void assemble_keys() {
    keys_ = rank_.elements(2 * rows_.rows.keys * key_width_);
    if (!exchanges_) {
      const auto me = static_cast<std::size_t>(rows_.rank);
      for (std::size_t j = 0; j < chain_.size(); ++j)
        for (const RowRun& run : chain_[j]->rows.ranks[me].shared)
          place(keys_of(j).data(), chain_[j]->capacity, run.row, key_of(j, run), run.count());
      return;
    }
    const std::int64_t part = 2 * block_ * key_width_;
    Memory packed;
    const void* send = run_->keys.data();
    if (!whole_) {
      packed = rank_.elements(part);
      pack(packed);
      send = packed.data();
    }
    const auto ranks = static_cast<std::int64_t>(rows_.rows.ranks.size());
    const Memory gathered = rank_.elements(ranks * part);
    rows_.group.elements->all_gather(send, gathered.data(), part);
    for (std::size_t r = 0; r < rows_.rows.ranks.size(); ++r) {
      void* block = rank_.at(gathered, static_cast<std::int64_t>(r) * part);
      for_shared_runs(r, [&](std::size_t j, const RowRun& run, std::int64_t row) {
        place(block, block_, row, key_of(j, run), run.count());
      });
    }
  }
  // Rows of a block of K and V into the assembled keys.
  void place(void* block, std::int64_t block_rows, std::int64_t row, std::int64_t key,
             std::int64_t count) const {
    rank_.copy(key_row(keys_, key), rank_.at(block, row * key_width_), count * key_width_);
    rank_.copy(value_row(keys_, key, rows_.rows.keys), rank_.at(block, (block_rows + row) * key_width_),
               count * key_width_);
  }
  void pack(const Memory& packed) const {
    for_shared_runs(static_cast<std::size_t>(rows_.rank),
                    [&](std::size_t j, const RowRun& run, std::int64_t row) {
                      const Memory& from = keys_of(j);
                      rank_.copy(key_row(packed, row), key_row(from, run.row), run.count() * key_width_);
                      rank_.copy(value_row(packed, row, block_),
                                 value_row(from, run.row, chain_[j]->capacity), run.count() * key_width_);
                    });
  }

  void forward_local() {
    local_.forward(run_->query.data(), run_->keys.data(), value_row(run_->keys, 0, rows_.capacity),
                   run_->out.data(), run_->log_sum.floats());
  }
  void forward_shared() {
    const SharedRows at = shared_rows();
    shared_.forward(at.query, at.key, at.value, at.out, at.log_sum);
  }
  void backward_local() {
    if (again_) forward_local();
    const Memory& keys = gradient_->keys;
    local_.backward(run_->query.data(), run_->keys.data(), value_row(run_->keys, 0, rows_.capacity),
                    run_->out.data(), run_->log_sum.floats(), gradient_->out.data(),
                    {gradient_->query.data(), keys.data(), value_row(keys, 0, rows_.capacity)});
  }
  void backward_shared() {
    if (again_) forward_shared();
    const SharedRows at = shared_rows();
    kernels::AttentionGradients to;
    to.query = rank_.at(gradient_->query, shared_begin() * query_width_);
    if (assembles_) {
      key_gradients_ = rank_.elements(2 * rows_.rows.keys * key_width_);
      to.key = key_gradients_.data();
      to.value = value_row(key_gradients_, 0, rows_.rows.keys);
      const std::int64_t seen = shared_.key_rows();
      rank_.zero(key_row(key_gradients_, seen), (rows_.rows.keys - seen) * key_width_);
      rank_.zero(value_row(key_gradients_, seen, rows_.rows.keys), (rows_.rows.keys - seen) * key_width_);
    } else {
      to.key = key_row(gradient_->keys, shared_begin());
      to.value = value_row(gradient_->keys, shared_begin(), rows_.capacity);
    }
    shared_.backward(at.query, at.key, at.value, at.out, at.log_sum,
                     rank_.at(gradient_->out, shared_begin() * query_width_), to);
  }

  struct SharedRows {
    void *query, *key, *value, *out;
    float* log_sum;
  };
  [[nodiscard]] SharedRows shared_rows() const {
    const std::int64_t row = shared_begin();
    return {rank_.at(run_->query, row * query_width_), assembles_ ? keys_.data() : key_row(run_->keys, row),
            assembles_ ? value_row(keys_, 0, rows_.rows.keys) : value_row(run_->keys, row, rows_.capacity),
            rank_.at(run_->out, row * query_width_), run_->log_sum.floats() + row * shape_.query_heads};
  }

  void scatter_key_gradients() {
    const std::int64_t part = 2 * block_ * key_width_;
    const auto ranks = static_cast<std::int64_t>(rows_.rows.ranks.size());
    const Memory parts = rank_.elements(ranks * part);
    for (std::size_t r = 0; r < rows_.rows.ranks.size(); ++r) {
      void* block = rank_.at(parts, static_cast<std::int64_t>(r) * part);
      std::int64_t filled = 0;
      for (const AttentionRows* chunk : chain_) filled += chunk->rows.ranks[r].shared_rows();
      rank_.zero(rank_.at(block, filled * key_width_), (block_ - filled) * key_width_);
      rank_.zero(rank_.at(block, (block_ + filled) * key_width_), (block_ - filled) * key_width_);
      for_shared_runs(r, [&](std::size_t j, const RowRun& run, std::int64_t row) {
        const std::int64_t key = key_of(j, run);
        rank_.copy(rank_.at(block, row * key_width_), key_row(key_gradients_, key), run.count() * key_width_);
        rank_.copy(rank_.at(block, (block_ + row) * key_width_),
                   value_row(key_gradients_, key, rows_.rows.keys), run.count() * key_width_);
      });
    }
    const Memory own = rank_.elements(part);
    rows_.group.elements->reduce_scatter(parts.data(), own.data(), part);
    for_shared_runs(static_cast<std::size_t>(rows_.rank),
                    [&](std::size_t j, const RowRun& run, std::int64_t row) {
                      deliver(j, run, key_row(own, row), value_row(own, row, block_));
                    });
  }
  // Without an exchange: what was found for the assembled keys belongs to this rank.
  void spread_key_gradients(const Memory& found) {
    const auto me = static_cast<std::size_t>(rows_.rank);
    for (std::size_t j = 0; j < chain_.size(); ++j)
      for (const RowRun& run : chain_[j]->rows.ranks[me].shared)
        deliver(j, run, key_row(found, key_of(j, run)), value_row(found, key_of(j, run), rows_.rows.keys));
  }
  // This chunk's gradients are set; those of an earlier one are added up until its own backward comes.
  void deliver(std::size_t chunk, const RowRun& run, const void* key, const void* value) {
    const std::int64_t count = run.count() * key_width_;
    if (chunk + 1 == chain_.size()) {
      rank_.copy(key_row(gradient_->keys, run.row), key, count);
      rank_.copy(value_row(gradient_->keys, run.row, rows_.capacity), value, count);
      return;
    }
    ChunkState& state = chunks_.state(rows_.earlier[chunk], layer_);
    const std::int64_t capacity = chain_[chunk]->capacity;
    if (!state.gradients) state.gradients = zeroed_keys(capacity);
    rank_.add(key_row(state.gradients, run.row), key, count);
    rank_.add(value_row(state.gradients, run.row, capacity), value, count);
  }

  // Rows that no token fills must not hold what is no number.
  void zero_rest(const Memory& memory) const {
    rank_.zero(rank_.at(memory, rows_.own().rows * query_width_),
               (rows_.padded_rows - rows_.own().rows) * query_width_);
  }
  void zero_rest_of_keys(const Memory& keys) const {
    const std::int64_t rest = (rows_.capacity - rows_.own().rows) * key_width_;
    rank_.zero(key_row(keys, rows_.own().rows), rest);
    rank_.zero(value_row(keys, rows_.own().rows, rows_.capacity), rest);
  }

  bool exchanges_;
  bool assembles_;  // keys are brought together in a buffer of their own
  AttentionCall local_, shared_;
  std::int64_t block_ = 0;       // K rows that each rank gives to the gather
  bool whole_ = false;           // it gives its K and V as they lie
  Memory keys_, key_gradients_;  // of all shared slices: K, then V
};

}  // namespace

std::unique_ptr<ContextAttention> make_gathered_attention(const RankContext& rank, const AttentionRows& rows,
                                                          int index, ChunkStates& chunks) {
  return std::make_unique<GatheredAttention>(rank, rows, index, chunks);
}

}  // namespace equipoise::execution
