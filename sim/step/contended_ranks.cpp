#include <algorithm>
#include <utility>

#include "policies/base/index.h"
#include "sim/step/contended_run.h"

namespace equipoise::contended {
namespace {

// What a rank that was free waited for inputs on their way; of two, the time that they have in common counts
// once.
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

// Runs a rank until it has to wait. It may have been woken for nothing.
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

// When what the rank sent with scheduled ops [first, last) has arrived, where it has to wait for that.
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

// Runs the rank's scheduled op to its end; false: the rank has to wait.
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

// An input is there.
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

// The rank's part of the pipeline has ended.
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

}  // namespace equipoise::contended
