// Lanes that wait for each other inside layers: expert-parallel exchanges across replicas, ZeRO-2's
// reductions and ZeRO-3's gathers and reductions. Both fidelities must agree, op by op, and with the longest
// path of the task graph.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/step/expansion.h"
#include "sim/step/op_step_simulator.h"
#include "sim/verify/longest_path.h"
#include "sim/verify/lowering.h"
#include "tests/sim/step/agreement.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

// Experts over lanes, sharded gradients or parameters, or both; lanes may hold different numbers of
// micro-batches, recompute different numbers of layers, are in two barrier groups and, without a pipeline,
// hold chunks in different groups.
Job coupled_job(std::uint64_t seed) {
  SplitMix64 random(seed * 1009 + 5);
  Job job = random_job(seed);
  const int zero = static_cast<int>(below(random, 4));
  const bool sharded = zero >= 2;
  const bool experts = !sharded || below(random, 3) == 0;
  job.model = builtin_model(experts ? "deepseek-v2" : "llama2-7b");
  job.model.layers =
      std::max(4, 2 * job.layout.pipeline * job.layout.virtual_pipeline) + static_cast<int>(below(random, 3));
  job.layout.data = 1 << (below(random, 3) + 1);
  job.layout.context = 1 << below(random, 3);
  if (experts) {
    job.layout.context_comm = ContextComm::all_gather;
    job.layout.expert = 1 << below(random, 5);
    if (below(random, 2) == 0) job.layout.expert_tensor = 1;
    const int ranks =
        job.layout.tensor / job.layout.expert_tensor_size() * job.layout.data * job.layout.context;
    while (ranks % job.layout.expert != 0) job.layout.expert /= 2;
  }
  job.layout.zero = zero;
  job.layout.reduce_each_micro_batch = true;
  if (zero == 3) {
    job.layout.pipeline = job.layout.virtual_pipeline = 1;
    if (job.options.schedule->name == "interleaved-1f1b") job.options.schedule = &schedule_policy("1f1b");
  }
  const bool uneven = job.layout.virtual_pipeline == 1;
  const bool chunks = job.options.schedule->name == "state-aware-1f1b" && job.layout.pipeline == 1;
  if (chunks && job.layout.context_comm == ContextComm::disaggregated)  // which refuses them
    job.layout.context_comm = ContextComm::group_cast;
  job.options.keep = static_cast<int>(below(random, 3)) + 1;
  job.step.lanes.clear();
  std::int64_t document = 0;
  const bool barrier = below(random, 4) == 0;
  const std::uint64_t same = static_cast<std::uint64_t>(job.layout.pipeline) * (below(random, 2) + 1);
  for (int l = 0; l < job.layout.data; ++l) {
    Lane lane;
    lane.context = job.layout.context;
    lane.barrier_group = barrier && l >= job.layout.data / 2 ? 1 : 0;
    const std::uint64_t count = uneven ? below(random, 5) : same;  // sometimes a lane without work
    while (lane.micro_batches.size() < count) {
      if (chunks && below(random, 3) == 0) {
        const int pieces = static_cast<int>(below(random, 3)) + 2;
        for (int i = 0; i < pieces; ++i) {
          MicroBatch chunk;
          chunk.slices = {{document, i * 1000, (i + 1) * 1000}};
          chunk.chunk = {document, i, pieces, 0};
          lane.micro_batches.push_back(chunk);
        }
        ++document;
        continue;
      }
      lane.micro_batches.push_back(random_micro_batch(random, document));
      if (below(random, 3) == 0)
        lane.micro_batches.back().recompute_layers =
            static_cast<int>(below(random, static_cast<std::uint64_t>(job.model.layers) + 1));
    }
    job.step.lanes.push_back(lane);
  }
  job.text = job.model.name + ", " + std::string(job.options.schedule->name) + ", tp " +
             std::to_string(job.layout.tensor) + ", cp " + std::to_string(job.layout.context) + ", pp " +
             std::to_string(job.layout.pipeline) + ", dp " + std::to_string(job.layout.data) + ", ep " +
             std::to_string(job.layout.expert) + ", zero " + std::to_string(job.layout.zero);
  vary_overlap(seed / 3, job);  // other seeds than those that the tests choose by
  return job;
}

// Whether exchanges of one micro-batch run over ops of another.
bool has_pair_with_exchanges(const OpProgram& program) {
  for (const OpLane& lane : program.lanes)
    for (const OpBlock& block : lane.blocks)
      for (std::size_t s = 0; s < block.steps.size(); ++s)
        for (std::size_t o = 1; o <= block.steps[s].over; ++o)
          if (block.steps[s].of_second != block.steps[s + o].of_second) return true;
  return false;
}

}  // namespace

