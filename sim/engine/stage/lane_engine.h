// Executes one lane's pipeline schedule with per-rank clocks.
//
// Every stage runs its ops in the schedule's order; an op starts on CP rank r when that rank is free and its
// input has arrived there. Ranks of a stage meet only where CP communication makes them (LayerTimeline), so a
// micro-batch of local documents lets them drift apart. O(ops x CP ranks), no heap: the order is given.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sim/cost/micro_batch_cost.h"
#include "sim/engine/stage/inboxes.h"
#include "sim/engine/stage/lockstep.h"
#include "sim/engine/stage/op_counts.h"
#include "sim/engine/stage/stage_walk.h"
#include "sim/engine/stage/step_options.h"
#include "sim/engine/stage/step_result.h"
#include "sim/schedule/schedule.h"

namespace equipoise {

// Accumulated on every (stage, rank) of a lane.
struct LaneAccounts {
  std::vector<Picoseconds> compute;             // stage x rank
  std::vector<Picoseconds> attention;           // of it, the same
  std::vector<Picoseconds> recompute;           // stage: recomputing time, slowest rank
  std::array<Picoseconds, kStreams> exposed{};  // mean of ranks, summed over stages
  Picoseconds recompute_exposed = 0;            // the part of it that is in `recompute`, too
  friend bool operator==(const LaneAccounts&, const LaneAccounts&) = default;
};

// Where a lane's costs come from while it runs: asked for in the order of micro-batches, each before its
// first op runs, and given back after its last.
class CostSource {
 public:
  CostSource() = default;
  CostSource(const CostSource&) = delete;
  CostSource& operator=(const CostSource&) = delete;
  virtual ~CostSource() = default;
  // Stays where it is until it is given back.
  virtual const MicroBatchCost& cost(std::size_t micro_batch) = 0;
  virtual void give_back(std::size_t micro_batch) = 0;
};

class LaneEngine {
 public:
  LaneEngine(std::shared_ptr<const StageWalks> walks, const Layout& layout);
  LaneEngine(const ModelShape& model, const Layout& layout)
      : LaneEngine(std::make_shared<StageWalks>(model, layout), layout) {}

  // Runs `schedule` over the lane's micro-batches from clock `start`. `costs` are parallel to
  // `micro_batches`. grad_ready[v][i]: when all ranks have the gradients of bucket i (StageWalks::buckets) of
  // virtual stage v; empty where no op made them. Throws std::logic_error naming who waits for what if the
  // schedule cannot run.
  LaneResult run(const Schedule& schedule, std::span<const MicroBatch> micro_batches,
                 std::span<const MicroBatchCost> costs, const StepOptions& options, Picoseconds start,
                 std::int32_t lane, LaneAccounts& accounts, std::vector<StageOp>* ops);
  // The same with costs that are made as the lane needs them, on so many CP ranks; not for schedules with
  // pairs. Runs of the same `schedule_number` have the same schedule, unless it is 0.
  LaneResult run(const Schedule& schedule, std::uint64_t schedule_number,
                 std::span<const MicroBatch> micro_batches, std::size_t ranks, CostSource& costs,
                 const StepOptions& options, Picoseconds start, std::int32_t lane, LaneAccounts& accounts);

