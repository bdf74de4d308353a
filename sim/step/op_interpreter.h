// The inner loop at op resolution: moves the clocks of all ranks of one lane's stage over one scheduled op.
//
// With x_r the clock of rank r and d_r the op's duration there:
//   a kernel                x_r += d_r
//   next to another step    x_r += max(d_r, u_r)
//   a collective of group g x_r  = max(max_{q in g} x_q + d, x_r + u_r)     (u = 0 if it runs alone)
// The observer hears of every op; a run that nobody listens to uses one that the compiler removes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "policies/base/index.h"
#include "sim/step/op_run.h"
#include "sim/step/stage_loop.h"

namespace equipoise::interpreter {

struct NoObserver {
  static constexpr bool kListens = false;
  static const Picoseconds* recorded_ends(const OpLane&, SyncGroup, int) { return nullptr; }
  void on_op(const OpEvent&) {}
  void on_repetition(std::uint32_t, std::uint32_t) {}
};

// How many ends a collective inside a lane records under contention: one for each of its groups, or 0 for
// none. `tensor` is the program's; `folded` says that collectives of folded TP ranks record theirs.
inline std::size_t recorded_groups(SyncGroup sync, const OpLane& lane, int tensor, bool folded) {
  if (sync == SyncGroup::context && lane.context > 1) return at(tensor);
  if (sync == SyncGroup::tensor && (tensor > 1 || folded)) return at(lane.context);
  return 0;
}

struct SinkObserver {
  static constexpr bool kListens = true;
  OpSink* sink = nullptr;
  const Picoseconds* recorded = nullptr;  // of the next collective; null if ops take their durations
  bool folded = false;                    // see recorded_groups
  // By group, when the collectives of this step ended if the network decides that; else null.
  const Picoseconds* recorded_ends(const OpLane& lane, SyncGroup sync, int tensor) {
    if (recorded == nullptr) return nullptr;
    const std::size_t groups = recorded_groups(sync, lane, tensor, folded);
    const Picoseconds* const ends = recorded;
    recorded += groups;
    return groups > 0 ? ends : nullptr;
  }
  void on_op(const OpEvent& event) { sink->on_op(event); }
  void on_repetition(std::uint32_t run, std::uint32_t repetition) { sink->on_repetition(run, repetition); }
};

inline SinkObserver observer_of(const OpResult& result, int lane, int stage, int scheduled, OpSink& sink) {
  SinkObserver observer{&sink};
  if (result.recorded == nullptr) return observer;
  const RecordedTimes::Stage& times = result.recorded->lanes[at(lane)][at(stage)];
  observer.recorded = times.collective_end.data() + times.first[at(scheduled)];
  observer.folded = times.tensor;
  return observer;
}

// Buffers of a lane, which only grow.
struct Scratch {
  std::vector<Picoseconds> durations;  // a block's durations for every rank
  std::vector<Picoseconds> jittered, jittered_alongside;
  std::vector<Picoseconds> latest;  // by group
  std::vector<int> last;            // by group: the rank that arrived last
};

// The blocks of a lane where no op jitters, no GPU is slow and nobody hears of single ops: the kernels
// between two synchronisations are one step. Their durations are summed once, and not for every layer and
// stage that runs the block.
struct ShortBlocks {
  std::vector<OpBlock> blocks;       // as OpLane::blocks
  std::vector<Picoseconds> compute;  // of the compute stream: [block * context + CP rank]
};
ShortBlocks shortened(const OpLane& lane, int tensor);

struct OpContext {
  const OpProgram& program;
  const OpOptions& options;
  const OpLane& lane;
  int context = 1;
  int tensor = 1;
  std::size_t ranks = 1;
  std::span<const double> speed;  // of this lane's stage, by rank; empty if all are nominal
  std::uint64_t jitter_base = 0;
  const ShortBlocks* in_short = nullptr;  // null: every op is run

