#include "sim/step/lane_accounts.h"

#include <algorithm>
#include <array>
#include <optional>

namespace equipoise {

// Adds up equal ops of a stage, `times` of them.
struct LaneAccounting::Equal {
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
             const std::array<std::vector<Picoseconds>, kMixers>& attention_by_mixer,
             const std::array<Picoseconds, kStreams>& exposed_by, std::size_t k, int layers) const {
    const Mixer mixer = mixer_of(static_cast<LayerKind>(k));
    const Picoseconds all = times * layers;
    for (std::size_t r = 0; r < sums.compute.size(); ++r) sums.compute[r] += all * per_layer[r];
    for (std::size_t r = 0; r < sums.attention.size() && attends(mixer); ++r)
      sums.attention[r] += all * attention_by_mixer[at(mixer)][r];
    for (std::size_t s = 0; s < kStreams; ++s) sums.exposed[s] += all * exposed_by[s];
  }
};

void LaneAccounting::count_ops(const LaneOps& lane, std::size_t costs) {
  counts_.begin_lane(costs, at(orders_->virtual_stages()));
  for (int s = 0; s < lane.schedule.stages; ++s) {
    const std::vector<ScheduleOp>& ops = lane.schedule.ops[at(s)];
    counts_.begin_stage();
    bool second = false;  // of a pair
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const StageWork work = lane.work_of(ops[i], s);
      counts_.add({work, orders_->kind_of_stage(work.virtual_stage), second || ops[i].with_next},
                  lane.entry_of(s, i));
      second = ops[i].with_next;
    }
    counts_.end_stage();
  }
}

void LaneAccounting::begin_lane(std::size_t ranks) {
  counted_.resize(counts_.tables());
  for (Sums& sums : counted_) sums.begin(ranks);
}

void LaneAccounting::Sums::begin(std::size_t ranks) {
  compute.assign(ranks, 0);
  attention.assign(ranks, 0);
  static_cast<OpSums&>(*this) = {};
}

void LaneAccounting::Sums::add_to(LaneAccounts& accounts, int stage) const {
  const std::size_t ranks = compute.size();
  for (std::size_t r = 0; r < ranks; ++r) {
    accounts.compute[at(stage) * ranks + r] += compute[r];
    accounts.attention[at(stage) * ranks + r] += attention[r];
  }
  accounts.stage_recompute[at(stage)] += recompute;
  accounts += *this;
}

void LaneAccounting::add_cost(std::size_t entry, const MicroBatchCost& cost) {
  const std::span<const OpCounts::Shape> shapes = counts_.shapes();
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const StageWork& work = shapes[i].work;
    std::optional<Picoseconds> taken;
    for (std::size_t t = 0; t < counts_.tables(); ++t) {
      const std::uint32_t times = counts_.of(t, i, entry);
      if (times == 0) continue;
      Sums& sums = counted_[t];
      add_work(work, {cost, times, sums});
      if (shapes[i].paired) continue;  // its time is the pair's
      if (!taken) taken = timer_.alone(work, cost);
      sums.useful += times * *taken;
      if (work.kind == OpKind::R) sums.recompute += times * *taken;
    }
  }
}

void LaneAccounting::finish(const LaneOps& ops, std::span<const MicroBatchCost* const> costs,
                            LaneAccounts& accounts) {
  for (int s = 0; s < ops.schedule.stages; ++s) {
    counted_[counts_.table_of_stage(s)].add_to(accounts, s);
    add_one_by_one(ops, costs, s, accounts);
  }
}

void LaneAccounting::add_work(const StageWork& work, const Equal& own) {
  if (work.kind == OpKind::B) return add_backward(work, own);
  if (work.kind == OpKind::W) return own.weights(orders_->weights(work.virtual_stage));
  const Picoseconds before = own.exposed();
  own.forward(orders_->forward(work.virtual_stage));
  if (work.kind == OpKind::R) own.sums.recompute_exposed += own.exposed() - before;
}

void LaneAccounting::add_backward(const StageWork& work, const Equal& own) {
  const MicroBatchCost& cost = own.cost;
  Sums& sums = own.sums;
  const PartOrder& order = orders_->backward(work.virtual_stage);
  const Picoseconds before = own.exposed();
  for (const OrderedPart& part : order.runs) {
    const int full = is_layer(part.part) ? part.recomputed_of(work.recomputed) : 0;
    if (full == 0) continue;
    own.again(index_of(part.part), full);
    sums.recompute += own.times * timer_.alone(cost.again[index_of(part.part)], full);
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

void LaneAccounting::add_one_by_one(const LaneOps& lane, std::span<const MicroBatchCost* const> costs,
                                    int stage, LaneAccounts& accounts) {
  const bool again = lane.arrivals != nullptr && !lane.arrivals->again.empty();
  if (!again && !has_pairs()) return;
  const std::vector<ScheduleOp>& ops = lane.schedule.ops[at(stage)];
  Sums sums;
  sums.begin(accounts.compute.size() / lane.schedule.ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (again) add_again(lane, costs, stage, i, sums);
    if (ops[i].with_next) add_pair(lane.pair_of(stage, i, costs), sums);
  }
  sums.add_to(accounts, stage);
}

// Layers that run side by side expose what is left of their exchanges together, not what each would alone.
void LaneAccounting::add_pair(const PairWork& pair, Sums& sums) {
  sums.useful += timer_.alone(pair);
  struct Sides {
    const PairWork& pair;
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
  exposed += sum_of(timer_.exposed()) / static_cast<Picoseconds>(timer_.exposed().size());
}

// Layers that not all lanes recompute (LaneArrivals::again) take another time than the op's own cost says: a
// lane that recomputes less works for the others.
void LaneAccounting::add_again(const LaneOps& lane, std::span<const MicroBatchCost* const> costs, int stage,
                               std::size_t position, Sums& sums) {
  const std::vector<std::int32_t>* const again = lane.arrivals->again_of(stage, position);
  if (again == nullptr) return;
  const ScheduleOp& op = lane.schedule.ops[at(stage)][position];
  const auto add = [&](const MicroBatchCost& cost, std::size_t kind, int layers) {
    const Equal own{cost, 1, sums};
    const Picoseconds before = own.exposed();
    own.forward(kind, layers);
    sums.recompute_exposed += own.exposed() - before;
    const Picoseconds taken = layers * timer_.alone(cost.forward[kind], 1);
    sums.recompute += taken;
    sums.useful += taken;
  };
  const int recomputed = lane.recomputed(op, stage);
  for (const OrderedPart& part : orders_->backward(lane.virtual_stage(op, stage)).parts) {
    if (!is_layer(part.part) || !is_moe(kind_of(part.part)) || at(part.first) >= again->size()) continue;
    const std::size_t kind = index_of(part.part);
    add(*costs[at((*again)[at(part.first)])], kind, 1);
    if (part.first < recomputed) add(*costs[lane.entry_of(stage, position)], kind, -1);
  }
}

}  // namespace equipoise
