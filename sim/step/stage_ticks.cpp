#include "sim/step/stage_ticks.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/index.h"

namespace equipoise {

std::vector<Tick> ticks_of(const Schedule& schedule) {
  const std::size_t stages = schedule.ops.size();
  std::map<std::pair<bool, std::size_t>, Tick> ticks;  // by direction (backward or not) and number
  for (std::size_t s = 0; s < stages; ++s) {
    std::size_t number[] = {s, stages - 1 - s};
    for (std::size_t i = 0; i < schedule.ops[s].size(); ++i) {
      const bool backward = schedule.ops[s][i].kind == OpKind::B;
      ticks[{backward, number[backward ? 1 : 0]++}].push_back({s, i});
    }
  }
  std::vector<Tick> out;
  for (auto& [number, tick] : ticks) out.push_back(std::move(tick));
  return out;
}

namespace {

// Costs the ops of ticks. Each op gets a cost of its own, after those of the micro-batches.
class TickCosts {
 public:
  TickCosts(LockstepLane& lane, MicroBatchCoster& coster, const LayerCosts& model, const PartOrders& orders,
            std::vector<MicroBatchCost>& costs)
      : lane_(lane),
        coster_(coster),
        model_(model),
        orders_(orders),
        costs_(costs),
        layers_(layers_of_stages(model.model(), model.layout())),
        backward_layers_(backward_layers(model.model(), model.layout())) {
    no_tokens_.rank_begin.assign(lane.expert_group.size() + 1, 0);
    no_tokens_.rank_tokens.assign(lane.expert_group.size(), 0);
  }

  void run() {
    for (const std::vector<ScheduleOp>& of_stage : lane_.schedule.ops) {
      lane_.arrivals.of_op.emplace_back();
      for (const ScheduleOp& op : of_stage) lane_.arrivals.of_op.back().push_back(op.micro_batch);
    }
    const bool pools = lane_.expert_group.size() > 1;
    for (const Tick& tick : ticks_of(lane_.schedule)) pools ? pool(tick) : even_out_attention(tick);
  }

 private:
  void even_out_attention(const Tick& tick) {
    std::vector<StageAttention> stages;
    for (const TickOp& place : tick) {
      const ScheduleOp& op = op_at(place);
      const MicroBatchCost& cost = costs_[at(op.micro_batch)];
      const std::array<int, 2> layers = layers_of(place);
      if (layers != std::array<int, 2>{})
        stages.push_back({&lane_.micro_batches[at(op.micro_batch)],
                          op.micro_batch,
                          static_cast<std::int32_t>(place.stage),
                          layers,
                          {cost.attention_forward[0][0], cost.attention_backward[0][0]}});
    }
    const EvenedAttention evened = even_out(stages, model_, costs_.front().use);
    if (evened == EvenedAttention{}) return;
    for (const TickOp& place : tick) {
      MicroBatchCost cost;
      cost.evened = evened;
      add(place, std::move(cost), std::max(evened[0].received, evened[1].received));
    }
  }

  // Layers that an op runs forward and backward; a backward recomputes some.
  [[nodiscard]] std::array<int, 2> layers_of(const TickOp& place) const {
    const ScheduleOp& op = op_at(place);
    const int v = op.virtual_stage * lane_.schedule.stages + static_cast<int>(place.stage);
    if (op.kind != OpKind::B) return {layers_[at(v)], 0};
    return {orders_.recomputed_layers(v, lane_.micro_batches[at(op.micro_batch)]), backward_layers_[at(v)]};
  }

  // All stages' CP ranks share the attention of the tick, including stages without an op.
  void pool(const Tick& tick) {
    std::vector<PooledTokens> stages(lane_.schedule.ops.size(), {&idle_, &no_tokens_});
    for (const TickOp& place : tick) {
      if (const int most = layers_of(tick[0])[0], other = layers_of(place)[0]; other != most)
        throw UserError(
            "stage_attention_exchange: true with context_comm disaggregated and stages that recompute ", most,
            " and ", other, " layers at one time; allowed: as many, or false");
      const auto own = at(op_at(place).micro_batch);
      stages[place.stage] = {&lane_.micro_batches[own], &costs_[own].sharding};
    }
    std::vector<PlannedTasks> tasks = pooled_tasks(stages, model_);
    std::int64_t held = 0;
    for (const PlannedTasks& of_stage : tasks) held = std::max(held, of_stage.held);
    for (const TickOp& place : tick) {
      MicroBatchCost cost;
      cost.pool = std::make_shared<const StagePool>(StagePool{std::move(tasks[place.stage]), group()});
      add(place, std::move(cost), held);
    }
  }
  // The group that holds the CP ranks of all stages.
  const ContextGroup& group() {
    if (group_.ranks > 1) return group_;
    const RankGrid& grid = model_.grid();
    std::vector<int> gpus;
    for (int stage = 0; stage < lane_.schedule.stages; ++stage) {
      const std::vector<int> replicas = grid.data_context_group(grid.gpu({0, 0, 0, stage}));
      for (std::size_t r = 0; r < lane_.expert_group.size(); ++r)
        gpus.push_back(replicas[at(lane_.first_replica) + r]);
    }
    group_ = {static_cast<int>(gpus.size()), grid.shape_of(gpus), as_double(model_.kv_bytes_per_token())};
    return group_;
  }

  [[nodiscard]] const ScheduleOp& op_at(const TickOp& place) const {
    return lane_.schedule.ops[place.stage][place.position];
  }
  // `held` is the number of tokens on the fullest rank, counted as if for K and V.
  void add(const TickOp& place, MicroBatchCost&& cost, std::int64_t held) {
    const auto own = at(op_at(place).micro_batch);
    cost.sharding = costs_[own].sharding;
    coster_.cost_sharded(lane_.micro_batches[own], static_cast<int>(lane_.expert_group.size()),
                         costs_[own].arriving, {}, cost);
    costs_[own].cast_tokens = std::max(costs_[own].cast_tokens, held);
    lane_.arrivals.of_op[place.stage][place.position] = static_cast<std::int32_t>(costs_.size());
    lane_.arrivals.entries.push_back(lane_.arrivals.entries[own]);
    costs_.push_back(std::move(cost));
  }

  LockstepLane& lane_;
  MicroBatchCoster& coster_;
  const LayerCosts& model_;
  const PartOrders& orders_;
  std::vector<MicroBatchCost>& costs_;
  std::vector<int> layers_, backward_layers_;  // by virtual stage
  ContextGroup group_;
  MicroBatch idle_;  // for a stage without an op
  Sharding no_tokens_;
};

}  // namespace

void cost_ticks(LockstepLane& lane, MicroBatchCoster& coster, const LayerCosts& model,
                const PartOrders& orders, std::vector<MicroBatchCost>& costs) {
  TickCosts(lane, coster, model, orders, costs).run();
}

}  // namespace equipoise
