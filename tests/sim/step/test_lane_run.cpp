// One lane with hand-made costs: the fixtures of the schedules, and what CP ranks, hops and ends add.
#include <stdexcept>

#include "sim/workload/stage_layers.h"
#include "tests/sim/step/hand_costs.h"

using namespace equipoise;
using namespace equipoise::testing;

TEST_CASE("1f1b on four stages: 4,2,1,1 takes 56 and 1,1,2,4 takes 54") {
  // Backward takes twice the forward, so every stage works 3 x 8 = 24: the bubble is 1 - 24 / T.
  for (const std::vector<double>& lengths :
       {std::vector<double>{4, 2, 1, 1}, std::vector<double>{4, 1, 2, 1}}) {
    const HandRun run = run_lane("1f1b", hand_lane(lengths), 4);
    CHECK(run.result.makespan == 56);
    CHECK(run.result.useful == 4 * 24);
    CHECK(run.bubble == doctest::Approx(1 - 24.0 / 56));
  }
  CHECK(run_lane("1f1b", hand_lane({1, 1, 2, 4}), 4).result.makespan == 54);
  // Equal micro-batches: (m + P - 1)(f + b) = 7 x 3 x 5.
  CHECK(run_lane("1f1b", hand_lane({5, 5, 5, 5}), 4).result.makespan == 105);
  CHECK(run_lane("gpipe", hand_lane({5, 5, 5, 5}), 4).result.makespan == 105);
}

TEST_CASE("state-aware 1f1b on chunks of 2 (documents 1,1,2,4): 52, 54 with strict keep, 46 with K = 2") {
  const HandLane lane = hand_lane({2, 2, 2, 2}, {1, 1, 2});
  StepOptions options;
  const HandRun one = run_lane("state-aware-1f1b", lane, 4, options);
  CHECK(one.result.makespan == 52);
  CHECK(one.bubble == doctest::Approx(1 - 24.0 / 52));  // recompute is not useful
  CHECK(order_of(one.ops, 0) == "F1 F2 D3 F4 B1 R3 B2 B4 B3");
  CHECK(order_of(one.ops, 3) == "F1 B1 F2 B2 D3 F4 R3 B4 B3");
  // Every stage recomputes the one dropped chunk: 2.
  CHECK(one.accounts.stage_recompute == std::vector<Picoseconds>{2, 2, 2, 2});
  CHECK(one.accounts.compute == std::vector<Picoseconds>{26, 26, 26, 26});

  options.strict_keep = true;
  CHECK(run_lane("state-aware-1f1b", lane, 4, options).result.makespan == 54);
  options = {};
  options.keep = 2;
  const HandRun two = run_lane("state-aware-1f1b", lane, 4, options);
  CHECK(two.result.makespan == 46);
  CHECK(two.bubble == doctest::Approx(1 - 24.0 / 46));
  // Chunks of 4: {1,1,2} and the document of 4, both standalone.
  const HandRun four = run_lane("state-aware-1f1b", hand_lane({4, 4}), 4);
  CHECK(four.result.makespan == 60);
  CHECK(four.bubble == doctest::Approx(0.6));
}

TEST_CASE("A hop is paid between stages, and keeps the sender only with blocking sends") {
  // One micro-batch, two stages, f = 3, b = 6, hop 2: 3 + 2 + 3 + 6 + 2 + 6 = 22 whether or not sends block.
  HandLane lane = hand_lane({3}, {}, 2, 2);
  StepOptions options;
  CHECK(run_lane("1f1b", lane, 2, options).result.makespan == 22);
  options.blocking_sends = true;
  CHECK(run_lane("1f1b", lane, 2, options).result.makespan == 22);
  // Two micro-batches. Stage 0: F1 0-3, F2 3-6; stage 1: F1 5-8, B1 8-14, F2 14-17, B2 17-23; stage 0: B1
  // 16-22, B2 25-31. Blocked until 5, stage 0 runs F2 5-8; stage 1 sends B1 14-16, so F2 16-19, B2 19-25;
  // stage 0: B1 16-22, B2 27-33.
  lane = hand_lane({3, 3}, {}, 2, 2);
  CHECK(run_lane("1f1b", lane, 2, options).result.makespan == 33);
  options.blocking_sends = false;
  CHECK(run_lane("1f1b", lane, 2, options).result.makespan == 31);
}

