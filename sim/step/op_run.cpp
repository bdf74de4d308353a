#include "sim/step/op_run.h"

#include <algorithm>
#include <string>

#include "policies/base/index.h"
#include "policies/base/parallel.h"
#include "sim/step/barrier_groups.h"
#include "sim/step/op_interpreter.h"
#include "sim/step/stage_end.h"

namespace equipoise {
namespace {

using interpreter::LaneProgress;
using interpreter::NoObserver;
using interpreter::OpContext;
using interpreter::OpCursor;
using interpreter::Place;
using interpreter::Scratch;
using interpreter::SinkObserver;
using interpreter::sync_index;

// When each lane's ranks filled the buckets of each stage: [lane][stage][bucket * ranks + rank].
using Filled = std::vector<std::vector<std::vector<Picoseconds>>>;

std::string describe(const ScheduleOp& op) {
  return concatenated(letter_of(op.kind), " of micro-batch ", op.micro_batch,
                      (op.virtual_stage > 0 ? " on virtual stage " + std::to_string(op.virtual_stage) : ""));
}

// Single lanes and lockstep groups, ordered by their lowest lanes.
std::vector<std::vector<std::size_t>> lanes_by_group(const OpProgram& program,
                                                     const std::vector<std::size_t>& lanes) {
  std::vector<std::vector<std::size_t>> lockstep_groups;
  std::vector<std::size_t> place(at(program.lockstep_groups), lanes.size());
  for (const std::size_t l : lanes) {
    const int lockstep = program.lanes[l].lockstep;
    if (lockstep == kNoLockstep) {
      lockstep_groups.push_back({l});
    } else if (std::size_t& known = place[at(lockstep)]; known < lanes.size()) {
      lockstep_groups[known].push_back(l);
    } else {
      known = lockstep_groups.size();
      lockstep_groups.push_back({l});
    }
  }
  return lockstep_groups;
}

int groups_of(const OpProgram& program, const std::vector<std::size_t>& lanes) {
  int experts = 1;
  for (const std::size_t l : lanes)
    for (const int group : program.lanes[l].expert_group) experts = std::max(experts, group + 1);
  return experts * program.tensor;
}

// Runs the scheduled ops of n >= 1 lanes together: one lane, or a lockstep group. Lanes of a group wait for
// each other inside scheduled ops, at expert-parallel exchanges and at the gathers and reductions of ZeRO-2
// and 3. Every lane runs to its next such op. When all have arrived, each group's op starts at the time of
// its last member and takes as long as its longest member says. The result does not depend on which lane is
// visited first.
template <bool kJitter, bool kWaits>
class GroupRun {
 public:
  GroupRun(const OpProgram& program, const OpOptions& options, const std::vector<std::size_t>& lanes,
           Picoseconds begin, OpResult& result, Filled& filled, std::vector<Scratch>& scratch)
      : program_(program),
        options_(options),
        network_(at(program.stages) * at(program.tensor), 0),
        speed_(lanes.size()),
        scratch_(scratch) {
    for (const std::size_t l : lanes) {
      lanes_.emplace_back(program, options, l, begin, result.lanes[l], filled[l]);
      if (!kJitter && options.speed.empty())
        in_short_.push_back(interpreter::shortened(program.lanes[l], program.tensor));
    }
    scratch_.resize(std::max(scratch_.size(), lanes.size()));
    cursors_.reserve(lanes.size());
    const int lockstep = program.lanes[lanes.front()].lockstep;
    if (lockstep == kNoLockstep) return;
    lockstep_ = &result.lockstep_groups[at(lockstep)];
    lockstep_->groups = groups_of(program, lanes);
    lockstep_->scheduled_ops.resize(at(program.stages));
    lockstep_->network.resize(at(program.stages));
  }

  void run() {
    sweep_stages(at(program_.stages), [&](std::size_t stage) { return run_ready(stage); });
    for (const LaneProgress& lane : lanes_) lane.check_finished();
  }

 private:
  using Cursor = OpCursor<kJitter, kWaits, NoObserver>;

