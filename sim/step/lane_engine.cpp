#include "sim/step/lane_engine.h"

#include <algorithm>
#include <cassert>
#include <stdexcept>
#include <string>
#include <utility>

namespace equipoise {

LaneEngine::LaneEngine(std::shared_ptr<const PartOrders> orders, const Layout& layout)
    : stages_(layout.pipeline),
      order_(layout.stage_order()),
      orders_(std::move(orders)),
      accounting_(orders_),
      grad_ready_(at(orders_->virtual_stages())) {}

// Most lanes of a plan run the same schedule, so it is read once.
void LaneEngine::read_schedule(const Run& run) {
  constexpr int kByStage = -2;  // differs from any number of layers
  const auto same = [](const MicroBatch& micro_batch, int layers) {
    return micro_batch.recompute_by_stage.empty() && micro_batch.recompute_layers == layers;
  };
  if (run.schedule_number != 0 && run.schedule_number == facts_.schedule_number &&
      std::equal(run.micro_batches.begin(), run.micro_batches.end(), facts_.recompute_layers.begin(),
                 facts_.recompute_layers.end(), same))
    return;
  facts_.schedule_number = run.schedule_number;
  facts_.recompute_layers.clear();
  for (const MicroBatch& micro_batch : run.micro_batches)
    facts_.recompute_layers.push_back(micro_batch.recompute_by_stage.empty() ? micro_batch.recompute_layers
                                                                             : kByStage);
  facts_.splits_backward = splits_backward(run.schedule);
  accounting_.count_ops(ops_of(run), costs_.size());
  facts_.last_gradient.assign(grad_ready_.size(), -1);
  facts_.ops_of.assign(run.micro_batches.size(), 0);
  for (int s = 0; s < stages_; ++s) {
    for (const ScheduleOp& op : run.schedule.ops[at(s)]) {
      ++facts_.ops_of[at(op.micro_batch)];
      if (releases(op, facts_.splits_backward))
        facts_.last_gradient[at(virtual_stage(op, s))] = op.micro_batch;
    }
  }
}

// All stages are free at `start`, and every micro-batch waits at its first virtual stage.
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
  next_.assign(at(stages_), 0);
  for (auto& ready : grad_ready_) ready.clear();
  run.accounts.compute.assign(at(stages_) * c, 0);
  run.accounts.attention.assign(at(stages_) * c, 0);
  run.accounts.stage_recompute.assign(at(stages_), 0);
  static_cast<OpSums&>(run.accounts) = {};
  costs_.assign(std::max(run.costs.size(), run.micro_batches.size()), nullptr);
  for (std::size_t i = 0; i < run.costs.size(); ++i) costs_[i] = &run.costs[i];
  read_schedule(run);
  accounting_.begin_lane(run.ranks);
  stage_ends_.assign(at(stages_), start);
}

