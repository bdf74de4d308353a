// Whole steps: lanes side by side, groups with a barrier between them, ZeRO-3 in step, and nothing left over
// from one run to the next.
#include <algorithm>

#include "sim/step/gradient_sync.h"
#include "sim/step/step_simulator.h"
#include "tests/sim/models.h"
#include "tests/sim/step/hand_costs.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

Layout small_layout(int data, int context, int pipeline) {
  Layout layout = pipeline_of(pipeline);
  layout.data = data;
  layout.context = context;
  return layout;
}

StepOptions run_by(const char* schedule) {
  StepOptions options;
  options.schedule = &schedule_policy(schedule);
  options.record_ops = true;
  return options;
}

Lane lane_of(int context, std::initializer_list<std::int64_t> lengths) {
  Lane lane;
  lane.context = context;
  std::int64_t id = 0;
  for (const std::int64_t length : lengths)
    lane.micro_batches.push_back(documents({length, length / 3 + 1}, id++));
  return lane;
}

Step step_of(std::vector<Lane> lanes) {
  Step step;
  step.lanes = std::move(lanes);
  return step;
}

void check_same(const StepResult& a, const StepResult& b) {
  CHECK(a.work == b.work);
  CHECK(a.times == b.times);
}

}  // namespace

TEST_CASE("a lane's bubble is what its stages leave unused, and never less than nothing") {
  // Two stages, 100 ps: 120 of 200 are useful. One stage whose ranks run ahead of each other: 101 of 100.
  CHECK(LaneResult{100, 120}.bubble(2) == doctest::Approx(0.4));
  CHECK(LaneResult{100, 101}.bubble(1) == 0);
  CHECK(LaneResult{}.bubble(4) == 0);
}

TEST_CASE("A step gives the same bits again, from a used simulator and from a fresh one") {
  const Models models(builtin_model("wlb-550m"), small_layout(2, 2, 2));
  const ShardRule rule = shard_by("per-document");
  const Step step = step_of({lane_of(2, {9000, 300, 4096}), lane_of(2, {5000, 5000})});
  StepSimulator simulator(models.costs, rule, run_by("1f1b"), &models.memory);
  const StepResult first = simulator.run(step);
  simulator.run(step_of({lane_of(2, {128}), lane_of(2, {64, 20000})}));  // leaves other buffers behind
  check_same(simulator.run(step), first);
  StepSimulator fresh(models.costs, rule, run_by("1f1b"), &models.memory);
  check_same(fresh.run(step), first);
}

namespace {

// Whoever is told of lanes gets all their costs, so that these are kept.
StepResult run_with_costs_kept(StepSimulator& simulator, const Step& step) {
  int lanes = 0;
  const StepResult result = simulator.run(step, [&](const CostedLane& lane) {
    ++lanes;
    CHECK(lane.costs.size() == lane.micro_batches.size());
  });
  CHECK(lanes > 0);
  return result;
}

StepOptions unrecorded(const char* schedule) {
  StepOptions options = run_by(schedule);
  options.record_ops = false;
  return options;
}

}  // namespace

TEST_CASE("A step's results are the same whether its costs are all kept or made as it needs them") {
  // Alike ones in a row, whose costs are copied, and a lane without any.
  const Step steps[] = {
      step_of({lane_of(2, {9000, 300, 4096, 4096, 4096, 77, 77, 8}), lane_of(2, {5000, 5000, 40, 40})}),
      step_of(
          {lane_of(2, {64, 20000, 20000, 512, 1000, 3000, 3000, 3000, 3000, 8, 700, 9}), lane_of(2, {})})};
  for (const char* rule : {"per-sequence", "per-document", "adaptive"})
    for (const char* schedule : {"1f1b", "gpipe", "zb-h1", "dualpipe"}) {
      CAPTURE(rule);
      CAPTURE(schedule);
      const StepOptions options = unrecorded(schedule);
      Layout layout = small_layout(2, 2, 2);
      layout.bidirectional = options.schedule->bidirectional;
      const Models models(builtin_model("wlb-550m"), layout);
      ShardRule shard = shard_by(rule);
      shard.choice = shard.fixed->choice;
      StepSimulator simulator(models.costs, shard, options, &models.memory);
      for (const Step& step : steps) {
        const StepResult kept = run_with_costs_kept(simulator, step);
        check_same(simulator.run(step), kept);
      }
    }
}

