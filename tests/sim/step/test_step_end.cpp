// Gradient buckets: hidden under the backward, or exposed after it.
#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "sim/step/gradient_sync.h"
#include "tests/sim/models.h"
#include "tests/sim/step/hand_costs.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

// Four layers on two stages: stage 0 has two layers and the embedding, stage 1 the head and two layers.
Layout replicated(int zero) {
  Layout layout = pipeline_of(2);
  layout.data = 2;
  layout.zero = zero;
  return layout;
}

Picoseconds sum(const std::vector<Picoseconds>& buckets) {
  return std::accumulate(buckets.begin(), buckets.end(), Picoseconds{0});
}

// A lane whose stages end with their last gradients.
void add_lane(GradientSync& sync, const std::vector<std::vector<Picoseconds>>& ready) {
  sync.add_lane(ready, each_of(ready, [](const auto& of_stage) { return std::ranges::max(of_stage); }));
}

constexpr Picoseconds kLong = 1'000'000'000'000;  // a second: any bucket of this model is far shorter

}  // namespace

TEST_CASE("A stage has one bucket a layer, the head's first and the embedding's last") {
  const Models models(model_of(4), replicated(1));
  const GradientSync sync(models.costs);
  REQUIRE(sync.stages().size() == 2);
  for (const GradientSync::StageCosts& part : sync.stages()) {
    REQUIRE(part.buckets.size() == 1);
    CHECK(part.buckets[0].size() == 3);
    for (const Picoseconds t : part.buckets[0]) CHECK(t > 0);
    CHECK(part.optimizer > 0);
    CHECK(part.gather > 0);  // ZeRO-1 gathers the parameters it has updated in shards
  }
  const Models whole(model_of(4), replicated(0));
  const GradientSync all(whole.costs);
  CHECK(all.stages()[0].gather == 0);
  CHECK(all.stages()[0].optimizer > sync.stages()[0].optimizer);  // every replica updates everything
}

TEST_CASE("Buckets that become ready far apart hide, but for the last") {
  const Models models(model_of(4), replicated(1));
  GradientSync sync(models.costs);
  sync.begin_step();
  add_lane(sync, {{7 * kLong, 8 * kLong, 9 * kLong}, {1 * kLong, 2 * kLong, 3 * kLong}});
  const GradientSync::StageCosts& first = sync.stages()[0];
  const GradientSync::End end = sync.finish(9 * kLong);
  CHECK(end.step == 9 * kLong + first.buckets[0][2] + first.optimizer + first.gather);
}

TEST_CASE("Buckets that are ready at once queue behind each other, exposed") {
  const Models models(model_of(4), replicated(1));
  GradientSync sync(models.costs);
  sync.begin_step();
  add_lane(sync, {{kLong, kLong, kLong}, {kLong, kLong, kLong}});
  Picoseconds slowest = 0;
  for (const GradientSync::StageCosts& part : sync.stages())
    slowest = std::max(slowest, sum(part.buckets[0]) + part.optimizer + part.gather);
  CHECK(sync.finish(kLong).step == kLong + slowest);
}

TEST_CASE("A bucket waits for the replica that is last with its layer, and for the bucket before it") {
  const Models models(model_of(4), replicated(1));
  GradientSync sync(models.costs);
  sync.begin_step();
  add_lane(sync, {{1 * kLong, 2 * kLong, 3 * kLong}, {0, 0, 0}});
  add_lane(sync, {{4 * kLong, 4 * kLong, 4 * kLong}, {0, 0, 0}});
  // Stage 0: all three are ready at 4 s only.
  const GradientSync::StageCosts& first = sync.stages()[0];
  CHECK(sync.finish(4 * kLong).step == 4 * kLong + sum(first.buckets[0]) + first.optimizer + first.gather);
  // The next step starts afresh.
  sync.begin_step();
  add_lane(sync, {{1 * kLong, 2 * kLong, 3 * kLong}, {0, 0, 0}});
  CHECK(sync.finish(3 * kLong).step == 3 * kLong + first.buckets[0][2] + first.optimizer + first.gather);
}

