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
