// Attention that runs on other ranks than those of its tokens: planned tasks of a CP group or of a pool of
// stages, and stages that even out their attention.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "policies/plan.h"
#include "policies/sharding/disaggregation.h"
#include "policies/sharding/sharding.h"
#include "sim/cost/layer_costs.h"
#include "sim/workload/ops.h"

namespace equipoise {

// Ranks that exchange K and V, their places, and the size of a token's K and V of one layer on each.
struct ContextGroup {
  int ranks = 1;
  GroupShape shape;
  double kv_bytes_per_token = 0;
};
// The attention tasks of a micro-batch, by nano-batch, and the one-way bytes of the rank that moves most.
struct PlannedTasks {
  int nano_batches = 1;
  std::array<AttentionTasks, kMostNanoBatches> parts;
  struct Bytes {
    double inputs = 0, output = 0;     // forward: Q, K and V go out, the output returns
    double resent = 0, gradients = 0;  // backward: those, the output and its gradient; their gradients return
    [[nodiscard]] bool none() const { return inputs + output == 0; }
  };
  std::array<Bytes, kMostNanoBatches> most;
  std::int64_t held = 0;      // as if K and V, on the rank with the most: its own and received tokens
  std::int64_t received = 0;  // keys, by all ranks together
};

// The CP ranks of all stages that run an op at one time, and the tasks of one stage's ranks among them.
struct StagePool {
  PlannedTasks tasks;
  ContextGroup group;
};
// The tasks of a sharded micro-batch; valid until this thread asks again.
const PlannedTasks& planned_tasks(const MicroBatch& micro_batch, const Sharding& sharding,
                                  const LayerCosts& costs);
// A micro-batch of a stage on its CP ranks.
struct PooledTokens {
  const MicroBatch* micro_batch = nullptr;
  const Sharding* sharding = nullptr;
};
// The tasks of a pool of stages, by stage. Ranks count from 0, and any rank may compute what another owns.
std::vector<PlannedTasks> pooled_tasks(std::span<const PooledTokens> stages, const LayerCosts& costs);
// Their segments as those of one micro-batch, with the slices of all stages in order.
Sharding pooled_sharding(std::span<const PooledTokens> stages);

// ---- Stages that even out their attention ----

// What a stage contributes to a tick, in which all stages run forwards, or all run backwards.
struct StageAttention {
  const MicroBatch* micro_batch = nullptr;
  std::int32_t number = 0, stage = 0;      // number of the micro-batch in its lane, and of the stage
  std::array<int, 2> layers{};             // number that go forward in the tick, and backward
  std::array<Picoseconds, 2> attention{};  // per layer, forward and backward
};
// Part of a micro-batch's attention that another stage computes. Either its tokens [begin, end), in the order
// of its slices, as queries with all keys that they see; or all its tokens with the keys [begin, end) of
// earlier chunks.
struct StageMove {
  std::int32_t from = 0, to = 0;  // stages
  std::int32_t micro_batch = 0;
  bool keys = false;
  std::int64_t begin = 0, end = 0;
  friend bool operator==(const StageMove&, const StageMove&) = default;
};
// The time that each of their layers then takes in a pass, and the bytes that move, which take no longer.
struct EvenedPass {
  Picoseconds attention = 0;
  Op exchange{OpName::cp_all_to_all, Stream::cp};
  std::int64_t received = 0;  // as if K and V, on the stage with the most
  std::vector<StageMove> moves = {};
  friend bool operator==(const EvenedPass&, const EvenedPass&) = default;
};
using EvenedAttention = std::array<EvenedPass, 2>;
EvenedAttention even_out(std::span<const StageAttention> stages, const LayerCosts& costs, RangeUse& use);

}  // namespace equipoise
