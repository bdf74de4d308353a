#include "sim/execution/end_ops.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "sim/execution/layer_ops.h"

namespace equipoise::execution {

[[noreturn]] static void no_such_end_op(OpName op) {
  throw EngineError("real execution: an end of the model has an op that no rank can run: ", name_of(op));
}

void EndOps::begin(BlockRole role, MicroBatchRun& run, EndParts parts, Memory& hidden, bool counts_loss) {
  role_ = role;
  run_ = &run;
  parts_ = parts;
  hidden_ = &hidden;
  counts_loss_ = counts_loss;
  rows_ = hidden;
}

void EndOps::run(OpName op) {
  if (role_ == BlockRole::embedding_forward) return embedding_forward(op);
  if (role_ == BlockRole::embedding_backward) return embedding_backward(op);
  if (role_ == BlockRole::head_forward) return head_forward(op);
  if (role_ == BlockRole::head_backward) return head_backward(op);
  no_such_end_op(op);
}

void EndOps::end() {
  if (role_ == BlockRole::head_forward) losses();
  if (role_ == BlockRole::embedding_forward || role_ == BlockRole::head_backward) *hidden_ = rows_;
  if (role_ == BlockRole::head_backward) run_->head = {};
  for (Memory* memory : {&all_, &rows_, &logits_gradient_, &local_log_sum_, &target_logit_}) memory->reset();
}

void EndOps::gather(const Memory& rows) {
  all_ = rank_.elements(run_->padded_rows * rank_.model.hidden);
  rank_.tensor.elements->all_gather(rows.data(), all_.data(), run_->sequence_rows * rank_.model.hidden);
}
void EndOps::scatter() {
  rows_ = rank_.elements(run_->sequence_rows * rank_.model.hidden);
  rank_.tensor.elements->reduce_scatter(all_.data(), rows_.data(), run_->sequence_rows * rank_.model.hidden);
}

void EndOps::embedding_forward(OpName op) {
  if (op == OpName::tp_reduce_scatter) return scatter();
  if (op != OpName::embedding) no_such_end_op(op);
  all_ = rank_.elements(run_->padded_rows * rank_.model.hidden);
  kernels::Embedding call{
      {run_->padded_rows, rank_.model.hidden}, rank_.vocabulary.first, rank_.vocabulary.count};
  call.tokens = run_->tokens.integers();
  call.table = rank_.at(parts_.embedding->weights, parts_.embedding->tensors[0].offset);
  call.out = all_.data();
  rank_.backend.run(call);
  rows_ = all_;
}

void EndOps::embedding_backward(OpName op) {
  if (op == OpName::tp_all_gather) return gather(rows_);
  if (op != OpName::embedding) no_such_end_op(op);
  kernels::EmbeddingBackward call{
      {run_->padded_rows, rank_.model.hidden}, rank_.vocabulary.first, rank_.vocabulary.count};
  call.tokens = run_->tokens.integers();
  call.out_gradient = (rank_.layout.tensor > 1 ? all_ : rows_).data();
  call.table_gradient = gradient_to_add_to(rank_, *parts_.embedding, 0);
  rank_.backend.run(call);
}

void EndOps::head_forward(OpName op) {
  HeadRun& head = run_->head;
  const std::int64_t rows = run_->padded_rows;
  switch (op) {
    case OpName::rms_norm:
      head = {};
      head.input = rows_;
      norm_forward(rank_, *parts_.head, norm_shard(), run_->sequence_rows, head.input, head.inverse,
                   head.norm);
      all_ = head.norm;
      return;
    case OpName::tp_all_gather:
      return gather(head.norm);
    case OpName::logits_gemm:
      head.logits = rank_.elements(rows * rank_.vocabulary.count);
      return linear_forward(rank_, head_part(), 0, rows, all_.data(), head.logits.data());
    case OpName::cross_entropy: {
      local_log_sum_ = rank_.floats(rows);
      target_logit_ = rank_.floats(rows);
      kernels::CrossEntropy call{{rows, rank_.vocabulary.count}, rank_.vocabulary.first};
      call.logits = head.logits.data();
      call.targets = run_->targets.integers();
      call.log_sum = local_log_sum_.floats();
      call.target_logit = target_logit_.floats();
      rank_.backend.run(call);
      head.log_sum = local_log_sum_;
      return;
    }
    case OpName::tp_reduce_scatter: {  // for the statistics of a sharded vocabulary
      const std::int64_t t = rank_.layout.tensor;
      std::vector<float> mine(static_cast<std::size_t>(2 * rows)),
          all(static_cast<std::size_t>(2 * rows * t));
      rank_.backend.to_host(mine.data(), local_log_sum_.data(),
                            static_cast<std::size_t>(rows) * sizeof(float));
      rank_.backend.to_host(mine.data() + rows, target_logit_.data(),
                            static_cast<std::size_t>(rows) * sizeof(float));
      rank_.tensor.floats->all_gather(mine.data(), all.data(), 2 * rows);
      for (std::int64_t row = 0; row < rows; ++row) {
        float highest = all[at(row)], target = 0;
        double sum = 0;
        const auto of = [&](std::int64_t r, std::int64_t field) {
          return all[at((2 * r + field) * rows + row)];
        };
        for (std::int64_t r = 0; r < t; ++r) highest = std::max(highest, of(r, 0));
        for (std::int64_t r = 0; r < t; ++r) {
          sum += std::exp(static_cast<double>(of(r, 0) - highest));
          target += of(r, 1);
        }
        mine[at(row)] = highest + static_cast<float>(std::log(sum));
        mine[at(rows + row)] = target;
      }
      head.log_sum = rank_.floats(rows);
      rank_.backend.to_device(head.log_sum.data(), mine.data(),
                              static_cast<std::size_t>(rows) * sizeof(float));
      rank_.backend.to_device(target_logit_.data(), mine.data() + rows,
                              static_cast<std::size_t>(rows) * sizeof(float));
      return;
    }
    case OpName::host_stall:
      return;
    default:
      no_such_end_op(op);
  }
}

// Adds up the losses of all tokens with a target. All TP ranks know them, and the first one reports them.
void EndOps::losses() {
  if (!counts_loss_ || rank_.place.tensor != 0 || run_->padded_rows == 0) return;
  const auto rows = static_cast<std::size_t>(run_->padded_rows);
  std::vector<float> log_sum(rows), target(rows);
  rank_.backend.to_host(log_sum.data(), run_->head.log_sum.data(), rows * sizeof(float));
  rank_.backend.to_host(target.data(), target_logit_.data(), rows * sizeof(float));
  for (std::size_t row = 0; row < rows; ++row) {
    const std::int32_t slice = run_->slice_of_row[row];
    if (slice >= 0)
      run_->slice_losses[at(slice)] += static_cast<double>(log_sum[row]) - static_cast<double>(target[row]);
  }
}

void EndOps::head_backward(OpName op) {
  HeadRun& head = run_->head;
  const std::int64_t hidden = rank_.model.hidden, rows = run_->padded_rows;
  switch (op) {
    case OpName::cross_entropy: {
      logits_gradient_ = rank_.elements(rows * rank_.vocabulary.count);
      kernels::CrossEntropyBackward call{{rows, rank_.vocabulary.count}, rank_.vocabulary.first};
      call.logits = head.logits.data();
      call.targets = run_->targets.integers();
      call.log_sum = head.log_sum.floats();
      call.row_weight = run_->weights.floats();
      call.logits_gradient = logits_gradient_.data();
      return rank_.backend.run(call);
    }
    case OpName::tp_all_gather:
      return gather(head.norm);
    case OpName::input_gradient: {
      const Memory input = rank_.layout.tensor > 1 ? all_ : head.norm;
      all_ = rank_.elements(rows * hidden);
      linear_backward(rank_, head_part(), 0, rows, logits_gradient_.data(), all_.data(), false);
      rows_ = all_;
      head.waiting = {{{logits_gradient_, 0, rank_.vocabulary.count, input, hidden, rows, 0}}};
      return;
    }
    case OpName::tp_reduce_scatter:
      return scatter();
    case OpName::weight_gradient:
      add_weight_gradient(rank_, head_part(), head.waiting.at(0).at(0));
      return;
    case OpName::rms_norm:
      rows_ = norm_backward(rank_, *parts_.head, norm_shard(), run_->sequence_rows, head.input, head.inverse,
                            rows_);
      return;
    case OpName::host_stall:
      return;
    default:
      no_such_end_op(op);
  }
}

}  // namespace equipoise::execution
