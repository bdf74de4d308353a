// Memory of one GPU: what it holds all the time and what the schedule keeps in flight.
//
// Parameters, gradients and optimizer states by dtype, TP, PP, EP and ZeRO stage; activations per token and
// layer (FlashAttention: nothing quadratic) times what the schedule keeps; ChunkFlow's KV state and its
// gradients while they live; gathered K and V; fp32 logits on the last stage; the framework's reserve.
// StageMemory says what lives when, over the ops of a stage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policies/base/index.h"
#include "policies/plan.h"
#include "profiler/profile/profile.h"
#include "sim/cost/layer_costs.h"
#include "sim/schedule/schedule.h"
#include "sim/workload/layout.h"
#include "sim/workload/model.h"
#include "sim/workload/stage_layers.h"

namespace equipoise {

// Bytes by what holds them. They are model values, and sums are exact enough for a capacity check.
struct MemoryParts {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;
  double kv_state = 0;      // K and V of dependent chunks
  double kv_gradients = 0;  // gradients of these
  double gathered_kv = 0;   // K and V of the other CP ranks, with their gradients
  double logits = 0;        // and the softmax of micro-batches that wait for their backward
  double buffers = 0;       // pipeline and gather buffers, the layer being recomputed
  double reserve = 0;       // framework, context and communicator

  [[nodiscard]] double total() const {
    return parameters + gradients + optimizer + activations + kv_state + kv_gradients + gathered_kv + logits +
           buffers + reserve;
  }
  friend bool operator==(const MemoryParts&, const MemoryParts&) = default;
};

// The parts with their JSON keys, in the order in which they are shown.
struct MemoryPartName {
  const char* key;
  double MemoryParts::*bytes;
};
inline constexpr MemoryPartName kMemoryParts[] = {
    {"parameters", &MemoryParts::parameters},   {"gradients", &MemoryParts::gradients},
    {"optimizer", &MemoryParts::optimizer},     {"activations", &MemoryParts::activations},
    {"kv_state", &MemoryParts::kv_state},       {"kv_gradients", &MemoryParts::kv_gradients},
    {"gathered_kv", &MemoryParts::gathered_kv}, {"logits", &MemoryParts::logits},
    {"buffers", &MemoryParts::buffers},         {"reserve", &MemoryParts::reserve},
};

// What one micro-batch adds to a stage, in bytes.
struct Footprint {
  double activations = 0;  // kept from its F or R to its B
  double kv = 0;           // K and V of a dependent chunk; their gradients are as large
  double softmax = 0;      // kept from F or R to B on the stage with the logits
  // Held while one of its ops runs.
  double gathered_kv = 0;  // or what a recurrence's all-to-all sends and receives
  double logits = 0;
  double buffers = 0;
};

// What a rank of a lane holds of each of the lane's micro-batches.
struct LaneLoad {
  std::span<const MicroBatch> micro_batches;
  std::span<const std::int64_t> rank_tokens;
  std::span<const std::int64_t> gathered_tokens;  // tokens whose K and V a rank gathers
  int context = 1;
  bool recompute_ahead = false;  // ChunkFlow without a pipeline: see StageMemory
};

struct MemoryPeak {
  MemoryParts parts;
  int stage = 0;
  int lane = 0;
  int rank = 0;          // CP rank with the most tokens of the micro-batch
  int micro_batch = -1;  // the one whose op set the peak
  OpKind op = OpKind::F;
  int virtual_stage = 0;
  int op_index = -1;    // in the stage's order
  bool at_end = false;  // in the op's last layer, not in its first
  friend bool operator==(const MemoryPeak&, const MemoryPeak&) = default;
};

class MemoryModel {
 public:
  MemoryModel(const ModelShape& model, const Layout& layout, const Profile& profile,
              const FrameworkOptions& framework);

  [[nodiscard]] double capacity_bytes() const { return capacity_; }
  void set_capacity(double bytes) { capacity_ = bytes; }
  // What a plan may fill if the program chooses its sizes: all but the headroom. A plan that the user states
  // may fill the capacity.
  [[nodiscard]] double room_bytes() const { return capacity_ * (1 - headroom_); }
  void set_headroom(double share) { headroom_ = share; }
  // What a stage holds before the first micro-batch.
  [[nodiscard]] MemoryParts fixed(int stage) const;
  // Activation bytes that one token on a rank keeps in one layer, on the GPU.
  [[nodiscard]] double kept_per_token() const { return kept_per_token_; }
  [[nodiscard]] double kept_per_token_recomputed() const { return input_per_token_; }

  // Peak of a lane over the op orders of its stages; ties go to the lower stage and the earlier op. An upper
  // bound for all its CP ranks if load.rank_tokens is the most that any of them holds of each micro-batch.
  [[nodiscard]] MemoryPeak lane_peak(const Schedule& schedule, const LaneLoad& load) const;
  [[nodiscard]] MemoryPeak stage_peak(const Schedule& schedule, const LaneLoad& load, int stage) const;
  // What micro-batch `index` of the load adds to a virtual stage.
  [[nodiscard]] Footprint footprint(int virtual_stage, const LaneLoad& load, std::size_t index) const;
  [[nodiscard]] int stages() const { return layout_.pipeline; }
  [[nodiscard]] int model_layers() const { return model_.all_layers(); }
  // Tokens whose K and V a rank of `rank_tokens` tokens holds at once, out of a CP group's `group_tokens` on
  // `context` ranks.
  [[nodiscard]] std::int64_t gathered_tokens(int context, std::int64_t rank_tokens,
                                             std::int64_t group_tokens) const;
  // Layers of a virtual stage that keep something for a backward.
  [[nodiscard]] int layers(int virtual_stage) const { return keeping_[at(virtual_stage)]; }
  // Virtual stages of one kind have equal footprints of a micro-batch that leaves recomputation to the
  // layout.
  [[nodiscard]] std::size_t kinds() const { return kinds_; }
  [[nodiscard]] std::size_t kind(int virtual_stage) const { return kind_[at(virtual_stage)]; }

