// Exchanges of experts with compute under them at op fidelity: by hand, and what holds for every step.
#include <doctest/doctest.h>

#include <numeric>

#include "sim/step/critical_path.h"
#include "sim/step/expansion.h"
#include "sim/step/layer_block.h"
#include "sim/verify/longest_path.h"
#include "sim/verify/lowering.h"
#include "tests/sim/step/random_job.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

OpBlock layer(OpName name, const std::vector<Picoseconds>& parts, Picoseconds exchange, Picoseconds taken) {
  OpBlock block;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) {
      block.steps.push_back({OpName::ep_all_to_all, Stream::ep, SyncGroup::expert});
      block.durations.push_back(exchange);
      if (taken > 0) {
        block.steps.back().over = 1;
        block.steps.push_back({OpName::taken_sms, Stream::ep});
        block.durations.push_back(taken);
      }
    }
    if (parts[i] == 0) continue;
    block.steps.push_back({name});
    block.durations.push_back(parts[i]);
  }
  return block;
}

// F1, the pair of F2 and B1, B2 on one rank of each of two lanes that share experts; `first`: what each
// computes in a forward before its first exchange; `taken`: what compute under an exchange loses to its SMs.
OpProgram two_lanes(const std::vector<Picoseconds>& first, Picoseconds taken = 0) {
  OpProgram program;
  program.replicas = static_cast<int>(first.size());
  program.lockstep_groups = 1;
  for (std::size_t l = 0; l < first.size(); ++l) {
    OpLane& lane = program.lanes.emplace_back();
    lane.first_replica = static_cast<int>(l);
    lane.lockstep = 0;
    lane.expert_group = {0};
    lane.blocks = {layer(OpName::attention, {first[l], 6, 1}, 5, taken),
                   layer(OpName::expert_gemm, {0, 9, 7}, 5, taken)};
    lane.blocks.push_back(pair_of_layers(lane.blocks[0], lane.blocks[1]));
    lane.runs = {{0}, {2}, {1}};
    const ScheduleOp ops[] = {
        {OpKind::F, 0, 0}, {OpKind::F, 1, 0, true}, {OpKind::B, 0, 0}, {OpKind::B, 1, 0}};
    lane.stages.resize(1);
    for (const ScheduleOp& op : ops) {
      ScheduledOp& scheduled = lane.stages[0].emplace_back();
      scheduled.op = op;
      const bool second = op.kind == OpKind::B && op.micro_batch == 0;
      scheduled.first_run = op.kind == OpKind::F ? static_cast<std::uint32_t>(op.micro_batch) : 2;
      scheduled.run_count = second ? 0 : 1;
    }
  }
  return program;
}

// A step of lanes that all hold the same micro-batches, so that none waits for another.
Job even_job(ExpertOverlap overlap, int pipeline, int micro_batches, const char* schedule) {
  Job job;
  job.model = builtin_model("deepseek-v2");
  job.model.layers = 2 * pipeline + 1;
  job.layout.data = job.layout.expert = 4;
  job.layout.pipeline = pipeline;
  job.layout.recompute = Recompute::none;
  job.framework.expert_overlap = overlap;
  job.framework.exchange_sms = micro_batches % 8 == 0 ? 33 : 0;
  job.options.schedule = &schedule_policy(schedule);
  job.options.record_gpus = true;
  if (job.options.schedule->name == "interleaved-1f1b") job.layout.virtual_pipeline = 2;
  if (job.layout.virtual_pipeline > 1) job.model.layers = 4 * pipeline + 1;
  job.shard.fixed = &sharding_policy("per-document");
  for (int l = 0; l < job.layout.data; ++l) {
    Lane& lane = job.step.lanes.emplace_back();
    for (int j = 0; j < micro_batches; ++j)
      lane.micro_batches.emplace_back().slices = {{l * micro_batches + j, 0, 4096}};
  }
  return job;
}

struct Outcome {
  Picoseconds makespan = 0;
  double compute = 0, exchanged = 0, exposed = 0;
};

