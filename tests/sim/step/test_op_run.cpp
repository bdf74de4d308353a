#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sim/step/op_run.h"
#include "sim/verify/longest_path.h"
#include "sim/verify/lowering.h"
#include "tests/sim/step/random_program.h"

using namespace equipoise;

namespace {

// One lane, one stage, one scheduled op of one block with one repetition on `context` ranks.
OpProgram one_block(OpBlock block, int context, int tensor = 1, std::uint32_t repeat = 1) {
  OpProgram program;
  program.tensor = tensor;
  program.replicas = context;
  OpLane lane;
  lane.context = context;
  lane.blocks.push_back(std::move(block));
  lane.runs.push_back({0, repeat, kNoBucket});
  lane.stages.resize(1);
  ScheduledOp scheduled;
  scheduled.run_count = 1;
  lane.stages[0].push_back(scheduled);
  program.lanes.push_back(lane);
  return program;
}

}  // namespace

TEST_CASE("a layer on two CP ranks: kernels, an all-gather that waits, a kernel alongside it") {
  // Rank 0 computes 3, rank 1 computes 8. The gather (5) starts at 8 and ends at 13. During it rank 0
  // computes 20 from 3 on: it goes on at 23, rank 1 (0 alongside) at 13. Then 1 and 2: ends 24 and 15.
  OpBlock block;
  block.steps = {{OpName::qkv_gemm},
                 {OpName::cp_all_gather, Stream::cp, SyncGroup::context, true},
                 {OpName::attention},
                 {OpName::out_gemm}};
  block.durations = {3, 8, 5, 5, 20, 0, 1, 2};
  const OpResult once = run(one_block(block, 2));
  CHECK(once.lanes[0].end[0] == std::vector<Picoseconds>{24, 15});
  CHECK(once.lanes[0].compute[0] == std::vector<Picoseconds>{24, 10});
  CHECK(once.makespan == 24);
  CHECK(once.tasks == 8);
  // A second layer: arrivals 27 and 23, gather 27..32; rank 0 at 47 + 1, rank 1 at 32 + 2.
  CHECK(run(one_block(block, 2, 1, 2)).lanes[0].end[0] == std::vector<Picoseconds>{48, 34});
}

TEST_CASE("unfolded TP ranks with equal clocks do as the folded one; a straggler holds its TP group") {
  OpBlock block;
  block.steps = {
      {OpName::qkv_gemm}, {OpName::tp_all_gather, Stream::tp, SyncGroup::tensor, false}, {OpName::rope}};
  block.durations = {100, 10, 4};
  CHECK(run(one_block(block, 1, 1)).makespan == 114);
  CHECK(run(one_block(block, 1, 4)).makespan == 114);
  // GPU 2 at half speed: 200 + 10, then 8 there and 4 elsewhere.
  const std::vector<double> speed = {1, 1, 0.5, 1};
  OpOptions options;
  options.speed = speed;
  CHECK(run(one_block(block, 1, 4), options).lanes[0].end[0] == std::vector<Picoseconds>{214, 214, 218, 214});
}

TEST_CASE("1F1B with equal ops takes (m + p - 1)(f + b); gradient buckets overlap the last backward") {
  // f = 2, b = 4 in one layer a stage, p = 3, m = 4: 6 * 6 = 36 without transfers.
  OpProgram program;
  program.stages = 3;
  OpLane lane;
  lane.blocks.resize(2);
  lane.blocks[0] = {{{OpName::attention}}, {2}};
  lane.blocks[1] = {{{OpName::attention}}, {4}};
  lane.transfers = {0};
  lane.stages.resize(3);
  for (int s = 0; s < 3; ++s) {
    int f = 0;
    const auto add = [&](OpKind kind, int m) {
      ScheduledOp scheduled;
      scheduled.op = {kind, m, 0};
      scheduled.first_run = static_cast<std::uint32_t>(lane.runs.size());
      scheduled.run_count = 1;
      lane.runs.push_back({kind == OpKind::F ? 0U : 1U, 1, kind == OpKind::B && m == 3 ? 0 : kNoBucket});
      lane.stages[static_cast<std::size_t>(s)].push_back(scheduled);
    };
    for (; f < 2 - s; ++f) add(OpKind::F, f);
    for (int b = 0; b < 4; ++b) {
      if (f < 4) add(OpKind::F, f++);
      add(OpKind::B, b);
    }
  }
  for (int s = 0; s < 3; ++s)
    for (ScheduledOp& scheduled : lane.stages[static_cast<std::size_t>(s)]) {
      const int from = scheduled.op.kind == OpKind::F ? s - 1 : s + 1;
      if (from < 0 || from > 2) continue;
      scheduled.input_stage = from;
      scheduled.transfer = 0;
      const auto& scheduled_ops = lane.stages[static_cast<std::size_t>(from)];
      for (std::size_t i = 0; i < scheduled_ops.size(); ++i)
        if (scheduled_ops[i].op == scheduled.op) scheduled.input_op = static_cast<std::int32_t>(i);
    }
  program.lanes.push_back(lane);
  program.ends.resize(3);
  for (StageEnd& end : program.ends) end = {{7}, {{OpName::optimizer}}, {1}, {}};
  const OpResult result = run(program);
  CHECK(result.pipeline_end == 36);
  // Stage 0's last backward ends at 36: its bucket 36..43, optimizer to 44. Stage 2's bucket began at 28.
  CHECK(result.buckets[0][0].start == 36);
  CHECK(result.buckets[2][0].start == 28);
  CHECK(result.makespan == 44);
}

