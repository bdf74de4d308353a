// Ring: every rank keeps its queries; blocks of K and V go round, one rank a step, and each rank attends to
// the block that it has while the next one is sent. What it finds is joined with what it found before. In the
// backward the gradients of a block follow it one step behind and come home at the end; a rank's part for its
// own block stays where it is.
//
//   step            0        1        2       ...   c - 1    (then)
//   K and V sent    yes      yes      yes           -        -
//   gradients sent  -        -        of step 1     of c-2   of c - 1
#include <algorithm>
#include <limits>

#include "policies/base/index.h"
#include "sim/execution/context_attention.h"

namespace equipoise::execution {
namespace {

class RingAttention final : public AttentionForm {
 public:
  RingAttention(const RankContext& rank, const AttentionRows& rows, int index, ChunkStates& chunks)
      : AttentionForm(rank, rows, index, chunks, {rank.model.head_dim, rank.heads.query, rank.heads.kv}),
        ranks_(static_cast<int>(rows.rows.ranks.size())) {
    for (int r = 0; r < ranks_; ++r) block_rows_ = std::max(block_rows_, rows_in_block(r));
    for (int step = 0; step < ranks_; ++step) {
      calls_.emplace_back(rank.backend, shape_, pieces_of(rows.rank, step));
      bool any = false;
      for (int r = 0; r < ranks_ && !any; ++r) any = attends(r, step);
      attends_.push_back(any);
    }
  }

  void begin_forward(AttentionRun& run, int layer) override {
    begin(run, layer);
    begin_output(run.out, run.log_sum);
    keep_keys();
  }
  void forward_sync(int) override { send_keys(); }
  void forward_attend(int) override {
    take_next_step();
    attend(run_->out, run_->log_sum);
    ++step_;
  }

  void begin_backward(AttentionRun& run, AttentionGradient& gradient, int layer, bool again) override {
    begin(run, layer);
    gradient_ = &gradient;
    again_ = again;
    gradient.query = rank_.elements(rows_.padded_rows * query_width_);
    rank_.zero(gradient.query.data(), rows_.padded_rows * query_width_);
    gradient.keys = zeroed_keys(rows_.capacity);
    if (again) begin_output(again_out_, again_log_sum_);
  }
  void backward_sync(int sync) override {
    if (sync == (ranks_ == 2 ? 1 : ranks_)) {  // the last one, after all attention
      skip_to(ranks_);
      pass_gradients_on();
      return;
    }
    if (sync >= 2) {
      skip_to(sync);
      pass_gradients_on();
    }
    if (sync + 1 < ranks_) send_keys();
  }
  void backward_attend(int) override {
    take_next_step();
    if (again_) attend(again_out_, again_log_sum_);
    differentiate();
    ++step_;
  }
  void end_backward() override {
    for (const Memory* found : {&at_home_, &arriving_})
      if (*found) spread(*found);
    for (Memory* memory :
         {&at_home_, &travelling_, &arriving_, &block_, &next_, &again_out_, &again_log_sum_})
      memory->reset();
    add_later_chunks();
  }

 private:
  [[nodiscard]] int block_owner(int rank, int step) const { return (rank + ranks_ - step) % ranks_; }
  [[nodiscard]] std::int64_t rows_in_block(int rank) const {
    std::int64_t sum = 0;
    for (const AttentionRows* chunk : chain_) sum += chunk->rows.ranks[at(rank)].rows;
    return sum;
  }
  // A block is the rows of a rank, chunk after chunk: (chunk, run, row in the block).
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

  // What the rank's queries see of the block that it has in a step. Keys of a slice lie together in the
  // block, by position: those before a run of queries are its first ones. Its own block ends with the queries
  // themselves.
  [[nodiscard]] std::vector<kernels::Piece> pieces_of(int rank, int step) const {
    std::vector<kernels::Piece> pieces;
    const int owner = block_owner(rank, step);
    const RankRows& own = rows_.rows.ranks[at(rank)];
    for (const auto* runs : {&own.local, &own.shared})
      for (const RowRun& queries : *runs) {
        std::int64_t first = -1, keys = 0;
        for_runs(owner, [&](std::size_t j, const RowRun& run, std::int64_t row) {
          const bool same = j + 1 < chain_.size() || run.segment.slice == queries.segment.slice;
          if (!same || run.segment.q_begin >= queries.segment.q_end) return;
          if (first < 0) first = row;
          keys += run.count();
        });
        if (keys == 0) continue;
        kernels::Piece piece{queries.row, queries.count(), first, keys};
        piece.full = owner != rank;
        pieces.push_back(piece);
      }
    return pieces;
  }

  // Whether the program has the step for this rank. It counts a share of the chunks before on every rank,
  // also where a rank holds nothing of them.
  [[nodiscard]] bool attends(int rank, int step) const {
    const bool has_queries = rows_.rows.ranks[at(rank)].rows > 0;
    return (rows_.rows.earlier > 0 && has_queries) || !pieces_of(rank, step).empty();
  }

