// Stages that even out the attention of what they run at one time (SlimPipe): by hand, and what always holds.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/random.h"
#include "sim/cost/check_layout.h"
#include "sim/step/lockstep.h"
#include "sim/step/lockstep_costs.h"
#include "sim/step/op_step_simulator.h"
#include "tests/sim/models.h"
#include "tests/sim/step/hand_costs.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

Layout exchanging(int stages, bool exchange = true, int virtual_pipeline = 1) {
  Layout layout = pipeline_of(stages, virtual_pipeline);
  layout.stage_attention_exchange = exchange;
  return layout;
}

// Documents of so many slices of so many tokens each.
Step sliced(int documents, int slices, std::int64_t tokens) {
  Step step;
  Lane& lane = step.lanes.emplace_back();
  for (int d = 0; d < documents; ++d)
    for (int k = 0; k < slices; ++k) {
      MicroBatch& slice = lane.micro_batches.emplace_back();
      slice.slices.push_back({d, k * tokens, (k + 1) * tokens});
      if (slices > 1) slice.chunk = {d, k, slices, 0};
    }
  return step;
}

StepOptions by(const char* schedule) {
  StepOptions options;
  options.schedule = &schedule_policy(schedule);
  return options;
}

struct Ran {
  StepResult result;
  double attention = 0;  // seconds of all stages
};
Ran ran(const Models& models, const Step& step, const char* schedule = "seq1f1b") {
  const ShardRule rule = shard_by("per-sequence");
  StepSimulator simulator(models.costs, rule, by(schedule), &models.memory);
  Ran made{simulator.run(step)};
  const std::vector<double>& seconds = simulator.gpu_attention().seconds();
  made.attention = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  return made;
}

// The costs of the only lane, by entry, and which of them each op has.
struct Costed {
  explicit Costed(const Models& models, const Step& step) {
    const ShardRule rule = shard_by("per-sequence");
    MicroBatchCoster coster(models.costs, rule);
    groups = make_lockstep_groups(step, 0, models.layout, models.grid, by("seq1f1b"));
    REQUIRE(groups.size() == 1);
    costs = cost_lockstep_group(groups[0], coster, models.costs,
                                PartOrders(models.costs.model(), models.layout))[0];
  }
  [[nodiscard]] const MicroBatchCost& of(std::size_t stage, std::size_t position) const {
    return costs[at(groups[0].lanes[0].arrivals.of_op[stage][position])];
  }
  std::vector<LockstepGroup> groups;
  std::vector<MicroBatchCost> costs;
};

}  // namespace

TEST_CASE("Two stages and two slices: the second forward of one runs alongside the first of the other") {
  // In step: stage 0 runs F0 F1 - B1 B0, stage 1 - F0 F1 B1 B0, so that F1 and F0 share a tick, and B1 and
  // B0.
  const Models models(builtin_model("wlb-550m"), exchanging(2));
  const Costed lane(models, sliced(1, 2, 65536));
  const MicroBatchCost &first = lane.costs[0], &second = lane.costs[1];
  const Picoseconds less = first.attention_forward[0][0], more = second.attention_forward[0][0];
  REQUIRE(more > 2 * less);
  CHECK(lane.of(0, 0) == first);
  CHECK(lane.of(1, 1) == second);
  for (const auto& [stage, position] : {std::pair(0, 1), {1, 0}}) {
    const MicroBatchCost& evened = lane.of(at(stage), at(position));
    CHECK(evened.attention_forward[0][0] ==
          doctest::Approx(0.5 * static_cast<double>(less + more)).epsilon(1e-9));
    CHECK(evened.sharding.rank_tokens[0] == 65536);
  }
  // Stage 0's B1 shares a tick with stage 1's B0, and stage 1's B1 with none.
  const double backward =
      0.5 * static_cast<double>(first.attention_backward[0][0] + second.attention_backward[0][0]);
  CHECK(lane.of(1, 2) == second);
  CHECK(lane.of(0, 2).attention_backward[0][0] == doctest::Approx(backward).epsilon(1e-9));
  CHECK(lane.of(1, 3).attention_backward[0][0] == doctest::Approx(backward).epsilon(1e-9));
  CHECK(lane.of(0, 3) == first);
}