 private:
  [[nodiscard]] double activation_bytes(int virtual_stage, std::int64_t rank_tokens, int recomputed) const;
  [[nodiscard]] Footprint transient(bool makes_logits, std::int64_t rank_tokens, std::int64_t gathered,
                                    bool recomputes) const;
  [[nodiscard]] double most_gathered() const;
  [[nodiscard]] int copies_of_heads(int context) const;
  [[nodiscard]] MemoryPeak peak_of(std::span<const ScheduleOp> ops, const LaneLoad& load, int stage,
                                   bool splits_backward) const;

  ModelShape model_;
  Layout layout_;
  double capacity_;
  double headroom_ = 0;  // as a share of the capacity
  double reserve_;
  double gradient_bytes_;
  double optimizer_bytes_;
  LossKind loss_;
  double logit_bytes_;
  double softmax_bytes_;  // kept per logit for the backward, unless its gradient is there already
  double slack_;          // bytes that an allocator holds per byte that a micro-batch keeps
  bool records_streams_;
  bool keeps_gathered_kv_;
  double weight_bytes_;             // of a layer's weight that trains
  double frozen_weight_bytes_;      // of one that does not
  double kept_per_token_ = 0;       // on the GPU
  double offloaded_per_token_ = 0;  // in the host's memory
  double whole_per_token_ = 0;      // including what named recomputation drops
  double input_per_token_ = 0;
  double kv_bytes_per_token_ = 0;
  std::int64_t repeated_heads_ = 0;    // in PyTorch's ring, query heads per KV head that a rank sends
  std::vector<int> layers_, keeping_;  // by virtual stage: all layers, and those that a backward goes through
  std::vector<std::vector<ModelPart>> parts_, trained_parts_;  // parts of the same
  PartSizes part_sizes_, trained_sizes_;
  RecomputedLayers recomputed_;
  std::vector<std::size_t> kind_;  // by virtual stage
  std::size_t kinds_ = 0;
};

// What a stage of one rank holds, op by op: when activations, K and V, their gradients, and what lives only
// while an op runs come and go.
//
// - Activations of a micro-batch grow layer by layer in its F or R and go layer by layer in its B (in its W
//   where the schedule splits backwards). A D leaves none. The softmax of the logits, which the loss needs
//   again, is kept from the end of an F or R to the B.
// - K and V of a dependent chunk grow in its D or F (they outlive a D, and R finds them) and go layer by
//   layer in its B: the chunks before it never read them, and those after it are through.
// - Their gradients: the first backward of a group, that of its last chunk, reaches all earlier keys of the
//   document, so that layer by layer it adds gradients as large as the K and V of all chunks before it. Each
//   chunk's own go, layer by layer, in its B. Hence a backward exchanges activations for gradients, and the
//   most it holds is in its first or in its last layer: both are given.
//   Example, 3 chunks, K = 1: D1 D2 F3 B3 R2 B2 R1 B1 holds K and V of 1, 2, 3, 3, 2, 2, 1, 1 chunks at the
//   begin of each op (at the end of the forwards), and gradients of 0, 0, 0, 0, 2, 2, 1, 1.
// - Gathered K and V, logits and buffers are reserved for the whole op.
// - A pair's forward grows layer by layer while its backward shrinks, so that the two hold one micro-batch
//   and a layer. What an op holds while it runs, both do. All of it is given with the backward, the later op.
//
// recompute_ahead. Without a pipeline ChunkFlow's order is B of the kept chunks, then R and B of each dropped
// one, and holds K chunks at most. The order that the paper draws for a pipeline issues the k-th R of a group
// before its k-th B, so that the last stage holds K + 1. The peaks that the paper measured on one stage
// (Table 5) rise with the chunk size twice as fast as one chunk's activations, so its implementation
// evidently issues the R ahead there too: with recompute_ahead the k-th R's activations live from the start
// of the group's k-th B. Times do not change: nothing overlaps on one stage.
//
// Cost: O(1) an op, and O(n) once for a group of n chunks.
// Bytes around one op, fixed parts included. Between the first and the last layer they change in equal steps.
struct OpMemory {
  MemoryParts first;  // during the op's first layer
  MemoryParts last;   // during its last layer
  MemoryParts after;  // after its end
  int layers = 1;
};

class StageMemory {
 public:
  // The data that `load` refers to must outlive this object.
  StageMemory(const MemoryModel& model, const LaneLoad& load, int stage, bool splits_backward);

  // What the stage holds around its next op. Ops must come in the schedule's order.
  const OpMemory& next(const ScheduleOp& op);

 private:
  // Found once for all of the stage's virtual stages that are alike.
  const Footprint& footprint(int virtual_stage, std::size_t index);
  [[nodiscard]] double earlier_kv(const ScheduleOp& op, int virtual_stage);
  void recompute_ahead(const ScheduleOp& op, int virtual_stage);

  const MemoryModel& model_;
  LaneLoad load_;
  int stage_;
  bool splits_;  // whether W frees activations, or a whole B
  bool ahead_;
  int dropped_ = 0;  // chunks of the latest group, with recompute_ahead
  Footprint forward_;             // of a pair whose backward comes next
  std::vector<Footprint> known_;  // by kind of virtual stage and micro-batch; negative: not yet
  OpMemory op_;      // op_.after is the state from which the next op starts
};

}  // namespace equipoise