TEST_CASE("lanes in lockstep: stage and op fidelity agree, and the step is the longest path of its graph") {
  int met = 0, paired = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Job job = coupled_job(seed);
    CAPTURE(seed);
    CAPTURE(job.text);
    const Prices prices(job);
    const StepResult stage = StepSimulator(prices.costs, job.shard, job.options, nullptr).run(job.step);
    const OpProgram program = check_fidelities_agree(job, prices, stage, seed);
    met += program.lockstep_groups > 0 ? 1 : 0;
    paired += has_pair_with_exchanges(program) ? 1 : 0;
  }
  CHECK(met > 130);
  CHECK(paired > 10);
}

TEST_CASE("lanes in lockstep: threads, stragglers and jitter, and a critical path without gaps") {
  for (std::uint64_t seed = 200; seed < 260; ++seed) {
    const Job job = coupled_job(seed);
    CAPTURE(job.text);
    const Prices prices(job);
    const OpProgram program =
        StepExpander(prices.costs, job.shard, job.options, seed % 2 == 0).expand(job.step);
    std::vector<double> speed(static_cast<std::size_t>(program.stages * program.replicas * program.tensor),
                              1.0);
    for (std::size_t g = 0; g < speed.size(); g += 3) speed[g] = 0.7;
    OpOptions options;
    options.speed = speed;
    options.jitter = {0.1, seed};
    const OpResult result = run(program, options);
    CHECK(run(lower(program, options, result).graph).makespan == result.makespan);
    OpOptions threads = options;
    threads.threads = 3;
    const OpResult many = run(program, threads);
    CHECK(many.makespan == result.makespan);
    for (std::size_t l = 0; l < program.lanes.size(); ++l) CHECK(many.lanes[l].end == result.lanes[l].end);

    const std::vector<PathSegment> path = critical_path(program, options, result);
    if (result.makespan == 0) continue;
    REQUIRE_FALSE(path.empty());
    CHECK(path.front().start == 0);
    CHECK(path.back().end == result.makespan);
    for (std::size_t i = 1; i < path.size(); ++i) REQUIRE(path[i].start == path[i - 1].end);
    for (const Stream stream : {Stream::ep, Stream::dp}) {
      Free free;
      free.streams[static_cast<std::size_t>(stream)] = true;
      CHECK(makespan_without(program, {}, free) <= run(program).makespan);
    }
    Free free;
    free.lane = path.front().lane;
    free.micro_batch = 0;
    CHECK(makespan_without(program, {}, free) <= run(program).makespan);
  }
}

TEST_CASE(
    "lanes in lockstep: with links to spare contention changes nothing, a slow network makes steps longer") {
  int slower = 0;
  for (std::uint64_t seed = 400; seed < 416; ++seed) {
    const Job job = coupled_job(seed);
    CAPTURE(job.text);
    const Prices prices(job, 2);
    slower += check_contention(job, prices).longer() ? 1 : 0;
  }
  CHECK(slower > 8);
}

TEST_CASE(
    "lanes in lockstep: scaling every duration scales the step; a step reports the same at both fidelities") {
  for (std::uint64_t seed = 300; seed < 340; ++seed) {
    Job job = coupled_job(seed);
    job.options.record_gpus = true;
    job.options.record_ops = true;
    CAPTURE(job.text);
    const Prices prices(job);
    OpProgram program = StepExpander(prices.costs, job.shard, job.options, true).expand(job.step);
    const Picoseconds once = run(program).makespan;
    for (OpLane& lane : program.lanes) {
      for (OpBlock& block : lane.blocks)
        for (Picoseconds& duration : block.durations) duration *= 7;
      for (Picoseconds& duration : lane.transfers) duration *= 7;
    }
    for (StageEnd& end : program.ends) {
      for (Picoseconds& duration : end.buckets) duration *= 7;
      for (Picoseconds& duration : end.durations) duration *= 7;
      end.lost *= 7;
    }
    CHECK(run(program).makespan == 7 * once);

    const StepResult stage = StepSimulator(prices.costs, job.shard, job.options, nullptr).run(job.step);
    const StepResult op = OpStepSimulator(prices.costs, job.shard, job.options, {}).run(job.step);
    CHECK(op.times.makespan == stage.times.makespan);
    CHECK(op.times.ops.size() == stage.times.ops.size());
    CHECK(op.times.losses.bubble_ratio == doctest::Approx(stage.times.losses.bubble_ratio).epsilon(1e-9));
    REQUIRE(op.times.gpu_compute.size() == stage.times.gpu_compute.size());
    // The op of another nano-batch has its TP collectives in it.
    if (job.layout.nano_batches_of(job.layout.context) > 1 && job.layout.tensor > 1) continue;
    for (std::size_t g = 0; g < op.times.gpu_compute.size(); ++g)
      CHECK(op.times.gpu_compute[g] == doctest::Approx(stage.times.gpu_compute[g]).epsilon(1e-9));
  }
}
