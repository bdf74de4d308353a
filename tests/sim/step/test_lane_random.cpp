// The lane engine against the schedules' reference executor, op by op, on random lanes.
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "policies/base/random.h"
#include "tests/sim/step/hand_costs.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

int pick(SplitMix64& random, int least, int most) {
  return least + static_cast<int>(random.next() % static_cast<std::uint64_t>(most - least + 1));
}

struct Case {
  int stages = 1;
  int virtual_stages = 1;
  std::vector<double> forward;  // multiples of 2 x virtual stages, so that all halves are whole
  std::vector<std::int32_t> groups;
  StepOptions options;
  Picoseconds hop = 0;
};

Case random_case(SplitMix64& random, std::string_view schedule) {
  Case c;
  const bool both_ends = schedule == "dualpipe";
  c.stages = both_ends ? 2 * pick(random, 1, 3) : pick(random, 1, 6);
  const bool slices = schedule == "seq1f1b";
  const bool interleaved = schedule == "interleaved-1f1b" || slices;
  if (interleaved && c.stages > 1) c.virtual_stages = pick(random, 1, 3);
  const bool groups = schedule == "state-aware-1f1b" || schedule == "gpipe" || slices;
  const int wanted = both_ends     ? 2 * (c.stages + pick(random, 0, 4))
                     : interleaved ? c.stages * pick(random, 1, 3)
                                   : pick(random, 1, 12);
  int count = 0;
  while (count < wanted) {
    const int size = groups && random.next() % 3 == 0 ? pick(random, 2, 5) : 1;
    c.groups.push_back(size);
    count += size;
  }
  for (; interleaved && count % c.stages != 0; ++count) c.groups.push_back(1);
  for (int j = 0; j < count; ++j) c.forward.push_back(2.0 * c.virtual_stages * pick(random, 1, 50));
  c.options.keep = pick(random, 1, 4);
  c.options.strict_keep = random.next() % 2 == 0;
  c.options.blocking_sends = random.next() % 2 == 0;
  c.hop = pick(random, 0, 20);
  return c;
}

// Hands out copies of a lane's costs, and lets go of them when they come back.
class Lender final : public CostSource {
 public:
  explicit Lender(std::span<const MicroBatchCost> costs) : costs_(costs), lent_(costs.size()) {}

  const MicroBatchCost& cost(std::size_t micro_batch) override {
    REQUIRE(micro_batch == asked_++);
    lent_[micro_batch] = std::make_unique<MicroBatchCost>(costs_[micro_batch]);
    return *lent_[micro_batch];
  }
  void give_back(std::size_t micro_batch) override {
    REQUIRE(lent_[micro_batch] != nullptr);
    lent_[micro_batch].reset();
    ++given_back_;
  }
  [[nodiscard]] bool has_all_back() const { return asked_ == costs_.size() && given_back_ == costs_.size(); }

 private:
  std::span<const MicroBatchCost> costs_;
  std::vector<std::unique_ptr<MicroBatchCost>> lent_;
  std::size_t asked_ = 0, given_back_ = 0;
};

}  // namespace

TEST_CASE("Every op starts and ends when the reference executor says, 400 random lanes a schedule") {
  for (const SchedulePolicy& policy : schedule_policies()) {
    CAPTURE(policy.name);
    SplitMix64 random(5);
    for (int round = 0; round < 400; ++round) {
      const Case c = random_case(random, policy.name);
      CAPTURE(round);
      const HandLane lane = hand_lane(c.forward, c.groups, 2, c.hop, c.virtual_stages);
      Layout layout = pipeline_of(c.stages, c.virtual_stages);
      layout.bidirectional = policy.bidirectional;
      LaneEngine engine(model_of(c.stages * c.virtual_stages), layout);
      const HandRun run = run_lane(engine, policy.name, lane, c.stages, c.options, c.virtual_stages);
      const TimedSchedule timed = time_schedule(run.schedule, op_durations(run.schedule, c.forward, 2),
                                                {static_cast<double>(c.hop), c.options.blocking_sends});
      std::vector<std::size_t> next(static_cast<std::size_t>(c.stages), 0);
      bool same = true;
      for (const StageOp& op : run.ops) {
        const TimedOp& expected =
            timed.stages[static_cast<std::size_t>(op.stage)][next[static_cast<std::size_t>(op.stage)]++];
        same = same && op.op == expected.op && static_cast<double>(op.start) == expected.start &&
               static_cast<double>(op.end) == expected.end;
      }
      REQUIRE(same);
      std::size_t total = 0;
      for (const auto& stage : timed.stages) total += stage.size();
      REQUIRE(run.ops.size() == total);
      for (std::size_t s = 0; s < next.size(); ++s)
        REQUIRE(static_cast<double>(run.accounts.stage_recompute[s]) == timed.recompute[s]);
      REQUIRE(run.bubble == doctest::Approx(bubble_ratio(timed)).epsilon(1e-12));
    }
  }
}