  bool run_ready(std::size_t stage) {
    bool moved = false;
    while (std::all_of(lanes_.begin(), lanes_.end(), [&](const LaneProgress& l) { return l.ready(stage); })) {
      run_scheduled_op(stage);
      for (LaneProgress& lane : lanes_) lane.close(stage);
      moved = true;
    }
    return moved;
  }

  void run_scheduled_op(std::size_t stage) {
    Picoseconds* const network = network_.data() + stage * at(program_.tensor);
    cursors_.clear();
    for (std::size_t l = 0; l < lanes_.size(); ++l) {
      LaneProgress& lane = lanes_[l];
      Picoseconds* const clock = lane.open(stage);
      OpContext context = lane.context(stage, speed_[l]);
      if (!in_short_.empty()) context.in_short = &in_short_[l];
      cursors_.emplace_back(context, lane.scheduled(stage), clock, lane.buckets(stage), lane.compute(stage),
                            network, scratch_[l], nobody_);
    }
    if (lockstep_ == nullptr) {
      next_synchronization();
      return;
    }
    lockstep_->network[stage].insert(lockstep_->network[stage].end(), network, network + program_.tensor);
    // Ops that no single lane owns have a jitter base of their own.
    const auto place =
        static_cast<std::uint64_t>(lanes_.front().lane().lockstep) * at(program_.stages) + stage;
    jitter_base_ = ~SplitMix64((place << 24) + lanes_.front().position(stage)).next();
    std::vector<OpResult::Synchronization>& synchronizations = lockstep_->scheduled_ops[stage].emplace_back();
    while (const OpStep* step = next_synchronization()) synchronize(*step, synchronizations, network);
  }

  // All lanes run to their next collective over several lanes; null when all are through.
  const OpStep* next_synchronization() {
    const OpStep* first = nullptr;
    for (std::size_t l = 0; l < cursors_.size(); ++l) {
      const OpStep* const step = cursors_[l].next();
      if (l == 0) first = step;
      const auto text = [](const OpStep* s) { return s == nullptr ? "its end" : name_of(s->name); };
      if ((step == nullptr) != (first == nullptr) ||
          (step != nullptr && (step->name != first->name || step->background != first->background)))
        throw EngineError("size mismatch: lane ", lanes_[0].number(), " comes to ", text(first),
                          " where lane ", lanes_[l].number(), " comes to ", text(step));
    }
    return first;
  }

  void synchronize(const OpStep& step, std::vector<OpResult::Synchronization>& synchronizations,
                   Picoseconds* network) {
    const std::size_t first = synchronizations.size();
    synchronizations.resize(first + at(lockstep_->groups));
    OpResult::Synchronization* const of_group = synchronizations.data() + first;
    for (std::size_t l = 0; l < cursors_.size(); ++l) {
      const OpLane& lane = lanes_[l].lane();
      const Picoseconds* const duration = cursors_[l].durations();
      for (std::size_t r = 0; r < at(lane.context) * at(program_.tensor); ++r) {
        OpResult::Synchronization& m = of_group[sync_index(lane, r, step.sync, program_.tensor)];
        m.end = std::max(m.end, duration[r]);  // holds a duration until the start is known, below
        m.arrive(cursors_[l].clock()[r], lanes_[l].number(), r);
      }
    }
    for (std::size_t g = 0; g < at(lockstep_->groups); ++g) {
      OpResult::Synchronization& m = of_group[g];
      Picoseconds duration = m.end;
      if (kJitter) duration = scaled(duration, options_.jitter.factor(jitter_base_ + first + g));
      Picoseconds& busy = network[g % at(program_.tensor)];
      m.start = step.background ? std::max(m.arrived, busy) : m.arrived;
      m.end = m.start + duration;
      if (step.background && m.lane >= 0) busy = m.end;
    }
    for (std::size_t l = 0; l < cursors_.size(); ++l) {
      const OpLane& lane = lanes_[l].lane();
      cursors_[l].pass(
          [&](std::size_t r) { return of_group[sync_index(lane, r, step.sync, program_.tensor)].end; });
    }
  }