  [[nodiscard]] const OpBlock& block(const BlockRun& run) const {
    return (in_short != nullptr ? in_short->blocks : lane.blocks)[run.block];
  }
};

// Whom the ranks of a lane wait for at a step: a group of one rank is none.
inline SyncGroup sync_of(const OpStep& step, int context, int tensor) {
  const bool alone =
      (step.sync == SyncGroup::tensor && tensor == 1) || (step.sync == SyncGroup::context && context == 1);
  return alone ? SyncGroup::none : step.sync;
}

// The group of a rank. Ranks form a table of context x tensor, whose columns are context groups and whose
// rows are tensor groups.
inline std::size_t group_of(std::size_t rank, SyncGroup sync, int tensor) {
  const auto t = at(tensor);
  return sync == SyncGroup::context ? rank % t : sync == SyncGroup::tensor ? rank / t : rank;
}

// Whether the step is a kernel; a stall by the host is none.
inline bool computes(const OpStep& step) {
  return step.stream == Stream::compute && step.name != OpName::host_stall;
}

// Durations of a block on every rank, with CP ranks repeated over TP, and longer on slow GPUs.
inline const Picoseconds* expand(const OpContext& stage, const OpBlock& block, Scratch& scratch) {
  if (stage.tensor == 1 && stage.speed.empty()) return block.durations.data();
  scratch.durations.resize(std::max(scratch.durations.size(), block.steps.size() * stage.ranks));
  for (std::size_t s = 0; s < block.steps.size(); ++s) {
    const bool slowed = !stage.speed.empty() && computes(block.steps[s]);
    for (std::size_t r = 0; r < stage.ranks; ++r) {
      const Picoseconds d = block.durations[s * at(stage.context) + r / at(stage.tensor)];
      scratch.durations[s * stage.ranks + r] = slowed ? scaled(d, 1.0 / stage.speed[r]) : d;
    }
  }
  return scratch.durations.data();
}

// Draws one factor per kernel, and one per collective (that of its first member).
inline void jitter_step(const OpContext& stage, const Picoseconds* duration, SyncGroup sync,
                        std::uint64_t key, std::vector<Picoseconds>& out) {
  out.resize(stage.ranks);
  for (std::size_t r = 0; r < stage.ranks; ++r)
    out[r] = scaled(duration[r],
                    stage.options.jitter.factor(stage.jitter_base + key + group_of(r, sync, stage.tensor)));
}

// Aligned, so that the loops' speed does not depend on where the linker places them.
template <class Observer>
[[gnu::aligned(64)]] void run_step(const OpContext& stage, SyncGroup sync, const Picoseconds* duration,
                                   const Picoseconds* alongside, Picoseconds* clock, Scratch& scratch,
                                   Observer& observer, std::uint32_t run, std::uint32_t repetition,
                                   std::uint32_t step, [[maybe_unused]] const Picoseconds* recorded) {
  const std::size_t ranks = stage.ranks;
  if (sync == SyncGroup::none) {
    for (std::size_t r = 0; r < ranks; ++r) {
      const Picoseconds arrived = clock[r];
      Picoseconds takes = duration[r];
      if constexpr (Observer::kListens)
        if (recorded != nullptr) takes = recorded[r] - arrived;
      clock[r] += alongside == nullptr ? takes : std::max(takes, alongside[r]);
      if constexpr (Observer::kListens) {
        const int rank = static_cast<int>(r);
        observer.on_op({run, repetition, step, rank, arrived, arrived, arrived + takes, rank});
        if (alongside != nullptr)
          observer.on_op({run, repetition, step + 1, rank, arrived, arrived, arrived + alongside[r], rank});
      }
    }
    return;
  }
  const auto t = at(stage.tensor);
  const std::size_t groups = sync == SyncGroup::context ? t : at(stage.context);
  Picoseconds* const latest = scratch.latest.data();
  std::fill_n(latest, groups, Picoseconds{0});
  if (sync == SyncGroup::context && t > 1) {
    for (std::size_t r = 0; r < ranks; r += t)
      for (std::size_t g = 0; g < t; ++g) latest[g] = std::max(latest[g], clock[r + g]);
  } else if (sync == SyncGroup::context) {
    for (std::size_t r = 0; r < ranks; ++r) latest[0] = std::max(latest[0], clock[r]);
  } else {
    for (std::size_t r = 0; r < ranks; ++r) latest[r / t] = std::max(latest[r / t], clock[r]);
  }
  if constexpr (Observer::kListens)
    for (std::size_t r = ranks; r-- > 0;)  // at a tie the lowest rank wins
      if (const std::size_t g = group_of(r, sync, stage.tensor); clock[r] == latest[g])
        scratch.last[g] = static_cast<int>(r);
  const auto finish = [&](std::size_t r, std::size_t g) {
    const Picoseconds arrived = clock[r];
    Picoseconds done = latest[g] + duration[r];
    if constexpr (Observer::kListens)
      if (recorded != nullptr) done = recorded[g];
    clock[r] = alongside == nullptr ? done : std::max(done, arrived + alongside[r]);
    if constexpr (Observer::kListens) {
      const int rank = static_cast<int>(r);
      observer.on_op({run, repetition, step, rank, arrived, latest[g], done, scratch.last[g]});
      if (alongside != nullptr)
        observer.on_op({run, repetition, step + 1, rank, arrived, arrived, arrived + alongside[r], rank});
    }
  };
  if (sync == SyncGroup::context && t > 1) {
    for (std::size_t r = 0; r < ranks; r += t)
      for (std::size_t g = 0; g < t; ++g) finish(r + g, g);
  } else if (sync == SyncGroup::context) {
    for (std::size_t r = 0; r < ranks; ++r) finish(r, 0);
  } else {
    for (std::size_t r = 0; r < ranks; ++r) finish(r, r / t);
  }
}

// How far a lane has come in a scheduled op: op `step` of repetition `repetition` of run `run`.
struct Place {
  std::uint32_t run = 0, repetition = 0, step = 0;
};

// Runs the op at `place`, and the one alongside it, on every rank and moves past it.
template <bool kJitter, class Observer>
void run_local(const OpContext& stage, const OpBlock& block, const Picoseconds* durations, Place& place,
               std::uint64_t& key, Picoseconds* clock, Picoseconds* compute, Scratch& scratch,
               Observer& observer) {
  const OpStep& step = block.steps[place.step];
  const SyncGroup sync = sync_of(step, stage.context, stage.tensor);
  const Picoseconds* duration = durations + place.step * stage.ranks;
  const Picoseconds* alongside = step.with_next ? duration + stage.ranks : nullptr;
  if constexpr (kJitter) {
    jitter_step(stage, duration, sync, key, scratch.jittered);
    duration = scratch.jittered.data();
    key += stage.ranks;
    if (alongside != nullptr) {
      jitter_step(stage, alongside, SyncGroup::none, key, scratch.jittered_alongside);
      alongside = scratch.jittered_alongside.data();
      key += stage.ranks;
    }
    const Picoseconds* const busy = computes(step) ? duration : alongside;
    if (compute != nullptr && busy != nullptr)
      for (std::size_t r = 0; r < stage.ranks; ++r) compute[r] += busy[r];
  }
  run_step(stage, sync, duration, alongside, clock, scratch, observer, place.run, place.repetition,
           place.step, observer.recorded_ends(stage.lane, step.sync, stage.tensor));
  place.step += alongside != nullptr ? 2 : 1;
}

// The durations of a run's block on every rank; adds the compute stream's time where it does not jitter.
template <bool kJitter>
const Picoseconds* enter_run(const OpContext& stage, const BlockRun& run, Picoseconds* compute,
                             Scratch& scratch) {
  const OpBlock& block = stage.block(run);
  const Picoseconds* const durations = expand(stage, block, scratch);
  if (kJitter || compute == nullptr) return durations;
  if (stage.in_short != nullptr) {
    const auto tensor = at(stage.tensor);
    const Picoseconds* once = stage.in_short->compute.data() + run.block * at(stage.context);
    for (std::size_t first = 0; first < stage.ranks; first += tensor, ++once)
      for (std::size_t t = 0; t < tensor; ++t) compute[first + t] += run.repeat * *once;
  } else {
    for (std::size_t s = 0; s < block.steps.size(); ++s)
      if (computes(block.steps[s]))
        for (std::size_t r = 0; r < stage.ranks; ++r)
          compute[r] += run.repeat * durations[s * stage.ranks + r];
  }
  return durations;
}

// Called after the last op of a repetition.
template <class Observer>
void end_repetition(const OpContext& stage, const BlockRun& run, Place& place, const Picoseconds* clock,
                    Picoseconds* buckets, Observer& observer) {
  observer.on_repetition(place.run, place.repetition);
  if (run.bucket != kNoBucket && buckets != nullptr)
    std::copy(clock, clock + stage.ranks, buckets + (at(run.bucket) + place.repetition) * stage.ranks);
  ++place.repetition;
  place.step = 0;
}

// The key of the first draw of a scheduled op.
inline std::uint64_t jitter_base_of(const OpProgram& program, int lane, int stage, int scheduled) {
  const auto place = static_cast<std::uint64_t>(lane) * static_cast<std::uint64_t>(program.stages) +
                     static_cast<std::uint64_t>(stage);
  return SplitMix64((place << 24) + static_cast<std::uint64_t>(scheduled)).next();
}

OpContext context_of(const OpProgram& program, const OpOptions& options, int lane, int stage, int scheduled,
                     std::vector<double>& speed_buffer);

// One lane's pipeline at op resolution, scheduled op by scheduled op.

// Names who waits for whom: "lane 0: stage 1 waits at F of micro-batch 2 for stage 0's ..."
[[noreturn]] void report_stall(const OpProgram& program, std::size_t lane,
                               const std::vector<std::size_t>& next);

// `filled[stage]` receives the times at which buckets were filled, [bucket * ranks + rank].
class LaneProgress {
 public:
  LaneProgress(const OpProgram& program, const OpOptions& options, std::size_t lane, Picoseconds begin,
               OpResult::Lane& result, std::vector<std::vector<Picoseconds>>& filled)
      : program_(program),
        options_(options),
        number_(lane),
        lane_(program.lanes[lane]),
        result_(result),
        filled_(filled),
        begin_(begin),
        ranks_(at(lane_.context) * at(program.tensor)) {
    const std::size_t stages = lane_.stages.size();
    result_.start.resize(stages);
    result_.end.resize(stages);
    result_.compute.resize(stages);
    filled_.resize(stages);
    next_.assign(stages, 0);
    for (std::size_t s = 0; s < stages; ++s) {
      result_.start[s].resize(lane_.stages[s].size() * ranks_);
      result_.end[s].resize(lane_.stages[s].size() * ranks_);
      result_.compute[s].assign(ranks_, 0);
      if (!program_.ends.empty() && !lane_.stages[s].empty())
        filled_[s].assign(program_.ends[s].buckets.size() * ranks_, 0);
    }
  }

