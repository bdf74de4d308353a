#include "sim/execution/gathered_attention.h"

#include <algorithm>

namespace equipoise::execution {
namespace {

using kernels::Pass;

class GatheredAttention final : public AttentionForm {
 public:
  GatheredAttention(const RankContext& rank, const AttentionRows& rows, int index, ChunkStates& chunks)
      : AttentionForm(rank, rows, index, chunks),
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
    zero_rows(keys_at(gradient.keys, rows_.own().rows, rows_.capacity), rows_.capacity - rows_.own().rows);
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
  // Local slices come during the exchange and shared ones after it; without an exchange all come at once.
  [[nodiscard]] Which part_of(int call) const {
    if (!exchanges_) return kBoth;
    return call == 0 && rows_.rows.any_local ? kLocal : kShared;
  }

  void begin(AttentionRun& run, int layer) override {
    AttentionForm::begin(run, layer);
    if (!exchanges_ && assembles_) assemble_keys();
  }
  [[nodiscard]] std::int64_t shared_begin() const { return rows_.own().local_rows; }

  // Sets the rows that a rank contributes to the gather: those of this chunk and of the chunks before it.
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
  // Chunks of a group are pieces of one slice, so their keys are contiguous.
  [[nodiscard]] std::int64_t key_of(std::size_t chunk, const RowRun& run) const {
    return chunk + 1 == chain_.size() ? run.key : run.segment.q_begin - run.segment.kv_begin;
  }

  void assemble_keys() {
    keys_ = rank_.elements(2 * rows_.rows.keys * key_width_);
    if (!exchanges_) {
      const auto me = static_cast<std::size_t>(rows_.rank);
      for (std::size_t j = 0; j < chain_.size(); ++j)
        for (const RowRun& run : chain_[j]->rows.ranks[me].shared)
          place(keys_at(keys_of(j), run.row, chain_[j]->capacity), j, run);
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
        place(keys_at(block, row, block_), j, run);
      });
    }
  }
  // Finds the keys of a run among the assembled ones (or their gradients).
  [[nodiscard]] KeyRows assembled(const Memory& keys, std::size_t chunk, const RowRun& run) const {
    return keys_at(keys, key_of(chunk, run), rows_.rows.keys);
  }
  void place(const KeyRows& from, std::size_t chunk, const RowRun& run) const {
    copy_rows(assembled(keys_, chunk, run), from, run.count());
  }
  void pack(const Memory& packed) const {
    for_shared_runs(static_cast<std::size_t>(rows_.rank), [&](std::size_t j, const RowRun& run,
                                                              std::int64_t row) {
      copy_rows(keys_at(packed, row, block_), keys_at(keys_of(j), run.row, chain_[j]->capacity), run.count());
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
      zero_rows(keys_at(key_gradients_, seen, rows_.rows.keys), rows_.rows.keys - seen);
    } else {
      const KeyRows keys = keys_at(gradient_->keys, shared_begin(), rows_.capacity);
      to.key = keys.key;
      to.value = keys.value;
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
    const KeyRows keys =
        assembles_ ? keys_at(keys_, 0, rows_.rows.keys) : keys_at(run_->keys, row, rows_.capacity);
    return {rank_.at(run_->query, row * query_width_), keys.key, keys.value,
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
      zero_rows(keys_at(block, filled, block_), block_ - filled);
      for_shared_runs(r, [&](std::size_t j, const RowRun& run, std::int64_t row) {
        copy_rows(keys_at(block, row, block_), assembled(key_gradients_, j, run), run.count());
      });
    }
    const Memory own = rank_.elements(part);
    rows_.group.elements->reduce_scatter(parts.data(), own.data(), part);
    for_shared_runs(static_cast<std::size_t>(rows_.rank),
                    [&](std::size_t j, const RowRun& run, std::int64_t row) {
                      deliver(j, run, keys_at(own, row, block_));
                    });
  }
  // Without an exchange the gradients of the assembled keys belong to this rank.
  void spread_key_gradients(const Memory& found) {
    const auto me = static_cast<std::size_t>(rows_.rank);
    for (std::size_t j = 0; j < chain_.size(); ++j)
      for (const RowRun& run : chain_[j]->rows.ranks[me].shared) deliver(j, run, assembled(found, j, run));
  }
  // This chunk's gradients are set; those of an earlier one are added up until its own backward comes.
  void deliver(std::size_t chunk, const RowRun& run, const KeyRows& found) {
    if (chunk + 1 == chain_.size())
      return copy_rows(keys_at(gradient_->keys, run.row, rows_.capacity), found, run.count());
    add_rows(gradients_at(chunk, run.row), found, run.count());
  }

  // Rows that no token fills must not hold NaN.
  void zero_rest(const Memory& memory) const {
    rank_.zero(rank_.at(memory, rows_.own().rows * query_width_),
               (rows_.padded_rows - rows_.own().rows) * query_width_);
  }

  bool exchanges_;
  bool assembles_;  // whether keys are copied into one buffer
  AttentionCall local_, shared_;
  std::int64_t block_ = 0;       // K rows that each rank contributes to the gather
  bool whole_ = false;           // whether it contributes its K and V without a copy
  Memory keys_, key_gradients_;  // for all shared slices: K, then V
};

}  // namespace

std::unique_ptr<ContextAttention> make_gathered_attention(const RankContext& rank, const AttentionRows& rows,
                                                          int index, ChunkStates& chunks) {
  return std::make_unique<GatheredAttention>(rank, rows, index, chunks);
}

}  // namespace equipoise::execution