Outcome outcome_of(const Job& job) {
  const Prices prices(job);
  const StepResult step = StepSimulator(prices.costs, job.shard, job.options, nullptr).run(job.step);
  const OpProgram program = StepExpander(prices.costs, job.shard, job.options, true).expand(job.step);
  CHECK(run(program).makespan == step.times.makespan);
  Outcome out;
  out.makespan = step.times.makespan;
  out.compute = std::accumulate(step.times.gpu_compute.begin(), step.times.gpu_compute.end(), 0.0);
  out.exposed = step.times.exposed_seconds[static_cast<std::size_t>(Stream::ep)];
  for (const OpLane& lane : program.lanes)
    for (const auto& stage : lane.stages)
      for (const ScheduledOp& op : stage)
        for (std::uint32_t r = 0; r < op.run_count; ++r) {
          const BlockRun& of = lane.runs[op.first_run + r];
          for (const OpStep& s : lane.blocks[of.block].steps)
            if (s.stream == Stream::ep) out.exchanged += of.repeat * s.bytes;
        }
  return out;
}

}  // namespace

TEST_CASE("Two layers side by side are issued slot by slot, each exchange over the other's compute") {
  const OpProgram program = two_lanes({4, 4});
  const OpBlock& pair = program.lanes[0].blocks[2];
  std::vector<std::pair<Picoseconds, std::uint32_t>> steps;
  std::vector<bool> of_second;
  for (std::size_t s = 0; s < pair.steps.size(); ++s) {
    steps.emplace_back(pair.durations[s], pair.steps[s].over);
    of_second.push_back(pair.steps[s].of_second);
  }
  CHECK(steps == std::vector<std::pair<Picoseconds, std::uint32_t>>{
                     {5, 1}, {4, 0}, {5, 1}, {9, 0}, {5, 1}, {6, 0}, {5, 1}, {7, 0}, {1, 0}});
  CHECK(of_second == std::vector<bool>{true, false, false, true, true, false, false, true, false});
}

TEST_CASE("Pairs by hand at op fidelity: the same 75 and 82 as the stage engine's") {
  // tests/sim/stage/test_expert_overlap.cpp derives both.
  const OpProgram even = two_lanes({4, 4}), uneven = two_lanes({4, 8});
  CHECK(run(even).makespan == 75);
  const OpResult result = run(uneven);
  CHECK(result.makespan == 82);
  CHECK(result.lanes[0].start[0] == std::vector<Picoseconds>{0, 25, 25, 55});
  CHECK(result.lanes[0].end[0] == std::vector<Picoseconds>{25, 55, 55, 82});
  CHECK(result.lanes[1].end[0] == std::vector<Picoseconds>{25, 56, 56, 82});
  CHECK(run(lower(uneven, {}, result).graph).makespan == 82);
  const std::vector<PathSegment> path = critical_path(uneven, {}, result);
  REQUIRE_FALSE(path.empty());
  CHECK(path.front().start == 0);
  for (std::size_t i = 1; i < path.size(); ++i) REQUIRE(path[i].start == path[i - 1].end);
  // The pair's backward has its ops named as those of the first micro-batch.
  bool backward_of_first = false;
  for (const PathSegment& s : path)
    backward_of_first = backward_of_first || (s.kind == OpKind::B && s.micro_batch == 0);
  CHECK(backward_of_first);
  // Without lane 1's first micro-batch F1 is at its exchanges at 4 and 0: they are lane 0's, 21 and 20 its
  // end.
  Free free;
  free.lane = 1;
  free.micro_batch = 0;
  CHECK(makespan_without(uneven, {}, free) < 82);
  free = {};
  free.streams[static_cast<std::size_t>(Stream::ep)] = true;
  // No exchange takes time, but ranks still meet. F1: both go on at 8, 14, 15. Pair, by rank: 19 and 23, 28
  // and 32, 34 and 38, 41 and 45, 42 and 46. B2: 46, 55, 62.
  CHECK(makespan_without(uneven, {}, free) == 62);
}

