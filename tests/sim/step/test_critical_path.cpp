#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "sim/step/critical_path.h"
#include "tests/sim/step/random_program.h"

using namespace equipoise;

namespace {}  // namespace

TEST_CASE("the path of two CP ranks goes through the one that arrives last") {
  // Rank 0: 3, gather 5 (from 8), then 1; rank 1: 8, gather, then 2. Path: rank 1's 8, gather 8..13, rank
  // 1's 2.
  OpProgram program;
  program.replicas = 2;
  OpLane lane;
  lane.context = 2;
  lane.blocks.push_back({{{OpName::qkv_gemm},
                          {OpName::cp_all_gather, Stream::cp, SyncGroup::context, false},
                          {OpName::out_gemm}},
                         {3, 8, 5, 5, 1, 2}});
  lane.runs.push_back({0, 1, kNoBucket});
  lane.stages.resize(1);
  ScheduledOp scheduled;
  scheduled.run_count = 1;
  lane.stages[0].push_back(scheduled);
  program.lanes.push_back(lane);
  const std::vector<PathSegment> path = critical_path(program, {}, run(program));
  REQUIRE(path.size() == 3);
  CHECK(path[0].name == OpName::qkv_gemm);
  CHECK(path[0].rank == 1);
  CHECK(path[1].name == OpName::cp_all_gather);
  CHECK(path[1].start == 8);
  CHECK(path[2].name == OpName::out_gemm);
  CHECK(path[2].end == 15);
  const PathShares shares = share_path(program, path);
  CHECK(shares.by_stream[static_cast<std::size_t>(Stream::cp)] == 5);
  CHECK(shares.by_stream[static_cast<std::size_t>(Stream::compute)] == 10);
  // Without CP communication: 8 + 2.
  Free free;
  free.streams[static_cast<std::size_t>(Stream::cp)] = true;
  CHECK(makespan_without(program, {}, free) == 10);
}

TEST_CASE("a critical path has no gaps, and shares add up to the step") {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    CAPTURE(seed);
    const OpProgram program = RandomProgram(seed, random_shape(seed)).make();
    OpOptions options;
    if (seed % 3 == 0) options.jitter = {0.1, seed};
    const OpResult result = run(program, options);
    const std::vector<PathSegment> path = critical_path(program, options, result);
    REQUIRE_FALSE(path.empty());
    CHECK(path.front().start == 0);
    CHECK(path.back().end == result.makespan);
    for (std::size_t i = 1; i < path.size(); ++i) REQUIRE(path[i].start == path[i - 1].end);
    const PathShares shares = share_path(program, path);
    CHECK(std::accumulate(shares.by_stream.begin(), shares.by_stream.end(), Picoseconds{0}) ==
          result.makespan);
    CHECK(std::accumulate(shares.by_stage.begin(), shares.by_stage.end(), Picoseconds{0}) == result.makespan);
    Picoseconds of_micro_batches = shares.after_pipeline;
    for (const auto& lane : shares.by_micro_batch)
      of_micro_batches = std::accumulate(lane.begin(), lane.end(), of_micro_batches);
    CHECK(of_micro_batches == result.makespan);
  }
}

TEST_CASE(
    "what is free never makes a step longer, and never saves more than its share of a path of its own") {
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    CAPTURE(seed);
    const OpProgram program = RandomProgram(seed, random_shape(seed)).make();
    const OpResult result = run(program);
    const PathShares shares = share_path(program, critical_path(program, {}, result));
    // The old path's other ops still run one after another: the step cannot fall below their sum.
    for (int s = 0; s < program.stages; ++s) {
      Free free;
      free.stage = s;
      const Picoseconds without = makespan_without(program, {}, free);
      CHECK(without <= result.makespan);
    }
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      Free free;
      free.streams[stream] = true;
      const Picoseconds without = makespan_without(program, {}, free);
      CHECK(without <= result.makespan);
      CHECK(without >= result.makespan - shares.by_stream[stream]);
    }
    Free everything;
    std::fill(std::begin(everything.streams), std::end(everything.streams), true);
    CHECK(makespan_without(program, {}, everything) == 0);
  }
}
