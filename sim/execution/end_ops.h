// The ops at the model's ends on one rank: embedding, and head with loss. TP ranks share the vocabulary. The
// last of them may hold fewer tokens, so that no logits are padded.
#pragma once

#include <cstddef>

#include "sim/execution/micro_batch_run.h"
#include "sim/execution/rank_context.h"
#include "sim/step/op_program.h"
#include "sim/workload/ops.h"

namespace equipoise::execution {

// The parts that hold the ends' parameters on this rank.
struct EndParts {
  Part* embedding = nullptr;
  Part* head = nullptr;  // the final norm, and the head's weights unless the embedding has them
};

class EndOps {
 public:
  explicit EndOps(const RankContext& rank) : rank_(rank) {}

  // `counts_loss` is false for a forward that is run only for its keys.
  void begin(BlockRole role, MicroBatchRun& run, EndParts parts, Memory& hidden, bool counts_loss);
  void run(OpName op);
  void end();

 private:
  void embedding_forward(OpName op);
  void embedding_backward(OpName op);
  void head_forward(OpName op);
  void head_backward(OpName op);
  void gather(const Memory& rows);
  void scatter();
  void losses();
  [[nodiscard]] bool shares_embedding() const { return parts_.head->tensors.size() == 1; }
  [[nodiscard]] Part& head_part() const { return shares_embedding() ? *parts_.embedding : *parts_.head; }
  [[nodiscard]] std::size_t norm_shard() const { return parts_.head->tensors.size() - 1; }

  const RankContext& rank_;
  BlockRole role_ = BlockRole::none;
  MicroBatchRun* run_ = nullptr;
  EndParts parts_;
  Memory* hidden_ = nullptr;
  bool counts_loss_ = false;
  Memory all_, rows_, logits_gradient_, local_log_sum_, target_logit_;
};

}  // namespace equipoise::execution
