// Executes one lane's pipeline schedule with per-rank clocks.
//
// Every stage runs its ops in the schedule's order; an op starts on CP rank r when that rank is free and its
// input has arrived there. Ranks of a stage meet only where CP communication makes them (LayerTimeline), so a
// micro-batch of local documents lets them drift apart. O(ops x CP ranks), no heap: the order is given.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "sim/cost/micro_batch_cost.h"
#include "sim/engine/stage/inboxes.h"
#include "sim/engine/stage/lockstep.h"
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

  // The same op by op, for lanes that wait for each other inside ops (lockstep_run.h): what one run was given
  // and where it stands.
  struct Run {
    const Schedule& schedule;
    std::span<const MicroBatch> micro_batches;
    std::span<const MicroBatchCost> costs;
    bool blocking_sends = false;
    std::int32_t lane = 0;
    LaneAccounts& accounts;
    std::vector<StageOp>* ops = nullptr;
    std::size_t ranks = 1;
    std::size_t real = 0;  // micro-batches of the plan; the ops of later ones wait for no input
                           // where there is no pipeline
    const LaneArrivals* arrivals = nullptr;  // of which costs are; null: of the micro-batches
    std::size_t executed = 0;
    Picoseconds opened = 0;                // when the op at hand began
    std::vector<Picoseconds> opened_on{};  // the same by rank, where ops are recorded
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
                    const MicroBatchCost& cost);
  [[nodiscard]] const StageWalks& walks() const { return *walks_; }

 private:
  // Of the op at a position of the stage.
  [[nodiscard]] static const MicroBatchCost& cost_of(const Run& run, const ScheduleOp& op, int stage,
                                                     std::size_t position) {
    return run.costs[run.arrivals == nullptr ? static_cast<std::size_t>(op.micro_batch)
                                             : run.arrivals->entry_of(op, stage, position)];
  }
  // Sends the result of an op that has ended at clock() to the stage that needs it. `free`: when each rank
  // can go on; later where sends block.
  void hand_on(Run& run, const ScheduleOp& op, int virtual_stage, std::span<Picoseconds> free);
  // Transfers between stages that nothing hid: what ranks waited for inputs that were on their way. `second`:
  // of a pair, or null.
  void account_transfers(Run& run, int stage, const ScheduleOp& op, const ScheduleOp* second) const;
  // When the op's input left and arrived on a rank; equal where it needs none, or none that travels.
  struct Travel {
    Picoseconds left = 0, arrived = 0;
  };
  // What the transfer of the op's input takes on each rank; null where none travels.
  [[nodiscard]] const std::vector<Picoseconds>* sent_for(const Run& run, int stage,
                                                         const ScheduleOp& op) const;
  [[nodiscard]] Travel travel(const Run& run, int stage, const ScheduleOp& op, std::size_t rank) const;
  void record(Run& run, const ScheduleOp& op, int stage, Picoseconds end) const;
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
  void apply(const ScheduleOp& op, int virtual_stage, const MicroBatch& micro_batch,
             const MicroBatchCost& cost, std::span<Picoseconds> clock, std::vector<Picoseconds>* filled);
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
  void account_pair(const Pair& pair, LaneAccounts& accounts);
  void account(const ScheduleOp& op, int virtual_stage, const MicroBatch& micro_batch,
               const MicroBatchCost& cost, int stage, LaneAccounts& accounts);
  // The time of the op at a position of the stage with all ranks starting together.
  Picoseconds own_time(const Run& run, const ScheduleOp& op, int stage, std::size_t position);
  void account_backward(bool half, int virtual_stage, const MicroBatch& micro_batch,
                        const MicroBatchCost& cost, int stage, LaneAccounts& accounts);
  // The same for layers that not all lanes recompute (LaneArrivals::again): what they take differs from what
  // the op's own cost says, and who recomputes less works for the others. Returns the difference.
  Picoseconds account_again(const Run& run, const ScheduleOp& op, int stage, std::size_t position);
  // Whether a B makes input gradients only.
  [[nodiscard]] bool is_half(const ScheduleOp& op) const { return split_backward_ && !op.whole; }
  [[nodiscard]] int stage_of(int virtual_stage) const { return virtual_stage % stages_; }

  int stages_;
  VirtualStages order_;
  std::shared_ptr<const StageWalks> walks_;
  bool split_backward_ = false;  // the schedule has W ops
  // Scratch, reused from lane to lane.
  Inboxes inboxes_;
  std::vector<Picoseconds> free_, clock_, zero_, exposed_;
  struct OwnTime {
    int recomputed = -1;  // layers in full, which a backward's depends on; -1: not known yet
    bool whole = false;   // a backward that makes all gradients, as ScheduleOp::whole
    Picoseconds time = 0;
  };
  std::vector<OwnTime> own_times_;           // by entry of costs, kind of op and kind of virtual stage
  std::vector<std::int32_t> last_gradient_;  // by virtual stage: whose op releases the gradient buckets
  std::vector<std::size_t> next_;
  std::vector<char> queued_;
  std::vector<int> queue_;
  std::vector<std::vector<Picoseconds>> grad_ready_;  // by virtual stage
  Picoseconds end_ = 0;
};

}  // namespace equipoise