TEST_CASE("Without a pipeline compute loses half of what hides under it: buckets but the last, the gather") {
  FrameworkOptions framework;
  framework.exchange_sms = 20;
  framework.exchange_sm_margin = false;  // the blocks of these SMs are a wave of their own
  Layout layout = replicated(1);
  layout.pipeline = 1;
  const Models bare(model_of(4), layout, framework);
  framework.overlap_param_gather = true;
  const Models models(model_of(4), layout, framework);
  GradientSync sync(models.costs);
  const GradientSync::StageCosts& stage = sync.stages()[0];
  CHECK(stage.gather == 0);
  CHECK(stage.lost_to_gather == GradientSync(bare.costs).stages()[0].gather / 2);
  CHECK(sync.ends()[0].steps.back().name == OpName::taken_sms);
  const std::vector<Picoseconds>& buckets = stage.buckets[0];
  std::vector<Picoseconds> ready;
  for (std::size_t i = 1; i <= buckets.size(); ++i) ready.push_back(static_cast<Picoseconds>(i) * kLong);
  sync.begin_step();
  add_lane(sync, {ready});
  const Picoseconds lost = (sum(buckets) - buckets.back()) / 2;
  CHECK(sync.finish(ready.back()).step ==
        ready.back() + buckets.back() + lost + stage.optimizer + stage.lost_to_gather);
  const std::vector<Picoseconds> at_once(buckets.size(), kLong);
  sync.begin_step();
  add_lane(sync, {at_once});  // the reductions outlast what runs under them, which is not delayed then
  CHECK(sync.finish(kLong).step == kLong + sum(buckets) + stage.optimizer + stage.lost_to_gather);
  const Models staged(model_of(4), replicated(1), framework);
  CHECK(GradientSync(staged.costs).stages()[0].lost_to_gather == 0);
}

TEST_CASE("Without replicas there is nothing to reduce") {
  const Models models(model_of(4), pipeline_of(2));
  GradientSync sync(models.costs);
  CHECK(!sync.has_replicas());
  sync.begin_step();
  add_lane(sync, {{kLong, kLong, kLong}, {kLong, kLong, kLong}});
  Picoseconds slowest = 0;
  for (const GradientSync::StageCosts& part : sync.stages()) {
    CHECK(part.gather == 0);
    slowest = std::max(slowest, part.optimizer);
  }
  CHECK(sync.finish(kLong).step == kLong + slowest);
}

TEST_CASE("Spreading experts changes what a rank gathers, not how many parameters it updates") {
  // A rank holds E / ep of E expert parameters on R replicas and shares them with R / ep others: ZeRO leaves
  // it E / R to update whatever ep is. It gathers two bytes of every parameter that it holds.
  ModelShape model = builtin_model("deepseek-v2");
  model.layers = 2;
  model.moe->dense_layers = 0;
  const auto with = [&](int zero, int expert) {
    Layout layout = pipeline_of(1);
    layout.data = 8;
    layout.zero = zero;
    layout.expert = expert;
    return layout;
  };
  const double routed = static_cast<double>(model.routed_parameters(1));
  const double dense = static_cast<double>(model.layer_parameters(1)) - routed;
  CHECK(routed > dense);
  for (const int zero : {1, 3}) {
    const Models whole(model, with(zero, 1)), spread(model, with(zero, 4));
    const GradientSync one(whole.costs), four(spread.costs);
    const auto apart = one.stages()[0].optimizer - four.stages()[0].optimizer;
    CHECK(std::abs(apart) <= 1);  // picoseconds: rounded
    if (zero == 1)
      CHECK(one.stages()[0].gather_bytes - four.stages()[0].gather_bytes ==
            doctest::Approx(2 * 2 * routed * (1 - 0.25)));
    if (zero == 3)
      CHECK(four.gather_of(ModelPart::moe_layer).bytes == doctest::Approx(2 * (dense + routed / 4)));
    // Two layers' worth of such gathers is what ZeRO-3 holds in addition to its shards.
    CHECK(spread.memory.fixed(0).buffers == doctest::Approx(zero == 3 ? 2 * 2 * (dense + routed / 4) : 0));
  }
}