TEST_CASE("Scaling all times by k scales every clock by k and leaves the bubble ratio") {
  SplitMix64 random(9);
  for (int round = 0; round < 200; ++round) {
    const Case c = random_case(random, "state-aware-1f1b");
    std::vector<double> scaled = c.forward;
    for (double& f : scaled) f *= 7;
    LaneEngine engine(model_of(c.stages), pipeline_of(c.stages));
    const HandRun once =
        run_lane(engine, "state-aware-1f1b", hand_lane(c.forward, c.groups, 2, c.hop), c.stages, c.options);
    const HandRun more =
        run_lane(engine, "state-aware-1f1b", hand_lane(scaled, c.groups, 2, 7 * c.hop), c.stages, c.options);
    REQUIRE(more.result.makespan == 7 * once.result.makespan);
    REQUIRE(more.bubble == doctest::Approx(once.bubble).epsilon(1e-12));
  }
}

TEST_CASE("A lane's results are those of a fresh engine, whatever lane ran before, and with costs on loan") {
  // All schedules of one direction on one layout, lanes of unlike lengths, CP degrees, groups, hops and
  // starts.
  for (const auto& [stages, virtual_stages] : {std::pair{1, 1}, {3, 1}, {2, 2}}) {
    const ModelShape model = model_of(stages * virtual_stages);
    Layout layout = pipeline_of(stages, virtual_stages);
    layout.recompute = Recompute::layers;
    layout.recompute_layers = 1;
    LaneEngine reused(model, layout);
    LaneAccounts again;
    SplitMix64 random(11);
    for (int round = 0; round < 200; ++round) {
      CAPTURE(round);
      const std::vector<std::string_view> names =
          virtual_stages > 1 ? std::vector<std::string_view>{"interleaved-1f1b"}
                             : std::vector<std::string_view>{"gpipe", "1f1b", "zb-h1", "state-aware-1f1b"};
      const std::string_view name = names[random.next() % names.size()];
      Case c = random_case(random, name);
      if (virtual_stages > 1) {
        c.forward.assign(static_cast<std::size_t>(stages * pick(random, 1, 3)), 8);
        c.groups.assign(c.forward.size(), 1);
      }
      HandLane lane = hand_lane(c.forward, c.groups);
      const int ranks = pick(random, 1, 4);
      for (std::size_t j = 0; j < lane.costs.size(); ++j) {
        lane.costs[j] = hand_cost(static_cast<Picoseconds>(c.forward[j]), pick(random, 1, 90), ranks, c.hop);
        if (random.next() % 3 == 0) lane.micro_batches[j].recompute_layers = pick(random, 0, stages);
        for (auto& exposed : lane.costs[j].exposed_forward) exposed.fill(pick(random, 0, 5));
        lane.costs[j].exposed_again = lane.costs[j].exposed_forward;
      }
      const Schedule schedule = schedule_policy(name).make(
          {stages, virtual_stages, lane.groups, c.options.keep, c.options.strict_keep});
      const Picoseconds start = pick(random, 0, 1000);
      std::vector<StageOp> ops, expected_ops;
      const LaneResult result =
          reused.run(schedule, lane.micro_batches, lane.costs, c.options, start, 3, again, &ops);
      LaneEngine fresh(model, layout);
      LaneAccounts accounts;
      const LaneResult expected =
          fresh.run(schedule, lane.micro_batches, lane.costs, c.options, start, 3, accounts, &expected_ops);
      REQUIRE(result == expected);
      REQUIRE(again == accounts);
      REQUIRE(ops == expected_ops);
      REQUIRE(reused.grad_ready() == fresh.grad_ready());
      REQUIRE(reused.end() == fresh.end());

      // Twice, as lanes of one schedule follow each other, then with other layers recomputed.
      const auto number = static_cast<std::uint64_t>(round + 1);
      for (int time = 0; time < 3; ++time) {
        if (time == 2) lane.micro_batches.front().recompute_layers = pick(random, 0, stages);
        Lender lender(lane.costs);
        const LaneResult lent =
            reused.run(schedule, number, lane.micro_batches, static_cast<std::size_t>(ranks), lender,
                       c.options, start, 3, again);
        REQUIRE(lender.has_all_back());
        LaneEngine other(model, layout);
        REQUIRE(lent ==
                other.run(schedule, lane.micro_batches, lane.costs, c.options, start, 3, accounts, nullptr));
        if (time < 2) REQUIRE(lent == expected);
        REQUIRE(again == accounts);
        REQUIRE(reused.grad_ready() == other.grad_ready());
        REQUIRE(reused.end() == other.end());
      }
    }
  }
}