TEST_CASE("Ranks meet only where they communicate") {
  // Two CP ranks, one stage, two micro-batches; rank 0 takes 3 then 1, rank 1 takes 1 then 3, no backward.
  HandLane lane = hand_lane({0, 0});
  for (std::size_t j = 0; j < 2; ++j) {
    lane.costs[j] = hand_cost(0, 0, 2);
    lane.costs[j].forward[0].add_local(0, j == 0 ? 3 : 1);
    lane.costs[j].forward[0].add_local(1, j == 0 ? 1 : 3);
  }
  StepOptions options;
  // Alone, both ranks have worked 4 when they are through.
  CHECK(run_lane("gpipe", lane, 1, options).result.makespan == 4);
  // A collective of 1 at the end of the layer makes both wait for the slower: (3 + 1) + (3 + 1).
  for (MicroBatchCost& cost : lane.costs) cost.forward[0].add_sync(1);
  CHECK(run_lane("gpipe", lane, 1, options).result.makespan == 8);
}

TEST_CASE("The ends of the model weigh on the first and the last stage") {
  // Three stages, f = b = 1; embedding 10 + 20 on stage 0, head 100 + 200 on stage 2.
  HandLane lane = hand_lane({1}, {}, 1);
  lane.costs[0].embed_forward = {{10}, {10}};
  lane.costs[0].embed_backward = {{20}, {20}};
  lane.costs[0].head_forward = {{100}, {60}};  // the rest is communication
  lane.costs[0].head_backward = {{200}, {200}};
  const HandRun run = run_lane("1f1b", lane, 3);
  CHECK(run.result.makespan == 6 + 330);
  CHECK(run.accounts.compute == std::vector<Picoseconds>{2 + 30, 2, 2 + 260});
  CHECK(run.result.useful == 6 + 330);
}

TEST_CASE("Recomputed layers are spread evenly, and their forward is not useful time") {
  // Five layers on two stages: the last stage gets the fewer, 3 and 2. Of 2 recomputed layers, the share of
  // the layers 0..3 is 2 * 3 / 5 = 1, that of 3..5 is the other.
  Layout layout = pipeline_of(2);
  layout.recompute = Recompute::layers;
  layout.recompute_layers = 2;
  const ModelShape model = model_of(5);
  LaneEngine engine(model, layout);
  const std::vector<StageLayers> stages = stage_layers(model, layout);
  REQUIRE(stages[0].total() + stages[1].total() == 5);
  MicroBatch own;
  CHECK(engine.orders().recomputed_layers(0, own) + engine.orders().recomputed_layers(1, own) == 2);
  own.recompute_layers = 5;  // the micro-batch's own number wins
  CHECK(engine.orders().recomputed_layers(0, own) == stages[0].total());
  CHECK(engine.orders().recomputed_layers(1, own) == stages[1].total());
  // f = 1, b = 2 a layer: 5 forward, 10 backward, 2 recomputed.
  const HandRun run = run_lane(engine, "1f1b", hand_lane({1}), 2);
  CHECK(run.result.makespan == 5 + 10 + 2);
  CHECK(run.result.useful == 15);
  CHECK(run.accounts.stage_recompute[0] + run.accounts.stage_recompute[1] == 2);
}