TEST_CASE("States on the host are updated there: the slower of its memory and the link sets the time") {
  Layout layout = replicated(1);
  const auto optimizer = [&] {
    return static_cast<double>(GradientSync(Models(model_of(4), layout).costs).stages()[1].optimizer);
  };
  const double on_gpu = optimizer();
  // Stage 1: two layers of 41,088 parameters, the head and its norm, over two replicas. A parameter's fp32
  // gradient and three fp32 states are read, the states and a bf16 weight written: 4 + 12 + 12 + 2 bytes.
  const double parameters = (2 * 41088 + 256 * 64 + 64) / 2.0;
  layout.optimizer_offload = 1;
  layout.host_memory_GBps = 30;
  CHECK(optimizer() == doctest::Approx(parameters * 30 / 30e9 * 1e12));
  layout.host_link_GBps = 0.5;  // four bytes of gradient take longer than that
  CHECK(optimizer() == doctest::Approx(parameters * 4 / 0.5e9 * 1e12));
  layout.optimizer_offload = 0.5;  // the GPU updates its half at the same time
  CHECK(optimizer() == doctest::Approx(parameters / 2 * 4 / 0.5e9 * 1e12));
  layout.host_link_GBps = layout.host_memory_GBps = 10000;
  CHECK(optimizer() < on_gpu);
}

TEST_CASE("What is frozen is neither reduced nor updated nor gathered; ZeRO-3 gathers it with every pass") {
  ModelShape model = model_of(4);
  model.training = {kAllWeights, kAdaptable, 8};
  constexpr double kAdapters = 7168;  // of a layer: 8 (64 + 192 + 64 + 64 + 64 + 256 + 128 + 64)
  const GradientSync::StageCosts stage = GradientSync(Models(model, replicated(1)).costs).stages()[1];
  CHECK(stage.bucket_bytes[0] ==
        std::vector<double>{0, 4 * kAdapters, 4 * kAdapters});  // the head has nothing
  CHECK(stage.buckets[0][0] == 0);
  CHECK(stage.gather_bytes == 2 * 2 * kAdapters);
  Layout sharded = pipeline_of(1);
  sharded.data = 4;
  sharded.zero = 3;
  const Models models(model, sharded);
  const GradientSync sync(models.costs);
  CHECK(sync.gather_of(ModelPart::dense_layer).bytes == 2 * (41088 + kAdapters));
  CHECK(sync.reduce_of(ModelPart::dense_layer).bytes == 4 * kAdapters);
  CHECK(sync.reduce_of(ModelPart::embedding).duration == 0);
}

TEST_CASE("ZeRO-3 keeps only the optimizer for the end of the step") {
  Layout layout = pipeline_of(1);
  layout.data = 4;
  layout.zero = 3;
  const Models models(model_of(4), layout);
  GradientSync sync(models.costs);
  for (const ModelPart part : {ModelPart::embedding, ModelPart::dense_layer, ModelPart::head}) {
    CHECK(sync.gather_of(part).duration > 0);
    CHECK(sync.reduce_of(part).bytes == 2 * sync.gather_of(part).bytes);  // fp32 gradients, bf16 parameters
  }
  sync.begin_step();
  sync.add_lane({}, {kLong});
  CHECK(sync.finish(kLong).step == kLong + sync.stages()[0].optimizer);
}

namespace {

// Seconds of an all-reduce of so many fp32 gradients over the replicas.
double all_reduce(const Models& models, double parameters) {
  RangeUse use;
  return models.costs.kernels.collectives().seconds(Collective::all_reduce, 4 * parameters,
                                                    models.grid.data_context_shape(), use);
}

}  // namespace