  // The same op by op, for lanes that wait for each other inside ops (lockstep_run.h): what one run was given
  // and where it stands.
  struct Run {
    const Schedule& schedule;
    std::span<const MicroBatch> micro_batches;
    std::span<const MicroBatchCost> costs;  // none: they come while it runs
    bool blocking_sends = false;
    std::int32_t lane = 0;
    LaneAccounts& accounts;
    std::vector<StageOp>* ops = nullptr;
    std::size_t ranks = 1;
    std::size_t real = 0;  // micro-batches of the plan; the ops of later ones wait for no input
                           // where there is no pipeline
    const LaneArrivals* arrivals = nullptr;  // of which costs are; null: of the micro-batches
    std::uint64_t schedule_number = 0;
    std::size_t executed = 0;
    std::vector<Picoseconds> opened_on{};  // when the op at hand began, by rank, where ops are recorded
    LaneResult result{};
  };
  void begin(Run& run, Picoseconds start);
  // Whether the stage's next op can run; false at the end, too.
  [[nodiscard]] bool ready(const Run& run, int stage) const;
  // Sets clock() to when each rank can begin the stage's next op, and says which it is. The first of a pair
  // stands for both (partner): they begin when both have their input.
  ScheduleOp open(Run& run, int stage);
  // The second op of the pair that is next on the stage; null if a single op is.
  [[nodiscard]] const ScheduleOp* partner(const Run& run, int stage) const;
  // Whether the op fills gradient buckets; if so, where their times go, one each.
  std::vector<Picoseconds>* fills(const ScheduleOp& op, int stage);
  // Ends the op, or the pair, at clock().
  void close(Run& run, const ScheduleOp& op, int stage);
  // Once all ops have run: what they computed, exposed and recomputed, all costs being at hand
  // (lane_accounting.cpp).
  void account(Run& run);
  // Of the op at hand, by rank.
  [[nodiscard]] std::span<Picoseconds> clock() { return clock_; }
  [[nodiscard]] int virtual_stage(const ScheduleOp& op, int stage) const {
    return op.virtual_stage * stages_ + stage;
  }
  [[noreturn]] void report_stall(const Schedule& schedule) const;

  // Of the latest run.
  [[nodiscard]] const std::vector<std::vector<Picoseconds>>& grad_ready() const { return grad_ready_; }
  [[nodiscard]] Picoseconds end() const { return end_; }
  // Time of one op with all ranks starting together; for latencies and tests.
  Picoseconds alone(const ScheduleOp& op, int virtual_stage, const MicroBatch& micro_batch,
                    const MicroBatchCost& cost) {
    return alone(work_of(op, virtual_stage, micro_batch), cost);
  }
  [[nodiscard]] const StageWalks& walks() const { return *walks_; }

 private:
  // Of the op at a position of the stage: its place among the costs, and what it costs.
  [[nodiscard]] static std::size_t entry_of(const Run& run, const ScheduleOp& op, int stage,
                                            std::size_t position) {
    return run.arrivals == nullptr ? static_cast<std::size_t>(op.micro_batch)
                                   : run.arrivals->entry_of(op, stage, position);
  }
  [[nodiscard]] const MicroBatchCost& cost_of(const Run& run, const ScheduleOp& op, int stage,
                                              std::size_t position) const {
    return *costs_[entry_of(run, op, stage, position)];
  }
  LaneResult run(Run& run, CostSource* source, Picoseconds start);
  // Fetches the costs of micro-batches up to the op's.
  void fetch(const ScheduleOp& op, CostSource& source);
  // Sends the result of an op that has ended on each rank to the stage that needs it. Where sends block,
  // clock() goes on when it has arrived.
  void hand_on(Run& run, const ScheduleOp& op, int virtual_stage, std::span<const Picoseconds> ended);
  // Moves clock() to when the op's input is there, and accounts for transfers between stages that nothing
  // hid: what ranks waited for inputs that were on their way.
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
  [[nodiscard]] bool has_input(const ScheduleOp& op, int stage) const {
    return op.kind == OpKind::W || input_of(op, stage) != nullptr;
  }
  void wake(int stage);
  // When the op's input arrived on each rank; null if it has not, and for W, which follows its own B.
  [[nodiscard]] const Picoseconds* input_of(const ScheduleOp& op, int stage) const;
  // Where the inboxes keep a micro-batch's arrival at a virtual stage.
  [[nodiscard]] std::size_t slot(std::int32_t micro_batch, int virtual_stage) const {
    return static_cast<std::size_t>(micro_batch) * grad_ready_.size() +
           static_cast<std::size_t>(virtual_stage);
  }
  [[nodiscard]] StageWork work_of(const ScheduleOp& op, int v, const MicroBatch& micro_batch) const {
    if (op.kind != OpKind::B) return {op.kind, false, v, 0};
    return {op.kind, is_half(op), v, walks_->recomputed_layers(v, micro_batch)};
  }
  void apply(const StageWork& work, const MicroBatchCost& cost, std::span<Picoseconds> clock,
             std::vector<Picoseconds>* filled) const;
  Picoseconds alone(const StageWork& work, const MicroBatchCost& cost);
  // A forward and the backward beside it.
  struct Pair {
    int forward_stage, backward_stage;  // virtual
    const MicroBatch& backward_batch;
    const MicroBatchCost &forward, &backward;
  };
  // The pair whose first op is at `position` of the stage.
  [[nodiscard]] Pair pair_of(const Run& run, int stage, std::size_t position) const;
  void apply_pair(const Pair& pair, std::span<Picoseconds> clock, std::vector<Picoseconds>* filled);
  Picoseconds pair_alone(const Pair& pair);

