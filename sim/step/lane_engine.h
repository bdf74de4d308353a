// Executes one lane's pipeline schedule at `stage` fidelity, with a clock for each CP rank.
//
// Every stage runs its ops in the schedule's order; an op starts on a CP rank when that rank is free and its
// input has arrived there. Ranks of a stage wait for each other only where CP communication makes them
// (LayerTimeline), so a micro-batch of local documents lets them drift apart. The order is given, so there is
// no heap: O(ops x CP ranks).
//
// One loop serves one lane and lanes in lockstep (LockstepRun): sweep_stages, and for each op ready, open,
// what the op does, close. What the op does is written twice: a lane alone goes over equal layers in one
// max-plus step (OpTimer), while lanes in lockstep meet in every layer. As the second, layer by layer, an op
// of a lane alone would take as many steps as it has layers (126 in Llama 405B), where now it takes one.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "policies/base/clock.h"
#include "policies/base/index.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/schedule/schedule.h"
#include "sim/step/inboxes.h"
#include "sim/step/lane_accounts.h"
#include "sim/step/lockstep.h"
#include "sim/step/part_order.h"
#include "sim/step/stage_loop.h"
#include "sim/step/step_options.h"
#include "sim/step/step_result.h"

namespace equipoise {

// Where a lane's costs come from while it runs: they are asked for in the order of micro-batches, each before
// its first op runs, and given back after its last.
class CostSource {
 public:
  CostSource() = default;
  CostSource(const CostSource&) = delete;
  CostSource& operator=(const CostSource&) = delete;
  virtual ~CostSource() = default;
  // The cost stays where it is until it is given back.
  virtual const MicroBatchCost& cost(std::size_t micro_batch) = 0;
  virtual void give_back(std::size_t micro_batch) = 0;
};

class LaneEngine {
 public:
  LaneEngine(std::shared_ptr<const PartOrders> orders, const Layout& layout);
  LaneEngine(const ModelShape& model, const Layout& layout)
      : LaneEngine(std::make_shared<PartOrders>(model, layout), layout) {}

  // Runs `schedule` over the lane's micro-batches from clock `start`. `costs` are parallel to
  // `micro_batches`. Throws std::logic_error naming who waits for what if the schedule cannot run.
  LaneResult run(const Schedule& schedule, std::span<const MicroBatch> micro_batches,
                 std::span<const MicroBatchCost> costs, const StepOptions& options, Picoseconds start,
                 std::int32_t lane, LaneAccounts& accounts, std::vector<StageOp>* ops);
  // The same on `ranks` CP ranks with costs that are made as the lane needs them; not for schedules with
  // pairs. Runs of one `schedule_number` other than 0 have the same schedule.
  LaneResult run(const Schedule& schedule, std::uint64_t schedule_number,
                 std::span<const MicroBatch> micro_batches, std::size_t ranks, CostSource& costs,
                 const StepOptions& options, Picoseconds start, std::int32_t lane, LaneAccounts& accounts);

  // The same op by op: what one run was given, and how far it is.
  struct Run {
    const Schedule& schedule;
    std::span<const MicroBatch> micro_batches;
    std::span<const MicroBatchCost> costs;  // empty: they come while it runs
    bool blocking_sends = false;
    std::int32_t lane = 0;
    LaneAccounts& accounts;
    std::vector<StageOp>* ops = nullptr;
    std::size_t ranks = 1;
    std::size_t real =
        0;  // micro-batches of the plan; without a pipeline the ops of later ones need no input
    const LaneArrivals* arrivals = nullptr;  // of which the costs are; null: of the micro-batches
    std::uint64_t schedule_number = 0;
    std::vector<Picoseconds> opened_on{};  // by rank, when the op that runs began, where ops are recorded
  };
  void begin(Run& run, Picoseconds start);
  // Whether the stage's next op can run; false at the end, too.
  [[nodiscard]] bool ready(const Run& run, int stage) const;
  // Sets clock() to when each rank can begin the stage's next op, and returns that op. The first of a pair
  // represents both (partner): they begin when both have their input.
  ScheduleOp open(Run& run, int stage);
  // The second op of the pair that is next on the stage; null if a single op is.
  [[nodiscard]] const ScheduleOp* partner(const Run& run, int stage) const;
  // If the op fills gradient buckets, where their times go, one for each bucket; else null.
  std::vector<Picoseconds>* fills(const ScheduleOp& op, int stage);
  // Ends the op, or the pair, at clock().
  void close(Run& run, const ScheduleOp& op, int stage);
  // Once no stage gets on: the lane's result, which began at `start`. Needs all costs.
  LaneResult finish(Run& run, Picoseconds start);
  // The time at which each rank of the running op is.
  [[nodiscard]] std::span<Picoseconds> clock() { return clock_; }
  [[nodiscard]] int virtual_stage(const ScheduleOp& op, int stage) const {
    return op.virtual_stage * stages_ + stage;
  }

