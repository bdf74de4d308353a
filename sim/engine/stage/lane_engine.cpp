#include "sim/engine/stage/lane_engine.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

#include "sim/schedule/timing.h"

namespace equipoise {
namespace {

constexpr std::size_t kOpKinds = 5;

// Of all kinds but W.
Inbox inbox_of(OpKind kind) {
  return kind == OpKind::B ? Inbox::backward : kind == OpKind::R ? Inbox::again : Inbox::forward;
}

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

}  // namespace

LaneEngine::LaneEngine(std::shared_ptr<const StageWalks> walks, const Layout& layout)
    : stages_(layout.pipeline),
      order_(layout.stage_order()),
      walks_(std::move(walks)),
      grad_ready_(at(walks_->virtual_stages())) {}

// Nothing has arrived but every micro-batch at its first virtual stage, and all stages are free at `start`.
void LaneEngine::begin(Run& run, Picoseconds start) {
  const std::size_t virtual_stages = grad_ready_.size();
  const std::size_t c = run.ranks;
  free_.assign(at(stages_) * c, start);
  inboxes_.begin(run.micro_batches.size() * virtual_stages, c, start);
  for (std::size_t j = 0; j < run.micro_batches.size(); ++j) {
    const auto number = static_cast<std::int32_t>(j);
    const int first = order_.first(run.schedule.bidirectional ? direction_of(number) : 0);
    inboxes_.fill_from_start(Inbox::forward, slot(number, first));
    inboxes_.fill_from_start(Inbox::again, slot(number, first));
    for (int v = 0; stages_ == 1 && j >= run.real && at(v) < virtual_stages; ++v)
      inboxes_.fill_from_start(Inbox::backward, slot(number, v));
  }
  clock_.resize(c);
  next_.assign(at(stages_), 0);
  for (auto& ready : grad_ready_) ready.clear();
  split_backward_ = splits_backward(run.schedule);
  run.accounts.compute.assign(at(stages_) * c, 0);
  run.accounts.attention.assign(at(stages_) * c, 0);
  run.accounts.recompute_exposed = 0;
  run.accounts.recompute.assign(at(stages_), 0);
  run.accounts.exposed.fill(0);
  own_times_.assign(run.costs.size() * kOpKinds * walks_->kinds().size(), {});
  last_gradient_.assign(virtual_stages, -1);
  for (int s = 0; s < stages_; ++s)
    for (const ScheduleOp& op : run.schedule.ops[at(s)])
      if (releases(op, split_backward_)) last_gradient_[at(op.virtual_stage * stages_ + s)] = op.micro_batch;
  queue_.clear();
  queued_.assign(at(stages_), 1);
  for (int s = stages_; s-- > 0;) queue_.push_back(s);
  end_ = start;
}

const Picoseconds* LaneEngine::input_of(const ScheduleOp& op, int stage) const {
  const std::size_t of_op = slot(op.micro_batch, virtual_stage(op, stage));
  return op.kind == OpKind::W ? nullptr : inboxes_.arrived(inbox_of(op.kind), of_op);
}

void LaneEngine::wake(int stage) {
  if (queued_[at(stage)] != 0) return;
  queued_[at(stage)] = 1;
  queue_.push_back(stage);
}

void LaneEngine::hand_on(Run& run, const ScheduleOp& op, int v, std::span<Picoseconds> free) {
  const MicroBatchCost& cost = run.costs[at(op.micro_batch)];
  const auto deliver = [&](Inbox inbox, int to, const std::vector<Picoseconds>& send) {
    Picoseconds* const arrival = inboxes_.fill(inbox, slot(op.micro_batch, to));
    for (std::size_t r = 0; r < run.ranks; ++r) {
      arrival[r] = clock_[r] + send[r];
      if (run.blocking_sends) free[r] = std::max(free[r], arrival[r]);
    }
    wake(stage_of(to));
  };
  if (op.kind == OpKind::W) return;
  const auto send_by = [&](int by) -> const std::vector<Picoseconds>& {
    return order_.wraps(v, by) ? cost.send_wrap : by > 0 ? cost.send_next : cost.send_previous;
  };
  if (op.kind == OpKind::B) {
    if (!order_.is_first(v)) deliver(Inbox::backward, order_.further(v, -1), send_by(-1));
  } else if (!order_.is_last(v)) {
    deliver(inbox_of(op.kind), order_.further(v, 1), send_by(1));
  } else if (op.kind != OpKind::D) {  // the last stage's backward starts from its own forward
    std::copy_n(clock_.begin(), run.ranks, inboxes_.fill(Inbox::backward, slot(op.micro_batch, v)));
  }
}

const ScheduleOp* LaneEngine::partner(const Run& run, int s) const {
  const std::vector<ScheduleOp>& ops = run.schedule.ops[at(s)];
  return ops[next_[at(s)]].with_next ? &ops[next_[at(s)] + 1] : nullptr;
}

bool LaneEngine::ready(const Run& run, int s) const {
  const auto& stage_ops = run.schedule.ops[at(s)];
  if (next_[at(s)] == stage_ops.size()) return false;
  const ScheduleOp* const second = partner(run, s);
  return has_input(stage_ops[next_[at(s)]], s) && (second == nullptr || has_input(*second, s));
}

ScheduleOp LaneEngine::open(Run& run, int s) {
  const ScheduleOp op = run.schedule.ops[at(s)][next_[at(s)]];
  const ScheduleOp* const second = partner(run, s);
  std::copy_n(free_.begin() + static_cast<std::ptrdiff_t>(at(s) * run.ranks), run.ranks, clock_.begin());
  for (const ScheduleOp* const issued : {&op, second}) {
    if (issued == nullptr) continue;
    const Picoseconds* const arrived = input_of(*issued, s);
    for (std::size_t r = 0; arrived != nullptr && r < run.ranks; ++r)
      clock_[r] = std::max(clock_[r], arrived[r]);
  }
  run.opened = *std::min_element(clock_.begin(), clock_.end());
  if (run.ops != nullptr) run.opened_on.assign(clock_.begin(), clock_.end());
  account_transfers(run, s, op, second);
  return op;
}

const std::vector<Picoseconds>* LaneEngine::sent_for(const Run& run, int s, const ScheduleOp& op) const {
  const bool from_next = op.kind == OpKind::B;
  // W, the last stage's backward after its own forward, or the step's input.
  const int v = virtual_stage(op, s);
  if (op.kind == OpKind::W || (from_next ? order_.is_last(v) : order_.is_first(v))) return nullptr;
  const MicroBatchCost& cost = run.costs[at(op.micro_batch)];
  const bool wraps = order_.wraps(v, from_next ? 1 : -1);
  return wraps ? &cost.send_wrap : from_next ? &cost.send_previous : &cost.send_next;
}

LaneEngine::Travel LaneEngine::travel(const Run& run, int s, const ScheduleOp& op, std::size_t rank) const {
  const std::vector<Picoseconds>* const sent = sent_for(run, s, op);
  if (sent == nullptr) return {};
  const Picoseconds arrived = input_of(op, s)[rank];
  return {arrived - (*sent)[rank], arrived};
}

void LaneEngine::account_transfers(Run& run, int s, const ScheduleOp& op, const ScheduleOp* second) const {
  const Picoseconds* const free = free_.data() + at(s) * run.ranks;
  Picoseconds waited = 0;
  if (second == nullptr) {
    const std::vector<Picoseconds>* const sent = sent_for(run, s, op);
    if (sent == nullptr) return;
    const Picoseconds* const arrived = input_of(op, s);
    for (std::size_t r = 0; r < run.ranks; ++r)
      waited += std::max<Picoseconds>(0, std::min((*sent)[r], arrived[r] - free[r]));
    run.accounts.exposed[static_cast<std::size_t>(Stream::pp)] +=
        waited / static_cast<Picoseconds>(run.ranks);
    return;
  }
  for (std::size_t r = 0; r < run.ranks; ++r) {
    Travel first = travel(run, s, op, r);
    Travel later = second == nullptr ? Travel{} : travel(run, s, *second, r);
    if (later.left < first.left) std::swap(first, later);
    // Where both travel at once the time counts once.
    waited += std::max<Picoseconds>(0, first.arrived - std::max(first.left, free[r]));
    waited += std::max<Picoseconds>(0, later.arrived - std::max({later.left, first.arrived, free[r]}));
  }
  run.accounts.exposed[static_cast<std::size_t>(Stream::pp)] += waited / static_cast<Picoseconds>(run.ranks);
}

std::vector<Picoseconds>* LaneEngine::fills(const ScheduleOp& op, int s) {
  const auto v = at(virtual_stage(op, s));
  return releases(op, split_backward_) && last_gradient_[v] == op.micro_batch ? &grad_ready_[v] : nullptr;
}

// Before its inbox is emptied.
void LaneEngine::record(Run& run, const ScheduleOp& op, int s, Picoseconds end) const {
  StageOp& recorded = run.ops->emplace_back(StageOp{run.lane, s, op, run.opened, end});
  for (std::size_t r = 0; r < run.ranks; ++r) {
    const Travel way = travel(run, s, op, r);
    recorded.ranks.push_back({{run.opened_on[r], clock_[r]}, {way.left, way.arrived}});
  }
}

void LaneEngine::close(Run& run, const ScheduleOp& op, int s) {
  const ScheduleOp* const second = partner(run, s);
  const std::size_t position = next_[at(s)];
  const auto batch_of = [&](const ScheduleOp& o) -> const MicroBatch& {
    return run.micro_batches[at(o.micro_batch)];
  };
  const Picoseconds end = *std::max_element(clock_.begin(), clock_.end());
  const std::span<Picoseconds> free(free_.data() + at(s) * run.ranks, run.ranks);
  std::copy(clock_.begin(), clock_.end(), free.begin());
  for (const ScheduleOp* const issued : {&op, second}) {
    if (issued == nullptr) continue;
    const int v = virtual_stage(*issued, s);
    account(*issued, v, batch_of(*issued), cost_of(run, *issued, s, next_[at(s)]), s, run.accounts);
    if (run.ops != nullptr && at(issued->micro_batch) < run.real) record(run, *issued, s, end);
    if (issued->kind != OpKind::W) inboxes_.empty(inbox_of(issued->kind), slot(issued->micro_batch, v));
    hand_on(run, *issued, v, free);
    ++next_[at(s)];
    ++run.executed;
  }
  Picoseconds own = account_again(run, second == nullptr ? op : *second, s, next_[at(s)] - 1);
  if (second == nullptr) {
    own += own_time(run, op, s, position);
  } else {
    const Pair pair = pair_of(run, s, position);
    own += pair_alone(pair);
    account_pair(pair, run.accounts);
  }
  run.result.useful += own;
  if (op.kind == OpKind::R) run.accounts.recompute[at(s)] += own;
  end_ = std::max(end_, end);
}

Picoseconds LaneEngine::own_time(const Run& run, const ScheduleOp& op, int s, std::size_t position) {
  const MicroBatch& micro_batch = run.micro_batches[at(op.micro_batch)];
  const int v = virtual_stage(op, s);
  const MicroBatchCost& cost = cost_of(run, op, s, position);
  const auto entry = static_cast<std::size_t>(&cost - run.costs.data());
  const std::size_t of_kind = entry * kOpKinds + static_cast<std::size_t>(op.kind);
  OwnTime& known = own_times_[of_kind * walks_->kinds().size() + walks_->kind_of_stage(v)];
  const int recomputed = op.kind == OpKind::B ? walks_->recomputed_layers(v, micro_batch) : 0;
  if (known.recomputed != recomputed || known.whole != op.whole)
    known = {recomputed, op.whole, alone(op, v, micro_batch, cost)};
  return known.time;
}

void LaneEngine::report_stall(const Schedule& schedule) const {
  std::string waiting;
  for (int s = 0; s < stages_; ++s)
    if (next_[at(s)] < schedule.ops[at(s)].size()) {
      const ScheduleOp& op = schedule.ops[at(s)][next_[at(s)]];
      waiting.append(waiting.empty() ? "stage " : ", stage ").append(std::to_string(s));
      waiting.append(" waits for the input of ").append(describe_op(op, schedule.virtual_stages));
    }
  throw std::logic_error("the schedule stalls: " + waiting);
}

LaneResult LaneEngine::run(const Schedule& schedule, std::span<const MicroBatch> micro_batches,
                           std::span<const MicroBatchCost> costs, const StepOptions& options,
                           Picoseconds start, std::int32_t lane, LaneAccounts& accounts,
                           std::vector<StageOp>* ops) {
  Run run{schedule,
          micro_batches,
          costs,
          options.blocking_sends,
          lane,
          accounts,
          ops,
          costs.empty() ? std::size_t{1} : at(costs.front().ranks),
          micro_batches.size()};
  begin(run, start);
  while (!queue_.empty()) {
    const int s = queue_.back();
    queue_.pop_back();
    queued_[at(s)] = 0;
    while (ready(run, s)) {
      const ScheduleOp op = open(run, s);
      if (const ScheduleOp* const second = partner(run, s))
        apply_pair(pair_of(run, s, next_[at(s)]), clock_, fills(*second, s));
      else
        apply(op, virtual_stage(op, s), micro_batches[at(op.micro_batch)], costs[at(op.micro_batch)], clock_,
              fills(op, s));
      close(run, op, s);
    }
  }
  std::size_t total = 0;
  for (const auto& stage_ops : schedule.ops) total += stage_ops.size();
  if (run.executed != total) report_stall(schedule);
  // Recompute is not useful time.
  for (const Picoseconds t : accounts.recompute) run.result.recompute += t;
  run.result.useful -= run.result.recompute;
  run.result.context = static_cast<int>(run.ranks);
  run.result.makespan = end_ - start;
  return run.result;
}

}  // namespace equipoise
