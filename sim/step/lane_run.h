// Executes one lane's pipeline schedule with per-rank clocks.
//
// Every stage runs its ops in the schedule's order; an op starts on CP rank r when that rank is free and its
// input has arrived there. Ranks of a stage wait for each other only where CP communication makes them
// (LayerTimeline), so a micro-batch of local documents lets them drift apart. O(ops x CP ranks), no heap: the
// order is given.
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
#include "sim/step/lockstep.h"
#include "sim/step/part_order.h"
#include "sim/step/step_end.h"
#include "sim/step/step_result.h"

namespace equipoise {

// When the inputs of ops arrived on each rank.

// Activations, those of recomputing forwards, and gradients.
enum class Inbox : std::uint8_t { forward, again, backward };
inline constexpr std::size_t kInboxes = 3;

// By inbox and slot (one a micro-batch and virtual stage) and, there, by rank. Few inputs wait at a time, so
// their times lie in blocks that are used again once the op has run: they stay in a cache however many
// micro-batches there are.
class Inboxes {
 public:
  void begin(std::size_t slots, std::size_t ranks, Picoseconds start) {
    ranks_ = ranks;
    for (std::vector<std::uint32_t>& of_inbox : blocks_) of_inbox.assign(slots, kNothing);
    times_.assign((kFromStart + 1) * ranks, start);
    free_.clear();
  }
  // What waits from the start: there all ranks' inputs arrived then.
  void fill_from_start(Inbox inbox, std::size_t slot) { block(inbox, slot) = kFromStart; }

  // One time a rank; null where nothing has arrived. Valid until the next fill().
  [[nodiscard]] const Picoseconds* arrived(Inbox inbox, std::size_t slot) const {
    const std::uint32_t block = blocks_[at(inbox)][slot];
    return block == kNothing ? nullptr : times_.data() + block * ranks_;
  }
  // Where to write the times of what arrives, one a rank. Valid until the next fill().
  [[nodiscard]] Picoseconds* fill(Inbox inbox, std::size_t slot) {
    std::uint32_t& filled = block(inbox, slot);
    if (filled <= kFromStart) filled = take_block();
    return times_.data() + filled * ranks_;
  }
  void empty(Inbox inbox, std::size_t slot) {
    std::uint32_t& emptied = block(inbox, slot);
    if (emptied > kFromStart) free_.push_back(emptied);
    emptied = kNothing;
  }

 private:
  static constexpr std::uint32_t kNothing = 0, kFromStart = 1;  // others are places in times_

  [[nodiscard]] std::uint32_t& block(Inbox inbox, std::size_t slot) { return blocks_[at(inbox)][slot]; }
  std::uint32_t take_block() {
    if (!free_.empty()) {
      const std::uint32_t block = free_.back();
      free_.pop_back();
      return block;
    }
    times_.resize(times_.size() + ranks_);
    return static_cast<std::uint32_t>(times_.size() / ranks_ - 1);
  }

  std::size_t ranks_ = 1;
  std::array<std::vector<std::uint32_t>, kInboxes> blocks_;  // by slot
  std::vector<Picoseconds> times_;                           // by block and rank
  std::vector<std::uint32_t> free_;
};

// How often a stage does the same work at the cost of the same micro-batch. What a lane's ops compute, attend
// to and expose follows from that, whatever their times, and is the same on stages that count the same.

inline constexpr std::size_t kOpKinds = 5;

// What an op does on its virtual stage, whatever its micro-batch costs there.
struct StageWork {
  OpKind kind = OpKind::F;
  bool half = false;  // a B that makes input gradients only
  int virtual_stage = 0;
  int recomputed = 0;  // of a B: layers in full
};

class OpCounts {
 public:
  // Ops of one shape take equally long and count equally much at the same cost.
  struct Shape {
    StageWork work;  // on one of the virtual stages of that kind
    std::size_t stage_kind = 0;
    bool paired = false;
  };

  void begin_lane(std::size_t costs, std::size_t virtual_stages) {
    costs_ = costs;
    shapes_.clear();
    tables_ = 0;
    table_of_stage_.clear();
    latest_.assign(virtual_stages * kOpKinds * 4, 0);
  }
  // Each stage in turn, its ops between the two.
  void begin_stage() {
    if (counts_.size() == tables_) counts_.emplace_back();
    counts_[tables_].assign(shapes_.size() * costs_, 0);
  }
  void add(const Shape& shape, std::size_t cost) { ++counts_[tables_][place_of(shape) * costs_ + cost]; }
  void end_stage() {
    if (tables_ == 0 || counts_[tables_] != counts_[tables_ - 1]) ++tables_;
    table_of_stage_.push_back(tables_ - 1);
  }

