// The two fidelities run the same costs: over random plans, layouts and schedules the op engine's step must
// be the stage engine's, and the longest path of the task graph it stands for.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "policies/random.h"
#include "policies/sharding/sharding.h"
#include "profiler/profile/profile.h"
#include "sim/engine/engine.h"
#include "sim/engine/op/expansion.h"
#include "sim/engine/op/op_step.h"
#include "sim/engine/op_engine.h"
#include "sim/engine/op_lowering.h"
#include "sim/engine/stage/step_simulator.h"

using namespace equipoise;

namespace {

struct Job {
  ModelShape model;
  Layout layout;
  FrameworkOptions framework;
  ShardRule shard;
  StepOptions options;
  Step step;
  std::string text;
};

std::uint64_t below(SplitMix64& random, std::uint64_t n) {
  return random.next() % n;
}

// A few documents of very different lengths.
MicroBatch random_micro_batch(SplitMix64& random, std::int64_t& document) {
  MicroBatch micro_batch;
  const std::uint64_t documents = below(random, 6);  // sometimes none
  for (std::uint64_t d = 0; d < documents; ++d) {
    const std::int64_t length = static_cast<std::int64_t>(below(random, 1ULL << (6 + below(random, 9)))) + 1;
    micro_batch.slices.push_back({document++, 0, length});
  }
  return micro_batch;
}

Job random_job(std::uint64_t seed) {
  SplitMix64 random(seed);
  Job job;
  job.model = builtin_model(below(random, 4) == 0 ? "deepseek-v2" : "llama2-7b");
  const bool moe = job.model.moe.has_value();
  job.model.layers = static_cast<int>(below(random, 6)) + 6;
  job.layout.tensor = 1 << below(random, 3);
  job.layout.context = 1 << below(random, 3);
  job.layout.pipeline = 1 << below(random, 3);
  job.layout.data = static_cast<int>(below(random, 3)) + 1;
  job.layout.zero = static_cast<int>(below(random, 2));
  job.layout.recompute = static_cast<Recompute>(below(random, 4));
  job.layout.recompute_layers = static_cast<int>(below(random, static_cast<std::uint64_t>(job.model.layers)));
  job.layout.context_comm = moe ? ContextComm::all_gather : static_cast<ContextComm>(below(random, 3));
  job.framework.tp_overlap_forward = below(random, 2) == 0;
  static const char* const kSchedules[] = {"gpipe", "1f1b", "interleaved-1f1b", "state-aware-1f1b", "zb-h1"};
  const std::string schedule = kSchedules[below(random, 5)];
  job.options.schedule = &schedule_policy(schedule);
  job.options.blocking_sends = below(random, 3) == 0;
  std::uint64_t micro_batches = below(random, 5) + 1;
  if (schedule == "interleaved-1f1b" && job.layout.pipeline > 1) {
    job.layout.virtual_pipeline = 2;
    job.model.layers = 2 * job.layout.pipeline + static_cast<int>(below(random, 3));
    micro_batches = static_cast<std::uint64_t>(job.layout.pipeline) * (below(random, 2) + 1);
  }
  job.shard.fixed = &sharding_policy("per-document");
  job.shard.options.pad = Pad::tail;
  std::int64_t document = 0;
  for (int l = 0; l < job.layout.data; ++l) {
    Lane lane;
    lane.context = job.layout.context;
    for (std::uint64_t m = 0; m < micro_batches; ++m)
      lane.micro_batches.push_back(random_micro_batch(random, document));
    job.step.lanes.push_back(lane);
  }
  job.text = job.model.name + ", " + schedule + ", tp " + std::to_string(job.layout.tensor) + ", cp " +
             std::to_string(job.layout.context) + " " + name_of(job.layout.context_comm) + ", pp " +
             std::to_string(job.layout.pipeline) + ", dp " + std::to_string(job.layout.data) +
             ", recompute " + name_of(job.layout.recompute);
  return job;
}

const Profile& profile() {
  static const Profile loaded = Profile::load("h100-sxm");
  return loaded;
}

}  // namespace

TEST_CASE("stage and op fidelity agree, and the op step is the longest path of its task graph") {
  double worst = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    const Job job = random_job(seed);
    CAPTURE(seed);
    CAPTURE(job.text);
    const Placement placement(
        job.layout.order, {job.layout.tensor, job.layout.context, 1, job.layout.data, job.layout.pipeline},
        8);
    const LayerCosts costs(job.model, job.layout, profile(), placement, {}, job.framework);
    const StepResult stage = StepSimulator(costs, job.shard, job.options, nullptr).run(job.step);
    const OpProgram program = StepExpander(costs, job.shard, job.options, true).expand(job.step);
    const OpResult op = run(program);
    if (stage.step > 0) {
      const double off =
          std::abs(static_cast<double>(op.makespan - stage.step)) / static_cast<double>(stage.step);
      worst = std::max(worst, off);
      CHECK(off < 1e-3);
      CHECK(op.pipeline_end == stage.pipeline);
    }
    if (seed % 4 == 0) CHECK(run(lower(program, {}, op).graph).makespan == op.makespan);
    // Every GPU with its own tasks: TP ranks do the same, so nothing changes.
    if (seed % 4 == 1 && job.layout.tensor > 1) {
      const OpProgram unfolded = StepExpander(costs, job.shard, job.options, false).expand(job.step);
      CHECK(unfolded.ranks() == program.ranks() * job.layout.tensor);
      CHECK(run(unfolded).makespan == op.makespan);
    }
  }
  MESSAGE("largest relative difference of a step: " << worst);
}