TEST_CASE(
    "What moves: some queries with the keys they see or all queries with some keys, and the output home") {
  const Models models(builtin_model("wlb-550m"), exchanging(2));
  RangeUse use;
  // 3 of 4 seconds more: a third of the heavier stage's work moves, of 3,000 queries behind 6,000 tokens
  // 7,500,500 of 22,501,500 pairs. 12 heads of 128 in 2 bytes: a query, its output, a key and value take
  // 3,072, 3,072 and 6,144 bytes, a log-sum 48.
  const std::int64_t second = 1'000'000'000'000;
  const Step slices = sliced(1, 3, 3000);
  const std::vector<MicroBatch>& of = slices.lanes[0].micro_batches;
  const StageAttention heavy{&of[2], 2, 0, {8, 8}, {9 * second, 18 * second}},
      light{&of[0], 0, 1, {8, 8}, {3 * second, 6 * second}};
  const StageAttention both[] = {heavy, light};
  const EvenedAttention evened = even_out(both, models.costs, use);
  CHECK(evened[0].attention == 6 * second);
  CHECK(evened[1].attention == 12 * second);
  // 1,141 queries would see 7,141 keys. So it is all queries and 2,500 of the keys: 2 ranks send half of the
  // buffer that an all-to-all counts.
  for (const EvenedPass& pass : evened) CHECK(pass.moves == std::vector<StageMove>{{0, 1, 2, true, 0, 2500}});
  CHECK(evened[0].exchange.bytes == 2 * (3000.0 * 3072 + 2500.0 * 6144 + 3000.0 * (3072 + 48)));
  CHECK(evened[1].exchange.bytes ==
        2 * (3000.0 * (3072 + 2 * 3072 + 48) + 2500.0 * 6144 + 3000.0 * 3072 + 2500.0 * 6144));
  // A whole document has no keys of earlier chunks: its first 1,732 queries have a third of its pairs.
  const Step whole = sliced(1, 1, 3000);
  const StageAttention alone{&whole.lanes[0].micro_batches[0], 0, 0, {8, 8}, {9 * second, 18 * second}};
  const StageAttention with_light[] = {alone, light};
  CHECK(even_out(with_light, models.costs, use)[0].moves ==
        std::vector<StageMove>{{0, 1, 0, false, 0, 1732}});
  for (const std::size_t few : {0, 1})
    CHECK(even_out(std::span(both).first(few), models.costs, use) == EvenedAttention{});
  const StageAttention equal[] = {heavy, heavy, heavy};
  CHECK(even_out(equal, models.costs, use) == EvenedAttention{});
  // An exchange that takes longer than the attention that it shortens is skipped.
  const StageAttention brief[] = {{&of[2], 2, 0, {8, 8}, {9000, 18000}},
                                  {&of[0], 0, 1, {8, 8}, {3000, 6000}}};
  CHECK(even_out(brief, models.costs, use) == EvenedAttention{});
}

TEST_CASE("Equal attention stays where it is, and one stage has none to exchange with") {
  for (const int stages : {1, 3}) {
    const Models with(builtin_model("wlb-550m"), exchanging(stages));
    const Models without(builtin_model("wlb-550m"), exchanging(stages, false));
    const Step equal = sliced(7, 1, 8192), slices = sliced(3, 4, 8192);
    const Step& step = stages == 1 ? slices : equal;
    const Ran exchanged = ran(with, step), alone = ran(without, step);
    CHECK(exchanged.result.times.makespan == alone.result.times.makespan);
    CHECK(exchanged.attention == alone.attention);
    if (stages == 1) CHECK(exchanged.result.work.peak == alone.result.work.peak);
    if (stages > 1) CHECK(Costed(with, step).costs.size() == step.lanes[0].micro_batches.size());
  }
}