TEST_CASE("the op engine's makespan is the longest path of its task graph") {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    CAPTURE(seed);
    const OpProgram program = RandomProgram(seed, random_shape(seed)).make();
    const OpResult result = run(program);
    const LoweredProgram lowered = lower(program, {}, result);
    CHECK(run(lowered.graph).makespan == result.makespan);
    // A collective is one task of the graph and one of each member in the count.
    std::size_t real = 0;
    for (const LoweredTask& t : lowered.origin) real += t.marker ? 0 : 1;
    CHECK(static_cast<std::int64_t>(real) <= result.tasks);
  }
}

TEST_CASE("with stragglers and jitter too, and then each seed gives another step") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const OpProgram program = RandomProgram(seed, random_shape(seed), 1000).make();
    std::vector<double> speed(static_cast<std::size_t>(program.stages * program.replicas * program.tensor),
                              1.0);
    for (std::size_t g = 0; g < speed.size(); g += 3) speed[g] = 0.7;
    OpOptions options;
    options.speed = speed;
    options.jitter = {0.1, seed};
    const OpResult result = run(program, options);
    CHECK(run(lower(program, options, result).graph).makespan == result.makespan);
    OpOptions other = options;
    other.jitter.seed += 1;
    CHECK(run(program, other).makespan != result.makespan);
  }
}

TEST_CASE("scaling every duration scales the step, and threads do not change a bit of it") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const ProgramShape shape = random_shape(seed);
    const OpProgram program = RandomProgram(seed, shape).make();
    const OpResult one = run(program);
    CHECK(run(RandomProgram(seed, shape, 9).make()).makespan == 9 * one.makespan);
    for (int threads = 2; threads <= 4; ++threads) {
      OpOptions options;
      options.threads = threads;
      const OpResult many = run(program, options);
      CHECK(many.makespan == one.makespan);
      for (std::size_t l = 0; l < one.lanes.size(); ++l) CHECK(many.lanes[l].end == one.lanes[l].end);
    }
  }
}

TEST_CASE("a slower GPU, a longer op or a longer transfer never ends the step earlier") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const OpProgram program = RandomProgram(seed, random_shape(seed)).make();
    const Picoseconds before = run(program).makespan;
    OpProgram longer = program;
    longer.lanes[0].blocks[0].durations[0] += 50;
    if (longer.lanes[0].blocks[0].steps[0].sync == SyncGroup::context)
      for (int c = 1; c < longer.lanes[0].context; ++c)
        longer.lanes[0].blocks[0].durations[static_cast<std::size_t>(c)] += 50;
    CHECK(run(longer).makespan >= before);
  }
}

TEST_CASE("a pipeline that waits for itself is named") {
  OpProgram program = RandomProgram(3, {2, 1, 1, 2, 1, 1, false}).make();
  // Stage 1 issues its first backward before its first forward has been fed: swap its first two scheduled ops
  // and let the backward wait for stage 0's, which waits for stage 1.
  auto& stage1 = program.lanes[0].stages[1];
  stage1[0].input_stage = 0;
  stage1[0].input_op = static_cast<std::int32_t>(program.lanes[0].stages[0].size() - 1);
  CHECK_THROWS_WITH_AS(run(program), doctest::Contains("stage 1 waits at F of micro-batch 0 for stage 0's"),
                       EngineError);
}

