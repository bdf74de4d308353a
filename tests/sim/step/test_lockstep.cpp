// How lanes that share collectives are brought in step.
#include <algorithm>
#include <string>

#include "sim/step/lockstep.h"
#include "sim/step/step_simulator.h"
#include "tests/sim/models.h"
#include "tests/sim/step/hand_costs.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

Step step_of(std::initializer_list<int> micro_batches, int context = 1) {
  Step step;
  std::int64_t document = 0;
  for (const int count : micro_batches) {
    Lane& lane = step.lanes.emplace_back();
    lane.context = context;
    for (int j = 0; j < count; ++j) lane.micro_batches.push_back(documents({500}, document++));
  }
  return step;
}

Layout moe_layout(int data, int context, int pipeline, int expert) {
  Layout layout = pipeline_of(pipeline);
  layout.data = data;
  layout.context = context;
  layout.expert = expert;
  return layout;
}

std::vector<LockstepGroup> lanes_by_group(const Step& step, const Layout& layout, const char* schedule,
                                          int keep = 1) {
  const RankGrid grid(
      layout.order,
      {layout.tensor, layout.context, layout.expert, layout.data, layout.pipeline, layout.expert_tensor}, 8);
  StepOptions options;
  options.schedule = &schedule_policy(schedule);
  options.keep = keep;
  return make_lockstep_groups(step, 0, layout, grid, options);
}

// "F1 B1": a stage's ops, those without documents in parentheses.
std::string text(const LockstepLane& lane, int stage) {
  std::string out;
  for (const ScheduleOp& op : lane.schedule.ops[static_cast<std::size_t>(stage)]) {
    if (!out.empty()) out += ' ';
    const bool empty = static_cast<std::size_t>(op.micro_batch) >= lane.real;
    if (empty) out += '(';
    out += letter_of(op.kind);
    if (!empty) out += std::to_string(op.micro_batch + 1);
    if (empty) out += ')';
  }
  return out;
}

// Two lanes on a GPU each whose layers share their experts.
struct SharedExperts {
  static ModelShape model() {
    ModelShape model = builtin_model("deepseek-v2");
    model.layers = 4;
    return model;
  }
  static StepOptions options() {
    StepOptions options;
    options.schedule = &schedule_policy("1f1b");
    return options;
  }
  Models models{model(), moe_layout(2, 1, 1, 2)};
  ShardRule rule = shard_by("per-sequence");
  StepSimulator simulator{models.costs, rule, options(), nullptr};
};

}  // namespace

TEST_CASE(
    "Without a pipeline op lists are merged: forwards first, and who has none takes part without documents") {
  Layout layout = moe_layout(3, 1, 1, 1);
  layout.zero = 3;
  // 1F1B on one stage is F B F B; the lane without micro-batches is not there.
  const std::vector<LockstepGroup> even = lanes_by_group(step_of({2, 1, 0}), layout, "1f1b");
  REQUIRE(even.size() == 1);
  REQUIRE(even[0].lanes.size() == 2);
  CHECK(text(even[0].lanes[0], 0) == "F1 B1 F2 B2");
  CHECK(text(even[0].lanes[1], 0) == "F1 B1 (F) (B)");
  // Two dependent chunks with K = 1: D1 F2 B2 R1 B1, so the standalone lane waits with its backward.
  Step chunks = step_of({2, 1});
  for (int i = 0; i < 2; ++i) chunks.lanes[0].micro_batches[static_cast<std::size_t>(i)].chunk = {0, i, 2, 0};
  const std::vector<LockstepGroup> mixed = lanes_by_group(chunks, layout, "state-aware-1f1b");
  REQUIRE(mixed.size() == 1);
  CHECK(text(mixed[0].lanes[0], 0) == "D1 F2 B2 R1 B1");
  CHECK(text(mixed[0].lanes[1], 0) == "F1 (F) B1 (F) (B)");
}

TEST_CASE("With a pipeline shorter lanes get empty micro-batches behind their own") {
  const std::vector<LockstepGroup> lockstep_groups =
      lanes_by_group(step_of({3, 1}), moe_layout(2, 1, 2, 2), "1f1b");
  REQUIRE(lockstep_groups.size() == 1);
  CHECK(text(lockstep_groups[0].lanes[0], 0) == "F1 F2 B1 F3 B2 B3");
  CHECK(text(lockstep_groups[0].lanes[1], 0) == "F1 (F) B1 (F) (B) (B)");
  CHECK(text(lockstep_groups[0].lanes[1], 1) == "F1 B1 (F) (B) (F) (B)");
  // A group of chunks orders its ops otherwise: no common order, so each lane is on its own.
  Step chunks = step_of({2, 2});
  for (int i = 0; i < 2; ++i) chunks.lanes[0].micro_batches[static_cast<std::size_t>(i)].chunk = {0, i, 2, 0};
  const std::vector<LockstepGroup> apart = lanes_by_group(chunks, moe_layout(2, 1, 2, 2), "state-aware-1f1b");
  REQUIRE(apart.size() == 2);
  CHECK(apart[0].unsynchronized);
  CHECK_FALSE(lockstep_groups[0].unsynchronized);
}