TEST_CASE("Equal slices: attention moves and none is lost, both fidelities agree, no step gets longer") {
  SplitMix64 random(29);
  for (int round = 0; round < 24; ++round) {
    const int stages = 2 + static_cast<int>(random.next() % 4), chunks = 1 + round % 2;
    const int slices = stages * (1 + static_cast<int>(random.next() % 3));
    const int documents = 1 + static_cast<int>(random.next() % 4);
    const std::int64_t tokens = 1024 << random.next() % 5;
    CAPTURE(stages);
    CAPTURE(slices);
    CAPTURE(documents);
    CAPTURE(tokens);
    ModelShape model = builtin_model("wlb-550m");
    model.layers = stages * chunks * 2;
    model.vocab = 64;  // no stage has more than others but for its attention
    Layout layout = exchanging(stages, true, chunks);
    if (round % 3 == 0) layout.recompute = Recompute::full;
    const Models with(model, layout);
    layout.stage_attention_exchange = false;
    const Models without(model, layout);
    const Step step = sliced(documents, slices, tokens);
    const Ran exchanged = ran(with, step), alone = ran(without, step);
    CHECK(exchanged.attention == doctest::Approx(alone.attention).epsilon(1e-9));
    // But for the ends of the pipeline, whose ticks are not full.
    const double longer =
        to_seconds(exchanged.result.times.makespan) / to_seconds(alone.result.times.makespan);
    CHECK(longer < (tokens < 8192 ? 1.01 : 1.0));
    const ShardRule rule = shard_by("per-sequence");
    OpStepSimulator op(with.costs, rule, by("seq1f1b"), {});
    CHECK(op.run(step).times.makespan == exchanged.result.times.makespan);
  }
}

TEST_CASE("Stages without layers, and layers that no backward reaches, have nothing to exchange") {
  for (const std::vector<int>& layers : {std::vector{0, 11, 11, 2}, {12, 12, 0, 0}}) {
    Layout layout = exchanging(4);
    layout.stage_layers = layers;
    CHECK(ran(Models(builtin_model("wlb-550m"), layout), sliced(2, 4, 8192)).result.times.makespan > 0);
  }
  ModelShape model = builtin_model("wlb-550m");
  model.training.frozen = bit_of(WeightKind::embedding);
  model.training.frozen_layers = 6;
  CHECK(ran(Models(model, exchanging(4)), sliced(2, 4, 8192)).result.times.makespan > 0);
}

namespace {

// The CP ranks of all stages as one pool.
Layout pooling(int stages, int context, int nano_batches = 1) {
  Layout layout = exchanging(stages);
  layout.context = context;
  layout.context_comm = ContextComm::disaggregated;
  layout.epsilon = 0;
  layout.nano_batches = nano_batches;
  return layout;
}

Step on_ranks(Step step, int context) {
  for (Lane& lane : step.lanes) lane.context = context;
  return step;
}

}  // namespace

TEST_CASE("A pool of two stages: a tick with one op has all four ranks at work, and two ops share them") {
  const Models models(builtin_model("wlb-550m"), pooling(2, 2));
  const Costed lane(models, on_ranks(sliced(2, 1, 65536), 2));
  const std::int64_t pairs = std::int64_t{65536} * 65537 / 2;
  // In step: stage 0 runs F0 F1 . B0 B1 ., stage 1 . F0 F1 B0 B1: the last stage begins the backwards.
  const auto each = [&](std::size_t stage, std::size_t position) {
    const MicroBatchCost& cost = lane.of(stage, position);
    REQUIRE(cost.pool != nullptr);
    CHECK(cost.pool->group.ranks == 4);
    REQUIRE(cost.pool->tasks.parts[0].pairs.size() == 2);
    const auto [least, most] = std::ranges::minmax(cost.pool->tasks.parts[0].pairs);
    CHECK(most - least < 3 * 65536);  // whole queries move
    return static_cast<double>(least + most) / 2;
  };
  const double quarter = static_cast<double>(pairs) / 4;
  CHECK(each(0, 0) == doctest::Approx(quarter).epsilon(0.01));      // F0 alone
  CHECK(each(0, 1) == doctest::Approx(2 * quarter).epsilon(0.01));  // F1 of stage 0 and F0 of stage 1
  CHECK(each(1, 0) == doctest::Approx(2 * quarter).epsilon(0.01));
  CHECK(each(1, 1) == doctest::Approx(quarter).epsilon(0.01));  // F1 of stage 1 alone
  // Less attention where idle ranks help, as much where all have it.
  const MicroBatchCost& own = lane.costs[0];
  CHECK(lane.of(0, 0).attention_forward[0][0] < 0.6 * static_cast<double>(own.attention_forward[0][0]));
  CHECK(lane.of(1, 0).attention_forward[0][0] ==
        doctest::Approx(static_cast<double>(own.attention_forward[0][0])).epsilon(0.05));
}