TEST_CASE("Gradients of a layer are ready when the last micro-batch's backward has passed it") {
  // One stage of three layers, f = 1, b = 2, two micro-batches: F 3, B 6, F 3, B: 12 -> 14, 16, 18; the
  // head's bucket is ready when that backward starts (12), the embedding's at its end.
  LaneEngine engine(model_of(3), pipeline_of(1));
  run_lane(engine, "1f1b", hand_lane({1, 1}), 1);
  REQUIRE(engine.grad_ready().size() == 1);
  CHECK(engine.grad_ready()[0] == std::vector<Picoseconds>{12, 14, 16, 18, 18});
  CHECK(engine.end() == 18);
  // From clock 100 everything is 100 later, the lane's own makespan is not.
  const HandRun later = run_lane(engine, "1f1b", hand_lane({1, 1}), 1, {}, 1, 100);
  CHECK(engine.grad_ready()[0] == std::vector<Picoseconds>{112, 114, 116, 118, 118});
  CHECK(later.result.makespan == 18);
}

TEST_CASE("Cost, recompute and memory ask the same function which stage has which layers") {
  ModelShape model = model_of(14);
  model.sliding_window = 64;
  for (int i = 0; i < model.layers; ++i) model.sliding_layers.push_back(i % 2 == 0);
  for (const bool counted : {false, true}) {
    CAPTURE(counted);
    Layout layout = pipeline_of(4, 2);
    layout.count_embedding_and_head = counted;
    layout.recompute = Recompute::full;
    const Models models(model, layout);
    const std::vector<int> split = layers_of_stages(model, layout);
    // 14 layers on 8: two in the six of the middle; 16 counted ones: 1, then six of 2, then 1.
    CHECK(split == std::vector<int>{1, 2, 2, 2, 2, 2, 2, 1});
    const std::vector<StageLayers> stages = stage_layers(model, layout);
    LaneEngine engine(model, layout);
    for (int v = 0; v < 8; ++v) {
      const auto i = static_cast<std::size_t>(v);
      CHECK(stages[i].total() == split[i]);
      CHECK(models.memory.layers(v) == split[i]);
      CHECK(engine.orders().recomputed_layers(v, MicroBatch{}) == split[i]);
    }
    CHECK(stages[0].count == LayerCounts{0, 0, 1, 0});
    CHECK(stages[1].count == LayerCounts{1, 0, 1, 0});
  }
  // With as many chunks as counted layers the ends hold no layer: the embedding alone, the head alone.
  Layout layout = pipeline_of(4, 4);
  layout.count_embedding_and_head = true;
  const Models models(model, layout);
  LaneEngine engine(model, layout);
  CHECK(engine.orders().buckets(0) == std::vector<ModelPart>{ModelPart::embedding});
  CHECK(engine.orders().buckets(15) == std::vector<ModelPart>{ModelPart::head});
  const double layer = static_cast<double>(model.layer_parameters(0));
  const double embedding = static_cast<double>(model.embedding_parameters());
  CHECK(models.memory.fixed(0).parameters == 2 * (3 * layer + embedding));
  CHECK(models.memory.fixed(3).parameters == 2 * (3 * layer + embedding + static_cast<double>(model.hidden)));
  CHECK(models.memory.fixed(1).parameters == 2 * 4 * layer);
  // f = 1, b = 2 a layer, four micro-batches: 14 layers each, and nothing for the ends.
  const HandRun run = run_lane(engine, "interleaved-1f1b", hand_lane({1, 1, 1, 1}), 4, {}, 4);
  CHECK(run.result.useful == 4 * 42);
}

TEST_CASE("A schedule that cannot run says who waits for what") {
  LaneEngine engine(model_of(2), pipeline_of(2));
  const HandLane lane = hand_lane({1});
  Schedule schedule = schedule_policy("1f1b").make({2, 1, lane.groups});
  std::swap(schedule.ops[1][0], schedule.ops[1][1]);  // the last stage's backward before its forward
  LaneAccounts accounts;
  std::string message;
  try {
    engine.run(schedule, lane.micro_batches, lane.costs, {}, 0, 0, accounts, nullptr);
  } catch (const std::logic_error& e) {
    message = e.what();
  }
  CHECK(message.find("stage 1 waits for the input of B of micro-batch 0") != std::string::npos);
}
