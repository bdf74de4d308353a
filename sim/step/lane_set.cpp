#include "sim/step/lane_set.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace equipoise::contended {
namespace {

// How long a free rank waited for inputs on their way; time that two inputs share counts once.
struct Input {
  Picoseconds start = 0, end = 0;
};
Picoseconds waited_for(Input first, Input second, Picoseconds free) {
  if (second.start < first.start) std::swap(first, second);
  Picoseconds waited = 0;
  for (const Input& input : {first, second}) {
    waited += std::max<Picoseconds>(0, input.end - std::max(input.start, free));
    free = std::max(free, input.end);
  }
  return waited;
}

}  // namespace

LaneSet::LaneSet(State& state, std::vector<std::size_t> lanes)
    : s_(state), lanes_(std::move(lanes)), network_(state.routes.table()) {
  exposed_.in_ops.assign(s_.program.lanes.size(), 0);
  exposed_.in_recompute = exposed_.in_ops;
}

void LaneSet::begin() {
  for (const std::size_t lane : lanes_)
    for (std::size_t stage = 0; stage < s_.stages; ++stage) {
      const std::size_t lane_stage = lane * s_.stages + stage;
      for (std::size_t r = 0; r < s_.lane_stages[lane_stage].rank.size(); ++r)
        if (s_.lane_stages[lane_stage].rank[r].wait == Wait::begin) wake(lane_stage, r);
    }
  run_ready();
}

void LaneSet::absorb(LaneSet& other) {
  lanes_.insert(lanes_.end(), other.lanes_.begin(), other.lanes_.end());
  network_.adopt(other.network_);
  flows_.insert(flows_.end(), other.flows_.begin(), other.flows_.end());
  for (; !other.pending_.empty(); other.pending_.pop()) pending_.push(other.pending_.top());
  for (std::size_t s = 0; s < kStreams; ++s) exposed_.by_stream[s] += other.exposed_.by_stream[s];
  for (std::size_t l = 0; l < exposed_.in_ops.size(); ++l) {
    exposed_.in_ops[l] += other.exposed_.in_ops[l];
    exposed_.in_recompute[l] += other.exposed_.in_recompute[l];
  }
}

void LaneSet::run(bool reports) {
  constexpr std::int64_t kBetweenReports = 1 << 12;
  for (std::int64_t events = 0;; ++events) {
    const Picoseconds now =
        std::min(network_.next_end(), pending_.empty() ? FlowNetwork::kNever : pending_.top().at);
    if (now == FlowNetwork::kNever || (!s_.joint && now >= pause_)) return;
    if (reports && s_.how.progress && events % kBetweenReports == 0)
      s_.how.progress(static_cast<double>(s_.ended_ops) / static_cast<double>(s_.all_ops));
    for (;;) {
      if (network_.next_end() == now) {
        finish(network_.pop(), now);
      } else if (!pending_.empty() && pending_.top().at == now) {
        const Pending flow = pending_.top();
        pending_.pop();
        network_.start(flow.route, flow.cap, flow.limit, flow.alone, flow.tag, now);
        if (s_.how.keep_flows) flows_.push_back({now, flow.route, flow.cap, flow.limit, flow.alone});
      } else {
        break;
      }
      run_ready();
    }
    network_.settle(now);
  }
}

Picoseconds LaneSet::launch(const FlowTag& tag, Picoseconds start, Picoseconds duration, double bytes,
                            const OpRoute& route) {
  if (!s_.how.share || duration == 0 || !(bytes > 0) || route.members < 2) return start + duration;
  if (!route.flows) return start + paced(duration, bytes, route.limit);
  const double cap = bytes / (static_cast<double>(duration) / kPicosecondsPerSecond);
  pending_.push({start, tag, route.route, cap, route.limit, duration});
  return kUnknown;
}

void LaneSet::finish(const FlowTag& tag, Picoseconds now) {
  const std::size_t a = tag.first, b = tag.second;
  switch (static_cast<Kind>(tag.kind)) {
    case Kind::context:
      return end_collective(a, SyncGroup::context, b, now);
    case Kind::tensor:
      return end_collective(a, SyncGroup::tensor, b, now);
    case Kind::transfer:
      return arrive(a, b, now);
    case Kind::expert:
      return end_cross_lane_op(a, SyncGroup::expert, b, now);
    case Kind::replicas:
      return end_cross_lane_op(a, SyncGroup::replicas, b, now);
    case Kind::background:
      end_background(a, b, now);
      return run_background(a, b);
    case Kind::bucket:
      s_.result.buckets[a][b].end = now;
      ++s_.ends[a].next_bucket;
      break;
    case Kind::step:
      s_.recorded.steps_end[a][b] = now;
      ++s_.ends[a].next_step;
      break;
  }
  s_.ends[a].busy = now;
  s_.ends[a].running = false;
  run_end(a);
}

