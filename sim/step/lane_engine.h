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

// Gives a lane its costs while it runs. They are asked for in the order of micro-batches, each before its
// first op runs, and given back after its last.
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
  // Runs the schedule with costs that are made as the lane needs them. It allows no pairs. Equal
  // `schedule_number`s other than 0 promise equal schedules.
  LaneResult run(const Schedule& schedule, std::uint64_t schedule_number,
                 std::span<const MicroBatch> micro_batches, std::size_t ranks, CostSource& costs,
                 const StepOptions& options, Picoseconds start, std::int32_t lane, LaneAccounts& accounts);

  // The calls below run a lane op by op. Run holds what it was given and how far it has come.
  struct Run {
    const Schedule& schedule;
    std::span<const MicroBatch> micro_batches;
    std::span<const MicroBatchCost> costs;  // empty if costs come while the lane runs
    bool blocking_sends = false;
    std::int32_t lane = 0;
    LaneAccounts& accounts;
    std::vector<StageOp>* ops = nullptr;
    std::size_t ranks = 1;
    std::size_t real =
        0;  // micro-batches of the plan; later ones hold no documents, and without a pipeline need no input
    const LaneArrivals* arrivals = nullptr;  // whose entries the costs are; null: the micro-batches'
    std::uint64_t schedule_number = 0;
    std::vector<Picoseconds> opened_on{};  // by rank, when the running op began, if ops are recorded
  };
  void begin(Run& run, Picoseconds start);
  // Whether the stage's next op can run; false at the end, too.
  [[nodiscard]] bool ready(const Run& run, int stage) const;
  // Sets clock() to when each rank can begin the stage's next op, and returns that op. The first of a pair
  // represents both (partner): they begin when both have their input.
  ScheduleOp open(Run& run, int stage);
  // The second op of the pair that is next on the stage; null if a single op is.
  [[nodiscard]] const ScheduleOp* partner(const Run& run, int stage) const;
  // Where to write the times at which the op fills its gradient buckets; null if it fills none.
  std::vector<Picoseconds>* fills(const ScheduleOp& op, int stage);
  // Ends the op, or the pair, at clock().
  void close(Run& run, const ScheduleOp& op, int stage);
  // The lane's result once no stage can go on. The lane began at `start`, and all costs must be there.
  LaneResult finish(Run& run, Picoseconds start);
  // By rank, the time that the running op has reached.
  [[nodiscard]] std::span<Picoseconds> clock() { return clock_; }
  [[nodiscard]] int virtual_stage(const ScheduleOp& op, int stage) const {
    return op.virtual_stage * stages_ + stage;
  }

  // After a run, grad_ready()[v][i] is when all ranks have the gradients of bucket i
  // (PartOrders::buckets) of virtual stage v; empty where no op made them.
  [[nodiscard]] const std::vector<std::vector<Picoseconds>>& grad_ready() const { return grad_ready_; }
  // When each stage ended its last op. An op that fills no bucket also counts, such as a backward whose
  // layers are all frozen.
  [[nodiscard]] const std::vector<Picoseconds>& stage_ends() const { return stage_ends_; }
  [[nodiscard]] Picoseconds end() const { return *std::ranges::max_element(stage_ends_); }
  // The time of one op whose ranks all start together, for latencies and tests.
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
  // Sends an ended op's result to the stage that needs it. With blocking sends clock() moves to its arrival.
  void hand_on(Run& run, const ScheduleOp& op, int virtual_stage, std::span<const Picoseconds> ended);
  // Moves clock() to when the input of the op, or of both ops of a pair, has arrived. Time that ranks waited
  // for inputs on their way is exposed transfer time.
  void await_input(Run& run, int stage, const ScheduleOp& op);
  void await_inputs(Run& run, int stage, const ScheduleOp& op, const ScheduleOp& second);
  // When the op's input left and arrived on a rank; equal if it needs none, or none that travels.
  struct Travel {
    Picoseconds left = 0, arrived = 0;
  };
  // What the transfer of the op's input takes on each rank; null if nothing travels.
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
  [[nodiscard]] std::size_t slot(std::int32_t micro_batch, int virtual_stage) const {
    return at(micro_batch) * grad_ready_.size() + at(virtual_stage);
  }
  [[noreturn]] void report_stall(const Schedule& schedule) const;

  int stages_;
  VirtualStages order_;
  std::shared_ptr<const PartOrders> orders_;
  LaneAccounting accounting_;
  // What is known of a schedule before any of its ops runs; the same for all lanes that run it.
  struct Facts {
    std::uint64_t schedule_number = 0;
    std::vector<int> recompute_layers;        // by micro-batch, as the plan has it
    bool splits_backward = false;             // whether it has W ops
    std::vector<std::int32_t> last_gradient;  // by virtual stage: the micro-batch whose op releases buckets
    std::vector<std::uint32_t> ops_of;        // by micro-batch
  };
  Facts facts_;
  // Scratch, reused from lane to lane.
  Inboxes inboxes_;
  std::vector<Picoseconds> free_, ended_;
  std::span<Picoseconds> clock_;              // the part of free_ of the running stage
  std::vector<const MicroBatchCost*> costs_;  // by entry; null until fetched
  std::size_t fetched_ = 0;                   // micro-batches whose costs have been fetched so far
  std::vector<std::uint32_t> to_run_;         // by micro-batch: ops that have not run
  std::vector<std::size_t> next_;
  std::vector<std::vector<Picoseconds>> grad_ready_;  // by virtual stage
  std::vector<Picoseconds> stage_ends_;
};

}  // namespace equipoise