TEST_CASE("A micro-batch takes the sharding of the one before that is like it, even where that has ended") {
  // Optimal sharding asks for whole micro-batches, their recompute included; without a pipeline each is
  // through when the next begins.
  const Models models(builtin_model("wlb-550m"), small_layout(1, 2, 1));
  ShardRule shard = shard_by("per-sequence");
  shard.choice = ShardChoice::optimal;
  StepSimulator simulator(models.costs, shard, unrecorded("1f1b"), &models.memory);
  Step step = step_of({lane_of(2, {9000, 9000, 9000, 300, 300, 4096})});
  step.lanes[0].micro_batches[1].recompute_layers = 16;
  step.lanes[0].micro_batches[3].recompute_layers = 16;
  const StepResult kept = run_with_costs_kept(simulator, step);
  check_same(simulator.run(step), kept);
}

TEST_CASE("A lane that is refused half way leaves nothing behind") {
  const Models models(builtin_model("wlb-550m"), small_layout(1, 2, 2));
  ShardRule shard = shard_by("per-sequence");
  shard.options.pad = Pad::error;
  StepSimulator simulator(models.costs, shard, unrecorded("1f1b"), &models.memory);
  Step good = step_of({lane_of(2, {})}), bad = good;
  for (const std::int64_t tokens : {4096, 512, 512, 8192})
    good.lanes[0].micro_batches.push_back(documents({tokens}));
  for (const std::int64_t tokens : {512, 4096, 4097, 64})
    bad.lanes[0].micro_batches.push_back(documents({tokens}));
  const StepResult first = simulator.run(good);
  CHECK_THROWS_AS(simulator.run(bad), UserError);
  check_same(simulator.run(good), first);
}

TEST_CASE("Tokens and pairs of a step are those of its documents") {
  const Models models(builtin_model("wlb-550m"), small_layout(1, 2, 1));
  const ShardRule rule = shard_by("per-sequence");
  StepSimulator simulator(models.costs, rule, run_by("1f1b"), nullptr);
  Step step = step_of({lane_of(2, {})});
  step.lanes[0].micro_batches.push_back(documents({3, 2}));
  const StepResult result = simulator.run(step);
  CHECK(result.work.tokens == 5);
  CHECK(result.work.computed_tokens == 8);   // padded to a multiple of 2 x CP
  CHECK(result.work.causal_pairs == 6 + 3);  // 3*4/2 + 2*3/2
  CHECK(result.times.forward_latency.size() == 1);
}

TEST_CASE("Lanes run side by side; groups with a barrier run one after another") {
  const Models models(builtin_model("wlb-550m"), small_layout(2, 1, 2));
  const ShardRule rule = shard_by("per-sequence");
  StepSimulator simulator(models.costs, rule, run_by("1f1b"), nullptr);
  const Lane a = lane_of(1, {8000, 2000}), b = lane_of(1, {4000, 1000, 600});
  const Picoseconds alone_a = simulator.run(step_of({a})).times.pipeline;
  const Picoseconds alone_b = simulator.run(step_of({b})).times.pipeline;
  CHECK(alone_a != alone_b);
  CHECK(simulator.run(step_of({a, b})).times.pipeline == std::max(alone_a, alone_b));
  Lane later = b;
  later.barrier_group = 1;
  const StepResult chained = simulator.run(step_of({a, later}));
  CHECK(chained.times.pipeline == alone_a + alone_b);
  for (const StageOp& op : chained.times.ops)
    if (op.lane == 1) CHECK(op.start >= alone_a);
}

TEST_CASE("A step ends with the last backward, the exposed gradients and the optimizer") {
  const Models models(builtin_model("wlb-550m"), small_layout(2, 1, 2));
  const ShardRule rule = shard_by("per-sequence");
  StepSimulator simulator(models.costs, rule, run_by("1f1b"), nullptr);
  const StepResult r = simulator.run(step_of({lane_of(1, {8000, 2000}), lane_of(1, {4000})}));
  CHECK(r.times.makespan == r.times.pipeline + r.times.gradient_wait + r.times.optimizer);
  CHECK(r.times.gradient_wait > 0);  // at least the last bucket and the gathering of parameters
  CHECK(r.times.optimizer > 0);
  CHECK(r.times.compute.max >= r.times.compute.mean);
}

