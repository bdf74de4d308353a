#include "sim/engine/op/contended_part.h"

#include <algorithm>
#include <utility>

#include "policies/base/index.h"

namespace equipoise::contended {
namespace {

constexpr std::uint64_t kLow = (1ULL << 30) - 1;

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

Part::Part(State& state, std::vector<std::size_t> lanes)
    : s_(state), lanes_(std::move(lanes)), network_(state.routes.table()) {
  exposed_.in_ops.assign(s_.program.lanes.size(), 0);
  exposed_.in_recompute = exposed_.in_ops;
}

void Part::begin() {
  for (const std::size_t lane : lanes_)
    for (std::size_t stage = 0; stage < s_.stages; ++stage) {
      const std::size_t cell = lane * s_.stages + stage;
      for (std::size_t r = 0; r < s_.cells[cell].rank.size(); ++r)
        if (s_.cells[cell].rank[r].wait == Wait::begin) wake(cell, r);
    }
  run_ready();
}

void Part::absorb(Part& other) {
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

void Part::run(bool reports) {
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

Picoseconds Part::launch(std::uint64_t tag, Picoseconds start, Picoseconds duration, double bytes,
                         const OpRoute& route) {
  if (!s_.how.share || duration == 0 || !(bytes > 0) || route.members < 2) return start + duration;
  if (!route.flows) return start + paced(duration, bytes, route.limit);
  const double cap = bytes / (static_cast<double>(duration) / kPicosecondsPerSecond);
  pending_.push({start, tag, route.route, cap, route.limit, duration});
  return kUnknown;
}

void Part::finish(std::uint64_t tag, Picoseconds now) {
  const auto a = static_cast<std::size_t>((tag >> 30) & kLow), b = static_cast<std::size_t>(tag & kLow);
  switch (static_cast<Kind>(tag >> 60)) {
    case Kind::context:
      return end_meeting(a, SyncGroup::context, b, now);
    case Kind::tensor:
      return end_meeting(a, SyncGroup::tensor, b, now);
    case Kind::transfer:
      return arrive(a, b, now);
    case Kind::expert:
      return end_exchange(a, SyncGroup::expert, b, now);
    case Kind::replicas:
      return end_exchange(a, SyncGroup::replicas, b, now);
    case Kind::background:
      end_background(a, b, now);
      return run_background(a, b);
    case Kind::bucket: {
      End& end = s_.ends[a];
      s_.result.buckets[a][b].end = end.busy = now;
      ++end.next;
      break;
    }
    case Kind::step: {
      End& end = s_.ends[a];
      s_.recorded.steps_end[a][b] = end.busy = now;
      ++end.next_step;
      break;
    }
  }
  s_.ends[a].running = false;
  run_end(a);
}

void Part::wake(std::size_t cell, std::size_t rank) {
  Rank& k = s_.cells[cell].rank[rank];
  if (std::exchange(k.queued, true)) return;
  ready_.emplace_back(static_cast<std::uint32_t>(cell), static_cast<std::uint32_t>(rank));
}

void Part::run_ready() {
  while (!ready_.empty()) {
    const auto [cell, rank] = ready_.back();
    ready_.pop_back();
    s_.cells[cell].rank[rank].queued = false;
    advance(cell, rank);
  }
}

// Runs a rank until it has to wait. It may have been woken for nothing.
void Part::advance(std::size_t cell_number, std::size_t rank) {
  Cell& cell = s_.cells[cell_number];
  Rank& k = cell.rank[rank];
  if (k.wait == Wait::meeting || k.wait == Wait::exchange) return;
  while (k.wait != Wait::done) {
    if (k.wait == Wait::begin && !begin_op(cell, rank)) return;
    k.wait = Wait::nothing;
    if (!run_op(cell_number, rank)) return;
    finish_op(cell_number, rank);
  }
}

// When what the rank sent with scheduled ops [first, last) has arrived, where it has to wait for that.
Picoseconds Part::sent_until(const Cell& cell, std::size_t rank, std::size_t first, std::size_t last) const {
  Picoseconds until = 0;
  for (std::size_t i = first; i < last; ++i) {
    if ((*cell.ops)[i].blocking_send == kNoTransfer) continue;
    for (const Receiver& to : cell.receivers[i]) {
      const Cell& receiver = s_.cells[cell.lane * s_.stages + to.stage];
      const Picoseconds arrives = receiver.input_end[to.scheduled * cell.ranks + rank];
      if (arrives == kUnknown) return kUnknown;
      until = std::max(until, arrives);
    }
  }
  return until;
}

bool Part::begin_op(Cell& cell, std::size_t rank) {
  Rank& k = cell.rank[rank];
  const std::size_t c = k.scheduled;
  const std::vector<ScheduledOp>& ops = *cell.ops;
  const bool pair = ops[c].op.with_next;
  Picoseconds start = s_.barrier_begin[cell.barrier];
  if (start == kUnknown) return false;
  start = std::max(start, k.clock);
  for (std::size_t i = c; i < c + (pair ? 2 : 1); ++i) {
    const Picoseconds arrives = cell.input_end[i * cell.ranks + rank];
    if (arrives == kUnknown) return false;
    start = std::max(start, arrives);
  }
  if (c > 0) {
    const Picoseconds sent = sent_until(cell, rank, ends_pair(ops, c - 1) ? c - 2 : c - 1, c);
    if (sent == kUnknown) return false;
    start = std::max(start, sent);
  }
  count_inputs(cell, rank);
  cell.start[c * cell.ranks + rank] = start;
  if (pair) cell.start[(c + 1) * cell.ranks + rank] = start;
  k.clock = k.free = start;
  k.run = k.repetition = k.step = k.meeting = k.synchronization = 0;
  k.key = 0;
  if (s_.options.jitter.sigma > 0)
    k.jitter_base = op_rows::jitter_base_of(s_.program, static_cast<int>(cell.lane),
                                            static_cast<int>(cell.stage), static_cast<int>(c));
  if (cell.program->lockstep != kNoLockstep)
    s_.lockstep[stage_of_group(cell)].before[c * s_.tensor + rank % s_.tensor] = k.background;
  return true;
}

void Part::count_inputs(const Cell& cell, std::size_t rank) {
  const Rank& k = cell.rank[rank];
  const std::vector<ScheduledOp>& ops = *cell.ops;
  const auto input_of = [&](std::size_t i) {
    const ScheduledOp& op = ops[i];
    if (op.input_stage == kNoInput || at(op.input_stage) == cell.stage) return Input{};
    const Cell& sender = s_.cells[cell.lane * s_.stages + at(op.input_stage)];
    return Input{sender.end[at(op.input_op) * cell.ranks + rank], cell.input_end[i * cell.ranks + rank]};
  };
  const std::size_t c = k.scheduled;
  const Input second = ops[c].op.with_next ? input_of(c + 1) : Input{};
  exposed_.by_stream[at(Stream::pp)] += waited_for(input_of(c), second, k.free);
}

Picoseconds Part::duration(const Cell& cell, const Rank& k, std::size_t rank, const OpBlock& block,
                           std::uint32_t step, SyncGroup sync, std::uint64_t key) const {
  Picoseconds d = block.durations[step * at(cell.program->context) + rank / s_.tensor];
  if (!cell.speed.empty() && op_rows::computes(block.steps[step])) d = scaled(d, 1.0 / cell.speed[rank]);
  const Jitter& jitter = s_.options.jitter;
  if (jitter.sigma > 0)
    d = scaled(
        d, jitter.factor(k.jitter_base + key + op_rows::group_of(rank, sync, static_cast<int>(s_.tensor))));
  return d;
}

// Runs the scheduled op at hand to its end; false: the rank has to wait.
bool Part::run_op(std::size_t cell_number, std::size_t rank) {
  Cell& cell = s_.cells[cell_number];
  Rank& k = cell.rank[rank];
  const ScheduledOp& scheduled = (*cell.ops)[k.scheduled];
  for (; k.run < scheduled.run_count; ++k.run, k.repetition = 0) {
    const BlockRun& run = cell.program->runs[scheduled.first_run + k.run];
    const OpBlock& block = cell.program->blocks[run.block];
    for (; k.repetition < run.repeat; ++k.repetition, k.step = 0) {
      for (;;) {
        if (k.under_end > 0 && k.step == k.under_end && !await_exchange(cell, rank)) return false;
        if (k.step == block.steps.size()) break;
        if (!run_step(cell_number, rank, block)) return false;
      }
      if (run.bucket != kNoBucket) fill(cell, rank, static_cast<std::size_t>(run.bucket) + k.repetition);
    }
  }
  return true;
}

bool Part::run_step(std::size_t cell_number, std::size_t rank, const OpBlock& block) {
  Cell& cell = s_.cells[cell_number];
  Rank& k = cell.rank[rank];
  const OpStep& step = block.steps[k.step];
  if (step.waits) return await_background(cell_number, rank);
  if (spans_lanes(step.sync)) return exchange(cell_number, rank, step);
  if (step.sync != SyncGroup::none && s_.meetings(cell, step) > 0)
    return meet(cell_number, rank, block, step.sync);
  Picoseconds takes = duration(cell, k, rank, block, k.step, SyncGroup::none, k.key);
  std::uint32_t steps = 1;
  if (step.with_next) {
    takes = std::max(takes, duration(cell, k, rank, block, k.step + 1, SyncGroup::none, k.key + cell.ranks));
    steps = 2;
  }
  k.clock += takes;
  k.free = std::max(k.free, k.clock);
  k.key += steps * cell.ranks;
  k.step += steps;
  return true;
}

void Part::finish_op(std::size_t cell_number, std::size_t rank) {
  Cell& cell = s_.cells[cell_number];
  Rank& k = cell.rank[rank];
  const std::size_t c = k.scheduled;
  const std::size_t ops = (*cell.ops)[c].op.with_next ? 2 : 1;
  for (std::size_t i = c; i < c + ops; ++i) cell.end[i * cell.ranks + rank] = k.clock;
  k.scheduled += static_cast<std::uint32_t>(ops);
  k.wait = Wait::begin;
  s_.ended_ops.fetch_add(static_cast<std::int64_t>(ops), std::memory_order_relaxed);
  for (std::size_t i = c; i < c + ops; ++i) send(cell_number, rank, i);
  if (k.scheduled == cell.ops->size()) leave_lane(cell, rank);
}

void Part::send(std::size_t cell_number, std::size_t rank, std::size_t scheduled) {
  const Cell& cell = s_.cells[cell_number];
  const OpLane& lane = *cell.program;
  for (const Receiver& to : cell.receivers[scheduled]) {
    const ScheduledOp& op = lane.stages[to.stage][to.scheduled];
    const std::size_t transfer = static_cast<std::size_t>(op.transfer) + rank / s_.tensor;
    const std::size_t receiver = cell.lane * s_.stages + to.stage;
    const std::size_t slot = to.scheduled * cell.ranks + rank;
    const Picoseconds end =
        launch(tag_of(Kind::transfer, receiver, slot), cell.rank[rank].clock, lane.transfers[transfer],
               lane.transfer_bytes.empty() ? 0 : lane.transfer_bytes[transfer],
               s_.routes.transfer(cell.lane, cell.stage, to.stage, rank));
    if (end != kUnknown) arrive(receiver, slot, end);
  }
}

// An input is there.
void Part::arrive(std::size_t cell_number, std::size_t slot, Picoseconds when) {
  Cell& cell = s_.cells[cell_number];
  cell.input_end[slot] = when;
  const std::size_t rank = slot % cell.ranks;
  if (cell.rank[rank].wait == Wait::begin) wake(cell_number, rank);
  const ScheduledOp& op = (*cell.ops)[slot / cell.ranks];
  const std::size_t sender = cell.lane * s_.stages + at(op.input_stage);
  if ((*s_.cells[sender].ops)[at(op.input_op)].blocking_send != kNoTransfer &&
      s_.cells[sender].rank[rank].wait == Wait::begin)
    wake(sender, rank);
}

void Part::count(const Cell& cell, const Rank& k, Stream stream, Picoseconds time) {
  exposed_.by_stream[at(stream)] += time;
  const bool recomputes = (*cell.ops)[k.scheduled].op.kind == OpKind::R;
  (recomputes ? exposed_.in_recompute : exposed_.in_ops)[cell.lane] += time;
}

void Part::fill(Cell& cell, std::size_t rank, std::size_t bucket) {
  const Picoseconds now = cell.rank[rank].clock;
  cell.filled[bucket * cell.ranks + rank] = now;
  pause_ = std::min(pause_, now);
  if (!s_.joint) return;
  const std::size_t end = cell.stage * s_.tensor + rank % s_.tensor;
  fill_bucket(s_.ends[end], bucket, now, static_cast<std::int32_t>(cell.lane),
              static_cast<std::int32_t>(rank));
  run_end(end);
}

// The lanes of the next barrier group begin when all ranks of this one have ended.
void Part::reach_barrier(std::size_t group, Picoseconds now) {
  s_.barrier_end[group] = std::max(s_.barrier_end[group], now);
  if (--s_.barrier_running[group] > 0 || group + 1 == s_.barrier_begin.size()) return;
  s_.barrier_begin[group + 1] = s_.barrier_end[group];
  for (std::size_t c = 0; c < s_.cells.size(); ++c)
    for (std::size_t r = 0; r < s_.cells[c].rank.size(); ++r)
      if (s_.cells[c].barrier == group + 1 && s_.cells[c].rank[r].wait == Wait::begin) wake(c, r);
}

// The rank's part of the pipeline has ended.
void Part::leave_lane(Cell& cell, std::size_t rank) {
  Rank& k = cell.rank[rank];
  k.wait = Wait::done;
  pause_ = std::min(pause_, k.clock);
  if (s_.barrier_begin.size() > 1) reach_barrier(cell.barrier, k.clock);
  if (!s_.joint || s_.ends.empty()) return;
  const std::size_t number = cell.stage * s_.tensor + rank % s_.tensor;
  leave_stage(s_.ends[number], k.clock);
  run_end(number);
}

}  // namespace equipoise::contended