  // Neighbouring stages that count the same share a table.
  [[nodiscard]] std::size_t tables() const { return tables_; }
  [[nodiscard]] std::size_t table_of_stage(int stage) const { return table_of_stage_[at(stage)]; }
  [[nodiscard]] std::span<const Shape> shapes() const { return shapes_; }
  [[nodiscard]] bool has_pairs() const {
    return std::any_of(shapes_.begin(), shapes_.end(), [](const Shape& shape) { return shape.paired; });
  }
  [[nodiscard]] std::uint32_t of(std::size_t table, std::size_t shape, std::size_t cost) const {
    const std::size_t place = shape * costs_ + cost;
    return place < counts_[table].size() ? counts_[table][place] : 0;  // a shape of later stages
  }

 private:
  // Most ops have the shape of the latest one of their kind on their virtual stage.
  std::size_t place_of(const Shape& shape) {
    const StageWork& work = shape.work;
    const std::size_t of_kind = at(work.virtual_stage) * kOpKinds + at(work.kind);
    std::size_t& place = latest_[(of_kind * 2 + (work.half ? 1 : 0)) * 2 + (shape.paired ? 1 : 0)];
    if (place >= shapes_.size() || !alike(shapes_[place], shape)) {
      const auto found = std::ranges::find_if(shapes_, [&](const Shape& s) { return alike(s, shape); });
      place = at(found - shapes_.begin());
      if (found == shapes_.end()) {
        shapes_.push_back(shape);
        counts_[tables_].resize(shapes_.size() * costs_, 0);
      }
    }
    return place;
  }
  static bool alike(const Shape& a, const Shape& b) {
    return a.work.kind == b.work.kind && a.work.half == b.work.half && a.paired == b.paired &&
           a.stage_kind == b.stage_kind && a.work.recomputed == b.work.recomputed;
  }

  std::size_t costs_ = 0;
  std::vector<Shape> shapes_;                       // of the lane
  std::vector<std::vector<std::uint32_t>> counts_;  // by table, then by shape and cost
  std::size_t tables_ = 0;
  std::vector<std::size_t> table_of_stage_;
  std::vector<std::size_t> latest_;  // by virtual stage, kind, half and paired
};

// What a lane's ops take, and of that what runs on which GPUs.
struct LaneAccounts : OpSums {
  std::vector<Picoseconds> compute;          // stage x rank
  std::vector<Picoseconds> attention;        // of it, the same
  std::vector<Picoseconds> stage_recompute;  // by stage
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
  LaneEngine(std::shared_ptr<const PartOrders> orders, const Layout& layout);
  LaneEngine(const ModelShape& model, const Layout& layout)
      : LaneEngine(std::make_shared<PartOrders>(model, layout), layout) {}

  // Runs `schedule` over the lane's micro-batches from clock `start`. `costs` are parallel to
  // `micro_batches`. grad_ready[v][i]: when all ranks have the gradients of bucket i (PartOrders::buckets) of
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

  // The same op by op, for lanes that wait for each other inside ops (LockstepRun): what one run was given
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
    std::vector<Picoseconds> opened_on{};  // when the op that runs began, by rank, where ops are recorded
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
  // Once all ops have run: what they computed, exposed and recomputed; needs all costs
  // (step_result.cpp).
  void account(Run& run);
  // Then the lane's result; it began at `start`.
  LaneResult finish(Run& run, Picoseconds start) const;
  // The time at which each rank of the running op is.
  [[nodiscard]] std::span<Picoseconds> clock() { return clock_; }
  [[nodiscard]] int virtual_stage(const ScheduleOp& op, int stage) const {
    return op.virtual_stage * stages_ + stage;
  }
  [[noreturn]] void report_stall(const Schedule& schedule) const;

  // When gradients were complete in the latest run, and its end.
  [[nodiscard]] const std::vector<std::vector<Picoseconds>>& grad_ready() const { return grad_ready_; }
  [[nodiscard]] Picoseconds end() const { return end_; }
  // Time of one op with all ranks starting together; for latencies and tests.
  Picoseconds alone(const ScheduleOp& op, int virtual_stage, const MicroBatch& micro_batch,
                    const MicroBatchCost& cost) {
    return alone(work_of(op, virtual_stage, micro_batch), cost);
  }
  [[nodiscard]] const PartOrders& orders() const { return *orders_; }
  // Whether a B makes input gradients only.
  [[nodiscard]] bool is_half(const ScheduleOp& op) const { return facts_.splits_backward && !op.whole; }