  [[nodiscard]] const OpLane& lane() const { return lane_; }
  [[nodiscard]] std::size_t number() const { return number_; }
  [[nodiscard]] const ScheduledOp& scheduled(std::size_t stage) const {
    return lane_.stages[stage][next_[stage]];
  }
  [[nodiscard]] Picoseconds* buckets(std::size_t stage) {
    return filled_[stage].empty() ? nullptr : filled_[stage].data();
  }
  [[nodiscard]] Picoseconds* compute(std::size_t stage) { return result_.compute[stage].data(); }
  [[nodiscard]] std::size_t position(std::size_t stage) const { return next_[stage]; }

  // Whether the stage's next scheduled op has its input; false when none is left.
  [[nodiscard]] bool ready(std::size_t stage) const {
    if (next_[stage] == lane_.stages[stage].size()) return false;
    if (ends_pair(lane_.stages[stage], next_[stage])) return true;
    return has_input(scheduled(stage)) && (!scheduled(stage).op.with_next || has_input(second(stage)));
  }
  // Sets the clocks to when each rank can begin the stage's next scheduled op, and returns them.
  Picoseconds* open(std::size_t stage) {
    const std::size_t index = next_[stage];
    Picoseconds* const start = result_.start[stage].data() + index * ranks_;
    Picoseconds* const end = result_.end[stage].data() + index * ranks_;
    if (ends_pair(lane_.stages[stage], index)) {
      std::copy_n(start - ranks_, ranks_, start);
      std::copy_n(end - ranks_, ranks_, end);
      return end;
    }
    if (index == 0)
      std::fill_n(start, ranks_, begin_);
    else
      leave_previous(stage, index - 1, end - ranks_, start);
    await_input(stage, scheduled(stage), start);
    if (scheduled(stage).op.with_next) await_input(stage, second(stage), start);
    std::copy_n(start, ranks_, end);
    return end;
  }
  // `speed` holds the values that the returned context refers to.
  [[nodiscard]] OpContext context(std::size_t stage, std::vector<double>& speed) const {
    return context_of(program_, options_, static_cast<int>(number_), static_cast<int>(stage),
                      static_cast<int>(next_[stage]), speed);
  }
  void close(std::size_t stage) { ++next_[stage]; }

