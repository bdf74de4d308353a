#include "sim/engine/op/op_engine.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "policies/base/index.h"
#include "sim/engine/op/op_lane_run.h"
#include "sim/engine/op/op_lockstep.h"

namespace equipoise {
namespace {

using op_rows::LaneRun;
using op_rows::NoObserver;
using op_rows::OpContext;
using op_rows::Scratch;

std::string describe(const ScheduleOp& op) {
  return std::string(letter_of(op.kind)) + " of micro-batch " + std::to_string(op.micro_batch) +
         (op.virtual_stage > 0 ? " on virtual stage " + std::to_string(op.virtual_stage) : "");
}

// One lane that meets no others.
void run_lane(LaneRun& lane, const OpOptions& options, Scratch& scratch) {
  std::vector<double> speed;
  NoObserver nobody;
  op_rows::sweep_stages(lane.lane().stages.size(), [&](std::size_t stage) {
    bool moved = false;
    for (; lane.ready(stage); lane.close(stage), moved = true) {
      Picoseconds* const clock = lane.open(stage);
      const OpContext context = lane.context(stage, speed);
      if (options.jitter.sigma > 0)
        op_rows::run_scheduled_op<true>(context, lane.scheduled(stage), clock, lane.buckets(stage),
                                        lane.compute(stage), scratch, nobody);
      else
        op_rows::run_scheduled_op<false>(context, lane.scheduled(stage), clock, lane.buckets(stage),
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
  std::vector<std::exception_ptr> faults(lockstep_groups.size());
  std::atomic<std::size_t> taken{0};
  const auto work = [&] {
    Scratch scratch;
    for (std::size_t i = taken++; i < lockstep_groups.size(); i = taken++) {
      const std::size_t l = lockstep_groups[i].front();
      try {
        if (program.lanes[l].lockstep != kNoLockstep) {
          op_rows::run_lockstep(program, options, lockstep_groups[i], begin, result, filled);
          continue;
        }
        LaneRun lane(program, options, l, begin, result.lanes[l], filled[l]);
        run_lane(lane, options, scratch);
      } catch (...) {
        faults[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> helpers;
  const std::size_t threads =
      std::min(lockstep_groups.size(), static_cast<std::size_t>(std::max(1, options.threads)));
  for (std::size_t t = 1; t < threads; ++t) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  for (const std::exception_ptr& fault : faults)
    if (fault) std::rethrow_exception(fault);
}

Picoseconds last_end(const OpProgram& program, const OpResult& result, const std::vector<std::size_t>& lanes,
                     Picoseconds begin) {
  Picoseconds latest = begin;
  for (const std::size_t l : lanes)
    for (std::size_t s = 0; s < at(program.stages); ++s)
      for (const Picoseconds end : result.lanes[l].end[s]) latest = std::max(latest, end);
  return latest;
}

// Gradient buckets and what follows them, of one stage, for the ranks of one TP coordinate.
void run_stage_end(const OpProgram& program, std::size_t stage, std::size_t t,
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
      for (std::size_t k = 0; k < buckets.size(); ++k) {
        const Picoseconds filled_at = filled[l][stage][k * ranks + r];
        if (buckets[k].last_lane >= 0 && filled_at <= buckets[k].filled) continue;
        buckets[k].filled = filled_at;
        buckets[k].last_lane = static_cast<std::int32_t>(l);
        buckets[k].last_rank = static_cast<std::int32_t>(r);
      }
    }
  }
  std::vector<std::size_t> order(buckets.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return buckets[a].filled < buckets[b].filled; });
  Picoseconds free = 0;
  for (const std::size_t k : order) {
    buckets[k].start = std::max(free, buckets[k].filled);
    // A step without any micro-batch has nothing to reduce.
    free = buckets[k].end = buckets[k].start + (buckets[k].last_lane < 0 ? 0 : end.buckets[k]);
  }
  // The end's steps wait for the slowest replica's backward and the last bucket.
  done = std::max(done, free);
  result.end_begins[stage * tensor + t] = done;
  for (const Picoseconds duration : end.durations) done += duration;
  result.makespan = std::max(result.makespan, done);
}

}  // namespace

namespace op_rows {

void report_stall(const OpProgram& program, std::size_t lane_number, const std::vector<std::size_t>& next) {
  const OpLane& lane = program.lanes[lane_number];
  std::string text = "the step never ends: lane " + std::to_string(lane_number);
  for (std::size_t s = 0; s < lane.stages.size(); ++s) {
    if (next[s] == lane.stages[s].size()) continue;
    const ScheduledOp& scheduled = lane.stages[s][next[s]];
    const ScheduledOp& input = lane.stages[at(scheduled.input_stage)][at(scheduled.input_op)];
    text += "; stage " + std::to_string(s) + " waits at " + describe(scheduled.op) + " for stage " +
            std::to_string(scheduled.input_stage) + "'s " + describe(input.op);
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
      throw EngineError("speed factors are given for " + std::to_string(options.speed.size()) +
                        " GPUs; the program has more");
    speed_buffer.assign(options.speed.begin() + static_cast<std::ptrdiff_t>(first),
                        options.speed.begin() + static_cast<std::ptrdiff_t>(first + context.ranks));
    context.speed = speed_buffer;
  }
  context.jitter_base = jitter_base_of(program, lane, stage, scheduled);
  return context;
}

}  // namespace op_rows

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

  // Barrier groups in order; each starts when the one before has ended.
  std::vector<std::size_t> order(program.lanes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return program.lanes[a].barrier_group < program.lanes[b].barrier_group;
  });
  Picoseconds begin = 0;
  std::vector<std::size_t> group;
  for (std::size_t i = 0; i < order.size();) {
    group.clear();
    begin = result.pipeline_end;
    const int number = program.lanes[order[i]].barrier_group;
    for (; i < order.size() && program.lanes[order[i]].barrier_group == number; ++i)
      group.push_back(order[i]);
    run_lanes(program, options, group, begin, result, filled);
    result.pipeline_end = last_end(program, result, group, begin);
  }
  result.makespan = result.pipeline_end;
  for (std::size_t s = 0; s < program.ends.size(); ++s)
    for (std::size_t t = 0; t < at(program.tensor); ++t) run_stage_end(program, s, t, filled, result);
  return result;
}

void replay_scheduled_op(const OpProgram& program, const OpOptions& options, const OpResult& result, int lane,
                         int stage, int scheduled, OpSink& sink) {
  if (program.lanes[at(lane)].lockstep != kNoLockstep)
    return op_rows::replay_lockstep_op(program, options, result, lane, stage, scheduled, sink);
  std::vector<double> speed;
  Scratch scratch;
  const OpContext context = op_rows::context_of(program, options, lane, stage, scheduled, speed);
  const auto first = result.lanes[at(lane)].start[at(stage)].begin() +
                     static_cast<std::ptrdiff_t>(at(scheduled) * context.ranks);
  std::vector<Picoseconds> clock(first, first + static_cast<std::ptrdiff_t>(context.ranks));
  op_rows::SinkObserver observer = op_rows::observer_of(result, lane, stage, scheduled, sink);
  const ScheduledOp& what = program.lanes[at(lane)].stages[at(stage)][at(scheduled)];
  if (options.jitter.sigma > 0)
    op_rows::run_scheduled_op<true>(context, what, clock.data(), nullptr, nullptr, scratch, observer);
  else
    op_rows::run_scheduled_op<false>(context, what, clock.data(), nullptr, nullptr, scratch, observer);
}

}  // namespace equipoise