void LaneSet::wake(std::size_t lane_stage, std::size_t rank) {
  Rank& k = s_.lane_stages[lane_stage].rank[rank];
  if (std::exchange(k.queued, true)) return;
  ready_.emplace_back(static_cast<std::uint32_t>(lane_stage), static_cast<std::uint32_t>(rank));
}

void LaneSet::run_ready() {
  while (!ready_.empty()) {
    const auto [lane_stage, rank] = ready_.back();
    ready_.pop_back();
    s_.lane_stages[lane_stage].rank[rank].queued = false;
    advance(lane_stage, rank);
  }
}

// Runs a rank until it has to wait. A rank may be woken for nothing.
void LaneSet::advance(std::size_t lane_stage, std::size_t rank) {
  LaneStage& here = s_.lane_stages[lane_stage];
  Rank& k = here.rank[rank];
  if (k.wait == Wait::collective || k.wait == Wait::cross_lane) return;
  while (k.wait != Wait::done) {
    if (k.wait == Wait::begin && !begin_op(here, rank)) return;
    k.wait = Wait::nothing;
    if (!run_op(lane_stage, rank)) return;
    finish_op(lane_stage, rank);
  }
}

// When the results of scheduled ops [first, last) have arrived, if the rank has to wait for their sends.
Picoseconds LaneSet::sent_until(const LaneStage& here, std::size_t rank, std::size_t first,
                                std::size_t last) const {
  Picoseconds until = 0;
  for (std::size_t i = first; i < last; ++i) {
    if ((*here.ops)[i].blocking_send == kNoTransfer) continue;
    for (const Receiver& to : here.receivers[i]) {
      const LaneStage& receiver = s_.lane_stages[here.lane * s_.stages + to.stage];
      const Picoseconds arrives = receiver.input_end[to.scheduled * here.ranks + rank];
      if (arrives == kUnknown) return kUnknown;
      until = std::max(until, arrives);
    }
  }
  return until;
}

bool LaneSet::begin_op(LaneStage& here, std::size_t rank) {
  Rank& k = here.rank[rank];
  const std::size_t c = k.scheduled;
  const std::vector<ScheduledOp>& ops = *here.ops;
  const bool pair = ops[c].op.with_next;
  Picoseconds start = s_.barriers.begin_of(here.barrier);
  if (start == kUnknown) return false;
  start = std::max(start, k.clock);
  for (std::size_t i = c; i < c + (pair ? 2 : 1); ++i) {
    const Picoseconds arrives = here.input_end[i * here.ranks + rank];
    if (arrives == kUnknown) return false;
    start = std::max(start, arrives);
  }
  if (c > 0) {
    const Picoseconds sent = sent_until(here, rank, ends_pair(ops, c - 1) ? c - 2 : c - 1, c);
    if (sent == kUnknown) return false;
    start = std::max(start, sent);
  }
  count_inputs(here, rank);
  here.start[c * here.ranks + rank] = start;
  if (pair) here.start[(c + 1) * here.ranks + rank] = start;
  k.clock = k.free = start;
  k.run = k.repetition = k.step = k.recorded = k.synchronization = 0;
  k.key = 0;
  if (s_.options.jitter.sigma > 0)
    k.jitter_base = interpreter::jitter_base_of(s_.program, static_cast<int>(here.lane),
                                                static_cast<int>(here.stage), static_cast<int>(c));
  if (here.program->lockstep != kNoLockstep)
    s_.lockstep[stage_of_group(here)].before[c * s_.tensor + rank % s_.tensor] = k.background;
  return true;
}

