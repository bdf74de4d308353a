#include "sim/step/step_result.h"

#include <cassert>

#include "sim/step/lane_run.h"

namespace equipoise {

void GpuCompute::begin_step(const Step& step, const Layout& layout, int tensor) {
  replicas_ = at(layout.data) * at(layout.context);
  tensor_ = at(tensor);
  first_.clear();
  taken_.clear();
  for (const Lane& lane : step.lanes) {
    const auto group = at(lane.barrier_group);
    if (group >= taken_.size()) taken_.resize(group + 1, 0);
    first_.push_back(taken_[group]);
    taken_[group] += at(lane.context);
    assert(taken_[group] <= replicas_);
  }
  seconds_.assign(at(layout.pipeline) * replicas_ * tensor_, 0);
}

GpuSpread GpuCompute::spread() const {
  if (seconds_.empty()) return {};
  const auto [least, most] = std::minmax_element(seconds_.begin(), seconds_.end());
  return {*most, sum_of(seconds_) / static_cast<double>(seconds_.size()), *least};
}

LaneLosses lane_losses(std::span<const LaneResult> lanes, Picoseconds pipeline, const Layout& layout) {
  LaneLosses losses;
  double idle = 0, ran = 0;  // summed over ranks
  for (const LaneResult& lane : lanes) {
    const Picoseconds all = layout.pipeline * lane.makespan;
    ran += to_seconds(all) * lane.context;
    idle += to_seconds(std::max<Picoseconds>(0, all - lane.useful - lane.recompute)) * lane.context;
    losses.bubble_ratio += lane.bubble(layout.pipeline) / static_cast<double>(lanes.size());
  }
  const double gpus = static_cast<double>(std::int64_t{layout.pipeline} * layout.data * layout.context);
  losses.idle_seconds = idle / gpus;
  losses.lanes_wait_seconds = std::max(0.0, to_seconds(pipeline) - ran / gpus);
  return losses;
}

void GpuSums::add(const OpSums& lane, int ranks) {
  for (std::size_t s = 0; s < kStreams; ++s)
    exposed[s] += to_seconds(lane.exposed[s]) * static_cast<double>(ranks);
  recompute += to_seconds(lane.recompute) * static_cast<double>(ranks);
  recompute_exposed += to_seconds(lane.recompute_exposed) * static_cast<double>(ranks);
}

void GpuSums::report_means(const Layout& layout, StepTimes& times) const {
  const auto gpus = static_cast<double>(std::int64_t{layout.pipeline} * layout.data * layout.context);
  times.recompute_seconds = recompute / gpus;
  times.recompute_exposed_seconds = recompute_exposed / gpus;
  for (std::size_t s = 0; s < kStreams; ++s) times.exposed_seconds[s] = exposed[s] / gpus;
}

// --- What a lane's ops compute, attend to, expose and recompute on every stage and rank. Sums of whole numbers,
// so that they need not wait for the ops to run: they are taken by shape of op and micro-batch (lane_run.h),
// and once for neighbouring stages that do the same.

// Adds equal ops of a stage, `times` of them.
struct LaneEngine::Accounting {
  const MicroBatchCost& cost;
  Picoseconds times;
  Sums& sums;

  void end(const EndCost& of_end) const {
    for (std::size_t r = 0; r < sums.compute.size(); ++r) sums.compute[r] += times * of_end.compute[r];
    for (std::size_t s = 0; s < kStreams; ++s) sums.exposed[s] += times * of_end.exposed[s];
  }
  void forward(std::size_t k, int layers) const {
    count(cost.compute_forward[k], cost.attention_forward, cost.exposed_forward[k], k, layers);
  }
  void again(std::size_t k, int layers) const {
    count(cost.compute_again[k], cost.attention_forward, cost.exposed_again[k], k, layers);
  }
  void backward(std::size_t k, int layers) const {
    count(cost.compute_backward[k], cost.attention_backward, cost.exposed_backward[k], k, layers);
  }
  void weights(std::size_t k, int layers) const {
    for (std::size_t r = 0; r < sums.compute.size(); ++r)
      sums.compute[r] += times * layers * cost.weight_gradient[k][r];
  }
  void forward(const PartOrder& order) const {
    for (const OrderedPart& part : order.runs)
      if (is_layer(part.part))
        forward(index_of(part.part), part.layers);
      else
        end(part.part == ModelPart::head ? cost.head_forward : cost.embed_forward);
  }
  void weights(const PartOrder& order) const {
    for (const OrderedPart& part : order.runs)
      if (is_layer(part.part)) weights(index_of(part.part), part.layers);
  }
  [[nodiscard]] Picoseconds exposed() const { return sum_of(sums.exposed); }