  void check_finished() const {
    for (std::size_t s = 0; s < next_.size(); ++s)
      if (next_[s] < lane_.stages[s].size()) report_stall(program_, number_, next_);
  }

 private:
  [[nodiscard]] const ScheduledOp& second(std::size_t stage) const {
    return lane_.stages[stage][next_[stage] + 1];
  }
  [[nodiscard]] bool has_input(const ScheduledOp& op) const {
    return op.input_stage == kNoInput || next_[at(op.input_stage)] > at(op.input_op);
  }
  // Sets when each rank is free after a scheduled op, or after the pair whose second it is.
  void leave_previous(std::size_t stage, std::size_t index, const Picoseconds* end, Picoseconds* free) const {
    std::copy_n(end, ranks_, free);
    const std::vector<ScheduledOp>& ops = lane_.stages[stage];
    for (std::size_t i = ends_pair(ops, index) ? index - 1 : index; i <= index; ++i)
      for (std::size_t r = 0; r < ranks_ && ops[i].blocking_send != kNoTransfer; ++r)
        free[r] = std::max(free[r], end[r] + transfer(ops[i].blocking_send, r));
  }
  void await_input(std::size_t stage, const ScheduledOp& next, Picoseconds* start) const {
    if (next.input_stage == kNoInput || at(next.input_stage) == stage) return;
    const Picoseconds* const sent = result_.end[at(next.input_stage)].data() + at(next.input_op) * ranks_;
    for (std::size_t r = 0; r < ranks_; ++r)
      start[r] = std::max(start[r], sent[r] + transfer(next.transfer, r));
  }
  [[nodiscard]] Picoseconds transfer(std::int64_t first, std::size_t rank) const {
    return lane_.transfers[at(first) + rank / at(program_.tensor)];
  }