TEST_CASE("compute time per rank is the same at both fidelities") {
  for (std::uint64_t seed = 200; seed < 230; ++seed) {
    Job job = random_job(seed);
    job.options.record_gpus = true;
    CAPTURE(job.text);
    const Placement placement(
        job.layout.order, {job.layout.tensor, job.layout.context, 1, job.layout.data, job.layout.pipeline},
        8);
    const LayerCosts costs(job.model, job.layout, profile(), placement, {}, job.framework);
    const StepResult stage = StepSimulator(costs, job.shard, job.options, nullptr).run(job.step);
    const OpProgram program = StepExpander(costs, job.shard, job.options, true).expand(job.step);
    const OpResult op = run(program);
    std::size_t gpu = 0;
    for (const OpResult::Lane& lane : op.lanes)
      for (const auto& ranks : lane.compute)
        for (const SimTime busy : ranks) {
          REQUIRE(gpu < stage.gpu_compute.size());
          CHECK(static_cast<double>(busy) * 1e-12 == doctest::Approx(stage.gpu_compute[gpu++]).epsilon(1e-9));
        }
    CHECK(gpu == stage.gpu_compute.size());
  }
}

TEST_CASE("a step at op fidelity reports what the stage engine reports, and stragglers only slow it") {
  for (std::uint64_t seed = 300; seed < 330; ++seed) {
    Job job = random_job(seed);
    job.options.record_gpus = true;
    job.options.record_ops = true;
    CAPTURE(job.text);
    const Placement placement(
        job.layout.order, {job.layout.tensor, job.layout.context, 1, job.layout.data, job.layout.pipeline},
        8);
    const LayerCosts costs(job.model, job.layout, profile(), placement, {}, job.framework);
    const StepResult stage = StepSimulator(costs, job.shard, job.options, nullptr).run(job.step);
    const StepResult op = OpStepSimulator(costs, job.shard, job.options, {}).run(job.step);
    CHECK(op.step == stage.step);
    CHECK(op.gradient_wait == stage.gradient_wait);
    CHECK(op.tokens == stage.tokens);
    CHECK(op.ops.size() == stage.ops.size());
    CHECK(op.bubble_ratio == doctest::Approx(stage.bubble_ratio).epsilon(1e-9));
    OpStepOptions slow;
    slow.speed.assign(static_cast<std::size_t>(job.layout.pipeline * job.layout.data * job.layout.context),
                      1.0);
    slow.speed[0] = 0.5;
    CHECK(OpStepSimulator(costs, job.shard, job.options, slow).run(job.step).step >= stage.step);
  }
}

TEST_CASE("with links to spare contention changes nothing; a slow spine makes the step longer") {
  for (std::uint64_t seed = 400; seed < 412; ++seed) {
    const Job job = random_job(seed);
    CAPTURE(job.text);
    const Placement placement(
        job.layout.order, {job.layout.tensor, job.layout.context, 1, job.layout.data, job.layout.pipeline},
        2);
    const LayerCosts costs(job.model, job.layout, profile(), placement, {}, job.framework);
    FabricOptions network;
    network.gpus = placement.gpus();
    network.gpus_per_node = 2;
    network.nvlink_GBps = network.nic_GBps = 1e6;
    const Fabric fast(network);
    network.nvlink_GBps = 450;
    network.nic_GBps = 1;
    const Fabric slow(network);
    OpStepOptions options;
    const Picoseconds alone = OpStepSimulator(costs, job.shard, job.options, options).run(job.step).step;
    options.fabric = &fast;
    CHECK(OpStepSimulator(costs, job.shard, job.options, options).run(job.step).step == alone);
    options.fabric = &slow;
    const Picoseconds slowed = OpStepSimulator(costs, job.shard, job.options, options).run(job.step).step;
    CHECK(slowed >= alone);
    if (placement.nodes() > 1 && job.layout.data > 1 && alone > 0) CHECK(slowed > alone);
  }
}

TEST_CASE("the critical path of a real step adds up, and by document to what the micro-batches had") {
  for (std::uint64_t seed = 500; seed < 520; ++seed) {
    const Job job = random_job(seed);
    CAPTURE(job.text);
    const Placement placement(
        job.layout.order, {job.layout.tensor, job.layout.context, 1, job.layout.data, job.layout.pipeline},
        8);
    const LayerCosts costs(job.model, job.layout, profile(), placement, {}, job.framework);
    OpStepSimulator simulator(costs, job.shard, job.options, {});
    const StepResult result = simulator.run(job.step);
    const std::vector<PathSegment> path = simulator.critical_path();
    if (result.step == 0) continue;
    SimTime sum = 0, of_lanes = 0;
    for (const PathSegment& s : path) {
      sum += s.end - s.start;
      if (s.lane >= 0) of_lanes += s.end - s.start;
    }
    CHECK(sum == result.step);
    double of_documents = 0;
    for (const DocumentShare& d : share_by_document(job.step, path)) of_documents += d.seconds;
    CHECK(of_documents == doctest::Approx(static_cast<double>(of_lanes) * 1e-12).epsilon(1e-9));
  }
}
