#include "sim/execution/executable_step.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "sim/execution/parameters.h"
#include "sim/execution/rank_context.h"

namespace equipoise::execution {
namespace {

// Turns gradient buckets into the first ops of the stage's end.
void reduce_at_the_end(StageEnd& end) {
  std::vector<OpStep> steps;
  std::vector<Picoseconds> durations;
  for (std::size_t i = 0; i < end.buckets.size(); ++i) {
    OpStep step{OpName::dp_reduce, Stream::dp};
    if (!end.bucket_bytes.empty()) step.bytes = end.bucket_bytes[i];
    steps.push_back(step);
    durations.push_back(end.buckets[i]);
  }
  steps.insert(steps.end(), end.steps.begin(), end.steps.end());
  durations.insert(durations.end(), end.durations.begin(), end.durations.end());
  end = {{}, std::move(steps), std::move(durations), {}};
}

// Tokens of the sample that a micro-batch's slice belongs to: its own, or those of its whole group of chunks.
std::int64_t sample_tokens(const Lane& lane, std::size_t j, const Slice& slice) {
  const MicroBatch& micro_batch = lane.micro_batches[j];
  if (micro_batch.chunk.count <= 1) return slice.tokens();
  std::int64_t tokens = 0;
  for (const MicroBatch& other : lane.micro_batches)
    if (other.chunk.count > 1 && other.chunk.sequence == micro_batch.chunk.sequence &&
        other.chunk.group_begin == micro_batch.chunk.group_begin)
      tokens += other.tokens();
  return tokens;
}

struct Samples {
  double count = 0;
  double tokens = 0;
};

Samples samples_of(const Lane& lane) {
  Samples all;
  for (const MicroBatch& micro_batch : lane.micro_batches) {
    all.tokens += static_cast<double>(micro_batch.tokens());
    if (micro_batch.chunk.count <= 1)
      all.count += static_cast<double>(micro_batch.slices.size());
    else if (micro_batch.chunk.index == 0)
      all.count += 1;
  }
  return all;
}

// A sharding rule may round a chunk up, so that padding follows its tokens. If another chunk follows, its
// tokens take that place, so ranks skip the padding.
void drop_inner_padding(const MicroBatch& micro_batch, Sharding& sharding) {
  const Chunk& chunk = micro_batch.chunk;
  if (chunk.count == 1 || chunk.index + 1 == chunk.count) return;
  std::vector<Segment> kept;
  for (int r = 0; r < sharding.ranks(); ++r) {
    const std::vector<Segment> all(sharding.of_rank(r).begin(), sharding.of_rank(r).end());
    sharding.rank_begin[at(r)] = static_cast<std::uint32_t>(kept.size());
    for (Segment segment : all) {
      const std::int64_t padded_end = segment.q_end;
      segment.q_end = std::min(segment.q_end, micro_batch.slices[at(segment.slice)].end);
      sharding.rank_tokens[at(r)] -= padded_end - std::max(segment.q_begin, segment.q_end);
      if (segment.q_end > segment.q_begin) kept.push_back(segment);
    }
  }
  sharding.rank_begin.back() = static_cast<std::uint32_t>(kept.size());
  sharding.segments = std::move(kept);
}

// Why stages cannot share the attention of these micro-batches; empty if all recompute equally many layers.
std::string recompute_fault(const PartOrders& orders, const Layout& layout,
                            std::span<const MicroBatch> micro_batches) {
  const int first = orders.recomputed_layers(0, micro_batches.front());
  for (const MicroBatch& micro_batch : micro_batches)
    for (int v = 0; v < layout.virtual_stages(); ++v)
      if (const int other = orders.recomputed_layers(v, micro_batch); other != first)
        return concatenated("ops that recompute as many layers, found ", first, " and ", other);
  return "";
}

void check_no_fault(const std::string& fault) {
  if (!fault.empty())
    throw UserError("execute: stage_attention_exchange is true: expected ", fault, "; allowed: false");
}

// Orders the ticks so that every stage's own order holds, and also what stages pass on from tick to tick.
std::vector<Tick> in_order(std::vector<Tick> ticks, const Schedule& schedule) {
  std::vector<std::vector<std::size_t>> ops;  // [stage][op]: its tick
  for (const auto& of_stage : schedule.ops) ops.emplace_back(of_stage.size());
  const auto is_backward = [&](const Tick& tick) {
    return schedule.ops[tick[0].stage][tick[0].position].kind == OpKind::B;
  };
  std::vector<std::set<std::size_t>> before(ticks.size());
  for (std::size_t t = 0; t < ticks.size(); ++t) {
    for (const TickOp& op : ticks[t]) ops[op.stage][op.position] = t;
    if (t > 0 && is_backward(ticks[t]) == is_backward(ticks[t - 1])) before[t].insert(t - 1);
  }
  for (const auto& of_stage : ops)
    for (std::size_t i = 1; i < of_stage.size(); ++i) before[of_stage[i]].insert(of_stage[i - 1]);
  std::vector<Tick> out;
  std::vector<char> done(ticks.size(), 0);
  while (out.size() < ticks.size()) {
    std::size_t t = 0;
    while (done[t] != 0 || !std::ranges::all_of(before[t], [&](std::size_t b) { return done[b] != 0; }))
      if (++t == ticks.size()) throw EngineError("real execution: stages wait for each other in a circle");
    done[t] = 1;
    out.push_back(std::move(ticks[t]));
  }
  return out;
}

LaneTicks lane_ticks(const LockstepLane& lane, std::span<const MicroBatchCost> costs) {
  LaneTicks out;
  const auto& ops = lane.schedule.ops;
  out.stages.resize(ops.size());
  for (const Tick& tick : in_order(ticks_of(lane.schedule), lane.schedule)) {
    StageTick made;
    std::vector<std::int32_t> op_of(ops.size(), kIdle), micro_batch_of(ops.size(), kIdle);
    for (const TickOp& place : tick) {
      op_of[place.stage] = static_cast<std::int32_t>(place.position);
      micro_batch_of[place.stage] = ops[place.stage][place.position].micro_batch;
      const MicroBatchCost& cost = costs[at(lane.arrivals.of_op[place.stage][place.position])];
      made.moves = {cost.evened[0].moves, cost.evened[1].moves};
      if (cost.pool) made.pool = micro_batch_of;
    }
    if (!made.pool.empty()) made.pool = micro_batch_of;
    for (std::size_t s = 0; s < ops.size(); ++s)
      if (op_of[s] != kIdle || !made.pool.empty()) out.stages[s].push_back({out.ticks.size(), op_of[s]});
    out.ticks.push_back(std::move(made));
    out.first.push_back(tick.front());
  }
  return out;
}

// The ticks of every lane, with the simulator's prices.
std::vector<LaneTicks> shared_ticks(const LayerCosts& costs, const ShardRule& rule,
                                    const StepOptions& options, const Step& step) {
  const Layout& layout = costs.layout();
  std::vector<LaneTicks> ticks(step.lanes.size());
  const PartOrders orders(costs.model(), layout);
  MicroBatchCoster coster(costs, rule);
  int last_group = 0;
  for (const Lane& lane : step.lanes) last_group = std::max(last_group, lane.barrier_group);
  for (int group = 0; group <= last_group; ++group)
    for (LockstepGroup& lockstep : make_lockstep_groups(step, group, layout, costs.grid(), options)) {
      const auto of_lanes = cost_lockstep_group(lockstep, coster, costs, orders);
      for (std::size_t l = 0; l < of_lanes.size(); ++l) {
        check_no_fault(recompute_fault(orders, layout, lockstep.lanes[l].micro_batches));
        ticks[at(lockstep.lanes[l].lane)] = lane_ticks(lockstep.lanes[l], of_lanes[l]);
      }
    }
  return ticks;
}

}  // namespace

std::string stage_exchange_fault(const ModelShape& model, const Layout& layout) {
  if (!layout.evens_out_stages()) return "";
  if (layout.recompute == Recompute::automatic) return "a recompute that is not auto, found auto";
  const std::vector<int> layers = layers_of_stages(model, layout);
  const auto [fewest, most] = std::ranges::minmax(layers);
  if (fewest < most) return concatenated("stages of as many layers, found ", fewest, " and ", most);
  const MicroBatch as_the_layout_says;
  return recompute_fault(PartOrders(model, layout), layout, {&as_the_layout_says, 1});
}

RankPlace place_of(const RankGrid& grid, int rank) {
  const RankCoordinates coordinates = grid.coordinates(rank);
  const std::vector<int> replicas = grid.data_context_group(rank);
  const auto found = std::find(replicas.begin(), replicas.end(), rank);
  return {coordinates.pipeline, static_cast<int>(found - replicas.begin()), coordinates.tensor};
}

OpProgram sequential(OpProgram program) {
  for (OpLane& lane : program.lanes) {
    for (OpBlock& block : lane.blocks)
      for (OpStep& step : block.steps) {
        step.with_next = false;
        step.over = 0;
      }
    for (BlockRun& run : lane.runs) run.bucket = kNoBucket;
  }
  for (StageEnd& end : program.ends) reduce_at_the_end(end);
  return program;
}

std::vector<std::vector<std::vector<double>>> loss_weights(const Step& step, LossNormalizer normalizer) {
  Samples all;
  double lanes = 0;
  for (const Lane& lane : step.lanes) {
    const Samples of_lane = samples_of(lane);
    all.count += of_lane.count;
    all.tokens += of_lane.tokens;
    lanes += of_lane.count > 0 ? 1 : 0;
  }
  std::vector<std::vector<std::vector<double>>> weights(step.lanes.size());
  for (std::size_t l = 0; l < step.lanes.size(); ++l) {
    const Lane& lane = step.lanes[l];
    const double samples = samples_of(lane).count;
    for (std::size_t j = 0; j < lane.micro_batches.size(); ++j) {
      std::vector<double>& of_slices = weights[l].emplace_back();
      for (const Slice& slice : lane.micro_batches[j].slices) {
        double weight = 1;
        if (normalizer == LossNormalizer::token) weight = 1 / all.tokens;
        if (normalizer == LossNormalizer::sample)
          weight = 1 / (all.count * static_cast<double>(sample_tokens(lane, j, slice)));
        if (normalizer == LossNormalizer::stable) weight = 1 / (samples * all.tokens / all.count) / lanes;
        of_slices.push_back(weight);
      }
    }
  }
  return weights;
}

void check_layout_runs(const ModelShape& model, const Layout& layout) {
  check_runnable(model);
  if (layout.zero > 1) throw UserError("execute: parallel.zero is ", layout.zero, "; ranks run 0 and 1");
  if (layout.bidirectional)
    throw UserError("execute: schedule dualpipe needs two copies of each layer; ranks hold one");
  if (model.mtp_layers > 0)
    throw UserError("execute: mtp_layers is ", model.mtp_layers, "; ranks predict one token ahead");
  if (model.training.frozen != 0)  // the embedding is frozen if any layer is
    throw UserError("execute: lora and frozen weights are not run; leave lora and frozen out");
  if (layout.activation_offload > 0)
    throw UserError("execute: parallel.activation_offload is ", std::to_string(layout.activation_offload),
                    "; ranks keep their activations");
  check_no_fault(stage_exchange_fault(model, layout));
  if (layout.expert > 1) throw UserError("execute: parallel.expert is ", layout.expert, "; allowed: 1");
  if (layout.recompute == Recompute::modules &&
      layout.recompute_modules != module_bit(RecomputeModule::core_attn))
    throw UserError("execute: parallel.recompute.modules is ", names_of(layout.recompute_modules),
                    "; allowed: core_attn");
  if (local_vocabulary(model, layout.tensor, layout.tensor - 1).count < 1)
    throw UserError("execute: a vocabulary of ", model.vocab, " leaves TP rank ", layout.tensor - 1, " of ",
                    layout.tensor, " without tokens");
  if (model.head_dim % 16 != 0 || model.head_dim > 256)
    throw UserError("execute: a head dim of ", model.head_dim, "; kernels take multiples of 16 up to 256");
}

ExecutableStep make_step(const LayerCosts& costs, const ShardRule& rule, const StepOptions& options,
                         const Step& step, const DocumentLengths& documents, LossNormalizer normalizer,
                         bool fold_tp) {
  check_layout_runs(costs.model(), costs.layout());
  ExecutableStep out;
  out.step = step;
  out.layout = costs.layout();
  out.documents = documents;
  out.repeats_attention = costs.layout().repeats(RecomputeModule::core_attn);
  out.program = sequential(StepExpander(costs, rule, options, fold_tp).expand(step));
  MicroBatchCoster coster(costs, rule);
  MicroBatchCost cost;
  for (const Lane& lane : step.lanes) {
    auto& of_lane = out.sharding.emplace_back();
    for (const MicroBatch& micro_batch : lane.micro_batches) {
      coster.cost(micro_batch, lane.context, cost);
      of_lane.push_back(cost.sharding);
      drop_inner_padding(micro_batch, of_lane.back());
    }
  }
  if (costs.layout().evens_out_stages()) out.ticks = shared_ticks(costs, rule, options, step);
  out.weights = loss_weights(step, normalizer);
  return out;
}

std::int64_t longest_attended(const ExecutableStep& step) {
  std::int64_t longest = 1;
  for (const auto& lane : step.sharding)
    for (const Sharding& sharding : lane)
      for (const Segment& segment : sharding.segments) longest = std::max(longest, segment.keys());
  return longest;
}

}  // namespace equipoise::execution