TEST_CASE("a program that contradicts itself is refused") {
  const OpProgram good = RandomProgram(5, {3, 1, 2, 3, 2, 2, false}).make();
  OpProgram bad = good;
  bad.lanes[1].stages[1][0].input_op = 99;
  CHECK_THROWS_WITH_AS(run(bad), doctest::Contains("receive without its send"), EngineError);
  bad = good;
  bad.ends[2].buckets.push_back(3);
  CHECK_THROWS_WITH_AS(run(bad), doctest::Contains("fills gradient bucket 2 0 times"), EngineError);
  bad = good;
  bad.lanes[0].blocks[1].durations[0] = -1;
  CHECK_THROWS_WITH_AS(run(bad), doctest::Contains("negative"), EngineError);
  bad = good;
  bad.lanes[0].blocks[1].durations.pop_back();
  CHECK_THROWS_AS(run(bad), EngineError);
}

namespace {

OpProgram two_lanes(OpBlock first, OpBlock second) {
  OpProgram program = one_block(std::move(first), 1);
  program.lanes.push_back(one_block(std::move(second), 1).lanes[0]);
  program.replicas = 2;
  program.lockstep_groups = 1;
  for (OpLane& lane : program.lanes) {
    lane.lockstep = 0;
    lane.expert_group = {0};
  }
  program.lanes[1].first_replica = 1;
  return program;
}

}  // namespace

TEST_CASE("an exchange of two lanes starts when the second arrives and holds both for the longer one") {
  // Lane 0 arrives at 3 with 4 to exchange, lane 1 at 8 with 5: 8..13. Then 1 and 2.
  const OpStep exchange{OpName::ep_all_to_all, Stream::ep, SyncGroup::expert};
  const OpProgram program = two_lanes({{{OpName::router}, exchange, {OpName::expert_gemm}}, {3, 4, 1}},
                                      {{{OpName::router}, exchange, {OpName::expert_gemm}}, {8, 5, 2}});
  const OpResult result = run(program);
  CHECK(result.lanes[0].end[0] == std::vector<Picoseconds>{14});
  CHECK(result.lanes[1].end[0] == std::vector<Picoseconds>{15});
  const OpResult::Synchronization& m = result.lockstep_groups[0].scheduled_ops[0][0][0];
  CHECK(m.arrived == 8);
  CHECK(m.lane == 1);
  CHECK(run(lower(program, {}, result).graph).makespan == 15);
  // In different groups nobody waits.
  OpProgram apart = program;
  apart.lanes[1].expert_group = {1};
  CHECK(run(apart).lanes[0].end[0] == std::vector<Picoseconds>{8});
}

TEST_CASE("background ops go one after another under the kernels; a rank waits for them only where it must") {
  // Gather 4, asked for at 0 by both: 0..4. Kernels 3 and 10, then a reduction of 6, asked for at 3 and 10:
  // 10..16. Lane 0 computes 1 more, to 4, and waits to 16; lane 1 computes 9 more, to 19.
  OpStep gather{OpName::dp_all_gather, Stream::dp, SyncGroup::replicas};
  gather.background = true;
  OpStep reduce{OpName::dp_reduce, Stream::dp, SyncGroup::replicas};
  reduce.background = true;
  OpStep wait{OpName::dp_all_gather, Stream::dp};
  wait.waits = true;
  const auto block = [&](Picoseconds before, Picoseconds after) {
    return OpBlock{{gather, {OpName::attention}, reduce, {OpName::rope}, wait}, {4, before, 6, after, 0}};
  };
  const OpProgram program = two_lanes(block(3, 1), block(10, 9));
  const OpResult result = run(program);
  CHECK(result.lanes[0].end[0] == std::vector<Picoseconds>{16});
  CHECK(result.lanes[1].end[0] == std::vector<Picoseconds>{19});
  CHECK(run(lower(program, {}, result).graph).makespan == 19);
  // A reduction asked for while the gather is under way starts when that ends: 2 + 1 would be before 4.
  const OpProgram early = two_lanes(block(2, 0), block(1, 0));
  const OpResult queued = run(early);
  CHECK(queued.lockstep_groups[0].scheduled_ops[0][0][1].start == 4);
  CHECK(queued.makespan == 10);
  CHECK(run(lower(early, {}, queued).graph).makespan == 10);
}

TEST_CASE("lanes of a lockstep group that come to different ops are named") {
  const OpStep exchange{OpName::ep_all_to_all, Stream::ep, SyncGroup::expert};
  const OpProgram program = two_lanes({{exchange}, {3}}, {{{OpName::router}}, {8}});
  CHECK_THROWS_WITH_AS(run(program),
                       doctest::Contains("lane 0 comes to ep_all_to_all where lane 1 comes to its end"),
                       EngineError);
}
