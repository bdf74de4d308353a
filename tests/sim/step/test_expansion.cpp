// The two fidelities run the same costs: over random plans, layouts and schedules the op engine's step must
// be the stage engine's, and the longest path of its task graph.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "policies/base/random.h"
#include "policies/sharding/sharding.h"
#include "profiler/profile/profile.h"
#include "sim/step/expansion.h"
#include "sim/step/gpu_compute.h"
#include "sim/step/op_run.h"
#include "sim/step/op_step_simulator.h"
#include "sim/verify/longest_path.h"
#include "sim/verify/lowering.h"
#include "tests/sim/models.h"
#include "tests/sim/step/agreement.h"

using namespace equipoise;
using namespace equipoise::testing;

TEST_CASE("stage and op fidelity agree, and the op step is the longest path of its task graph") {
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    const Job job = random_job(seed);
    CAPTURE(seed);
    CAPTURE(job.text);
    const Prices prices(job);
    const StepResult stage = StepSimulator(prices.costs, job.shard, job.options, nullptr).run(job.step);
    check_fidelities_agree(job, prices, stage, seed);
  }
}

// Where all layers of a virtual stage are frozen, its backward does nothing and fills no bucket, but the
// stage waits for it before the step ends. PP 2 x 2 chunks of two layers: 3 to 5 frozen layers leave some
// chunks whole, some in part, some frozen.
TEST_CASE("Both fidelities agree however many of the first layers are frozen, with virtual stages") {
  for (std::uint64_t seed = 0; seed < 12; ++seed)
    for (int frozen = 0; frozen <= 8; ++frozen) {
      Job job = random_job(seed);
      job.model = builtin_model("llama2-7b");
      job.model.layers = 8;
      job.model.training.frozen = bit_of(WeightKind::embedding);
      job.model.training.frozen_layers = frozen;
      job.layout = {};
      job.layout.pipeline = job.layout.virtual_pipeline = 2;
      job.layout.data = 1 + static_cast<int>(seed % 2);
      job.layout.zero = static_cast<int>(seed % 3);
      job.options.schedule = &schedule_policy("interleaved-1f1b");
      std::int64_t document = 0;
      job.step.lanes.assign(static_cast<std::size_t>(job.layout.data), {});
      for (Lane& lane : job.step.lanes)
        for (int m = 0; m < 4; ++m)
          lane.micro_batches.push_back(documents({1000 + 700 * m, 300}, 2 * document++));
      CAPTURE(seed);
      CAPTURE(frozen);
      const Prices prices(job);
      const StepResult stage = StepSimulator(prices.costs, job.shard, job.options, nullptr).run(job.step);
      check_fidelities_agree(job, prices, stage, seed);
    }
}

// All CP ranks of a layer together do the attention of all its pairs, whatever the sharding and the exchange.
TEST_CASE("The FLOPs of CP ranks add up to those of their documents") {
  int uneven = 0;
  for (std::uint64_t seed = 400; seed < 440; ++seed) {
    Job job = random_job(seed);
    if (job.model.sliding_window > 0 || job.model.moe || job.model.recurrence || job.layout.context == 1)
      continue;
    job.shard.fixed = &sharding_policy(seed % 2 == 0 ? "per-document" : "contiguous");
    CAPTURE(seed);
    CAPTURE(job.text);
    const Prices prices(job);
    const OpProgram program = StepExpander(prices.costs, job.shard, job.options, true).expand(job.step);
    for (std::size_t l = 0; l < program.lanes.size(); ++l)
      for (const OpBlock& block : program.lanes[l].blocks) {
        if (block.role != BlockRole::layer_forward || block.steps.empty()) continue;
        double flops = 0;
        for (const OpStep& step : block.steps) {
          if (step.name != OpName::attention) continue;
          uneven += step.rank_work == OpStep::kAlike ? 0 : 1;
          for (int r = 0; r < job.layout.context; ++r)
            flops += block.work(step, static_cast<std::size_t>(r)).flops;
        }
        const MicroBatch& micro_batch = job.step.lanes[l].micro_batches[at(block.micro_batch)];
        double pairs = 0;
        for (const Slice& slice : micro_batch.slices)
          pairs += causal_pairs(static_cast<double>(slice.tokens()), 0, 0);
        CHECK(flops == doctest::Approx(prices.costs.attention.forward_flops(pairs)).epsilon(1e-6));
      }
  }
  CHECK(uneven > 100);
}

// One document in runs of a quarter: rank r's queries see r quarters whole and half of their own, so that
// ranks do 1, 3, 5 and 7 of 16 parts, but for the diagonal.
TEST_CASE("Contiguous runs of one document do FLOPs as 1 to 3 to 5 to 7") {
  Job job = random_job(2);
  job.model = builtin_model("llama2-7b");
  job.layout = {};
  job.layout.context = 4;
  job.layout.context_comm = ContextComm::all_gather;
  job.shard.fixed = &sharding_policy("contiguous");
  job.step.lanes.assign(1, {});
  job.step.lanes[0].context = 4;
  job.step.lanes[0].micro_batches = {documents({65536})};
  const Prices prices(job);
  const OpProgram program = StepExpander(prices.costs, job.shard, job.options, true).expand(job.step);
  for (const OpBlock& block : program.lanes[0].blocks) {
    if (block.role != BlockRole::layer_forward || block.steps.empty()) continue;
    const auto step = std::ranges::find(block.steps, OpName::attention, &OpStep::name);
    REQUIRE(step != block.steps.end());
    for (std::size_t r = 1; r < 4; ++r)
      CHECK(block.work(*step, r).flops / block.work(*step, 0).flops ==
            doctest::Approx(1.0 + 2.0 * static_cast<double>(r)).epsilon(1e-3));
  }
}

