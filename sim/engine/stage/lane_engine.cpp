#include "sim/engine/stage/lane_engine.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace equipoise {
namespace {

constexpr Picoseconds kNotYet = -1;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

const char* letter(OpKind kind) {
  constexpr const char* kLetters[] = {"F", "B", "D", "R", "W"};
  return kLetters[static_cast<std::size_t>(kind)];
}

}  // namespace

LaneEngine::LaneEngine(const ModelShape& model, const Layout& layout)
    : stages_(layout.pipeline),
      model_layers_(model.layers),
      recompute_(layout.recompute),
      recompute_layers_(layout.recompute_layers),
      layers_(stage_layers(model, layout)) {
  int first = 0;
  for (const StageLayers& s : layers_) {
    first_layer_.push_back(first);
    first += s.total();
  }
  grad_ready_.resize(layers_.size());
}

LaneResult LaneEngine::run(const Schedule& schedule, std::span<const MicroBatch> micro_batches,
                           std::span<const MicroBatchCost> costs, const StepOptions& options,
                           Picoseconds start, std::int32_t lane, LaneAccounts& accounts,
                           std::vector<StageOp>* ops) {
  const std::size_t virtual_stages = layers_.size();
  const auto c = costs.empty() ? std::size_t{1} : at(costs.front().ranks);
  const auto slots = micro_batches.size() * virtual_stages;
  free_.assign(at(stages_) * c, start);
  forward_in_.assign(slots * c, kNotYet);   // activations arrived, by (micro-batch, virtual stage, rank)
  again_in_.assign(slots * c, kNotYet);     // the same for recomputing forwards
  backward_in_.assign(slots * c, kNotYet);  // gradients arrived
  for (std::size_t j = 0; j < micro_batches.size(); ++j)
    for (std::size_t r = 0; r < c; ++r)
      forward_in_[j * virtual_stages * c + r] = again_in_[j * virtual_stages * c + r] = start;
  clock_.resize(c);
  next_.assign(at(stages_), 0);
  for (auto& ready : grad_ready_) ready.clear();
  split_backward_ = false;
  for (const auto& stage_ops : schedule.ops)
    for (const ScheduleOp& op : stage_ops) split_backward_ = split_backward_ || op.kind == OpKind::W;
  accounts.compute.assign(at(stages_) * c, 0);
  accounts.recompute.assign(at(stages_), 0);
  accounts.exposed.fill(0);
  LaneResult result;
  end_ = start;

  // The last op that makes gradients on each virtual stage: its layers' ends release the gradient buckets.
  std::vector<std::int32_t> last_gradient(virtual_stages, -1);
  const OpKind gradient_op = split_backward_ ? OpKind::W : OpKind::B;
  for (int s = 0; s < stages_; ++s)
    for (const ScheduleOp& op : schedule.ops[at(s)])
      if (op.kind == gradient_op) last_gradient[at(op.virtual_stage * stages_ + s)] = op.micro_batch;

  const auto slot = [&](std::int32_t j, int v) {
    return (static_cast<std::size_t>(j) * virtual_stages + at(v)) * c;
  };
  queue_.clear();
  queued_.assign(at(stages_), 1);
  for (int s = stages_; s-- > 0;) queue_.push_back(s);
  std::size_t executed = 0, total = 0;
  for (const auto& stage_ops : schedule.ops) total += stage_ops.size();

  while (!queue_.empty()) {
    const int s = queue_.back();
    queue_.pop_back();
    queued_[at(s)] = 0;
    const auto wake = [&](int stage) {
      if (queued_[at(stage)] == 0) {
        queued_[at(stage)] = 1;
        queue_.push_back(stage);
      }
    };
    const auto& stage_ops = schedule.ops[at(s)];
    Picoseconds* const free = free_.data() + at(s) * c;
    while (next_[at(s)] < stage_ops.size()) {
      const ScheduleOp op = stage_ops[next_[at(s)]];
      const int v = op.virtual_stage * stages_ + s;
      const MicroBatchCost& cost = costs[static_cast<std::size_t>(op.micro_batch)];
      const MicroBatch& micro_batch = micro_batches[static_cast<std::size_t>(op.micro_batch)];
      const Picoseconds* arrived = nullptr;
      if (op.kind == OpKind::R) arrived = again_in_.data() + slot(op.micro_batch, v);
      if (op.kind == OpKind::F || op.kind == OpKind::D)
        arrived = forward_in_.data() + slot(op.micro_batch, v);
      if (op.kind == OpKind::B) arrived = backward_in_.data() + slot(op.micro_batch, v);
      if (arrived != nullptr && arrived[0] == kNotYet) break;
      for (std::size_t r = 0; r < c; ++r)
        clock_[r] = arrived == nullptr ? free[r] : std::max(free[r], arrived[r]);
      const Picoseconds begin = *std::min_element(clock_.begin(), clock_.end());
      const bool releases = op.kind == gradient_op && last_gradient[at(v)] == op.micro_batch;
      apply(op.kind, v, micro_batch, cost, clock_, releases ? &grad_ready_[at(v)] : nullptr);
      account(op.kind, v, micro_batch, cost, s, accounts);
      const Picoseconds end = *std::max_element(clock_.begin(), clock_.end());
      if (op.kind != OpKind::R) result.useful += alone(op.kind, v, micro_batch, cost);
      if (ops != nullptr) ops->push_back({lane, s, op, begin, end});
      end_ = std::max(end_, end);

      // Hand the result on.
      const auto deliver = [&](std::vector<Picoseconds>& inbox, int to_v,
                               const std::vector<Picoseconds>& send) {
        Picoseconds* to = inbox.data() + slot(op.micro_batch, to_v);
        for (std::size_t r = 0; r < c; ++r) to[r] = clock_[r] + send[r];
        if (options.blocking_sends)
          for (std::size_t r = 0; r < c; ++r) clock_[r] += send[r];
        wake(stage_of(to_v));
      };
      if (op.kind == OpKind::B) {
        if (v > 0) deliver(backward_in_, v - 1, s > 0 ? cost.send_previous : cost.send_wrap);
      } else if (op.kind != OpKind::W) {
        if (v < last_virtual()) {
          deliver(op.kind == OpKind::R ? again_in_ : forward_in_, v + 1,
                  s + 1 < stages_ ? cost.send_next : cost.send_wrap);
        } else if (op.kind != OpKind::D) {  // the last stage's backward starts from its own forward
          std::copy(clock_.begin(), clock_.end(),
                    backward_in_.begin() + static_cast<std::ptrdiff_t>(slot(op.micro_batch, v)));
        }
      }
      std::copy(clock_.begin(), clock_.end(), free);
      ++next_[at(s)];
      ++executed;
    }
  }
  if (executed != total)
    for (int s = 0; s < stages_; ++s)
      if (next_[at(s)] < schedule.ops[at(s)].size()) {
        const ScheduleOp& op = schedule.ops[at(s)][next_[at(s)]];
        throw std::logic_error("the schedule stalls: stage " + std::to_string(s) +
                               " waits for the input of " + letter(op.kind) +
                               std::to_string(op.micro_batch + 1) + ", which never arrives");
      }
  // Recompute is not useful time.
  for (const Picoseconds t : accounts.recompute) result.useful -= t;
  result.makespan = end_ - start;
  return result;
}

}  // namespace equipoise
