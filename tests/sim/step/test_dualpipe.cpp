// Schedules from both ends with two copies of each layer: both fidelities and the task graph agree.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "sim/step/expansion.h"
#include "sim/step/gradient_sync.h"
#include "sim/step/op_step_simulator.h"
#include "sim/topology/fabric.h"
#include "sim/verify/longest_path.h"
#include "sim/verify/lowering.h"
#include "tests/sim/step/agreement.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

// DualPipe with or without experts over its lanes, which hold unequal micro-batches; lanes that share experts
// may hold unequal numbers of them.
Job both_ends_job(std::uint64_t seed) {
  SplitMix64 random(seed * 271 + 9);
  Job job = random_job(seed);
  const bool experts = seed % 3 != 0;
  job.model = builtin_model(experts ? "deepseek-v2" : "llama2-7b");
  job.layout.pipeline = 2 << below(random, 2);
  job.layout.virtual_pipeline = 1;
  job.layout.bidirectional = true;
  job.model.layers = job.layout.pipeline + static_cast<int>(below(random, 6));
  job.layout.count_embedding_and_head = false;
  job.layout.tensor = 1 << below(random, 2);
  job.layout.context = 1 << below(random, 2);
  job.layout.data = 1 << below(random, 3);
  job.layout.zero = static_cast<int>(below(random, 2));
  job.options.schedule = &schedule_policy("dualpipe");
  if (experts) {
    job.layout.context_comm = ContextComm::all_gather;
    job.layout.expert = std::min(8, job.layout.data * job.layout.context);
    job.framework.expert_overlap = ExpertOverlap::dualpipe;
  }
  const auto most = static_cast<std::uint64_t>(2 * job.layout.pipeline) + 2 * below(random, 3);
  job.step.lanes.clear();
  std::int64_t document = 0;
  for (int l = 0; l < job.layout.data; ++l) {
    Lane& lane = job.step.lanes.emplace_back();
    lane.context = job.layout.context;
    // The others share its exchanges, and its number of micro-batches.
    const std::uint64_t count = l > 0 && job.layout.expert > 1 ? below(random, most + 1) : most;
    while (lane.micro_batches.size() < count) {
      lane.micro_batches.push_back(random_micro_batch(random, document));
      if (below(random, 4) == 0)
        lane.micro_batches.back().recompute_layers =
            static_cast<int>(below(random, static_cast<std::uint64_t>(job.model.layers) + 1));
    }
  }
  return job;
}

}  // namespace

TEST_CASE("From both ends stage and op fidelity agree, and the step is the longest path of its graph") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Job job = both_ends_job(seed);
    CAPTURE(seed);
    job.options.record_gpus = true;
    const Prices prices(job);
    const StepResult stage = StepSimulator(prices.costs, job.shard, job.options, nullptr).run(job.step);
    check_fidelities_agree(job, prices, stage, seed);
    const StepTimes at_op = OpStepSimulator(prices.costs, job.shard, job.options, {}).run(job.step).times;
    CHECK(at_op.losses.bubble_ratio == doctest::Approx(stage.times.losses.bubble_ratio).epsilon(1e-9));
    for (std::size_t g = 0; g < at_op.gpu_compute.size(); ++g)
      CHECK(at_op.gpu_compute[g] == doctest::Approx(stage.times.gpu_compute[g]).epsilon(1e-9));
  }
}

TEST_CASE(
    "From both ends with links to spare contention changes nothing, a slow network makes steps longer") {
  int slower = 0;
  for (std::uint64_t seed = 100; seed < 108; ++seed) {
    const Job job = both_ends_job(seed);
    CAPTURE(seed);
    const Prices prices(job, 2);
    slower += check_contention(job, prices).longer() ? 1 : 0;
  }
  CHECK(slower > 4);
}

TEST_CASE(
    "Every layer is run once for each micro-batch: compute is that of 1F1B, on pairs of opposite ranks") {
  for (const int pipeline : {2, 4}) {
    Job job = both_ends_job(1);
    job.layout.pipeline = pipeline;
    job.model.layers = 2 * pipeline;
    job.layout.recompute = Recompute::none;
    job.options.record_gpus = true;
    job.step.lanes.clear();
    for (int l = 0; l < job.layout.data; ++l) {
      Lane& lane = job.step.lanes.emplace_back();
      lane.context = job.layout.context;
      for (int j = 0; j < 2 * pipeline; ++j)
        lane.micro_batches.emplace_back().slices = {{l * 100 + j, 0, 4096}};
    }
    const auto compute = [&](const char* schedule) {
      job.options.schedule = &schedule_policy(schedule);
      job.layout.bidirectional = job.options.schedule->bidirectional;
      const Prices prices(job);
      return StepSimulator(prices.costs, job.shard, job.options, nullptr).run(job.step).times.gpu_compute;
    };
    const std::vector<double> one_way = compute("1f1b"), both_ends = compute("dualpipe");
    REQUIRE(one_way.size() == both_ends.size());
    const std::size_t of_stage = one_way.size() / static_cast<std::size_t>(pipeline);
    for (std::size_t s = 0; s < static_cast<std::size_t>(pipeline); ++s)
      for (std::size_t g = 0; g < of_stage; ++g) {
        const std::size_t own = s * of_stage + g,
                          opposite = (static_cast<std::size_t>(pipeline) - 1 - s) * of_stage + g;
        // Half of the micro-batches through each of the two blocks.
        CHECK(both_ends[own] == doctest::Approx((one_way[own] + one_way[opposite]) / 2).epsilon(1e-12));
      }
  }
}

TEST_CASE("The two copies of a layer tell each other their gradients: a reduction between opposite ranks") {
  Job job = both_ends_job(1);
  job.model = builtin_model("llama2-7b");
  job.layout.expert = 1;
  job.layout.pipeline = 2;
  job.layout.data = 2;
  for (const int zero : {0, 1}) {
    job.layout.zero = zero;
    const Prices both(job);
    job.layout.bidirectional = false;
    const Prices one_way(job);
    job.layout.bidirectional = true;
    const GradientSync copies(both.costs), alone(one_way.costs);
    for (std::size_t s = 0; s < 2; ++s) {
      const GradientSync::StageCosts &two = copies.stages()[s], &own = alone.stages()[s],
                                     &other = alone.stages()[1 - s];
      REQUIRE(two.buckets.size() == 2);
      CHECK(two.buckets[0] == own.buckets[0]);
      CHECK(two.buckets[1] == other.buckets[0]);
      CHECK(two.copies > 0);
      CHECK(own.copies == 0);
      // Twice as many ranks share the states of twice as many parameters (ZeRO-1), or each updates all of
      // them.
      const double share = zero == 0 ? 1 : 2;
      CHECK(to_seconds(two.optimizer) ==
            doctest::Approx(to_seconds(own.optimizer + other.optimizer) / share).epsilon(0.05));
    }
  }
}