TEST_CASE("ZeRO-3: each micro-batch takes as long as in the slowest lane, with the gathers it cannot hide") {
  Layout layout = small_layout(2, 1, 1);
  layout.zero = 3;
  const Models models(builtin_model("wlb-550m"), layout);
  const ShardRule rule = shard_by("per-sequence");
  StepSimulator simulator(models.costs, rule, run_by("1f1b"), nullptr);
  const Lane a = lane_of(1, {8000, 100}), b = lane_of(1, {500, 6000, 40});
  const GradientSync sync(models.costs);
  const int layers = models.costs.model().layers;

  // Alone, with gathers E, G, H and reductions e, r, h of the embedding, a layer and the head. Forward: E;
  // the embedding takes max(its work, G), L - 1 layers max(f, G), the last max(f, H), then the head.
  // Backward: H; the head takes max(its work, G), the last layer max(b, h + G), as the reduction of the part
  // before goes first, those between max(b, r + G), the first layer max(b, r), the embedding max(its work,
  // r); then e.
  MicroBatchCoster coster(models.costs, rule);
  LaneEngine engine(models.costs.model(), layout);
  const auto time = [&](const MicroBatch& micro_batch) {
    MicroBatchCost cost;
    coster.cost(micro_batch, 1, cost);
    const Picoseconds forward = cost.forward[0].local[0], backward = cost.backward[0].local[0];
    const Picoseconds work =
        engine.alone({OpKind::F}, 0, micro_batch, cost) + engine.alone({OpKind::B}, 0, micro_batch, cost);
    const auto gather = [&](ModelPart part) { return sync.gather_of(part).duration; };
    const auto reduce = [&](ModelPart part) { return sync.reduce_of(part).duration; };
    const ModelPart embedding = ModelPart::embedding, layer = ModelPart::dense_layer, head = ModelPart::head;
    const auto beyond = [](Picoseconds network, Picoseconds compute) {
      return std::max<Picoseconds>(0, network - compute);
    };
    return work + gather(embedding) + beyond(gather(layer), cost.embed_forward.total[0]) +
           (layers - 1) * beyond(gather(layer), forward) + beyond(gather(head), forward) + gather(head) +
           beyond(gather(layer), cost.head_backward.total[0]) +
           beyond(reduce(head) + gather(layer), backward) +
           (layers - 2) * beyond(reduce(layer) + gather(layer), backward) + beyond(reduce(layer), backward) +
           beyond(reduce(layer), cost.embed_backward.total[0]) + reduce(embedding);
  };
  const Picoseconds expected = std::max(time(a.micro_batches[0]), time(b.micro_batches[0])) +
                               std::max(time(a.micro_batches[1]), time(b.micro_batches[1])) +
                               time(b.micro_batches[2]);
  const StepResult both = simulator.run(step_of({a, b}));
  CHECK(both.times.pipeline == expected);
  CHECK(both.times.makespan == expected + sync.stages()[0].optimizer);
  // A barrier between the lanes: the second goes in step with nobody.
  Lane later = b;
  later.barrier_group = 1;
  CHECK(simulator.run(step_of({a, later})).times.pipeline ==
        time(a.micro_batches[0]) + time(a.micro_batches[1]) + time(b.micro_batches[0]) +
            time(b.micro_batches[1]) + time(b.micro_batches[2]));
}

TEST_CASE("ZeRO-3: a dense layer before a sparse one is gathered and reduced at its own size") {
  ModelShape model = builtin_model("deepseek-v2");
  model.layers = 2;  // the first is dense
  Layout layout = small_layout(2, 1, 1);
  layout.zero = 3;
  const Models models(model, layout);
  const ShardRule rule = shard_by("per-sequence");
  const GradientSync sync(models.costs);
  const auto gather = [&](ModelPart part) { return sync.gather_of(part).duration; };
  const auto reduce = [&](ModelPart part) { return sync.reduce_of(part).duration; };
  constexpr auto kEmbedding = ModelPart::embedding, kDense = ModelPart::dense_layer,
                 kSparse = ModelPart::moe_layer, kHead = ModelPart::head;
  CHECK(sync.gather_of(kDense).bytes == 2.0 * static_cast<double>(model.layer_parameters(0)));
  CHECK(sync.gather_of(kSparse).bytes == 2.0 * static_cast<double>(model.layer_parameters(1)));

  const Lane lane = lane_of(1, {8000});
  MicroBatchCost cost;
  MicroBatchCoster(models.costs, rule).cost(lane.micro_batches[0], 1, cost);
  const auto work = [](const LayerTimeline& layer) { return layer.local[0]; };
  // What a part's gather or reduction hides under is the work of the part before it.
  const Picoseconds forward = gather(kEmbedding) + std::max(cost.embed_forward.total[0], gather(kDense)) +
                              std::max(work(cost.forward[0]), gather(kSparse)) +
                              std::max(work(cost.forward[1]), gather(kHead)) + cost.head_forward.total[0];
  const Picoseconds backward = gather(kHead) + std::max(cost.head_backward.total[0], gather(kSparse)) +
                               std::max(work(cost.backward[1]), reduce(kHead) + gather(kDense)) +
                               std::max(work(cost.backward[0]), reduce(kSparse)) +
                               std::max(cost.embed_backward.total[0], reduce(kDense)) + reduce(kEmbedding);
  CHECK(StepSimulator(models.costs, rule, run_by("1f1b"), nullptr).run(step_of({lane})).times.pipeline ==
        forward + backward);
}