void LaneSet::count_inputs(const LaneStage& here, std::size_t rank) {
  const Rank& k = here.rank[rank];
  const std::vector<ScheduledOp>& ops = *here.ops;
  const auto input_of = [&](std::size_t i) {
    const ScheduledOp& op = ops[i];
    if (op.input_stage == kNoInput || at(op.input_stage) == here.stage) return Input{};
    const LaneStage& sender = s_.lane_stages[here.lane * s_.stages + at(op.input_stage)];
    return Input{sender.end[at(op.input_op) * here.ranks + rank], here.input_end[i * here.ranks + rank]};
  };
  const std::size_t c = k.scheduled;
  const Input second = ops[c].op.with_next ? input_of(c + 1) : Input{};
  exposed_.by_stream[at(Stream::pp)] += waited_for(input_of(c), second, k.free);
}

Picoseconds LaneSet::duration(const LaneStage& here, const Rank& k, std::size_t rank, const OpBlock& block,
                              std::uint32_t step, SyncGroup sync, std::uint64_t key) const {
  Picoseconds d = block.durations[step * at(here.program->context) + rank / s_.tensor];
  if (!here.speed.empty() && interpreter::computes(block.steps[step])) d = scaled(d, 1.0 / here.speed[rank]);
  const Jitter& jitter = s_.options.jitter;
  if (jitter.sigma > 0)
    d = scaled(d, jitter.factor(k.jitter_base + key +
                                interpreter::group_of(rank, sync, static_cast<int>(s_.tensor))));
  return d;
}

// Runs the rank's scheduled op to its end. Returns false if the rank has to wait.
bool LaneSet::run_op(std::size_t lane_stage, std::size_t rank) {
  LaneStage& here = s_.lane_stages[lane_stage];
  Rank& k = here.rank[rank];
  const ScheduledOp& scheduled = (*here.ops)[k.scheduled];
  for (; k.run < scheduled.run_count; ++k.run, k.repetition = 0) {
    const BlockRun& run = here.program->runs[scheduled.first_run + k.run];
    const OpBlock& block = here.program->blocks[run.block];
    for (; k.repetition < run.repeat; ++k.repetition, k.step = 0) {
      for (;;) {
        if (k.under_end > 0 && k.step == k.under_end && !await_exchange(here, rank)) return false;
        if (k.step == block.steps.size()) break;
        if (!run_step(lane_stage, rank, block)) return false;
      }
      if (run.bucket != kNoBucket) fill(here, rank, at(run.bucket) + k.repetition);
    }
  }
  return true;
}

bool LaneSet::run_step(std::size_t lane_stage, std::size_t rank, const OpBlock& block) {
  LaneStage& here = s_.lane_stages[lane_stage];
  Rank& k = here.rank[rank];
  const OpStep& step = block.steps[k.step];
  if (step.waits) return await_background(lane_stage, rank);
  if (spans_lanes(step.sync)) return join_cross_lane_op(lane_stage, rank, step);
  if (step.sync != SyncGroup::none && s_.recorded_ends(here, step) > 0)
    return join_collective(lane_stage, rank, block, step.sync);
  Picoseconds takes = duration(here, k, rank, block, k.step, SyncGroup::none, k.key);
  std::uint32_t steps = 1;
  if (step.with_next) {
    takes = std::max(takes, duration(here, k, rank, block, k.step + 1, SyncGroup::none, k.key + here.ranks));
    steps = 2;
  }
  k.clock += takes;
  k.free = std::max(k.free, k.clock);
  k.key += steps * here.ranks;
  k.step += steps;
  return true;
}

void LaneSet::finish_op(std::size_t lane_stage, std::size_t rank) {
  LaneStage& here = s_.lane_stages[lane_stage];
  Rank& k = here.rank[rank];
  const std::size_t c = k.scheduled;
  const std::size_t ops = (*here.ops)[c].op.with_next ? 2 : 1;
  for (std::size_t i = c; i < c + ops; ++i) here.end[i * here.ranks + rank] = k.clock;
  k.scheduled += static_cast<std::uint32_t>(ops);
  k.wait = Wait::begin;
  s_.ended_ops.fetch_add(static_cast<std::int64_t>(ops), std::memory_order_relaxed);
  for (std::size_t i = c; i < c + ops; ++i) send(lane_stage, rank, i);
  if (k.scheduled == here.ops->size()) leave_lane(here, rank);
}