  const OpProgram& program_;
  const OpOptions& options_;
  std::size_t number_;
  const OpLane& lane_;
  OpResult::Lane& result_;
  std::vector<std::vector<Picoseconds>>& filled_;
  Picoseconds begin_;
  std::size_t ranks_;
  std::vector<std::size_t> next_;
};

// A lane's way through one scheduled op, from one collective over several lanes to the next; a lane that
// waits for no others goes through at once. `network[t]`: when the last background op of TP coordinate t
// ends. `buckets`: where bucket k is filled, rank r's clock goes to [k * ranks + r]; null if the op fills
// none. `compute`: adds the compute stream's time of each rank; may be null.
template <bool kJitter, bool kWaits, class Observer>
class OpCursor {
 public:
  OpCursor(const OpContext& stage, const ScheduledOp& scheduled, Picoseconds* clock, Picoseconds* buckets,
           Picoseconds* compute, const Picoseconds* network, Scratch& scratch, Observer& observer)
      : stage_(stage),
        scheduled_(scheduled),
        clock_(clock),
        buckets_(buckets),
        compute_(compute),
        network_(network),
        observer_(observer),
        scratch_(scratch) {
    scratch_.latest.resize(std::max(scratch_.latest.size(), stage.ranks));
    scratch_.last.resize(std::max(scratch_.last.size(), stage.ranks));
  }