void LaneEngine::hand_on(Run& run, const ScheduleOp& op, int v, std::span<const Picoseconds> ended) {
  const MicroBatchCost& cost = *costs_[at(op.micro_batch)];
  const auto deliver = [&](Inbox inbox, int to, const std::vector<Picoseconds>& send) {
    Picoseconds* const arrival = inboxes_.fill(inbox, slot(op.micro_batch, to));
    const Picoseconds *const left = ended.data(), *const takes = send.data();
    for (std::size_t r = 0, ranks = run.ranks; r < ranks; ++r) arrival[r] = left[r] + takes[r];
    if (run.blocking_sends)
      for (std::size_t r = 0; r < run.ranks; ++r) clock_[r] = std::max(clock_[r], arrival[r]);
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
    std::copy_n(ended.begin(), run.ranks, inboxes_.fill(Inbox::backward, slot(op.micro_batch, v)));
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
  clock_ = std::span(free_).subspan(at(s) * run.ranks, run.ranks);
  if (const ScheduleOp* const second = partner(run, s))
    await_inputs(run, s, op, *second);
  else
    await_input(run, s, op);
  if (run.ops != nullptr) run.opened_on.assign(clock_.begin(), clock_.end());
  return op;
}

const std::vector<Picoseconds>* LaneEngine::sent_for(int s, const ScheduleOp& op) const {
  const bool from_next = op.kind == OpKind::B;
  // These need no travelled input: W, the last stage's backward after its own forward, and the step's input.
  const int v = virtual_stage(op, s);
  if (op.kind == OpKind::W || (from_next ? order_.is_last(v) : order_.is_first(v))) return nullptr;
  const MicroBatchCost& cost = *costs_[at(op.micro_batch)];
  const bool wraps = order_.wraps(v, from_next ? 1 : -1);
  return wraps ? &cost.send_wrap : from_next ? &cost.send_previous : &cost.send_next;
}

LaneEngine::Travel LaneEngine::travel(int s, const ScheduleOp& op, std::size_t rank) const {
  const std::vector<Picoseconds>* const sent = sent_for(s, op);
  if (sent == nullptr) return {};
  const Picoseconds arrived = input_of(op, s)[rank];
  return {arrived - (*sent)[rank], arrived};
}

void LaneEngine::await_input(Run& run, int s, const ScheduleOp& op) {
  const Picoseconds* const arrived = input_of(op, s);
  if (arrived == nullptr) return;
  const std::vector<Picoseconds>* const sent = sent_for(s, op);
  if (sent == nullptr) {
    for (std::size_t r = 0; r < run.ranks; ++r) wait_until(clock_[r], arrived[r]);
    return;
  }
  Picoseconds waited = 0;
  const Picoseconds* const takes = sent->data();
  Picoseconds* const clock = clock_.data();
  for (std::size_t r = 0, ranks = run.ranks; r < ranks; ++r)
    waited += std::min(takes[r], wait_until(clock[r], arrived[r]));
  run.accounts.exposed[at(Stream::pp)] += waited / static_cast<Picoseconds>(run.ranks);
}

void LaneEngine::await_inputs(Run& run, int s, const ScheduleOp& op, const ScheduleOp& second) {
  Picoseconds waited = 0;
  for (std::size_t r = 0; r < run.ranks; ++r) {
    Travel first = travel(s, op, r), later = travel(s, second, r);
    if (later.left < first.left) std::swap(first, later);
    // Time in which both inputs travel counts once.
    waited += std::max<Picoseconds>(0, first.arrived - std::max(first.left, clock_[r]));
    waited += std::max<Picoseconds>(0, later.arrived - std::max({later.left, first.arrived, clock_[r]}));
  }
  for (const Picoseconds* const arrived : {input_of(op, s), input_of(second, s)})
    for (std::size_t r = 0; arrived != nullptr && r < run.ranks; ++r)
      clock_[r] = std::max(clock_[r], arrived[r]);
  run.accounts.exposed[at(Stream::pp)] += waited / static_cast<Picoseconds>(run.ranks);
}

std::vector<Picoseconds>* LaneEngine::fills(const ScheduleOp& op, int s) {
  const auto v = at(virtual_stage(op, s));
  return releases(op, facts_.splits_backward) && facts_.last_gradient[v] == op.micro_batch ? &grad_ready_[v]
                                                                                           : nullptr;
}

// Must be called before the op's inbox is emptied.
void LaneEngine::record(Run& run, const ScheduleOp& op, int s, std::span<const Picoseconds> ended) const {
  StageOp& recorded = run.ops->emplace_back(
      StageOp{run.lane, s, op, *std::ranges::min_element(run.opened_on), *std::ranges::max_element(ended)});
  for (std::size_t r = 0; r < run.ranks; ++r) {
    const Travel way = travel(s, op, r);
    recorded.ranks.push_back({{run.opened_on[r], ended[r]}, {way.left, way.arrived}});
  }
}

void LaneEngine::close(Run& run, const ScheduleOp& op, int s) {
  const ScheduleOp* const second = partner(run, s);
  std::span<const Picoseconds> ended = clock_;
  if (run.blocking_sends) {  // which move clock_ forward
    ended_.assign(clock_.begin(), clock_.end());
    ended = ended_;
  }
  for (const ScheduleOp* const issued : {&op, second}) {
    if (issued == nullptr) continue;
    const int v = virtual_stage(*issued, s);
    if (run.ops != nullptr && at(issued->micro_batch) < run.real) record(run, *issued, s, ended);
    if (issued->kind != OpKind::W) inboxes_.empty(inbox_of(issued->kind), slot(issued->micro_batch, v));
    hand_on(run, *issued, v, ended);
    ++next_[at(s)];
  }
  if (next_[at(s)] == run.schedule.ops[at(s)].size()) stage_ends_[at(s)] = *std::ranges::max_element(ended);
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

void LaneEngine::fetch(const ScheduleOp& op, CostSource& source) {
  for (; fetched_ <= at(op.micro_batch); ++fetched_) {
    costs_[fetched_] = &source.cost(fetched_);
    accounting_.add_cost(fetched_, *costs_[fetched_]);
  }
}

LaneResult LaneEngine::run(const Schedule& schedule, std::span<const MicroBatch> micro_batches,
                           std::span<const MicroBatchCost> costs, const StepOptions& options,
                           Picoseconds start, std::int32_t lane, LaneAccounts& accounts,
                           std::vector<StageOp>* ops) {
  const std::size_t ranks = costs.empty() ? std::size_t{1} : at(costs.front().ranks);
  Run run{schedule, micro_batches, costs, options.blocking_sends, lane,
          accounts, ops,           ranks, micro_batches.size()};
  return this->run(run, nullptr, start);
}

LaneResult LaneEngine::run(const Schedule& schedule, std::uint64_t schedule_number,
                           std::span<const MicroBatch> micro_batches, std::size_t ranks, CostSource& costs,
                           const StepOptions& options, Picoseconds start, std::int32_t lane,
                           LaneAccounts& accounts) {
  Run run{schedule, micro_batches, {},    options.blocking_sends, lane,
          accounts, nullptr,       ranks, micro_batches.size()};
  run.schedule_number = schedule_number;
  return this->run(run, &costs, start);
}

LaneResult LaneEngine::run(Run& run, CostSource* source, Picoseconds start) {
  begin(run, start);
  assert(source == nullptr || !accounting_.has_pairs());
  fetched_ = 0;
  to_run_ = facts_.ops_of;
  sweep_stages(at(stages_),
               [&](std::size_t stage) { return run_ready(run, source, static_cast<int>(stage)); });
  return finish(run, start);
}

// Runs the stage's ops until one has to wait. Returns whether any ran.
bool LaneEngine::run_ready(Run& run, CostSource* source, int s) {
  bool moved = false;
  const LaneOps ops = ops_of(run);
  for (; ready(run, s); moved = true) {
    if (source != nullptr) fetch(run.schedule.ops[at(s)][next_[at(s)]], *source);
    const ScheduleOp op = open(run, s);
    if (const ScheduleOp* const second = partner(run, s))
      accounting_.timer().advance(ops.pair_of(s, next_[at(s)], costs_), clock_, fills(*second, s));
    else
      accounting_.timer().advance(ops.work_of(op, s), *costs_[at(op.micro_batch)], clock_, fills(op, s));
    close(run, op, s);
    if (source != nullptr && --to_run_[at(op.micro_batch)] == 0) source->give_back(at(op.micro_batch));
  }
  return moved;
}

LaneResult LaneEngine::finish(Run& run, Picoseconds start) {
  for (int s = 0; s < stages_; ++s)
    if (next_[at(s)] < run.schedule.ops[at(s)].size()) report_stall(run.schedule);
  for (std::size_t entry = 0; entry < run.costs.size(); ++entry)
    accounting_.add_cost(entry, run.costs[entry]);
  accounting_.finish(ops_of(run), costs_, run.accounts);
  LaneResult result;
  result.recompute = run.accounts.recompute;
  result.useful = run.accounts.useful - run.accounts.recompute;
  result.context = static_cast<int>(run.ranks);
  result.makespan = end() - start;
  return result;
}

}  // namespace equipoise