TEST_CASE("Exchanges that hold SMs, by hand at op fidelity: the same 82 as the stage engine's") {
  const OpProgram program = two_lanes({4, 4}, 2);
  const OpResult result = run(program);
  CHECK(result.makespan == 82);
  CHECK(result.lanes[0].end[0] == std::vector<Picoseconds>{21, 56, 56, 82});
  CHECK(run(lower(program, {}, result).graph).makespan == 82);
  // Free exchanges take nothing from anybody: 11, then 4 + 9 + 6 + 7 + 1, then 16.
  Free free;
  free.streams[static_cast<std::size_t>(Stream::ep)] = true;
  CHECK(makespan_without(program, {}, free) == 11 + 27 + 16);
}

TEST_CASE("No overlap makes an even step slower; compute and what is exchanged stay, less is exposed") {
  for (const int pipeline : {1, 2, 4})
    for (const int micro_batches : {1, 4, 8})
      for (const char* schedule : {"1f1b", "interleaved-1f1b", "gpipe"}) {
        const bool interleaved = std::string_view(schedule) == "interleaved-1f1b";
        if (interleaved && (pipeline == 1 || micro_batches % pipeline != 0)) continue;
        CAPTURE(pipeline);
        CAPTURE(micro_batches);
        CAPTURE(schedule);
        const Outcome none = outcome_of(even_job(ExpertOverlap::none, pipeline, micro_batches, schedule));
        for (const ExpertOverlap overlap :
             {ExpertOverlap::shared_expert, ExpertOverlap::deepep, ExpertOverlap::dualpipe}) {
          CAPTURE(name_of(overlap));
          const Outcome hidden = outcome_of(even_job(overlap, pipeline, micro_batches, schedule));
          CHECK(hidden.makespan <= none.makespan);
          CHECK(hidden.compute == doctest::Approx(none.compute).epsilon(1e-12));
          CHECK(hidden.exchanged == doctest::Approx(none.exchanged).epsilon(1e-12));
          CHECK(hidden.exposed <= none.exposed * (1 + 1e-12));
          const bool pairs = overlap == ExpertOverlap::dualpipe && std::string_view(schedule) != "gpipe" &&
                             micro_batches > 2 * pipeline;
          if (pairs || overlap == ExpertOverlap::shared_expert) {
            CHECK(hidden.makespan < none.makespan);
            CHECK(hidden.exposed < none.exposed);
          }
        }
      }
}

TEST_CASE(
    "Every second of a step counts once: compute, exposed communication, idle time and the step's end") {
  for (const ExpertOverlap overlap :
       {ExpertOverlap::none, ExpertOverlap::shared_expert, ExpertOverlap::dualpipe})
    for (const int pipeline : {1, 4})
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        CAPTURE(name_of(overlap));
        CAPTURE(pipeline);
        CAPTURE(name_of(recompute));
        Job job = even_job(overlap, pipeline, 6, "1f1b");
        job.layout.recompute = recompute;
        job.framework.seconds_per_op = 0;  // the GPU never runs dry
        job.framework.exchange_sms = recompute == Recompute::selective ? 0 : 33;
        job.framework.exchange_sm_margin = pipeline == 1;
        for (std::size_t l = 0; l < job.step.lanes.size(); ++l)  // unequal lanes wait for each other
          for (std::size_t j = 0; j < job.step.lanes[l].micro_batches.size(); ++j)
            job.step.lanes[l].micro_batches[j].slices[0].end +=
                static_cast<std::int64_t>(512 * ((l + j) % 3));
        const Prices prices(job);
        const StepTimes times =
            StepSimulator(prices.costs, job.shard, job.options, nullptr).run(job.step).times;
        double parts = times.compute.mean + times.losses.idle_seconds + times.losses.lanes_wait_seconds +
                       to_seconds(times.makespan - times.pipeline);
        for (const Stream axis : {Stream::tp, Stream::cp, Stream::ep})
          parts += times.exposed_seconds[static_cast<std::size_t>(axis)];
        CHECK(parts == doctest::Approx(to_seconds(times.makespan)).epsilon(1e-9));
      }
}
