// Where ranks wait for each other in a contended run: collectives inside a lane and over several, the step's
// end.
#include <algorithm>
#include <cassert>
#include <utility>

#include "policies/base/index.h"
#include "sim/step/contended_run.h"
#include "sim/step/op_interpreter.h"

namespace equipoise::contended {

static const OpStep* step_of(const LaneStage& here, const Rank& k) {
  const BlockRun& run = here.program->runs[(*here.ops)[k.scheduled].first_run + k.run];
  return here.program->blocks[run.block].steps.data() + k.step;
}

// A rank arrives at a collective inside its lane and goes on when that has ended.
bool LaneSet::join_collective(std::size_t lane_stage, std::size_t rank, const OpBlock& block,
                              SyncGroup sync) {
  LaneStage& here = s_.lane_stages[lane_stage];
  Rank& k = here.rank[rank];
  const OpStep& step = block.steps[k.step];
  const bool context = sync == SyncGroup::context;
  const std::size_t group = interpreter::group_of(rank, sync, static_cast<int>(s_.tensor));
  LaneCollective& collective = (context ? here.context : here.tensor)[group];
  k.wait = Wait::collective;
  if (step.with_next)
    k.beside = duration(here, k, rank, block, k.step + 1, SyncGroup::none, k.key + here.ranks);
  collective.start = std::max(collective.start, k.clock);
  if (++collective.arrived < (context ? at(here.program->context) : s_.tensor)) return false;
  const std::size_t first = context ? group : group * s_.tensor;
  const OpRoute& route = s_.routes.collective(here.lane, here.stage, sync, group, step.name);
  const Picoseconds end = launch(tag_of(context ? Kind::context : Kind::tensor, lane_stage, group),
                                 collective.start, duration(here, k, first, block, k.step, sync, k.key),
                                 moved_bytes(step.name, step.bytes, at(route.members)), route);
  if (end != kUnknown) end_collective(lane_stage, sync, group, end);
  return false;
}

void LaneSet::end_collective(std::size_t lane_stage, SyncGroup sync, std::size_t group, Picoseconds end) {
  LaneStage& here = s_.lane_stages[lane_stage];
  const bool context = sync == SyncGroup::context;
  const Picoseconds start =
      std::exchange((context ? here.context : here.tensor)[group], LaneCollective{}).start;
  const std::size_t first = context ? group : group * s_.tensor;
  const std::size_t step = context ? s_.tensor : 1;
  const std::size_t members = context ? at(here.program->context) : s_.tensor;
  const Rank& k = here.rank[first];
  const std::size_t groups = s_.recorded_ends(here, *step_of(here, k));
  here.recorded.collective_end[here.recorded.first[k.scheduled] + k.recorded + group] = end;
  for (std::size_t m = 0, r = first; m < members; ++m, r += step) {
    pass_collective(here, r, groups, start, end);
    wake(lane_stage, r);
  }
}

void LaneSet::pass_collective(LaneStage& here, std::size_t rank, std::size_t groups, Picoseconds start,
                              Picoseconds end) {
  Rank& k = here.rank[rank];
  const OpStep* const step = step_of(here, k);
  const Picoseconds lasts = end - start;
  const Picoseconds beside = step->with_next ? k.beside : 0;
  if (step->stream != Stream::compute) count(here, k, step->stream, std::max<Picoseconds>(0, lasts - beside));
  if (step->with_next && step[1].stream != Stream::compute)
    count(here, k, step[1].stream, std::max<Picoseconds>(0, beside - lasts));
  const std::uint32_t steps = step->with_next ? 2 : 1;
  k.clock = std::max(end, k.clock + beside);
  k.free = std::max(k.free, k.clock);
  k.key += steps * here.ranks;
  k.recorded += static_cast<std::uint32_t>(groups);
  k.step += steps;
  k.wait = Wait::nothing;
}

void LaneSet::join(CrossLaneOp& op, const LaneStage& here, std::size_t rank, const OpStep& step) const {
  const Rank& k = here.rank[rank];
  ++op.arrived;
  note_arrival(k.clock, static_cast<std::int32_t>(here.lane), static_cast<std::int32_t>(rank), op.latest,
               op.lane, op.rank);
  op.name = step.name;
  op.bytes = std::max(op.bytes, step.bytes);
  op.scheduled = k.scheduled;
  op.number = k.synchronization;
}

// A rank arrives at a collective over several lanes. False: it waits for its end.
bool LaneSet::join_cross_lane_op(std::size_t lane_stage, std::size_t rank, const OpStep& step) {
  LaneStage& here = s_.lane_stages[lane_stage];
  Rank& k = here.rank[rank];
  const std::size_t group_stage = stage_of_group(here);
  LockstepStage& stage = s_.lockstep[group_stage];
  const LockstepMembers& members = s_.members[at(here.program->lockstep)];
  if (step.background) {
    assert(step.sync == SyncGroup::replicas);
    const std::size_t t = rank % s_.tensor;
    Background& background = stage.background[t];
    const std::uint32_t number = k.background++;
    if (background.ops.size() <= number) {
      background.ops.resize(number + 1);
      background.waiting.resize(number + 1);
    }
    CrossLaneOp& op = background.ops[number];
    join(op, here, rank, step);
    ++k.step;
    ++k.synchronization;
    if (op.arrived == members.replicas[t].size()) run_background(group_stage, t);
    return true;
  }
  const bool expert = step.sync == SyncGroup::expert;
  const std::size_t group =
      interpreter::sync_index(*here.program, rank, step.sync, static_cast<int>(s_.tensor));
  CrossLaneOp& op = (expert ? stage.expert : stage.replicas)[group];
  join(op, here, rank, step);
  if (step.over > 0) {
    k.exchange_end = kUnknown;
    k.exchange_stream = step.stream;
    k.under_end = ++k.step + step.over;
    ++k.synchronization;
  } else {
    k.wait = Wait::cross_lane;
  }
  if (op.arrived == (expert ? members.expert : members.replicas)[group].size()) {
    op.start = op.latest;
    const Picoseconds end =
        launch_cross_lane_op(tag_of(expert ? Kind::expert : Kind::replicas, group_stage, group), here, op,
                             step.sync, group, op.start);
    if (end != kUnknown) end_cross_lane_op(group_stage, step.sync, group, end);
  }
  return step.over > 0;
}

Picoseconds LaneSet::launch_cross_lane_op(const FlowTag& tag, const LaneStage& here, const CrossLaneOp& op,
                                          SyncGroup sync, std::size_t group, Picoseconds start) {
  const OpResult::Lockstep& alone = s_.alone.lockstep_groups[at(here.program->lockstep)];
  const OpResult::Synchronization& known =
      alone.scheduled_ops[here.stage][op.scheduled][op.number * at(alone.groups) + group];
  const OpRoute& route = s_.routes.collective(here.lane, here.stage, sync, group, op.name);
  return launch(tag, start, known.end - known.start, moved_bytes(op.name, op.bytes, at(route.members)),
                route);
}

// Keeps when a collective over several lanes ran.
void LaneSet::note(std::size_t group_stage, const CrossLaneOp& op, std::size_t group) {
  OpResult::Lockstep& lockstep = s_.result.lockstep_groups[group_stage / s_.stages];
  lockstep.scheduled_ops[group_stage % s_.stages][op.scheduled][op.number * at(lockstep.groups) + group] = {
      op.latest, op.start, op.end, op.lane, op.rank};
}

void LaneSet::end_cross_lane_op(std::size_t group_stage, SyncGroup sync, std::size_t group, Picoseconds end) {
  const bool expert = sync == SyncGroup::expert;
  LockstepStage& stage = s_.lockstep[group_stage];
  CrossLaneOp op = std::exchange((expert ? stage.expert : stage.replicas)[group], CrossLaneOp{});
  op.end = end;
  note(group_stage, op, group);
  const LockstepMembers& members = s_.members[group_stage / s_.stages];
  for (const auto& [lane, rank] : (expert ? members.expert : members.replicas)[group]) {
    const std::size_t lane_stage = lane * s_.stages + group_stage % s_.stages;
    LaneStage& here = s_.lane_stages[lane_stage];
    Rank& k = here.rank[rank];
    if (k.wait == Wait::cross_lane) {
      count(here, k, step_of(here, k)->stream, end - op.start);
      k.clock = end;
      k.free = std::max(k.free, end);
      ++k.step;
      ++k.synchronization;
      k.wait = Wait::nothing;
      wake(lane_stage, rank);
      continue;
    }
    k.exchange_start = op.start;  // ops run under it
    k.exchange_end = end;
    if (k.wait == Wait::exchange_under) wake(lane_stage, rank);
  }
}

// Behind the ops under an exchange: what is exposed of it begins when nothing runs under it any more.
bool LaneSet::await_exchange(LaneStage& here, std::size_t rank) {
  Rank& k = here.rank[rank];
  if (k.exchange_end == kUnknown) {
    k.wait = Wait::exchange_under;
    return false;
  }
  count(here, k, k.exchange_stream,
        std::max<Picoseconds>(0, k.exchange_end - std::max(k.exchange_start, k.clock)));
  wait_until(k.clock, k.exchange_end);
  k.under_end = 0;
  return true;
}

bool LaneSet::await_background(std::size_t lane_stage, std::size_t rank) {
  LaneStage& here = s_.lane_stages[lane_stage];
  Rank& k = here.rank[rank];
  if (k.background > 0) {
    Background& background = s_.lockstep[stage_of_group(here)].background[rank % s_.tensor];
    const std::size_t latest = k.background - 1;
    if (background.ops[latest].end == kUnknown) {
      k.wait = Wait::background;
      background.waiting[latest].emplace_back(static_cast<std::uint32_t>(lane_stage),
                                              static_cast<std::uint32_t>(rank));
      return false;
    }
    wait_until(k.clock, background.ops[latest].end);
  }
  exposed_.by_stream[at(Stream::dp)] += std::max<Picoseconds>(0, k.clock - k.free);
  k.free = std::max(k.free, k.clock);
  ++k.step;
  return true;
}

// Starts the background ops that can start, one behind the other.
void LaneSet::run_background(std::size_t group_stage, std::size_t tensor) {
  Background& background = s_.lockstep[group_stage].background[tensor];
  const LockstepMembers& members = s_.members[group_stage / s_.stages];
  while (!background.running && background.next < background.ops.size()) {
    CrossLaneOp& op = background.ops[background.next];
    if (op.arrived < members.replicas[tensor].size()) return;
    op.start = std::max(op.latest, background.busy);
    const LaneStage& here = s_.lane_stages[at(op.lane) * s_.stages + group_stage % s_.stages];
    const Picoseconds end = launch_cross_lane_op(tag_of(Kind::background, group_stage, tensor), here, op,
                                                 SyncGroup::replicas, tensor, op.start);
    if (end == kUnknown)
      background.running = true;
    else
      end_background(group_stage, tensor, end);
  }
}

void LaneSet::end_background(std::size_t group_stage, std::size_t tensor, Picoseconds end) {
  Background& background = s_.lockstep[group_stage].background[tensor];
  CrossLaneOp& op = background.ops[background.next];
  background.running = false;
  op.end = background.busy = end;
  note(group_stage, op, tensor);
  for (const auto& [lane_stage, rank] : background.waiting[background.next]) wake(lane_stage, rank);
  background.waiting[background.next].clear();
  ++background.next;
}

void LaneSet::join_ends() {
  s_.joint = true;
  for (const LaneStage& here : s_.lane_stages)
    for (std::size_t r = 0; r < here.rank.size() && !s_.ends.empty(); ++r) {
      const std::size_t end = here.stage * s_.tensor + r % s_.tensor;
      for (std::size_t k = 0; k * here.ranks < here.filled.size(); ++k)
        if (here.filled[k * here.ranks + r] != kUnknown)
          fill_bucket(end, k, here.filled[k * here.ranks + r], here.lane, r);
      if (!here.ops->empty() && here.rank[r].wait == Wait::done)
        leave_stage(s_.ends[end], here.rank[r].clock);
    }
  for (std::size_t e = 0; e < s_.ends.size(); ++e) run_end(e);
}

void LaneSet::fill_bucket(std::size_t number, std::size_t bucket, Picoseconds when, std::size_t lane,
                          std::size_t rank) {
  --s_.ends[number].missing[bucket];
  s_.result.buckets[number][bucket].fill(when, lane, rank);
}

void LaneSet::leave_stage(StageEndRun& end, Picoseconds when) {
  end.done = std::max(end.done, when);
  --end.running_ranks;
}

// Starts what can start of the step's end.
void LaneSet::run_end(std::size_t number) {
  struct Launch {
    LaneSet& lanes;
    std::size_t number;
    const StageEnd& program;
    const OpRoute& route;
    [[nodiscard]] Picoseconds bucket(std::size_t k, Picoseconds start) const {
      const OpResult::Bucket& alone = lanes.s_.alone.buckets[number][k];
      const double bytes = program.bucket_bytes.empty() ? 0 : program.bucket_bytes[k];
      return lanes.launch(tag_of(Kind::bucket, number, k), start, alone.end - alone.start,
                          moved_bytes(OpName::dp_reduce, bytes, at(route.members)), route);
    }
    [[nodiscard]] Picoseconds step(std::size_t i, Picoseconds start) const {
      const OpStep& step = program.steps[i];
      const double bytes =
          step.stream == Stream::compute ? 0 : moved_bytes(step.name, step.bytes, at(route.members));
      const Picoseconds end =
          lanes.launch(tag_of(Kind::step, number, i), start, program.durations[i], bytes, route);
      lanes.s_.recorded.steps_end[number][i] = end;
      return end;
    }
  };
  const std::size_t stage = number / s_.tensor;
  StageEndRun& end = s_.ends[number];
  run_stage_end(s_.program.ends[stage], end, s_.result.buckets[number],
                Launch{*this, number, s_.program.ends[stage], s_.routes.end(stage, number % s_.tensor)});
  if (end.begins != kUnknown) s_.result.end_begins[number] = end.begins;
}

}  // namespace equipoise::contended
