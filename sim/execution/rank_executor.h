// Runs steps for real on one rank: the ops of the op program in its order. It decides no order itself.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "kernels/backend.h"
#include "kernels/collectives.h"
#include "sim/execution/end_ops.h"
#include "sim/execution/executable_step.h"
#include "sim/execution/layer_ops.h"
#include "sim/execution/micro_batch_run.h"
#include "sim/execution/rank_context.h"
#include "sim/execution/rank_health.h"
#include "sim/topology/rank_grid.h"

namespace equipoise::execution {

struct RankSetup {
  const ModelShape& model;
  const Layout& layout;
  const RankGrid& grid;
  kernels::Backend& backend;
  // All ranks in the grid's order: values of the backend's type, and f32.
  kernels::Communicator& elements;
  kernels::Communicator& floats;
  std::uint64_t seed = 0;
  std::int64_t longest_slice = 1;  // longest of any step or group of chunks; the number of positions
  Progress* progress = nullptr;    // receives every op, unless null
  bool times_ops = true;           // whether it waits for the device after every op
};

// Values that only whole-step checks need, gathered on rank 0 of the world and empty elsewhere.
struct Gathered {
  // Sums of the token losses without weights, [lane][micro-batch][slice].
  std::vector<std::vector<std::vector<double>>> losses;
  std::vector<std::vector<float>>
      gradients;  // by tensor of the inventory, before the optimizer; empty unless asked for
};

class RankExecutor final : private ChunkStates {
 public:
  explicit RankExecutor(const RankSetup& setup);

  // One optimizer step. All ranks call it with the same step.
  Gathered run(const ExecutableStep& step, bool gather_gradients, StepRecord& record);
  // Restores the initial weights, as if no step had run.
  void reset();
  // The current weights, by tensor of the inventory, on rank 0.
  std::vector<std::vector<float>> gather_weights();
  [[nodiscard]] std::size_t held_bytes() const { return pool_.held_bytes(); }

 private:
  struct Message {
    Memory data;
    std::unique_ptr<kernels::Pending> pending;
  };
  struct Groups {
    std::unique_ptr<kernels::Communicator> elements, floats;
  };
  using InputKey = std::tuple<int, int, int>;  // way, virtual stage that reads it, micro-batch

  void join_groups();
  void make_parameters();
  void prepare(const ExecutableStep& step);
  struct ContextGroups {  // of a lane: its CP ranks, those that share heads, those with equal shares of heads
    std::unique_ptr<kernels::Communicator> all, inner, across;
    std::unique_ptr<kernels::Communicator> floats;  // for all, if that is another communicator
  };
  const ContextGroups& context_groups(const OpProgram& program, int barrier_group);
  void prepare_lane(const ExecutableStep& step, int lane, const ContextGroups& context);
  void prepare_micro_batch(const Sharding& sharding, const std::vector<double>& slice_weights,
                           const DocumentLengths& documents, MicroBatchRun& run);
  // The lanes
  void run_lane(const ExecutableStep& step, int lane, StepRecord& record);
  void run_ticks(const ExecutableStep& step, StepRecord& record);
  void serve(const ExecutableStep& step, const TickOp& with);
  void serve_layer(const OpBlock& block, ContextAttention& attention);
  void run_scheduled(const ExecutableStep& step, std::size_t number, StepRecord& record);
  void run_block(const OpBlock& block, int layer, const ScheduledOp& scheduled, Memory& hidden,
                 RecordedOp at_op, StepRecord& record);
  void receive_input(const ScheduledOp& scheduled, Memory& hidden, RecordedOp op, StepRecord& record);
  void pass_on(const ScheduledOp& scheduled, const Memory& hidden);
  void run_end(const ExecutableStep& step, StepRecord& record, Gathered* gathered);
  void reduce(Part& part);
  void add_over_tensor_ranks(Part& part);
  void share_tied(Part& part);
  [[nodiscard]] void* owned_gradients(Part& part) const;
  void optimize(Part& part);
  void gather_parameters(Part& part);
  std::vector<float> whole_gradients(Part& part);
  void gather_gradients(std::vector<std::vector<float>>& out);
  void gather_tensors(const std::function<std::vector<float>(Part&)>& values_of,
                      std::vector<std::vector<float>>& out);
  void gather_losses(const ExecutableStep& step, Gathered& out);

  MicroBatchRun& run_of(int micro_batch) { return runs_[at(lane_)][at(micro_batch)]; }
  const AttentionRows& rows(int micro_batch) override { return run_of(micro_batch).rows; }
  const AttentionRows& inner_rows(int micro_batch) override { return run_of(micro_batch).inner_rows; }
  ChunkState& state(int micro_batch, int layer) override { return run_of(micro_batch).chunk[at(layer)]; }

  [[nodiscard]] int virtual_stage(const ScheduleOp& op) const {
    return op.virtual_stage * setup_.layout.pipeline + rank_.place.stage;
  }
  [[nodiscard]] Part& part_of_layer(int layer);
  [[nodiscard]] EndParts end_parts();
  [[nodiscard]] int world_rank(int stage, int replica, int tensor) const;
  [[nodiscard]] int tag_of(int way, int v, int micro_batch) const;

  RankSetup setup_;
  MemoryPool pool_;
  Groups tensor_, replicas_, stages_;
  std::unique_ptr<kernels::Communicator> same_kv_;
  RankContext rank_;
  std::vector<std::vector<Part>> parts_;  // by local virtual stage, in bucket order
  Memory rope_;
  LayerOps layer_ops_;
  EndOps end_ops_;
  std::map<std::vector<std::pair<int, int>>, ContextGroups> context_groups_;
  int steps_done_ = 0;
  // The members below belong to the running step.
  int lane_ = -1;
  std::vector<std::vector<MicroBatchRun>> runs_;  // by lane, for the lanes that this rank runs
  std::vector<std::vector<bool>> recomputes_;     // [micro-batch][layer]: whether its backward repeats the
                                                  // forward
  std::map<InputKey, Memory> kept_;               // inputs that this rank made itself
  std::vector<Message> sent_;
};

}  // namespace equipoise::execution