  void begin(AttentionRun& run, int layer) {
    run_ = &run;
    layer_ = layer;
    step_ = held_step_ = 0;
    next_.reset();
    block_ = rank_.elements(2 * block_rows_ * key_width_);
    const auto fill = [&](std::size_t j, const RowRun& part, std::int64_t row) {
      const Memory& from = keys_of(j);
      rank_.copy(key_row(block_, row), key_row(from, part.row), part.count() * key_width_);
      rank_.copy(value_row(block_, row, block_rows_), value_row(from, part.row, chain_[j]->capacity),
                 part.count() * key_width_);
    };
    for_runs(rows_.rank, fill);
  }
  void begin_output(Memory& out, Memory& log_sum) const {
    out = rank_.elements(rows_.padded_rows * query_width_);
    log_sum = empty_log_sums();
    rank_.zero(out.data(), rows_.padded_rows * query_width_);
  }
  // Log-sums of rows that have attended to nothing yet.
  [[nodiscard]] Memory empty_log_sums() const {
    const std::int64_t count = rows_.padded_rows * shape_.query_heads;
    Memory log_sums = rank_.floats(count);
    const std::vector<float> none(at(count), -std::numeric_limits<float>::infinity());
    rank_.backend.to_device(log_sums.data(), none.data(), none.size() * sizeof(float));
    return log_sums;
  }

  // Steps in which no rank has anything to attend to are in no program: their gradients only pass through.
  void skip_to(int step) {
    for (; step_ < step; ++step_) {
      if (step_ == 0) continue;
      travelling_ = arriving_;
      arriving_.reset();
    }
  }
  void take_next_step() {
    int step = step_;
    while (step + 1 < ranks_ && !attends_[at(step)]) ++step;
    skip_to(step);
    if (held_step_ < step) take_arrived();
  }
  void take_arrived() {
    block_ = next_;
    next_.reset();
    ++held_step_;
  }
  void send_keys() {
    if (next_) take_arrived();
    const std::int64_t count = 2 * block_rows_ * key_width_;
    next_ = rank_.elements(count);
    rows_.group.elements->send_receive(block_.data(), (rows_.rank + 1) % ranks_, next_.data(),
                                       (rows_.rank + ranks_ - 1) % ranks_, count);
  }

  void attend(const Memory& out, const Memory& log_sum) const {
    AttentionCall& call = calls_[at(step_)];
    if (call.empty()) return;
    const Memory part = rank_.elements(rows_.padded_rows * query_width_);
    const Memory part_log_sum = empty_log_sums();
    call.forward(run_->query.data(), block_.data(), value_row(block_, 0, block_rows_), part.data(),
                 part_log_sum.floats());
    rank_.backend.run(kernels::AttentionMerge{rows_.padded_rows, shape_.query_heads, shape_.head_dim,
                                              out.data(), log_sum.floats(), part.data(),
                                              part_log_sum.floats()});
  }
  void differentiate() {
    AttentionCall& call = calls_[at(step_)];
    const Memory keys = zeroed_keys(block_rows_);
    if (!call.empty()) {
      const Memory query = rank_.elements(rows_.padded_rows * query_width_);
      call.backward(run_->query.data(), block_.data(), value_row(block_, 0, block_rows_), run_->out.data(),
                    run_->log_sum.floats(), gradient_->out.data(),
                    {query.data(), keys.data(), value_row(keys, 0, block_rows_)});
      rank_.add(gradient_->query.data(), query.data(), call.query_rows() * query_width_);
    }
    if (step_ == 0) {
      at_home_ = keys;
      return;
    }
    if (arriving_) rank_.add(keys.data(), arriving_.data(), 2 * block_rows_ * key_width_);
    arriving_.reset();
    travelling_ = keys;
  }

  // What this rank has added to goes to the next one; what the one before has added to comes.
  void pass_gradients_on() {
    const std::int64_t count = 2 * block_rows_ * key_width_;
    if (!travelling_) travelling_ = zeroed_keys(block_rows_);
    arriving_ = rank_.elements(count);
    rows_.group.elements->send_receive(travelling_.data(), (rows_.rank + 1) % ranks_, arriving_.data(),
                                       (rows_.rank + ranks_ - 1) % ranks_, count);
    travelling_.reset();
  }

  // Gradients of this rank's block to the chunks that its rows belong to.
  void spread(const Memory& found) {
    for_runs(rows_.rank, [&](std::size_t j, const RowRun& run, std::int64_t row) {
      const bool own = j + 1 == chain_.size();
      Memory& to = own ? gradient_->keys : chunks_.state(rows_.earlier[j], layer_).gradients;
      const std::int64_t capacity = chain_[j]->capacity;
      if (!to) to = zeroed_keys(capacity);
      rank_.add(key_row(to, run.row), key_row(found, row), run.count() * key_width_);
      rank_.add(value_row(to, run.row, capacity), value_row(found, row, block_rows_),
                run.count() * key_width_);
    });
  }
  int ranks_;
  std::int64_t block_rows_ = 0;               // of the fullest rank
  mutable std::vector<AttentionCall> calls_;  // by step
  std::vector<bool> attends_;                 // by step: whether any rank has something to attend to
  int step_ = 0;                              // of the next attention
  int held_step_ = 0;                         // whose block the rank has
  Memory block_, next_;
  Memory at_home_;     // gradients that this rank found for its own block
  Memory travelling_;  // those it has added to, to be passed on
  Memory arriving_;    // those of the block that the rank has, or its own at the end
  Memory again_out_, again_log_sum_;
};

}  // namespace

std::unique_ptr<ContextAttention> make_ring_attention(const RankContext& rank, const AttentionRows& rows,
                                                      int index, ChunkStates& chunks) {
  return std::make_unique<RingAttention>(rank, rows, index, chunks);
}

}  // namespace equipoise::execution