TEST_CASE("A lane that its schedule would refuse alone runs with a longer one, and its memory is its own") {
  // Interleaved 1F1B on two stages needs an even number of micro-batches: the lane of three gets a fourth
  // without documents.
  Layout layout = moe_layout(2, 1, 2, 2);
  layout.virtual_pipeline = 2;
  ModelShape model = builtin_model("deepseek-v2");
  model.layers = 8;
  const Models models(model, layout);
  const ShardRule rule = shard_by("per-sequence");
  StepOptions options;
  options.schedule = &schedule_policy("interleaved-1f1b");
  StepSimulator simulator(models.costs, rule, options, &models.memory);
  const StepResult uneven = simulator.run(step_of({3, 4}));
  const StepResult even = simulator.run(step_of({4, 4}));
  CHECK(uneven.times.forward_latency.size() == 7);
  CHECK(uneven.work.tokens == 7 * 500);
  CHECK(uneven.work.peak.parts.total() == even.work.peak.parts.total());  // that of the lane of four
  // The other lane holds nothing now: what is left is the first one's, no more than that of four.
  Step hollow = step_of({3, 4});
  for (MicroBatch& micro_batch : hollow.lanes[1].micro_batches) micro_batch.slices.clear();
  const MemoryPeak peak = simulator.run(hollow).work.peak;
  CHECK(peak.lane == 0);
  CHECK(peak.parts.total() <= even.work.peak.parts.total());
  CHECK(peak.parts.total() > models.memory.fixed(peak.stage).total());
}

TEST_CASE("A lockstep group is the lanes that share an expert group, directly or over others") {
  // DP 4 x CP 2: groups of 2 ranks lie inside lanes, of 4 join lanes 0-1 and 2-3, of 8 all.
  const Step step = step_of({1, 1, 1, 1}, 2);
  CHECK(lanes_by_group(step, moe_layout(4, 2, 1, 2), "1f1b").size() == 4);
  const std::vector<LockstepGroup> two = lanes_by_group(step, moe_layout(4, 2, 1, 4), "1f1b");
  REQUIRE(two.size() == 2);
  CHECK(two[0].lanes[1].lane == 1);
  CHECK(two[1].lanes[0].lane == 2);
  CHECK(two[0].expert_groups == 1);
  CHECK(lanes_by_group(step, moe_layout(4, 2, 1, 8), "1f1b").size() == 1);
  // Lanes of three CP ranks and groups of two: ranks {0,1}, {2,3}, {4,5}: the middle group joins the lanes.
  const std::vector<LockstepGroup> chain = lanes_by_group(step_of({1, 1}, 3), moe_layout(2, 3, 1, 2), "1f1b");
  REQUIRE(chain.size() == 1);
  CHECK(chain[0].expert_groups == 3);
  CHECK(chain[0].lanes[0].expert_group == std::vector<int>{0, 0, 1});
  CHECK(chain[0].lanes[1].expert_group == std::vector<int>{1, 2, 2});
}

TEST_CASE("Experts of less tensor parallelism join fewer lanes: their groups fill TP ranks first") {
  // TP 2 x DP 4, experts whole on a GPU each (etp 1): groups of 2 are a lane's two TP ranks, of 4 two lanes'.
  const Step step = step_of({1, 1, 1, 1}, 1);
  Layout layout = moe_layout(4, 1, 1, 2);
  layout.tensor = 2;
  CHECK(lanes_by_group(step, layout, "1f1b").size() == 2);  // etp 2: lanes {0, 1} and {2, 3}
  layout.expert_tensor = 1;
  CHECK(lanes_by_group(step, layout, "1f1b").size() == 4);
  layout.expert = 4;
  const std::vector<LockstepGroup> two = lanes_by_group(step, layout, "1f1b");
  REQUIRE(two.size() == 2);
  CHECK(two[1].lanes[0].lane == 2);
  CHECK(two[1].expert_groups == 1);
  layout.expert = 8;
  CHECK(lanes_by_group(step, layout, "1f1b").size() == 1);
}

TEST_CASE("With experts over both lanes the short lane's layers wait for the long lane's") {
  // Attention of one 16K document takes far longer than that of 16 of 1K: with a lane like itself each
  // differs, together the short one is held at every exchange and ends with the long one's last.
  SharedExperts job;
  Step both;
  both.lanes.resize(2);
  both.lanes[0].micro_batches.push_back(documents({16384}));
  both.lanes[1].micro_batches.push_back(documents(
      {1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024}));
  Step both_long = both, both_short = both;
  both_long.lanes[1] = both.lanes[0];
  both_short.lanes[0] = both.lanes[1];
  const Picoseconds longest = job.simulator.run(both_long).times.lanes[0].makespan;
  const Picoseconds shortest = job.simulator.run(both_short).times.lanes[0].makespan;
  const StepResult together = job.simulator.run(both);
  CHECK(shortest < longest);
  CHECK(together.times.lanes[0].makespan == longest);  // equal tokens: exchanges take as long
  CHECK(together.times.lanes[1].makespan > (shortest + longest) / 2);
}

TEST_CASE("Two micro-batches, long then short and short then long, take two long ones in lockstep") {
  // In the same order each lane takes long + short.
  SharedExperts job;
  const MicroBatch large = documents({16384}), small = documents({4096, 4096, 4096, 4096}, 1);
  Step step;
  step.lanes.resize(2);
  const auto pipeline = [&](const std::vector<MicroBatch>& first, const std::vector<MicroBatch>& second) {
    step.lanes[0].micro_batches = first;
    step.lanes[1].micro_batches = second;
    return job.simulator.run(step).times.pipeline;
  };
  const Picoseconds one = pipeline({large}, {large}), other = pipeline({small}, {small});
  CHECK(pipeline({large, small}, {large, small}) == one + other);
  const Picoseconds crossed = pipeline({large, small}, {small, large});
  CHECK(crossed > one + other);
  CHECK(crossed <= 2 * one);
}
