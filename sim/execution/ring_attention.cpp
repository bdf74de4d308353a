#include "sim/execution/ring_attention.h"

#include <algorithm>

#include "policies/base/index.h"

namespace equipoise::execution {
namespace {

class RingAttention final : public BlockwiseAttention {
 public:
  RingAttention(const RankContext& rank, const AttentionRows& rows, int index, ChunkStates& chunks)
      : BlockwiseAttention(rank, rows, index, chunks), ranks_(static_cast<int>(rows.rows.ranks.size())) {
    for (int r = 0; r < ranks_; ++r) block_rows_ = std::max(block_rows_, rows_in_block(r));
    for (int step = 0; step < ranks_; ++step) {
      calls_.emplace_back(rank.backend, shape_, pieces_over_rows(rows.rank, block_owner(rows.rank, step)));
      bool any = false;
      for (int r = 0; r < ranks_ && !any; ++r) any = attends(r, step);
      attends_.push_back(any);
    }
  }

  void forward_sync(int) override { send_keys(); }
  void forward_attend(int) override {
    take_next_step();
    attend_step(run_->out, run_->log_sum);
    ++step_;
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
    if (again_) attend_step(again_out_, again_log_sum_);
    differentiate_step();
    ++step_;
  }
  void end_backward() override {
    for (const Memory* found : {&at_home_, &arriving_})
      if (*found) spread(*found, block_rows_);
    for (Memory* memory :
         {&at_home_, &travelling_, &arriving_, &block_, &next_, &again_out_, &again_log_sum_})
      memory->reset();
    add_later_chunks();
  }

 private:
  [[nodiscard]] int block_owner(int rank, int step) const { return (rank + ranks_ - step) % ranks_; }
  // Whether the program has the step for this rank. The program counts a share of the earlier chunks on every
  // rank, even on one that holds none of them.
  [[nodiscard]] bool attends(int rank, int step) const {
    const bool has_queries = rows_.rows.ranks[at(rank)].rows > 0;
    return (rows_.rows.earlier > 0 && has_queries) ||
           !pieces_over_rows(rank, block_owner(rank, step)).empty();
  }

  void begin(AttentionRun& run, int layer) override {
    AttentionForm::begin(run, layer);
    step_ = held_step_ = 0;
    next_.reset();
    block_ = own_block(block_rows_);
  }

  // Skips steps in which no rank attends; they are in no program, and their gradients only pass through.
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

  void attend_step(const Memory& out, const Memory& log_sum) {
    attend(calls_[at(step_)], block_, block_rows_, out, log_sum);
  }
  void differentiate_step() {
    const Memory keys = differentiate(calls_[at(step_)], block_, block_rows_);
    if (step_ == 0) {
      at_home_ = keys;
      return;
    }
    if (arriving_) rank_.add(keys.data(), arriving_.data(), 2 * block_rows_ * key_width_);
    arriving_.reset();
    travelling_ = keys;
  }

  // Sends the block's gradients to the next rank and receives those of the next block from the rank before.
  void pass_gradients_on() {
    const std::int64_t count = 2 * block_rows_ * key_width_;
    if (!travelling_) travelling_ = zeroed_keys(block_rows_);
    arriving_ = rank_.elements(count);
    rows_.group.elements->send_receive(travelling_.data(), (rows_.rank + 1) % ranks_, arriving_.data(),
                                       (rows_.rank + ranks_ - 1) % ranks_, count);
    travelling_.reset();
  }

  int ranks_;
  std::int64_t block_rows_ = 0;       // rows of the fullest rank
  std::vector<AttentionCall> calls_;  // by step
  std::vector<bool> attends_;         // by step: whether any rank attends
  int step_ = 0;                      // of the next attention
  int held_step_ = 0;                 // rank that owns the current block
  Memory block_, next_;
  Memory at_home_;     // gradients that this rank found for its own block
  Memory travelling_;  // gradients with this rank's part added, for the next rank
  Memory arriving_;    // gradients of the current block, or of its own at the end
};

}  // namespace

std::unique_ptr<ContextAttention> make_ring_attention(const RankContext& rank, const AttentionRows& rows,
                                                      int index, ChunkStates& chunks) {
  return std::make_unique<RingAttention>(rank, rows, index, chunks);
}

}  // namespace equipoise::execution