TEST_CASE("Pools: every pair is somewhere, idle ranks take their part, both fidelities agree") {
  SplitMix64 random(43);
  for (int round = 0; round < 24; ++round) {
    const int stages = 2 + static_cast<int>(random.next() % 3),
              context = 2 + static_cast<int>(random.next() % 3);
    CAPTURE(stages);
    CAPTURE(context);
    ModelShape model = builtin_model("wlb-550m");
    model.layers = stages * 2;
    const Models models(model, pooling(stages, context, 1 + round % 2));
    Step step;
    step.lanes.emplace_back().context = context;
    for (int j = 0; j < 5; ++j) {
      MicroBatch& micro_batch = step.lanes[0].micro_batches.emplace_back();
      for (int d = 0; d < 3; ++d)
        micro_batch.slices.push_back({3 * j + d, 0, 64 + static_cast<std::int64_t>(random.next() % 20000)});
    }
    const ShardRule rule = shard_by(round % 3 == 0 ? "contiguous" : "per-document");
    std::vector<Sharding> shardings;
    MicroBatchCoster coster(models.costs, rule);
    for (const MicroBatch& micro_batch : step.lanes[0].micro_batches) {
      MicroBatchCost cost;
      coster.cost(micro_batch, context, cost);
      shardings.push_back(cost.sharding);
    }
    const MicroBatch idle;
    Sharding nothing;
    nothing.rank_begin.assign(at(context) + 1, 0);
    nothing.rank_tokens.assign(at(context), 0);
    std::vector<PooledTokens> pool = {{&idle, &nothing}};
    std::int64_t owned = 0;
    for (std::size_t s = 1; s < at(stages); ++s) {
      pool.push_back({&step.lanes[0].micro_batches[s], &shardings[s]});
      for (const Segment& segment : shardings[s].segments) owned += segment.pairs();
    }
    std::int64_t planned = 0;
    const std::vector<PlannedTasks> tasks = pooled_tasks(pool, models.costs);
    for (const PlannedTasks& of_stage : tasks) {
      std::int64_t of_ranks = 0;
      for (std::size_t n = 0; n < at(of_stage.nano_batches); ++n) {
        for (const AttentionTask& task : of_stage.parts[n].tasks) of_ranks += task.pairs;
        CHECK(of_stage.most[n].inputs == tasks[0].most[n].inputs);
      }
      planned += of_ranks;
      CHECK(static_cast<double>(of_ranks) ==
            doctest::Approx(static_cast<double>(owned) / stages).epsilon(0.05));
      CHECK(of_stage.held > 0);
    }
    CHECK(planned == owned);
    StepSimulator simulator(models.costs, rule, by("seq1f1b"), &models.memory);
    OpStepSimulator op(models.costs, rule, by("seq1f1b"), {});
    CHECK(op.run(step).times.makespan == simulator.run(step).times.makespan);
  }
}

TEST_CASE("The exchange is refused where stages do not run in step, and with what its prices leave out") {
  const Models models(builtin_model("wlb-550m"), exchanging(2));
  CHECK_THROWS_WITH_AS(ran(models, sliced(4, 1, 1024), "1f1b"),
                       "stage_attention_exchange: true with schedule 1f1b; allowed: seq1f1b, or false",
                       UserError);
  Step wide = sliced(4, 1, 1024);
  wide.lanes[0].context = 2;
  Layout two = exchanging(2);
  two.data = 2;  // replicas for the lane's ranks
  CHECK_THROWS_WITH_AS(ran(Models(builtin_model("wlb-550m"), two), wide),
                       "stage_attention_exchange: true with a lane of CP degree 2; allowed: 1, or false",
                       UserError);
  Layout layout = exchanging(2);
  layout.context = 2;
  CHECK_THROWS_WITH_AS(check_layout(models.costs.model(), layout, "study.json"),
                       "study.json: parallel.context: expected 1 or context_comm disaggregated, or "
                       "stage_attention_exchange false, found 2",
                       UserError);
  layout = pooling(5, 2);
  CHECK_THROWS_WITH_AS(check_layout(models.costs.model(), layout, "study.json"),
                       "study.json: parallel.pipeline: expected stages of as many layers, or "
                       "stage_attention_exchange false, found 3 and 4",
                       UserError);
}