TEST_CASE("ZeRO-2 reduces the gradients of every micro-batch, so a step is as long as steps of one each") {
  // A step of one micro-batch is the same with ZeRO-1 and 2: pipeline, reductions that it does not hide,
  // optimizer, parameter gather. With ZeRO-2 the next micro-batch begins when the reductions of the one
  // before are through, and only the last is followed by optimizer and gather.
  const auto steps = [](int zero, int pipeline, const std::vector<Step>& plans, bool each = true) {
    Layout layout = small_layout(2, 1, pipeline);
    layout.zero = zero;
    layout.reduce_each_micro_batch = each;
    const Models models(builtin_model("wlb-550m"), layout);
    const ShardRule rule = shard_by("per-sequence");
    StepSimulator simulator(models.costs, rule, run_by("1f1b"), nullptr);
    const GradientSync::StageCosts end = GradientSync(models.costs).stages()[0];
    Picoseconds sum = 0;
    for (const Step& plan : plans) sum += simulator.run(plan).times.makespan - (end.optimizer + end.gather);
    return sum;  // without what follows the gradients
  };
  const Lane a = lane_of(1, {8000, 100}), b = lane_of(1, {500, 6000, 40});
  const auto one = [](const Lane& lane, std::size_t j) {
    Lane alone = lane;
    alone.micro_batches = {lane.micro_batches[j]};
    return alone;
  };
  const std::vector<Step> rounds = {step_of({one(a, 0), one(b, 0)}), step_of({one(a, 1), one(b, 1)}),
                                    step_of({one(b, 2)})};
  const Picoseconds expected = steps(1, 1, rounds);
  CHECK(steps(2, 1, rounds) == expected);
  CHECK(steps(2, 1, {step_of({a, b})}) == expected);
  CHECK(steps(1, 1, {step_of({a, b})}) < expected);
  // Where the study says so, gradients wait for the last backward of their layer, as with ZeRO-1.
  CHECK(steps(2, 1, {step_of({a, b})}, false) == steps(1, 1, {step_of({a, b})}));
  // Lanes with a barrier between them do not go in step.
  Lane later = b;
  later.barrier_group = 1;
  CHECK(steps(2, 1, {step_of({a, later})}) ==
        steps(1, 1,
              {step_of({one(a, 0)}), step_of({one(a, 1)}), step_of({one(b, 0)}), step_of({one(b, 1)}),
               step_of({one(b, 2)})}));
  // On a pipeline, too, the last micro-batch of a stage, here the only one, leaves its reductions behind.
  CHECK(steps(2, 2, {rounds[0]}) == steps(1, 2, {rounds[0]}));
  CHECK(steps(2, 2, {step_of({a, b})}) > steps(1, 2, {step_of({a, b})}));
}

TEST_CASE("A micro-batch without documents takes no time") {
  const Models models(builtin_model("wlb-550m"), small_layout(1, 1, 2));
  const ShardRule rule = shard_by("per-sequence");
  StepSimulator simulator(models.costs, rule, run_by("1f1b"), nullptr);
  Lane lane = lane_of(1, {4000});
  const StepResult one = simulator.run(step_of({lane}));
  lane.micro_batches.emplace_back();
  const StepResult two = simulator.run(step_of({lane}));
  CHECK(two.times.forward_latency.back() == 0);
  CHECK(two.times.pipeline == one.times.pipeline);
}
