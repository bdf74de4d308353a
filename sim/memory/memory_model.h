// Memory of one GPU: what it holds all the time and what the schedule keeps in flight.
//
// Parameters, gradients and optimizer states by dtype, TP, PP, EP and ZeRO stage; activations per token and
// layer (FlashAttention: nothing quadratic) times what the schedule keeps; ChunkFlow's KV state and its
// gradients while they live; gathered K and V; fp32 logits on the last stage; the framework's reserve.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "policies/plan.h"
#include "profiler/profile/profile.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/schedule/schedule.h"
#include "sim/workload/layout.h"
#include "sim/workload/model.h"

namespace equipoise {

// Bytes by what holds them. Sums are exact enough for a capacity check; they are model values.
struct MemoryParts {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;
  double kv_state = 0;
  double buffers = 0;  // gathered K and V, logits, pipeline and bucket buffers
  double reserve = 0;  // framework, context and communicator

  [[nodiscard]] double total() const {
    return parameters + gradients + optimizer + activations + kv_state + buffers + reserve;
  }
};

struct MemoryPeak {
  MemoryParts parts;
  int stage = 0;
  int lane = 0;
  int micro_batch = -1;  // whose op set the peak
};

class MemoryModel {
 public:
  MemoryModel(const ModelShape& model, const Layout& layout, const Profile& profile, double gradient_bytes);

  [[nodiscard]] double capacity_bytes() const { return capacity_; }
  void set_capacity(double bytes) { capacity_ = bytes; }
  // What a stage holds before any micro-batch.
  [[nodiscard]] MemoryParts fixed(int stage) const;
  // Activation bytes that one token on a rank keeps in one layer.
  [[nodiscard]] double kept_per_token() const { return kept_per_token_; }
  [[nodiscard]] double kept_per_token_recomputed() const { return input_per_token_; }

  // Peak of a lane's stage over its op order. rank_tokens: the most tokens any CP rank holds of each
  // micro-batch; all_tokens: those whose K and V a rank gathers.
  [[nodiscard]] MemoryPeak lane_peak(const Schedule& schedule, std::span<const MicroBatch> micro_batches,
                                     std::span<const std::int64_t> rank_tokens,
                                     std::span<const std::int64_t> gathered_tokens, int context) const;

  // WLB-LLM's L_max: most tokens of a micro-batch on `context` ranks if all that 1F1B keeps in flight are as
  // large. 0 if nothing fits.
  [[nodiscard]] std::int64_t largest_micro_batch(int context) const;
  // Skrull's BucketSize: most tokens of a micro-batch that one CP rank can hold.
  [[nodiscard]] std::int64_t bucket_size() const;
  // HBP Algorithm 4: layers of the model to checkpoint so that a micro-batch of `rank_tokens` tokens a rank
  // fits; -1 if none suffices.
  [[nodiscard]] int checkpointed_layers(std::int64_t rank_tokens, int context) const;

 private:
  [[nodiscard]] double in_flight_bytes(int stage, std::int64_t rank_tokens, const MicroBatch& like) const;
  [[nodiscard]] double activation_bytes(int virtual_stage, std::int64_t rank_tokens, int recomputed) const;
  [[nodiscard]] double transient_bytes(int stage, std::int64_t rank_tokens, std::int64_t gathered,
                                       bool recomputes) const;
  [[nodiscard]] int recomputed_layers(int virtual_stage, const MicroBatch& micro_batch) const;

  ModelShape model_;
  Layout layout_;
  double capacity_;
  double reserve_;
  double gradient_bytes_;
  double kept_per_token_ = 0;
  double input_per_token_ = 0;
  double kv_bytes_per_token_ = 0;
  std::vector<int> layers_;       // by virtual stage
  std::vector<int> first_layer_;  // by virtual stage
};

}  // namespace equipoise
