// What hides exchanges of experts, on timelines that can be done by hand: one layer with experts on each of
// two replicas, which share them.
#include <memory>
#include <utility>

#include "sim/step/gradient_sync.h"
#include "sim/step/lane_engine.h"
#include "sim/step/lockstep_run.h"
#include "tests/sim/models.h"
#include "tests/sim/step/hand_costs.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

// A layer: compute, an exchange over what is under it, compute, the second exchange over what is under that,
// the rest.
struct HandLayer {
  Picoseconds before = 0, first = 0, under_first = 0, between = 0, second = 0, under_second = 0, after = 0;
  Picoseconds taken = 0;  // of what is under each exchange: lost to the SMs that it holds
};

LayerTimeline timeline_of(const HandLayer& l) {
  LayerTimeline t;
  t.reset(1);
  t.exchanges = {{0, {l.before}, {l.first}, {l.under_first}, {l.taken}},
                 {0, {l.between}, {l.second}, {l.under_second}, {l.taken}}};
  t.add_local(0, t.left_behind(0, 0) + l.after);
  return t;
}

Picoseconds exposed_of(const HandLayer& l) {
  return std::max<Picoseconds>(0, l.first - l.under_first) +
         std::max<Picoseconds>(0, l.second - l.under_second) + 2 * l.taken;
}

MicroBatchCost cost_of(const HandLayer& forward, const HandLayer& backward) {
  MicroBatchCost cost = hand_cost(0, 0);
  for (std::size_t k = 0; k < kLayerKinds; ++k) {
    cost.forward[k] = cost.again[k] = timeline_of(forward);
    cost.backward[k] = timeline_of(backward);
    cost.exposed_forward[k][static_cast<std::size_t>(Stream::ep)] = exposed_of(forward);
    cost.exposed_again[k] = cost.exposed_forward[k];
    cost.exposed_backward[k][static_cast<std::size_t>(Stream::ep)] = exposed_of(backward);
  }
  return cost;
}

// Replicas that share the experts of one layer, each with `micro_batches` micro-batches of its cost.
struct Replicas {
  explicit Replicas(const std::vector<MicroBatchCost>& costs, int micro_batches, bool pairs)
      : models(model(), layout(static_cast<int>(costs.size()))), gradients(models.costs) {
    options.schedule = &schedule_policy("1f1b");
    options.pairs = pairs;
    Step step;
    for (std::size_t l = 0; l < costs.size(); ++l)
      step.lanes.emplace_back().micro_batches.assign(static_cast<std::size_t>(micro_batches), documents({8}));
    groups = make_lockstep_groups(step, 0, models.layout, models.grid, options);
    const auto orders = std::make_shared<const PartOrders>(models.costs.model(), models.layout);
    for (std::size_t l = 0; l < costs.size(); ++l) {
      engines.push_back(std::make_unique<LaneEngine>(orders, models.layout));
      of_lane.emplace_back(static_cast<std::size_t>(micro_batches), costs[l]);
    }
    accounts.resize(costs.size());
  }
  static ModelShape model() {
    ModelShape model = model_of(1);
    model.moe = MoeShape{.experts = 8, .active = 2, .expert_ffn = 64};
    return model;
  }
  static Layout layout(int replicas) {
    Layout layout = pipeline_of(1);
    layout.data = layout.expert = replicas;
    return layout;
  }

  std::vector<LaneResult> run() {
    REQUIRE(groups.size() == 1);
    std::vector<RunningLane> lanes;
    for (std::size_t l = 0; l < engines.size(); ++l)
      lanes.push_back({&groups[0].lanes[l], of_lane[l], engines[l].get(), &accounts[l]});
    return LockstepRun(groups[0], lanes, gradients, options, &ops).run(0);
  }

  Models models;
  GradientSync gradients;
  StepOptions options;
  std::vector<LockstepGroup> groups;
  std::vector<std::unique_ptr<LaneEngine>> engines;
  std::vector<std::vector<MicroBatchCost>> of_lane;
  std::vector<LaneAccounts> accounts;
  std::vector<StageOp> ops;
};

Picoseconds exposed(const LaneAccounts& accounts) {
  return accounts.exposed[static_cast<std::size_t>(Stream::ep)];
}

}  // namespace

TEST_CASE("Shared expert: a rank goes on when the exchange has ended and its own compute under it, too") {
  // Forward. Rank 0 comes at 4 and rank 1 at 6, so the exchange of 5 is 6..11. Under it rank 0 runs 3, 4..7,
  // and goes on at 11; rank 1 runs 9, 6..15, and goes on at 15. Experts of 7: 18 and 22. The second exchange
  // is 22..27; rank 0 runs 8 under it, 18..26, rank 1 runs 2: both go on at 27, and end at 28. Backward,
  // alike on both: 3 over 1, experts 2, 3 over 4, the rest 5: 28 -> 31 -> 33 -> 37 -> 42.
  const HandLayer backward{0, 3, 1, 2, 3, 4, 5};
  const MicroBatchCost one = cost_of({4, 5, 3, 7, 5, 8, 1}, backward);
  const MicroBatchCost other = cost_of({6, 5, 9, 7, 5, 2, 1}, backward);
  Replicas replicas({one, other}, 1, false);
  const std::vector<LaneResult> done = replicas.run();
  REQUIRE(replicas.ops.size() == 4);
  CHECK(replicas.ops[0].end == 28);  // both forwards
  CHECK(replicas.ops[1].end == 28);
  CHECK(done[0].makespan == 42);
  CHECK(done[1].makespan == 42);
  // Without waiting: 4 + 5 + 7 + 8 + 1 and 3 + 2 + 4 + 5; 6 + 9 + 7 + 5 + 1 and the same.
  CHECK(done[0].useful == 25 + 14);
  CHECK(done[1].useful == 28 + 14);
  // What compute leaves of the exchanges: 2 + 0 and 2 + 0; 0 + 3 and 2 + 0.
  CHECK(exposed(replicas.accounts[0]) == 4);
  CHECK(exposed(replicas.accounts[1]) == 5);
}