  const OpProgram& program_;
  const OpOptions& options_;
  OpResult::Lockstep* lockstep_ = nullptr;  // null if lanes do not wait for each other
  std::vector<LaneProgress> lanes_;
  std::vector<interpreter::ShortBlocks> in_short_;  // by lane; empty: every op is run
  std::vector<Picoseconds> network_;  // by stage and TP coordinate: when the last background op ends
  std::vector<std::vector<double>> speed_;
  std::vector<Scratch>& scratch_;  // by lane; belongs to the thread
  std::vector<Cursor> cursors_;    // by lane, in the running scheduled op
  std::uint64_t jitter_base_ = 0;
  NoObserver nobody_;
};

// Runs the lanes of one barrier group on the threads. If several fail, the lowest lane's fault is reported.
void run_lanes(const OpProgram& program, const OpOptions& options, const std::vector<std::size_t>& lanes,
               Picoseconds begin, OpResult& result, Filled& filled) {
  const std::vector<std::vector<std::size_t>> groups = lanes_by_group(program, lanes);
  std::vector<std::vector<Scratch>> scratch(at(std::max(1, options.threads)));
  parallel_for(options.threads, groups.size(), [&](int worker, std::size_t i) {
    std::vector<Scratch>& own = scratch[at(worker)];
    const auto run = [&]<bool kJitter, bool kWaits>() {
      GroupRun<kJitter, kWaits>(program, options, groups[i], begin, result, filled, own).run();
    };
    const bool jitters = options.jitter.sigma > 0;
    if (program.lanes[groups[i].front()].lockstep != kNoLockstep)
      jitters ? run.template operator()<true, true>() : run.template operator()<false, true>();
    else
      jitters ? run.template operator()<true, false>() : run.template operator()<false, false>();
  });
}

Picoseconds last_end(const OpProgram& program, const OpResult& result, const std::vector<std::size_t>& lanes,
                     Picoseconds begin) {
  Picoseconds latest = begin;
  for (const std::size_t l : lanes)
    for (std::size_t s = 0; s < at(program.stages); ++s)
      for (const Picoseconds end : result.lanes[l].end[s]) latest = std::max(latest, end);
  return latest;
}

// The end of the step on one stage, for the ranks of one TP coordinate.
void end_stage(const OpProgram& program, std::size_t stage, std::size_t t, const Filled& filled,
               OpResult& result) {
  const StageEnd& end = program.ends[stage];
  const std::size_t tensor = at(program.tensor);
  std::vector<OpResult::Bucket>& buckets = result.buckets[stage * tensor + t];
  buckets.resize(end.buckets.size());
  Picoseconds done = 0;
  for (std::size_t l = 0; l < program.lanes.size(); ++l) {
    const std::size_t ranks = at(program.lanes[l].context) * tensor;
    const std::vector<Picoseconds>& ends = result.lanes[l].end[stage];
    for (std::size_t r = t; r < ranks && !ends.empty(); r += tensor) {
      done = std::max(done, ends[ends.size() - ranks + r]);
      for (std::size_t k = 0; k < buckets.size(); ++k) buckets[k].fill(filled[l][stage][k * ranks + r], l, r);
    }
  }
  StageEndRun run;
  run.begin(buckets);
  run.done = done;
  run_stage_end(end, run, buckets, StageEndAlone{end, buckets});
  result.end_begins[stage * tensor + t] = run.begins;
  result.makespan = std::max(result.makespan, run.busy);
}

// Runs a scheduled op again. `network`: by TP coordinate, when the background ops before it ended.
// `synchronizations`: its collectives over several lanes, in `groups` groups at a time.
template <bool kJitter>
void replay(const OpContext& context, const ScheduledOp& scheduled, std::vector<Picoseconds>& clock,
            std::size_t groups, std::span<const OpResult::Synchronization> synchronizations,
            std::vector<Picoseconds> network, SinkObserver& observer) {
  Scratch scratch;
  OpCursor<kJitter, true, SinkObserver> cursor(context, scheduled, clock.data(), nullptr, nullptr,
                                               network.data(), scratch, observer);
  std::size_t first = 0;
  while (const OpStep* step = cursor.next()) {
    const Place& place = cursor.place();
    const auto group_of = [&](std::size_t r) {
      return first + sync_index(context.lane, r, step->sync, context.tensor);
    };
    for (std::size_t r = 0; r < context.ranks; ++r) {
      const OpResult::Synchronization& m = synchronizations[group_of(r)];
      observer.on_op({place.run, place.repetition, place.step, static_cast<int>(r), clock[r], m.start, m.end,
                      m.rank, m.lane, static_cast<int>(group_of(r))});
      if (step->background) network[r % at(context.tensor)] = m.end;
    }
    cursor.pass([&](std::size_t r) { return synchronizations[group_of(r)].end; });
    first += groups;
  }
}

}  // namespace

namespace interpreter {
namespace {

// What runs under an exchange stays apart from what follows it.
OpBlock shortened(const OpBlock& block, int context, int tensor) {
  const auto c = at(context);
  OpBlock out;
  std::size_t exchange = 0;   // its place in `out`
  std::size_t under_end = 0;  // of the block: the first step behind those under it; 0: there is none
  bool kernels = false;       // the last step of `out` is a sum of kernels
  const auto end_exchange = [&](std::size_t s) {
    if (under_end == 0 || s != under_end) return;
    out.steps[exchange].over = static_cast<std::uint32_t>(out.steps.size() - exchange - 1);
    kernels = false;
    under_end = 0;
  };
  for (std::size_t s = 0; s < block.steps.size();) {
    end_exchange(s);
    const OpStep& step = block.steps[s];
    const Picoseconds* const duration = block.durations.data() + s * c;
    const std::size_t width = step.with_next ? 2 : 1;
    if (step.waits || sync_of(step, context, tensor) != SyncGroup::none) {
      if (step.over > 0) exchange = out.steps.size(), under_end = s + 1 + step.over;
      out.steps.insert(out.steps.end(), &step, &step + width);
      out.durations.insert(out.durations.end(), duration, duration + width * c);
      kernels = false;
    } else {
      if (!kernels) {
        out.steps.emplace_back();
        out.durations.resize(out.durations.size() + c, 0);
      }
      kernels = true;
      Picoseconds* const sum = out.durations.data() + out.durations.size() - c;
      for (std::size_t r = 0; r < c; ++r)
        sum[r] += step.with_next ? std::max(duration[r], duration[c + r]) : duration[r];
    }
    s += width;
  }
  end_exchange(block.steps.size());
  return out;
}

}  // namespace

ShortBlocks shortened(const OpLane& lane, int tensor) {
  ShortBlocks result;
  const auto c = at(lane.context);
  result.compute.assign(lane.blocks.size() * c, 0);
  for (std::size_t b = 0; b < lane.blocks.size(); ++b) {
    const OpBlock& block = lane.blocks[b];
    result.blocks.push_back(shortened(block, lane.context, tensor));
    for (std::size_t s = 0; s < block.steps.size(); ++s)
      for (std::size_t r = 0; r < c && computes(block.steps[s]); ++r)
        result.compute[b * c + r] += block.durations[s * c + r];
  }
  return result;
}

void report_stall(const OpProgram& program, std::size_t lane_number, const std::vector<std::size_t>& next) {
  const OpLane& lane = program.lanes[lane_number];
  std::string text = "the step never ends: lane " + std::to_string(lane_number);
  for (std::size_t s = 0; s < lane.stages.size(); ++s) {
    if (next[s] == lane.stages[s].size()) continue;
    const std::vector<ScheduledOp>& ops = lane.stages[s];
    text += concatenated("; stage ", s, " waits at ", describe(ops[next[s]].op), " for ");
    const auto waits = [&](const ScheduledOp& op) {
      return op.input_stage != kNoInput && next[at(op.input_stage)] <= at(op.input_op);
    };
    // A pair starts when both of its ops have their input.
    const bool second = !waits(ops[next[s]]) && ops[next[s]].op.with_next && waits(ops[next[s] + 1]);
    const ScheduledOp& waiting = ops[next[s] + (second ? 1 : 0)];
    if (waits(waiting))
      text += concatenated("stage ", waiting.input_stage, "'s ",
                           describe(lane.stages[at(waiting.input_stage)][at(waiting.input_op)].op));
    else
      text += "the other lanes of its lockstep group";
  }
  throw EngineError(text);
}

OpContext context_of(const OpProgram& program, const OpOptions& options, int lane, int stage, int scheduled,
                     std::vector<double>& speed_buffer) {
  const OpLane& l = program.lanes[at(lane)];
  OpContext context{program, options, l, l.context, program.tensor, at(l.context) * at(program.tensor),
                    {},      0};
  if (!options.speed.empty()) {
    const std::size_t first = (at(stage) * at(program.replicas) + at(l.first_replica)) * at(program.tensor);
    if (first + context.ranks > options.speed.size())
      throw EngineError("speed factors are given for ", options.speed.size(), " GPUs; the program has more");
    speed_buffer.assign(options.speed.begin() + static_cast<std::ptrdiff_t>(first),
                        options.speed.begin() + static_cast<std::ptrdiff_t>(first + context.ranks));
    context.speed = speed_buffer;
  }
  context.jitter_base = jitter_base_of(program, lane, stage, scheduled);
  return context;
}

}  // namespace interpreter

OpResult run(const OpProgram& program, const OpOptions& options, OpResult earlier) {
  check_program(program);
  OpResult result;
  result.lanes = std::move(earlier.lanes);  // every time in it is overwritten
  result.lanes.resize(program.lanes.size());
  result.buckets.resize(at(program.stages) * at(program.tensor));
  result.end_begins.assign(result.buckets.size(), 0);
  result.lockstep_groups.resize(at(program.lockstep_groups));
  result.tasks = program.tasks();
  Filled filled(program.lanes.size());

  std::vector<std::size_t> lanes;  // the lanes of a barrier group
  result.pipeline_end = run_barrier_groups(program.lanes, [&](int group, Picoseconds begin) {
    lanes.clear();
    for (std::size_t l = 0; l < program.lanes.size(); ++l)
      if (program.lanes[l].barrier_group == group) lanes.push_back(l);
    run_lanes(program, options, lanes, begin, result, filled);
    return last_end(program, result, lanes, begin);
  });
  result.makespan = result.pipeline_end;
  for (std::size_t s = 0; s < program.ends.size(); ++s)
    for (std::size_t t = 0; t < at(program.tensor); ++t) end_stage(program, s, t, filled, result);
  return result;
}

void replay_scheduled_op(const OpProgram& program, const OpOptions& options, const OpResult& result, int lane,
                         int stage, int scheduled, OpSink& sink) {
  std::vector<double> speed;
  const OpContext context = interpreter::context_of(program, options, lane, stage, scheduled, speed);
  const auto first = result.lanes[at(lane)].start[at(stage)].begin() +
                     static_cast<std::ptrdiff_t>(at(scheduled) * context.ranks);
  std::vector<Picoseconds> clock(first, first + static_cast<std::ptrdiff_t>(context.ranks));
  SinkObserver observer = interpreter::observer_of(result, lane, stage, scheduled, sink);
  const ScheduledOp& what = program.lanes[at(lane)].stages[at(stage)][at(scheduled)];
  std::size_t groups = 0;
  std::span<const OpResult::Synchronization> synchronizations;
  std::vector<Picoseconds> network;
  if (const int number = program.lanes[at(lane)].lockstep; number != kNoLockstep) {
    const OpResult::Lockstep& lockstep = result.lockstep_groups[at(number)];
    groups = at(lockstep.groups);
    synchronizations = lockstep.scheduled_ops[at(stage)][at(scheduled)];
    const auto before = lockstep.network[at(stage)].begin() + std::ptrdiff_t{scheduled} * program.tensor;
    network.assign(before, before + program.tensor);
  }
  if (options.jitter.sigma > 0)
    replay<true>(context, what, clock, groups, synchronizations, network, observer);
  else
    replay<false>(context, what, clock, groups, synchronizations, network, observer);
}

}  // namespace equipoise