void LaneSet::send(std::size_t lane_stage, std::size_t rank, std::size_t scheduled) {
  const LaneStage& here = s_.lane_stages[lane_stage];
  const OpLane& lane = *here.program;
  for (const Receiver& to : here.receivers[scheduled]) {
    const ScheduledOp& op = lane.stages[to.stage][to.scheduled];
    const std::size_t transfer = at(op.transfer) + rank / s_.tensor;
    const std::size_t receiver = here.lane * s_.stages + to.stage;
    const std::size_t slot = to.scheduled * here.ranks + rank;
    const Picoseconds end =
        launch(tag_of(Kind::transfer, receiver, slot), here.rank[rank].clock, lane.transfers[transfer],
               lane.transfer_bytes.empty() ? 0 : lane.transfer_bytes[transfer],
               s_.routes.transfer(here.lane, here.stage, to.stage, rank));
    if (end != kUnknown) arrive(receiver, slot, end);
  }
}

// Delivers an input to a waiting rank.
void LaneSet::arrive(std::size_t lane_stage, std::size_t slot, Picoseconds when) {
  LaneStage& here = s_.lane_stages[lane_stage];
  here.input_end[slot] = when;
  const std::size_t rank = slot % here.ranks;
  if (here.rank[rank].wait == Wait::begin) wake(lane_stage, rank);
  const ScheduledOp& op = (*here.ops)[slot / here.ranks];
  const std::size_t sender = here.lane * s_.stages + at(op.input_stage);
  if ((*s_.lane_stages[sender].ops)[at(op.input_op)].blocking_send != kNoTransfer &&
      s_.lane_stages[sender].rank[rank].wait == Wait::begin)
    wake(sender, rank);
}

void LaneSet::count(const LaneStage& here, const Rank& k, Stream stream, Picoseconds time) {
  exposed_.by_stream[at(stream)] += time;
  const bool recomputes = (*here.ops)[k.scheduled].op.kind == OpKind::R;
  (recomputes ? exposed_.in_recompute : exposed_.in_ops)[here.lane] += time;
}

void LaneSet::fill(LaneStage& here, std::size_t rank, std::size_t bucket) {
  const Picoseconds now = here.rank[rank].clock;
  here.filled[bucket * here.ranks + rank] = now;
  pause_ = std::min(pause_, now);
  if (!s_.joint) return;
  const std::size_t end = here.stage * s_.tensor + rank % s_.tensor;
  fill_bucket(end, bucket, now, here.lane, rank);
  run_end(end);
}

// Ends the rank's part of the pipeline.
void LaneSet::leave_lane(LaneStage& here, std::size_t rank) {
  Rank& k = here.rank[rank];
  k.wait = Wait::done;
  pause_ = std::min(pause_, k.clock);
  if (s_.barriers.size() > 1 && s_.barriers.leave(here.barrier, k.clock))
    for (std::size_t number = 0; number < s_.lane_stages.size(); ++number)
      for (std::size_t r = 0; r < s_.lane_stages[number].rank.size(); ++r)
        if (s_.lane_stages[number].barrier == here.barrier + 1 &&
            s_.lane_stages[number].rank[r].wait == Wait::begin)
          wake(number, r);
  if (!s_.joint || s_.ends.empty()) return;
  const std::size_t number = here.stage * s_.tensor + rank % s_.tensor;
  leave_stage(s_.ends[number], k.clock);
  run_end(number);
}
// Ranks wait for each other at collectives inside a lane and over several, and at the end of the step.

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
    k.alongside = duration(here, k, rank, block, k.step + 1, SyncGroup::none, k.key + here.ranks);
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
  const Picoseconds alongside = step->with_next ? k.alongside : 0;
  if (step->stream != Stream::compute)
    count(here, k, step->stream, std::max<Picoseconds>(0, lasts - alongside));
  if (step->with_next && step[1].stream != Stream::compute)
    count(here, k, step[1].stream, std::max<Picoseconds>(0, alongside - lasts));
  const std::uint32_t steps = step->with_next ? 2 : 1;
  k.clock = std::max(end, k.clock + alongside);
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

// A rank arrives at a collective over several lanes. Returns false while it waits for the end.
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

// Records when a collective over several lanes ran.
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
    k.exchange_start = op.start;  // when other ops run under it
    k.exchange_end = end;
    if (k.wait == Wait::exchange_under) wake(lane_stage, rank);
  }
}

// After the ops under an exchange: the exchange is exposed from when nothing runs under it any more.
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

// Starts the background ops that can start, one after the other.
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

// Starts the parts of the step's end that can start.
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