  // Runs to the next collective over several lanes; null at the end of the scheduled op. The place is kept in
  // a register until then: the loop takes about ten nanoseconds per op.
  const OpStep* next() {
    Place place = place_;
    std::uint64_t key = key_;
    for (; place.run < scheduled_.run_count; ++place.run, place.repetition = 0) {
      const BlockRun& run = stage_.lane.runs[scheduled_.first_run + place.run];
      const OpBlock& block = stage_.block(run);
      if (place.repetition == 0 && place.step == 0)
        durations_ = enter_run<kJitter>(stage_, run, compute_, scratch_);
      const Picoseconds* const durations = durations_;
      const auto steps = static_cast<std::uint32_t>(block.steps.size());
      while (place.repetition < run.repeat) {
        for (;;) {
          if constexpr (kWaits)
            if (under_end_ > 0 && place.step == under_end_) await_exchange();
          if (place.step == steps) break;
          if constexpr (kWaits) {
            const OpStep& step = block.steps[place.step];
            if (spans_lanes(step.sync)) {
              place_ = place;
              key_ = key;
              return &step;
            }
            if (step.waits) {
              wait(place);
              continue;
            }
          }
          run_local<kJitter>(stage_, block, durations, place, key, clock_, compute_, scratch_, observer_);
        }
        end_repetition(stage_, run, place, clock_, buckets_, observer_);
      }
    }
    place_ = place;
    return nullptr;
  }
  [[nodiscard]] const Picoseconds* durations() const { return durations_ + place_.step * stage_.ranks; }
  [[nodiscard]] const Place& place() const { return place_; }
  [[nodiscard]] Picoseconds* clock() const { return clock_; }
  // Steps past the op that next() returned, which ends at end_of(rank). A rank goes on at once if the op runs
  // in the background; otherwise it waits for the op and for what runs under it.
  template <class EndOf>
  void pass(const EndOf& end_of) {
    const OpStep& step = stage_.block(stage_.lane.runs[scheduled_.first_run + place_.run]).steps[place_.step];
    ++place_.step;
    if (step.background) return;
    if (step.over == 0) {
      for (std::size_t r = 0; r < stage_.ranks; ++r) clock_[r] = end_of(r);
      return;
    }
    under_end_ = place_.step + step.over;
    exchange_end_.resize(stage_.ranks);
    for (std::size_t r = 0; r < stage_.ranks; ++r) exchange_end_[r] = end_of(r);
  }

 private:
  void await_exchange() {
    for (std::size_t r = 0; r < stage_.ranks; ++r) wait_until(clock_[r], exchange_end_[r]);
    under_end_ = 0;
  }
  void wait(Place& place) {
    for (std::size_t r = 0; r < stage_.ranks; ++r) {
      const Picoseconds arrived = clock_[r];
      wait_until(clock_[r], network_[r % at(stage_.tensor)]);
      if constexpr (Observer::kListens) {
        const int rank = static_cast<int>(r);
        observer_.on_op({place.run, place.repetition, place.step, rank, arrived, arrived, clock_[r], rank});
      }
    }
    ++place.step;
  }

  OpContext stage_;
  const ScheduledOp& scheduled_;
  Picoseconds *clock_, *buckets_, *compute_;
  const Picoseconds* network_;
  Observer& observer_;
  Scratch& scratch_;  // holds the block's durations while the lane waits
  Place place_;
  const Picoseconds* durations_ = nullptr;
  std::uint64_t key_ = 0;
  std::uint32_t under_end_ = 0;            // first of the block's steps that runs under no exchange
  std::vector<Picoseconds> exchange_end_;  // by rank
};

// A rank's group at a collective over several lanes, as an index into OpResult::Lockstep.
inline std::size_t sync_index(const OpLane& lane, std::size_t rank, SyncGroup sync, int tensor) {
  const auto t = at(tensor);
  const std::size_t group = sync == SyncGroup::expert ? at(lane.expert_group[rank / t]) : std::size_t{0};
  return group * t + (sync == SyncGroup::expert ? expert_coordinate(lane, rank % t) : rank % t);
}

}  // namespace equipoise::interpreter