TEST_CASE("compute time per rank is the same at both fidelities") {
  for (std::uint64_t seed = 200; seed < 230; ++seed) {
    Job job = random_job(seed);
    job.options.record_gpus = true;
    CAPTURE(job.text);
    const Prices prices(job);
    const StepResult stage = StepSimulator(prices.costs, job.shard, job.options, nullptr).run(job.step);
    const OpProgram program = StepExpander(prices.costs, job.shard, job.options, true).expand(job.step);
    const OpResult op = run(program);
    GpuCompute gpus;
    gpus.begin_step(job.step, job.layout, program.tensor);
    for (std::size_t l = 0; l < op.lanes.size(); ++l)
      for (int s = 0; s < program.stages; ++s) {
        const auto& busy = op.lanes[l].compute[static_cast<std::size_t>(s)];
        for (std::size_t r = 0; r < busy.size(); ++r) gpus.add(l, s, r, static_cast<double>(busy[r]) * 1e-12);
      }
    REQUIRE(gpus.seconds().size() == stage.times.gpu_compute.size());
    for (std::size_t g = 0; g < stage.times.gpu_compute.size(); ++g)
      CHECK(gpus.seconds()[g] == doctest::Approx(stage.times.gpu_compute[g]).epsilon(1e-9));
  }
}

TEST_CASE("a step at op fidelity reports what the stage engine reports, and stragglers only slow it") {
  for (std::uint64_t seed = 300; seed < 330; ++seed) {
    Job job = random_job(seed);
    job.options.record_gpus = true;
    job.options.record_ops = true;
    CAPTURE(job.text);
    const Prices prices(job);
    const StepResult stage = StepSimulator(prices.costs, job.shard, job.options, nullptr).run(job.step);
    const StepResult op = OpStepSimulator(prices.costs, job.shard, job.options, {}).run(job.step);
    CHECK(op.times.makespan == stage.times.makespan);
    CHECK(op.times.gradient_wait == stage.times.gradient_wait);
    CHECK(op.work == stage.work);
    CHECK(op.times.ops.size() == stage.times.ops.size());
    CHECK(op.times.losses.bubble_ratio == doctest::Approx(stage.times.losses.bubble_ratio).epsilon(1e-9));
    OpStepOptions slow;
    slow.speed.assign(static_cast<std::size_t>(job.layout.pipeline * job.layout.data * job.layout.context),
                      1.0);
    slow.speed[0] = 0.5;
    CHECK(OpStepSimulator(prices.costs, job.shard, job.options, slow).run(job.step).times.makespan >=
          stage.times.makespan);
  }
}

TEST_CASE("with links to spare contention changes nothing; a slow spine makes the step longer") {
  for (std::uint64_t seed = 400; seed < 412; ++seed) {
    const Job job = random_job(seed);
    CAPTURE(job.text);
    const Prices prices(job, 2);
    const Slowed step = check_contention(job, prices);
    if (prices.grid.nodes() > 1 && job.layout.data > 1 && step.alone > 0) CHECK(step.longer());
  }
}

TEST_CASE("the parameter gather at the end of a step takes as long as its slowest link") {
  // Two replicas of 4 layers of 41,088 parameters, two embeddings of 16,384 and a norm of 64: each sends the
  // half that it has updated, 197,184 parameters / 2 x 2 bytes, over a NIC of 1 MB/s. Nothing else runs then.
  const ModelShape model = model_of(4);
  REQUIRE(model.parameters() == 197184);
  Layout layout;
  layout.data = 2;
  layout.zero = 1;
  const RankGrid grid(layout.order, {1, 1, 1, 2, 1}, 1);
  const Fabric slow = network_of(grid, 450, 0.001);
  ShardRule shard;
  shard.fixed = &sharding_policy("per-sequence");
  shard.options.pad = Pad::tail;
  StepOptions run_by;
  run_by.schedule = &schedule_policy("1f1b");
  Step step;
  step.lanes.resize(2);
  for (int l = 0; l < 2; ++l) {
    step.lanes[static_cast<std::size_t>(l)].context = 1;
    step.lanes[static_cast<std::size_t>(l)].micro_batches.resize(1);
    step.lanes[static_cast<std::size_t>(l)].micro_batches[0].slices = {{l, 0, 512}};
  }
  const auto seconds = [&](bool hidden_gather) {
    FrameworkOptions framework;
    framework.overlap_param_gather = hidden_gather;
    const LayerCosts costs(model, layout, profile(), grid, {}, framework);
    OpStepOptions options;
    options.fabric = &slow;
    return OpStepSimulator(costs, shard, run_by, options).run(step).times.makespan;
  };
  const Picoseconds gather = seconds(false) - seconds(true);
  CHECK(std::abs(gather - 197'184'000'000) <= 1);  // picoseconds, rounded
}

TEST_CASE("the critical path of a real step adds up, and by document to what the micro-batches had") {
  for (std::uint64_t seed = 500; seed < 520; ++seed) {
    const Job job = random_job(seed);
    CAPTURE(job.text);
    const Prices prices(job);
    OpStepSimulator simulator(prices.costs, job.shard, job.options, {});
    const StepResult result = simulator.run(job.step);
    const std::vector<PathSegment> path = simulator.critical_path();
    if (result.times.makespan == 0) continue;
    Picoseconds sum = 0, of_lanes = 0;
    for (const PathSegment& s : path) {
      sum += s.end - s.start;
      if (s.lane >= 0) of_lanes += s.end - s.start;
    }
    CHECK(sum == result.times.makespan);
    double of_documents = 0;
    for (const DocumentShare& d : share_by_document(job.step, path)) of_documents += d.seconds;
    CHECK(of_documents == doctest::Approx(static_cast<double>(of_lanes) * 1e-12).epsilon(1e-9));
  }
}