  // After a run, grad_ready()[v][i] is when all ranks have the gradients of bucket i
  // (PartOrders::buckets) of virtual stage v; empty where no op made them.
  [[nodiscard]] const std::vector<std::vector<Picoseconds>>& grad_ready() const { return grad_ready_; }
  // When each stage ended its last op: one that fills no bucket counts, too, such as the backward of a virtual
  // stage whose layers are all frozen.
  [[nodiscard]] const std::vector<Picoseconds>& stage_ends() const { return stage_ends_; }
  [[nodiscard]] Picoseconds end() const { return *std::ranges::max_element(stage_ends_); }
  // The time of one op with all ranks starting together, for latencies and tests.
  Picoseconds alone(const ScheduleOp& op, int virtual_stage, const MicroBatch& micro_batch,
                    const MicroBatchCost& cost) {
    const int recomputed = op.kind == OpKind::B ? orders_->recomputed_layers(virtual_stage, micro_batch) : 0;
    return accounting_.timer().alone(
        {op.kind, op.kind == OpKind::B && is_half(op), virtual_stage, recomputed}, cost);
  }
  [[nodiscard]] const PartOrders& orders() const { return *orders_; }
  // Whether a B makes input gradients only.
  [[nodiscard]] bool is_half(const ScheduleOp& op) const { return facts_.splits_backward && !op.whole; }

 private:
  [[nodiscard]] LaneOps ops_of(const Run& run) const {
    return {run.schedule, run.micro_batches, run.arrivals, *orders_, facts_.splits_backward};
  }
  LaneResult run(Run& run, CostSource* source, Picoseconds start);
  bool run_ready(Run& run, CostSource* source, int stage);
  void read_schedule(const Run& run);
  // Fetches the costs of micro-batches up to the op's.
  void fetch(const ScheduleOp& op, CostSource& source);
  // Sends the result of an op that has ended on each rank to the stage that needs it. Where sends block,
  // clock() goes on when it has arrived.
  void hand_on(Run& run, const ScheduleOp& op, int virtual_stage, std::span<const Picoseconds> ended);
  // Moves clock() to when the input of the op, or of both ops of a pair, is there, and accounts for transfers
  // between stages that nothing hid: what ranks waited for inputs that were on their way.
  void await_input(Run& run, int stage, const ScheduleOp& op);
  void await_inputs(Run& run, int stage, const ScheduleOp& op, const ScheduleOp& second);
  // When the op's input left and arrived on a rank; equal where it needs none, or none that travels.
  struct Travel {
    Picoseconds left = 0, arrived = 0;
  };
  // What the transfer of the op's input takes on each rank; null where none travels.
  [[nodiscard]] const std::vector<Picoseconds>* sent_for(int stage, const ScheduleOp& op) const;
  [[nodiscard]] Travel travel(int stage, const ScheduleOp& op, std::size_t rank) const;
  void record(Run& run, const ScheduleOp& op, int stage, std::span<const Picoseconds> ended) const;
  // When the op's input arrived on each rank; null if it has not, and for W, which follows its own B.
  [[nodiscard]] const Picoseconds* input_of(const ScheduleOp& op, int stage) const {
    if (op.kind == OpKind::W) return nullptr;
    return inboxes_.arrived(inbox_of(op.kind), slot(op.micro_batch, virtual_stage(op, stage)));
  }
  [[nodiscard]] bool has_input(const ScheduleOp& op, int stage) const {
    return op.kind == OpKind::W || input_of(op, stage) != nullptr;
  }
  // Where the inboxes keep a micro-batch's arrival at a virtual stage.
  [[nodiscard]] std::size_t slot(std::int32_t micro_batch, int virtual_stage) const {
    return at(micro_batch) * grad_ready_.size() + at(virtual_stage);
  }
  [[noreturn]] void report_stall(const Schedule& schedule) const;

  int stages_;
  VirtualStages order_;
  std::shared_ptr<const PartOrders> orders_;
  LaneAccounting accounting_;
  // What a schedule says before any of its ops runs: the same for all lanes that run it.
  struct Facts {
    std::uint64_t schedule_number = 0;
    std::vector<int> recompute_layers;        // by micro-batch, as the plan has it
    bool splits_backward = false;             // it has W ops
    std::vector<std::int32_t> last_gradient;  // by virtual stage: whose op releases the gradient buckets
    std::vector<std::uint32_t> ops_of;        // by micro-batch
  };
  Facts facts_;
  // Scratch, reused from lane to lane.
  Inboxes inboxes_;
  std::vector<Picoseconds> free_, ended_;
  std::span<Picoseconds> clock_;              // of free_: those of the stage that runs
  std::vector<const MicroBatchCost*> costs_;  // by entry; null: not there yet
  std::size_t fetched_ = 0;                   // micro-batches whose costs are, or were
  std::vector<std::uint32_t> to_run_;         // by micro-batch: ops that have not run
  std::vector<std::size_t> next_;
  std::vector<std::vector<Picoseconds>> grad_ready_;  // by virtual stage
  std::vector<Picoseconds> stage_ends_;
};

}  // namespace equipoise
