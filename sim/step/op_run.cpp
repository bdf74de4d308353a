#include "sim/step/op_run.h"

#include <algorithm>
#include <string>

#include "policies/base/index.h"
#include "policies/base/parallel.h"
#include "sim/step/op_interpreter.h"
#include "sim/step/step_end.h"

namespace equipoise {
namespace {

using interpreter::LaneProgress;
using interpreter::NoObserver;
using interpreter::OpContext;
using interpreter::Scratch;

std::string describe(const ScheduleOp& op) {
  return concatenated(letter_of(op.kind), " of micro-batch ", op.micro_batch,
                      (op.virtual_stage > 0 ? " on virtual stage " + std::to_string(op.virtual_stage) : ""));
}

// One lane that waits for no others.
void run_lane(LaneProgress& lane, const OpOptions& options, Scratch& scratch) {
  std::vector<double> speed;
  NoObserver nobody;
  sweep_stages(lane.lane().stages.size(), [&](std::size_t stage) {
    bool moved = false;
    for (; lane.ready(stage); lane.close(stage), moved = true) {
      Picoseconds* const clock = lane.open(stage);
      const OpContext context = lane.context(stage, speed);
      if (options.jitter.sigma > 0)
        interpreter::run_scheduled_op<true>(context, lane.scheduled(stage), clock, lane.buckets(stage),
                                            lane.compute(stage), scratch, nobody);
      else
        interpreter::run_scheduled_op<false>(context, lane.scheduled(stage), clock, lane.buckets(stage),
                                             lane.compute(stage), scratch, nobody);
    }
    return moved;
  });
  lane.check_finished();
}

// Lanes alone and lockstep groups, by their lowest lanes.
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

// Lanes of one barrier group, over the threads. The first fault by lane number is the one reported.
void run_lanes(const OpProgram& program, const OpOptions& options, const std::vector<std::size_t>& lanes,
               Picoseconds begin, OpResult& result,
               std::vector<std::vector<std::vector<Picoseconds>>>& filled) {
  const std::vector<std::vector<std::size_t>> lockstep_groups = lanes_by_group(program, lanes);
  std::vector<Scratch> scratch(at(std::max(1, options.threads)));
  parallel_for(options.threads, lockstep_groups.size(), [&](int worker, std::size_t i) {
    const std::size_t l = lockstep_groups[i].front();
    if (program.lanes[l].lockstep != kNoLockstep)
      return interpreter::run_lockstep(program, options, lockstep_groups[i], begin, result, filled);
    LaneProgress lane(program, options, l, begin, result.lanes[l], filled[l]);
    run_lane(lane, options, scratch[at(worker)]);
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
void end_stage(const OpProgram& program, std::size_t stage, std::size_t t,
               const std::vector<std::vector<std::vector<Picoseconds>>>& filled, OpResult& result) {
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

}  // namespace

namespace interpreter {

void report_stall(const OpProgram& program, std::size_t lane_number, const std::vector<std::size_t>& next) {
  const OpLane& lane = program.lanes[lane_number];
  std::string text = "the step never ends: lane " + std::to_string(lane_number);
  for (std::size_t s = 0; s < lane.stages.size(); ++s) {
    if (next[s] == lane.stages[s].size()) continue;
    const ScheduledOp& scheduled = lane.stages[s][next[s]];
    const ScheduledOp& input = lane.stages[at(scheduled.input_stage)][at(scheduled.input_op)];
    text += concatenated("; stage ", s, " waits at ", describe(scheduled.op), " for stage ",
                         scheduled.input_stage, "'s ", describe(input.op));
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
  result.lanes = std::move(earlier.lanes);  // all of whose times are written anew
  result.lanes.resize(program.lanes.size());
  result.buckets.resize(at(program.stages) * at(program.tensor));
  result.end_begins.assign(result.buckets.size(), 0);
  result.lockstep_groups.resize(at(program.lockstep_groups));
  result.tasks = program.tasks();
  std::vector<std::vector<std::vector<Picoseconds>>> filled(program.lanes.size());

  std::vector<std::size_t> lanes;  // of a barrier group
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
  if (program.lanes[at(lane)].lockstep != kNoLockstep)
    return interpreter::replay_lockstep_op(program, options, result, lane, stage, scheduled, sink);
  std::vector<double> speed;
  Scratch scratch;
  const OpContext context = interpreter::context_of(program, options, lane, stage, scheduled, speed);
  const auto first = result.lanes[at(lane)].start[at(stage)].begin() +
                     static_cast<std::ptrdiff_t>(at(scheduled) * context.ranks);
  std::vector<Picoseconds> clock(first, first + static_cast<std::ptrdiff_t>(context.ranks));
  interpreter::SinkObserver observer = interpreter::observer_of(result, lane, stage, scheduled, sink);
  const ScheduledOp& what = program.lanes[at(lane)].stages[at(stage)][at(scheduled)];
  if (options.jitter.sigma > 0)
    interpreter::run_scheduled_op<true>(context, what, clock.data(), nullptr, nullptr, scratch, observer);
  else
    interpreter::run_scheduled_op<false>(context, what, clock.data(), nullptr, nullptr, scratch, observer);
}

}  // namespace equipoise

namespace equipoise::interpreter {
namespace {

int groups_of(const OpProgram& program, const std::vector<std::size_t>& lanes) {
  int experts = 1;
  for (const std::size_t l : lanes)
    for (const int group : program.lanes[l].expert_group) experts = std::max(experts, group + 1);
  return experts * program.tensor;
}

template <bool kJitter>
class GroupRun {
 public:
  GroupRun(const OpProgram& program, const OpOptions& options, const std::vector<std::size_t>& lanes,
           Picoseconds begin, OpResult& result, std::vector<std::vector<std::vector<Picoseconds>>>& filled)
      : program_(program),
        options_(options),
        lockstep_(result.lockstep_groups[at(program.lanes[lanes.front()].lockstep)]),
        network_(at(program.stages) * at(program.tensor), 0),
        speed_(lanes.size()) {
    for (const std::size_t l : lanes)
      lanes_.emplace_back(program, options, l, begin, result.lanes[l], filled[l]);
    lockstep_.groups = groups_of(program, lanes);
    lockstep_.scheduled_ops.resize(at(program.stages));
    lockstep_.network.resize(at(program.stages));
  }

  void run() {
    sweep_stages(at(program_.stages), [&](std::size_t stage) { return run_ready(stage); });
    for (const LaneProgress& lane : lanes_) lane.check_finished();
  }

 private:
  using Cursor = OpCursor<kJitter, NoObserver>;

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
    lockstep_.network[stage].insert(lockstep_.network[stage].end(), network, network + program_.tensor);
    std::vector<Cursor> cursors;
    cursors.reserve(lanes_.size());
    for (std::size_t l = 0; l < lanes_.size(); ++l) {
      LaneProgress& lane = lanes_[l];
      Picoseconds* const clock = lane.open(stage);
      cursors.emplace_back(lane.context(stage, speed_[l]), lane.scheduled(stage), clock, lane.buckets(stage),
                           lane.compute(stage), network, nobody_);
    }
    // A base of its own for the jitter of ops that no single lane owns.
    const auto place =
        static_cast<std::uint64_t>(lanes_.front().lane().lockstep) * at(program_.stages) + stage;
    jitter_base_ = ~SplitMix64((place << 24) + lanes_.front().position(stage)).next();
    std::vector<OpResult::Synchronization>& synchronizations = lockstep_.scheduled_ops[stage].emplace_back();
    while (const OpStep* step = next_synchronization(cursors))
      synchronize(*step, cursors, synchronizations, network);
  }

  // All lanes run to their next collective over several lanes; null when all are through.
  const OpStep* next_synchronization(std::vector<Cursor>& cursors) {
    const OpStep* first = nullptr;
    for (std::size_t l = 0; l < cursors.size(); ++l) {
      const OpStep* const step = cursors[l].next();
      if (l == 0) first = step;
      const auto text = [](const OpStep* s) { return s == nullptr ? "its end" : name_of(s->name); };
      if ((step == nullptr) != (first == nullptr) ||
          (step != nullptr && (step->name != first->name || step->background != first->background)))
        throw EngineError("size mismatch: lane ", lanes_[0].number(), " comes to ", text(first),
                          " where lane ", lanes_[l].number(), " comes to ", text(step));
    }
    return first;
  }

  void synchronize(const OpStep& step, std::vector<Cursor>& cursors,
                   std::vector<OpResult::Synchronization>& synchronizations, Picoseconds* network) {
    const std::size_t first = synchronizations.size();
    synchronizations.resize(first + at(lockstep_.groups));
    OpResult::Synchronization* const of_group = synchronizations.data() + first;
    for (std::size_t l = 0; l < cursors.size(); ++l) {
      const OpLane& lane = lanes_[l].lane();
      const Picoseconds* const duration = cursors[l].durations();
      for (std::size_t r = 0; r < at(lane.context) * at(program_.tensor); ++r) {
        OpResult::Synchronization& m = of_group[sync_index(lane, r, step.sync, program_.tensor)];
        m.end = std::max(m.end, duration[r]);  // a duration until the start is known, below
        m.arrive(cursors[l].clock()[r], lanes_[l].number(), r);
      }
    }
    for (std::size_t g = 0; g < at(lockstep_.groups); ++g) {
      OpResult::Synchronization& m = of_group[g];
      Picoseconds duration = m.end;
      if (kJitter) duration = scaled(duration, options_.jitter.factor(jitter_base_ + first + g));
      Picoseconds& busy = network[g % at(program_.tensor)];
      m.start = step.background ? std::max(m.arrived, busy) : m.arrived;
      m.end = m.start + duration;
      if (step.background && m.lane >= 0) busy = m.end;
    }
    for (std::size_t l = 0; l < cursors.size(); ++l) {
      const OpLane& lane = lanes_[l].lane();
      cursors[l].pass(
          [&](std::size_t r) { return of_group[sync_index(lane, r, step.sync, program_.tensor)].end; });
    }
  }

  const OpProgram& program_;
  const OpOptions& options_;
  OpResult::Lockstep& lockstep_;
  std::vector<LaneProgress> lanes_;
  std::vector<Picoseconds> network_;  // by stage and TP coordinate: the last background op ends
  std::vector<std::vector<double>> speed_;
  std::uint64_t jitter_base_ = 0;
  NoObserver nobody_;
};

// `network`: by TP coordinate, when the background ops of the scheduled ops before have ended.
template <bool kJitter>
void replay(const OpContext& context, const ScheduledOp& scheduled, std::vector<Picoseconds>& clock,
            const OpResult::Lockstep& lockstep,
            const std::vector<OpResult::Synchronization>& synchronizations, std::vector<Picoseconds> network,
            SinkObserver& observer) {
  OpCursor<kJitter, SinkObserver> cursor(context, scheduled, clock.data(), nullptr, nullptr, network.data(),
                                         observer);
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
    first += at(lockstep.groups);
  }
}

}  // namespace

void run_lockstep(const OpProgram& program, const OpOptions& options, const std::vector<std::size_t>& lanes,
                  Picoseconds begin, OpResult& result,
                  std::vector<std::vector<std::vector<Picoseconds>>>& filled) {
  if (options.jitter.sigma > 0)
    GroupRun<true>(program, options, lanes, begin, result, filled).run();
  else
    GroupRun<false>(program, options, lanes, begin, result, filled).run();
}

void replay_lockstep_op(const OpProgram& program, const OpOptions& options, const OpResult& result, int lane,
                        int stage, int scheduled, OpSink& sink) {
  std::vector<double> speed;
  const OpContext context = context_of(program, options, lane, stage, scheduled, speed);
  const OpResult::Lockstep& lockstep = result.lockstep_groups[at(program.lanes[at(lane)].lockstep)];
  const auto first = result.lanes[at(lane)].start[at(stage)].begin() +
                     static_cast<std::ptrdiff_t>(at(scheduled) * context.ranks);
  std::vector<Picoseconds> clock(first, first + static_cast<std::ptrdiff_t>(context.ranks));
  SinkObserver observer = observer_of(result, lane, stage, scheduled, sink);
  const ScheduledOp& what = program.lanes[at(lane)].stages[at(stage)][at(scheduled)];
  const auto& synchronizations = lockstep.scheduled_ops[at(stage)][at(scheduled)];
  const auto before = lockstep.network[at(stage)].begin() + std::ptrdiff_t{scheduled} * program.tensor;
  const std::vector<Picoseconds> network(before, before + program.tensor);
  if (options.jitter.sigma > 0)
    replay<true>(context, what, clock, lockstep, synchronizations, network, observer);
  else
    replay<false>(context, what, clock, lockstep, synchronizations, network, observer);
}

}  // namespace equipoise::interpreter