  // Of ops of a stage; compute and attention by rank.
  struct Sums {
    std::vector<Picoseconds> compute, attention;
    Picoseconds useful = 0, recompute = 0, recompute_exposed = 0;
    std::array<Picoseconds, kStreams> exposed{};
    void begin(std::size_t ranks);
    void add_to(Run& run, int stage) const;
  };
  struct Accounting;
  void read_schedule(const Run& run);
  void count_ops(const Run& run);
  // Adds what the ops of an entry of the costs do, on all stages.
  void account_cost(std::size_t entry);
  void account_stages(Run& run);
  void account_work(const StageWork& work, const Accounting& own);
  void account_backward(const StageWork& work, const Accounting& own);
  void account_one_by_one(Run& run, int stage);
  void account_pair(const Pair& pair, Sums& sums);
  // Layers that not all lanes recompute (LaneArrivals::again): what they take differs from what the op's own
  // cost says, and who recomputes less works for the others.
  void account_again(const Run& run, int stage, std::size_t position, Sums& sums);
  Picoseconds layers_alone(const LayerTimeline& layer, int layers);

  // Whether a B makes input gradients only.
  [[nodiscard]] bool is_half(const ScheduleOp& op) const { return facts_.splits_backward && !op.whole; }
  [[nodiscard]] int stage_of(int virtual_stage) const { return virtual_stage % stages_; }

  int stages_;
  VirtualStages order_;
  std::shared_ptr<const StageWalks> walks_;
  // What a schedule says before any of its ops runs: the same for all lanes that run it.
  struct Facts {
    std::uint64_t schedule_number = 0;
    std::vector<int> recompute_layers;        // by micro-batch, as the plan has it
    bool splits_backward = false;             // it has W ops
    OpCounts counts;                          // by micro-batch, or entry of the costs
    std::vector<std::int32_t> last_gradient;  // by virtual stage: whose op releases the gradient buckets
    std::vector<std::uint32_t> ops_of;        // by micro-batch
    std::size_t ops = 0;
  };
  Facts facts_;
  // Scratch, reused from lane to lane.
  Inboxes inboxes_;
  std::vector<Picoseconds> free_, ended_, zero_, exposed_;
  std::span<Picoseconds> clock_;              // of free_, those of the stage at hand
  std::vector<const MicroBatchCost*> costs_;  // by entry; those that are at hand
  std::size_t fetched_ = 0;                   // micro-batches whose costs are, or were
  std::vector<std::uint32_t> to_run_;         // by micro-batch: ops that have not run
  std::vector<Sums> counted_;                 // by table of the schedule's counts
  std::vector<std::size_t> next_;
  std::vector<char> queued_;
  std::vector<int> queue_;
  std::vector<std::vector<Picoseconds>> grad_ready_;  // by virtual stage
  Picoseconds end_ = 0;
};

}  // namespace equipoise