 private:
  void count(const std::vector<Picoseconds>& per_layer,
             const std::array<std::vector<Picoseconds>, kMasks>& attention_by_mask,
             const std::array<Picoseconds, kStreams>& exposed_by, std::size_t k, int layers) const {
    const auto& attention_of = attention_by_mask[mask_of(static_cast<LayerKind>(k))];
    const Picoseconds all = times * layers;
    for (std::size_t r = 0; r < sums.compute.size(); ++r) sums.compute[r] += all * per_layer[r];
    for (std::size_t r = 0; r < sums.attention.size(); ++r) sums.attention[r] += all * attention_of[r];
    for (std::size_t s = 0; s < kStreams; ++s) sums.exposed[s] += all * exposed_by[s];
  }
};

void LaneEngine::count_ops(const Run& run) {
  facts_.counts.begin_lane(costs_.size(), grad_ready_.size());
  for (int s = 0; s < stages_; ++s) {
    const std::vector<ScheduleOp>& ops = run.schedule.ops[at(s)];
    facts_.counts.begin_stage();
    bool second = false;  // of a pair
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const int v = virtual_stage(ops[i], s);
      const StageWork work = work_of(ops[i], v, run.micro_batches[at(ops[i].micro_batch)]);
      facts_.counts.add({work, orders_->kind_of_stage(v), second || ops[i].with_next},
                        entry_of(run, ops[i], s, i));
      second = ops[i].with_next;
    }
    facts_.counts.end_stage();
  }
}

void LaneEngine::Sums::begin(std::size_t ranks) {
  compute.assign(ranks, 0);
  attention.assign(ranks, 0);
  static_cast<OpSums&>(*this) = {};
}

void LaneEngine::Sums::add_to(Run& run, int stage) const {
  for (std::size_t r = 0; r < run.ranks; ++r) {
    run.accounts.compute[at(stage) * run.ranks + r] += compute[r];
    run.accounts.attention[at(stage) * run.ranks + r] += attention[r];
  }
  run.accounts.stage_recompute[at(stage)] += recompute;
  run.accounts += *this;
}

void LaneEngine::account_cost(std::size_t entry) {
  const std::span<const OpCounts::Shape> shapes = facts_.counts.shapes();
  const MicroBatchCost& cost = *costs_[entry];
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const StageWork& work = shapes[i].work;
    std::optional<Picoseconds> taken;
    for (std::size_t t = 0; t < facts_.counts.tables(); ++t) {
      const std::uint32_t times = facts_.counts.of(t, i, entry);
      if (times == 0) continue;
      Sums& sums = counted_[t];
      account_work(work, {cost, times, sums});
      if (shapes[i].paired) continue;  // takes what the pair takes
      if (!taken) taken = alone(work, cost);
      sums.useful += times * *taken;
      if (work.kind == OpKind::R) sums.recompute += times * *taken;
    }
  }
}

void LaneEngine::account(Run& run) {
  for (std::size_t entry = 0; entry < costs_.size(); ++entry) account_cost(entry);
  account_stages(run);
}

void LaneEngine::account_stages(Run& run) {
  for (int s = 0; s < stages_; ++s) {
    counted_[facts_.counts.table_of_stage(s)].add_to(run, s);
    account_one_by_one(run, s);
  }
}

void LaneEngine::account_work(const StageWork& work, const Accounting& own) {
  if (work.kind == OpKind::B) return account_backward(work, own);
  if (work.kind == OpKind::W) return own.weights(orders_->weights(work.virtual_stage));
  const Picoseconds before = own.exposed();
  own.forward(orders_->forward(work.virtual_stage));
  if (work.kind == OpKind::R) own.sums.recompute_exposed += own.exposed() - before;
}