TEST_CASE("A pair: each slot ends with its exchange and the other micro-batch's compute") {
  // Forward: 4, dispatch 5, experts 6, combine 5, 1: 21 alone. Backward: exchange 5, experts 9, exchange 5,
  // 7: 26. F1 0..21. The pair from 21 on: exchange 1 of B1 over 4 of F2 ends at 26; dispatch of F2 over 9 of
  // B1 at 35; exchange 2 of B1 over 6 of F2 at 41; combine of F2 over 7 of B1 at 48; 1 of F2: 49. B2 49..75.
  const MicroBatchCost cost = cost_of({4, 5, 0, 6, 5, 0, 1}, {0, 5, 0, 9, 5, 0, 7});
  Replicas paired({cost, cost}, 2, true);
  const std::vector<LaneResult> done = paired.run();
  CHECK(order_of(paired.ops, 0) == "F1 F1 F2 B1 F2 B1 B2 B2");
  CHECK(done[0].makespan == 75);
  CHECK(done[0].useful == 75);
  // Exposed: 10 of F1, of the pair 1 (5 over 4), 10 of B2. What is left is compute: 2 x 11 + 2 x 16.
  CHECK(exposed(paired.accounts[0]) == 21);
  CHECK(done[0].makespan - exposed(paired.accounts[0]) == 2 * 11 + 2 * 16);
  for (const StageOp& op : paired.ops)
    if (op.op.micro_batch == (op.op.kind == OpKind::F ? 1 : 0)) {
      CHECK(op.start == 21);
      CHECK(op.end == 49);
    }
  // One after the other: 2 x 21 + 2 x 26, all exchanges exposed.
  Replicas plain({cost, cost}, 2, false);
  CHECK(plain.run()[0].makespan == 94);
  CHECK(exposed(plain.accounts[0]) == 40);
}

TEST_CASE(
    "An exchange that holds 2 in 5 SMs takes 2 of its 5 from what runs under it, and nothing where it runs "
    "alone") {
  // As above, each exchange with 2 under it. Alone: max(5, 2) = 5, so F1 takes 21 and B2 26. The pair from 21
  // on: max(5, 2 + 4) = 6, max(5, 2 + 9) = 11, max(5, 2 + 6) = 8, max(5, 2 + 7) = 9, and 1: 35.
  const MicroBatchCost cost = cost_of({4, 5, 2, 6, 5, 2, 1, 2}, {0, 5, 2, 9, 5, 2, 7, 2});
  Replicas paired({cost, cost}, 2, true);
  const std::vector<LaneResult> done = paired.run();
  CHECK(done[0].makespan == 21 + 35 + 26);
  CHECK(done[0].useful == 82);
  // Exposed: 10 of F1, 4 x 2 of the pair, 10 of B2; the rest is compute.
  CHECK(exposed(paired.accounts[0]) == 28);
  CHECK(done[0].makespan - exposed(paired.accounts[0]) == 2 * 11 + 2 * 16);
}

TEST_CASE("A pair's exchanges start when all members of the expert group begin the slot") {
  // As before, but rank 1 takes 8 for what rank 0 does in 4. F1: the ranks come at 4 and 8: dispatch 8..13,
  // experts 19, combine 24, 25 both.
  // Pair: exchange 1 of B1 25..30 over F2's 4 and 8: ranks at 30 and 33. Dispatch of F2 33..38 over B1's 9:
  // 39 and 42. Exchange 2 of B1 42..47 over F2's 6: 47 and 48. Combine of F2 48..53 over B1's 7: 54 and 55;
  // ends 55 and 56. B2: exchange 56..61, 70, 75, 82.
  const HandLayer backward{0, 5, 0, 9, 5, 0, 7};
  Replicas replicas({cost_of({4, 5, 0, 6, 5, 0, 1}, backward), cost_of({8, 5, 0, 6, 5, 0, 1}, backward)}, 2,
                    true);
  const std::vector<LaneResult> done = replicas.run();
  CHECK(done[0].makespan == 82);
  CHECK(done[1].makespan == 82);
  REQUIRE(replicas.ops.size() == 8);
  CHECK(replicas.ops[2].end == 55);  // F2 of rank 0, then B1, then those of rank 1
  CHECK(replicas.ops[4].end == 56);
}

TEST_CASE("With equal micro-batches and pairs that take u the pipeline takes P(f + b) + (m - 1)u") {
  // Pairs hide nothing here: u = f + b, and the time is that of 1F1B. Two stages ahead instead of one: P - s
  // more activations, none waited for.
  for (int stages = 1; stages <= 5; ++stages)
    for (int count = 1; count <= 12; ++count) {
      CAPTURE(stages);
      CAPTURE(count);
      const HandLane lane = hand_lane(std::vector<double>(static_cast<std::size_t>(count), 4));
      LaneEngine engine(model_of(stages), pipeline_of(stages));
      LaneAccounts accounts;
      const Schedule schedule =
          schedule_policy("1f1b").make({.stages = stages, .group_sizes = lane.groups, .pairs = true});
      const LaneResult done =
          engine.run(schedule, lane.micro_batches, lane.costs, {}, 0, 0, accounts, nullptr);
      CHECK(done.makespan == (count + stages - 1) * 12);
      CHECK(done.useful == Picoseconds{stages} * count * 12);
    }
}