 private:
  // Of the op at a position of the stage: its place among the costs, and what it costs.
  [[nodiscard]] static std::size_t entry_of(const Run& run, const ScheduleOp& op, int stage,
                                            std::size_t position) {
    return run.arrivals == nullptr ? at(op.micro_batch) : run.arrivals->entry_of(op, stage, position);
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
    return at(micro_batch) * grad_ready_.size() + at(virtual_stage);
  }
  [[nodiscard]] StageWork work_of(const ScheduleOp& op, int v, const MicroBatch& micro_batch) const {
    if (op.kind != OpKind::B) return {op.kind, false, v, 0};
    return {op.kind, is_half(op), v, orders_->recomputed_layers(v, micro_batch)};
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
  struct Sums : OpSums {
    std::vector<Picoseconds> compute, attention;
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

  [[nodiscard]] int stage_of(int virtual_stage) const { return virtual_stage % stages_; }

  int stages_;
  VirtualStages order_;
  std::shared_ptr<const PartOrders> orders_;
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
  std::span<Picoseconds> clock_;              // of free_: those of the stage that runs
  std::vector<const MicroBatchCost*> costs_;  // by entry; null: not there yet
  std::size_t fetched_ = 0;                   // micro-batches whose costs are, or were
  std::vector<std::uint32_t> to_run_;         // by micro-batch: ops that have not run
  std::vector<Sums> counted_;                 // by table of the schedule's counts
  std::vector<std::size_t> next_;
  std::vector<char> queued_;
  std::vector<int> queue_;
  std::vector<std::vector<Picoseconds>> grad_ready_;  // by virtual stage
  Picoseconds end_ = 0;
};

// Runs the lanes of a lockstep group op by op at stage fidelity, all at once: they wait for each other at
// expert-parallel exchanges, and at the collectives of ZeRO-2 and 3.
//
// ZeRO-2 that reduces each micro-batch: gradients are reduced with every backward over all replicas, in the
// background, one part of the model after another; the stage's next op waits for what is left. Those of a
// step's last backward are buckets (step_end.h), for which nothing but the optimizer waits.
//
// ZeRO-3 (FSDP): parameters are gathered and gradients reduced part by part, over all replicas
// (part_order.h). The gather of the next part runs under the part before it, and so does the reduction of the
// one before; both share the network, one after another. The first gather of an op and its last reduction are
// exposed.
//
// O(ops x layers x ranks of the lockstep group).

// One lane of the lockstep group while it runs.
struct RunningLane {
  const LockstepLane* plan = nullptr;
  std::span<const MicroBatchCost>
      costs;  // of the entries of its arrivals; without those, of its micro-batches
  LaneEngine* engine = nullptr;
  LaneAccounts* accounts = nullptr;
};

class LockstepRun {
 public:
  LockstepRun(const LockstepGroup& lockstep, std::span<const RunningLane> lanes,
              const GradientSync& gradients, const StepOptions& options, std::vector<StageOp>* ops);

  // Results by lane. Throws std::logic_error, naming who waits, if the schedules cannot run.
  std::vector<LaneResult> run(Picoseconds start);
  // Time that ranks waited for parameters and gradients to be gathered and reduced, without waiting for other
  // lanes; summed over ranks.
  [[nodiscard]] double exposed_seconds() const { return exposed_seconds_; }

 private:
  struct At;  // a lane inside the op that runs
  struct Inside;
  struct Forward;
  struct Backward;
  struct Weights;
  struct BothWays;
  struct LayerPair;
  bool run_ready(int stage);
  void run_op(int stage, std::vector<ScheduleOp>& ops);
  // `position`: of the ops on the stage.
  std::vector<At> inside(int stage, std::size_t position, const std::vector<ScheduleOp>& ops);
  void run_pair(int stage, const std::vector<ScheduleOp>& ops);
  template <class TimelineOf>
  void run_layer(std::vector<At>& lanes, const TimelineOf& timeline_of);
  template <class ExchangeOf>
  void begin_exchange(const std::vector<At>& lanes, const ExchangeOf& exchange_of);
  void await_exchange(std::vector<At>& lanes);
  void issue(const std::vector<At>& lanes, const Op& collective);
  void await(std::vector<At>& lanes);

  const LockstepGroup& lockstep_;
  std::span<const RunningLane> lanes_;
  const GradientSync& gradients_;
  std::vector<LaneEngine::Run> runs_;
  std::vector<std::size_t> position_;                // by stage
  std::vector<Picoseconds> exchange_end_, longest_;  // by expert group: of the exchange under way
  // Of a stage: the last of ZeRO's collectives ends, and the time of those not yet awaited.
  struct Network {
    Picoseconds end = 0, issued = 0;
  };
  std::vector<Network> networks_;  // by stage
  Network* network_ = nullptr;
  double exposed_seconds_ = 0;
};

}  // namespace equipoise
