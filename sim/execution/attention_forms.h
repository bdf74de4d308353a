// The forms of context-parallel attention, and the kernel calls that they share.
#pragma once

#include <memory>
#include <vector>

#include "kernels/ops.h"
#include "sim/execution/context_attention.h"

namespace equipoise::execution {

// A packed attention call over fixed pieces, its plans made when first used. No pieces: nothing is run.
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
  // Rows of the gradients below query_rows() and key_rows() are written, no others.
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

// Later chunks of the group will attend to these keys.
inline void keep_keys(const AttentionRows& rows, const AttentionRun& run, ChunkState& state) {
  if (rows.in_group) state.keys = run.keys;
}

std::unique_ptr<ContextAttention> make_gathered_attention(const RankContext&, const AttentionRows&, int index,
                                                          ChunkStates&);
std::unique_ptr<ContextAttention> make_ring_attention(const RankContext&, const AttentionRows&, int index,
                                                      ChunkStates&);
std::unique_ptr<ContextAttention> make_ulysses_attention(const RankContext&, const AttentionRows&,
                                                         const MicroBatchRows& all, int index, ChunkStates&);

}  // namespace equipoise::execution