TEST_CASE("Gradients that are not scattered are reduced whole, when the last backward has ended") {
  FrameworkOptions framework;
  framework.scatter_gradients = false;
  framework.step_end_bytes = 16;
  const Models models(model_of(4), replicated(1), framework), scattered(model_of(4), replicated(1));
  GradientSync sync(models.costs);
  const GradientSync::StageCosts& first = sync.stages()[0];
  // Stage 0: two layers of 41,088 parameters and the embedding.
  constexpr double kHeld = 2 * 41088 + 256 * 64;
  CHECK(to_seconds(first.reduce) == doctest::Approx(all_reduce(models, kHeld)));
  CHECK(sync.ends()[0].buckets == std::vector<Picoseconds>(3, 0));
  // Both replicas clip and zero all of them, each updates half.
  RangeUse use;
  const double more = models.costs.kernels.elementwise().seconds(Elementwise::optimizer, 16 * kHeld, use);
  CHECK(to_seconds(first.optimizer - GradientSync(scattered.costs).stages()[0].optimizer) ==
        doctest::Approx(more));
  sync.begin_step();
  add_lane(sync, {{7 * kLong, 8 * kLong, 9 * kLong}, {1 * kLong, 2 * kLong, 3 * kLong}});
  CHECK(sync.finish(9 * kLong).step == 9 * kLong + first.reduce + first.optimizer + first.gather);
  // Where states are not sharded the key means nothing.
  const Models whole(model_of(4), replicated(0), framework);
  CHECK(GradientSync(whole.costs).stages()[0].reduce == 0);
}

TEST_CASE(
    "Gradients that no backward hides are reduced at once behind the last, by the collective of the states") {
  FrameworkOptions framework;
  framework.overlap_grad_reduce = false;
  constexpr double kHeld = 2 * 41088 + 256 * 64;
  for (const int zero : {0, 1, 2}) {
    CAPTURE(zero);
    const Models models(model_of(4), replicated(zero), framework), overlapped(model_of(4), replicated(zero));
    GradientSync sync(models.costs), hidden(overlapped.costs);
    const GradientSync::StageCosts& first = sync.stages()[0];
    if (zero == 2) {  // which has no room for whole gradients
      CHECK(first.reduce == 0);
      continue;
    }
    RangeUse use;
    const Collective kind = zero == 0 ? Collective::all_reduce : Collective::reduce_scatter;
    CHECK(to_seconds(first.reduce) == doctest::Approx(models.costs.kernels.collectives().seconds(
                                          kind, 4 * kHeld, models.grid.data_context_shape(), use)));
    CHECK(first.reduce_bytes == (zero == 0 ? 2 : 1) * 4 * kHeld);
    const std::vector<std::vector<Picoseconds>> ready = {{7 * kLong, 8 * kLong, 9 * kLong},
                                                         {1 * kLong, 2 * kLong, 3 * kLong}};
    sync.begin_step();
    add_lane(sync, ready);
    CHECK(sync.finish(9 * kLong).step == 9 * kLong + first.reduce + first.optimizer + first.gather);
    hidden.begin_step();
    add_lane(hidden, ready);
    CHECK(hidden.finish(9 * kLong).step < 9 * kLong + first.reduce + first.optimizer + first.gather);
  }
}

TEST_CASE("Buckets of a size: a layer of three of them takes three calls, one of a half its half") {
  FrameworkOptions framework;
  const auto layer = [&](double buckets) {
    framework.gradient_bucket_MB = 2 * 41088 / buckets / (1024 * 1024);  // of bf16 weights
    const Models models(model_of(4), replicated(0), framework);
    CHECK(to_seconds(GradientSync(models.costs).stages()[0].buckets[0][0]) ==
          doctest::Approx(buckets * all_reduce(models, 41088 / buckets)));
  };
  layer(3);
  layer(0.5);
}