void LaneEngine::account_backward(const StageWork& work, const Accounting& own) {
  const MicroBatchCost& cost = own.cost;
  Sums& sums = own.sums;
  const PartOrder& order = orders_->backward(work.virtual_stage);
  const Picoseconds before = own.exposed();
  for (const OrderedPart& part : order.runs) {
    const int full = is_layer(part.part) ? part.recomputed_of(work.recomputed) : 0;
    if (full == 0) continue;
    own.again(index_of(part.part), full);
    sums.recompute += own.times * layers_alone(cost.again[index_of(part.part)], full);
  }
  sums.recompute_exposed += own.exposed() - before;
  for (const OrderedPart& part : order.runs) {
    if (!is_layer(part.part)) {
      own.end(part.part == ModelPart::head ? cost.head_backward : cost.embed_backward);
      continue;
    }
    const std::size_t k = index_of(part.part);
    own.backward(k, part.layers);
    if (work.half) own.weights(k, -part.layers);  // W makes them
    sums.recompute += own.times * part.layers * cost.recomputed[k];
  }
}

// Pairs, each of which has a partner of its own, and what lanes recompute for each other.
void LaneEngine::account_one_by_one(Run& run, int stage) {
  const std::vector<ScheduleOp>& ops = run.schedule.ops[at(stage)];
  const bool again = run.arrivals != nullptr && !run.arrivals->again.empty();
  if (!again && !facts_.counts.has_pairs()) return;
  Sums sums;
  sums.begin(run.ranks);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (again) account_again(run, stage, i, sums);
    if (!ops[i].with_next) continue;
    const Pair pair = pair_of(run, stage, i);
    sums.useful += pair_alone(pair);
    account_pair(pair, sums);
  }
  sums.add_to(run, stage);
}

// Layers that run side by side expose what is left of their exchanges together, not what each would alone.
// Follows pair_alone, which found that.
void LaneEngine::account_pair(const Pair& pair, Sums& sums) {
  struct Sides {
    const Pair& pair;
    Picoseconds& exposed;
    void forward(const OrderedPart&) const {}
    void backward(const OrderedPart&) const {}
    void done(const OrderedPart&) const {}
    void both(const OrderedPart& f, const OrderedPart& b) const {
      constexpr auto kExpert = at(Stream::ep);
      exposed -= pair.forward.exposed_forward[index_of(f.part)][kExpert] +
                 pair.backward.exposed_backward[index_of(b.part)][kExpert];
    }
  };
  Picoseconds& exposed = sums.exposed[at(Stream::ep)];
  each_part_of_pair(orders_->forward(pair.forward_stage), orders_->backward(pair.backward_stage),
                    Sides{pair, exposed});
  exposed += sum_of(exposed_) / static_cast<Picoseconds>(exposed_.size());
}

void LaneEngine::account_again(const Run& run, int stage, std::size_t position, Sums& sums) {
  const std::vector<std::int32_t>* const again = run.arrivals->again_of(stage, position);
  if (again == nullptr) return;
  const ScheduleOp& op = run.schedule.ops[at(stage)][position];
  const auto add = [&](const MicroBatchCost& cost, std::size_t kind, int layers) {
    const Accounting own{cost, 1, sums};
    const Picoseconds before = own.exposed();
    own.forward(kind, layers);
    sums.recompute_exposed += own.exposed() - before;
    const Picoseconds taken = layers * layers_alone(cost.forward[kind], 1);
    sums.recompute += taken;
    sums.useful += taken;
  };
  const int v = virtual_stage(op, stage);
  const int recomputed = orders_->recomputed_layers(v, run.micro_batches[at(op.micro_batch)]);
  for (const OrderedPart& part : orders_->backward(v).parts) {
    if (!is_layer(part.part) || !is_moe(kind_of(part.part)) || at(part.first) >= again->size()) continue;
    const std::size_t kind = index_of(part.part);
    add(*costs_[at((*again)[at(part.first)])], kind, 1);
    if (part.first < recomputed) add(cost_of(run, op, stage, position), kind, -1);
  }
}

// Equal layers in a row, all ranks starting together.
Picoseconds LaneEngine::layers_alone(const LayerTimeline& layer, int layers) {
  zero_.assign(at(layer.ranks), 0);
  advance(layer, layers, zero_);
  return *std::max_element(zero_.begin(), zero_.end());
}

}  // namespace equipoise
