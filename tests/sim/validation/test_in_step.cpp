#include "sim/validation/step_ops.h"

#include <doctest/doctest.h>

#include "hand_pairs.h"

using namespace equipoise;
using equipoise::testing::op;

namespace {

// Ten ops of 1 .. 10 ms alone that take 2 ms and half as long again inside a step.
std::vector<OpPair> ten(const char* kind) {
  std::vector<OpPair> ops;
  for (int i = 1; i <= 10; ++i) ops.push_back(op(kind, i, 1e-3 * i, {2e-3 + 1.5e-3 * i}));
  return ops;
}

OpProgram program() {
  OpProgram p;
  OpLane lane;
  lane.context = 2;
  OpBlock block;
  block.role = BlockRole::layer_backward;
  block.steps.resize(3);
  block.steps[0].name = OpName::rms_norm;
  block.steps[1].name = OpName::host_stall;
  block.steps[2].name = OpName::cp_all_gather;
  block.steps[2].sync = SyncGroup::context;
  block.durations = {1'000'000'000, 0, 500'000'000, 500'000'000, 7'000'000'000, 7'000'000'000};
  lane.blocks.push_back(block);
  lane.transfers = {2'000'000'000};
  p.lanes.push_back(lane);
  p.ends.resize(1);
  p.ends[0].steps.resize(1);
  p.ends[0].steps[0].name = OpName::optimizer;
  p.ends[0].durations = {3'000'000'000};
  return p;
}

}  // namespace

TEST_CASE("a kind's line goes through what was measured of it") {
  const InStepTimes times(ten("attention"));
  REQUIRE(times.lines().size() == 1);
  CHECK(times.lines().at("attention").ops == 10);
  CHECK(times.seconds("attention", 4e-3) == doctest::Approx(8e-3));
  CHECK(times.seconds("rope", 4e-3) == 4e-3);  // not measured: its price
}

TEST_CASE("the fitted ops take as long in sum as measured") {
  std::vector<OpPair> ops = ten("attention");
  ops[2].measured_seconds = {0.1};  // others had the processor, or a cache was cold: part of what a step costs
  const InStepTimes times(ops);
  double measured = 0, simulated = 0;
  for (const OpPair& pair : ops) {
    measured += pair.measured_seconds[0];
    simulated += times.seconds("attention", pair.predicted_seconds);
  }
  CHECK(simulated == doctest::Approx(measured));
}

TEST_CASE("neither number of a line is negative") {
  std::vector<OpPair> growing, falling, same;
  for (int i = 1; i <= 10; ++i) {
    growing.push_back(op("growing", i, 1e-3 * i, {1e-4 * i * i}));  // a free line would cut below 0
    falling.push_back(op("falling", i, 1e-3 * i, {2e-2 - 1e-3 * i}));
    same.push_back(op("same", i, 1e-3, {3e-3}));
  }
  CHECK(InStepTimes(growing).lines().at("growing").extra_seconds == 0);
  CHECK(InStepTimes(growing).lines().at("growing").factor == doctest::Approx(38.5e-3 / 55e-3));
  CHECK(InStepTimes(falling).lines().at("falling").factor == 0);
  CHECK(InStepTimes(falling).seconds("falling", 1e-3) == doctest::Approx(14.5e-3));
  CHECK(InStepTimes(same).seconds("same", 2e-3) == doctest::Approx(6e-3));  // one size: through the origin
}

TEST_CASE("too few ops change nothing") {
  std::vector<OpPair> ops = ten("attention");
  ops.resize(InStepTimes::kLeastOps - 1);
  CHECK(InStepTimes(ops).empty());
}

TEST_CASE("a program's ops take as long as inside a step, by kind") {
  std::vector<OpPair> ops = ten("rms_norm backward");
  for (const char* kind : {"optimizer", "pp_send"})
    for (const OpPair& pair : ten(kind)) ops.push_back(pair);
  const OpProgram changed = in_step(program(), InStepTimes(ops));
  const OpBlock& block = changed.lanes[0].blocks[0];
  CHECK(block.durations[0] == 3'500'000'000);  // 2 ms + 1.5 x 1 ms
  CHECK(block.durations[1] == 0);              // a rank without tokens stays without
  CHECK(block.durations[2] == 500'000'000);    // the host's stall is no op
  CHECK(block.durations[4] == 7'000'000'000);  // no line for it
  CHECK(changed.lanes[0].transfers[0] == 5'000'000'000);
  CHECK(changed.ends[0].durations[0] == 6'500'000'000);
}
