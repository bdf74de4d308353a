// Layers over stages, and every layout that is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "policies/base/error.h"
#include "policies/base/random.h"
#include "sim/cost/check_layout.h"
#include "sim/workload/layout.h"
#include "sim/workload/stage_layers.h"

using namespace equipoise;

TEST_CASE("126 layers over 16 stages: 14 stages with 8, the first and the last with 7") {
  const std::vector<int> split = split_layers(126, 16);
  REQUIRE(split.size() == 16);
  CHECK(split.front() == 7);
  CHECK(split.back() == 7);
  for (std::size_t s = 1; s + 1 < split.size(); ++s) CHECK(split[s] == 8);
}

TEST_CASE("Layers that do not divide go to the middle") {
  CHECK(split_layers(8, 4) == std::vector<int>{2, 2, 2, 2});
  CHECK(split_layers(5, 4) == std::vector<int>{1, 2, 1, 1});
  CHECK(split_layers(6, 4) == std::vector<int>{1, 2, 2, 1});
  CHECK(split_layers(5, 1) == std::vector<int>{5});
  for (int layers = 1; layers <= 130; ++layers)
    for (int stages = 1; stages <= layers; ++stages) {
      const std::vector<int> split = split_layers(layers, stages);
      REQUIRE(std::accumulate(split.begin(), split.end(), 0) == layers);
      const auto [least, most] = std::minmax_element(split.begin(), split.end());
      REQUIRE(*most - *least <= 1);
      // The ends never have more than any stage between them.
      for (std::size_t s = 1; s + 1 < split.size(); ++s)
        REQUIRE(std::min(split.front(), split.back()) <= split[s]);
      if (layers % stages <= stages - 2 && stages > 2)
        REQUIRE(std::max(split.front(), split.back()) == layers / stages);
    }
}

namespace {

std::string refusal(const ModelShape& model, const Layout& layout) {
  try {
    check_layout(model, layout, "study.json");
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("A layout that fits is accepted") {
  Layout layout;
  CHECK(refusal(builtin_model("llama2-7b"), layout) == "");
  layout.tensor = 8;
  layout.context = 16;
  layout.pipeline = 16;
  layout.data = 4;
  CHECK(refusal(builtin_model("llama3.1-405b"), layout) == "");
  CHECK(layout.gpus() == 8192);
  layout = {};
  layout.tensor = 4;
  layout.data = 8;
  layout.expert = 8;
  CHECK(refusal(builtin_model("deepseek-v2"), layout) == "");
  layout = {};
  layout.tensor = 14;  // 14 heads, 2 KV heads: replicated
  ModelShape model = builtin_model("qwen2.5-0.5b");
  model.ffn = 14 * 100;
  CHECK(refusal(model, layout) == "");
}

TEST_CASE("Every impossible layout is refused, naming the key, what was found and what is allowed") {
  const ModelShape& dense = builtin_model("llama3.1-8b");  // 32 layers, 32 heads, 8 KV heads, FFN 14336
  const struct {
    const char* message;
    std::function<void(Layout&)> change;
  } cases[] = {
      {"study.json: parallel.tensor: expected a divisor of the model's 32 heads, found 3",
       [](Layout& l) { l.tensor = 3; }},
      {"study.json: parallel.tensor: expected a divisor of the model's 32 heads, found 64",
       [](Layout& l) { l.tensor = 64; }},
      {"study.json: parallel.pipeline: expected pipeline x virtual_pipeline of at most 32 layers, found 33",
       [](Layout& l) { l.pipeline = 33; }},
      {"study.json: parallel.pipeline: expected pipeline x virtual_pipeline of at most 32 layers, found 48",
       [](Layout& l) { l.pipeline = 8, l.virtual_pipeline = 6; }},
      {"study.json: parallel.virtual_pipeline: expected 1 without a pipeline, found 2",
       [](Layout& l) { l.virtual_pipeline = 2; }},
      {"study.json: parallel.zero: expected 0..3, found 4", [](Layout& l) { l.zero = 4; }},
      {"study.json: parallel.zero: 3 (FSDP) with a pipeline is not supported, expected 0..2",
       [](Layout& l) { l.zero = 3, l.pipeline = 2; }},
      {"study.json: parallel.recompute.layers: expected 0..32, found 33",
       [](Layout& l) { l.recompute = Recompute::layers, l.recompute_layers = 33; }},
      {"study.json: parallel.context: expected a divisor of the 4 query heads of a TP rank (context_comm "
       "ulysses), found 8",
       [](Layout& l) { l.tensor = 8, l.context = 8, l.context_comm = ContextComm::ulysses; }},
      {"study.json: parallel.context_inner: 3 is no divisor of context = 8; allowed: 1, 2, 4",
       [](Layout& l) {
         l.tensor = 8, l.context = 8, l.context_comm = ContextComm::ulysses_ring, l.context_inner = 3;
       }},
      {"study.json: parallel.context_inner: 8 is no divisor of the 4 query heads of a TP rank; allowed: 1, "
       "2, 4",
       [](Layout& l) {
         l.tensor = 8, l.context = 8, l.context_comm = ContextComm::ulysses_ring, l.context_inner = 8;
       }},
      {"study.json: parallel.context_inner: expected a degree with context_comm ulysses-all-gather, found "
       "none; "
       "allowed: 1, 2",
       [](Layout& l) { l.context = 2, l.context_comm = ContextComm::ulysses_all_gather; }},
      {"study.json: parallel.expert: expected 1 for a model without experts, found 2",
       [](Layout& l) { l.data = 2, l.expert = 2; }},
  };
  for (const auto& c : cases) {
    Layout layout;
    c.change(layout);
    CHECK(refusal(dense, layout) == c.message);
  }
  ModelShape odd = dense;
  odd.kv_heads = 6;
  odd.heads = 24;
  Layout layout;
  layout.tensor = 4;
  CHECK(refusal(odd, layout) ==
        "study.json: parallel.tensor: expected a divisor or multiple of the model's 6 KV heads, found 4");
  odd = dense;
  odd.ffn = 14337;
  layout.tensor = 2;
  CHECK(refusal(odd, layout) ==
        "study.json: parallel.tensor: expected a divisor of the FFN size 14337, found 2");
  const ModelShape& sparse = builtin_model("deepseek-v2");  // 160 experts
  layout = {};
  layout.expert = 7;
  layout.data = 7;
  CHECK(refusal(sparse, layout) ==
        "study.json: parallel.expert: expected a divisor of the model's 160 experts, found 7");
  layout.expert = 8;
  layout.data = 2;
  layout.context = 2;
  CHECK(refusal(sparse, layout) ==
        "study.json: parallel.expert: expected a divisor of data x context = 4, found 8");
  layout = {};
  layout.tensor =
      64;  // divides 128 heads and the dense FFN of 12288, but not the experts' 1536 - it does: 24
  CHECK(refusal(sparse, layout) == "");
  ModelShape narrow = sparse;
  narrow.moe->expert_ffn = 1500;
  CHECK(refusal(narrow, layout) ==
        "study.json: parallel.tensor: expected a divisor of the expert FFN size 1500, found 64");
  layout.expert_tensor = 3;
  CHECK(refusal(narrow, layout) ==
        "study.json: parallel.expert_tensor: expected a divisor of tensor = 64, found 3");
  layout.expert_tensor = 1;
  layout.expert = 128;
  CHECK(refusal(sparse, layout) ==
        "study.json: parallel.expert: expected a divisor of the model's 160 experts, found 128");
  layout.expert = 40;
  CHECK(refusal(sparse, layout) ==
        "study.json: parallel.expert: expected a divisor of tensor x data x context / expert_tensor = 64, "
        "found 40");
  layout.expert = 32;
  CHECK(refusal(sparse, layout) == "");
}

TEST_CASE("Shares of recomputed layers do not overflow: 60,000 of 60,000 layers are all of each stage's") {
  // 60,000 x 60,000 = 3.6e9, beyond 2^31.
  const RecomputeOrder order({15000, 15000, 15000, 15000});
  for (int v = 0; v < 4; ++v) {
    CHECK(order.of_stage(v, 60000) == 15000);
    CHECK(order.of_stage(v, 30000) == 7500);
  }
}

TEST_CASE("Recomputed layers by hand: stages of 2, 3 and 1 layers") {
  // Shares before each layer: 0, 1/2 | 0, 1/3, 2/3 | 0. In order, ties to the lowest stage: one of each
  // stage, then stage 1 (1/3), stage 0 (1/2), stage 1 (2/3).
  const RecomputeOrder order({2, 3, 1});
  const int stages[7][3] = {{0, 0, 0}, {1, 0, 0}, {1, 1, 0}, {1, 1, 1}, {1, 2, 1}, {2, 2, 1}, {2, 3, 1}};
  for (int k = 0; k <= 6; ++k)
    for (int v = 0; v < 3; ++v) CHECK(order.of_stage(v, k) == stages[k][v]);
}

TEST_CASE(
    "One more recomputed layer is one more on one stage, and stages differ by less than a layer's share") {
  SplitMix64 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<int> layers(1 + random.next() % 9);
    int total = 0;
    for (int& count : layers) total += count = static_cast<int>(random.next() % 8);
    const RecomputeOrder order(layers);
    for (int k = 0; k <= total; ++k) {
      int sum = 0;
      for (std::size_t v = 0; v < layers.size(); ++v) {
        const int own = order.of_stage(static_cast<int>(v), k);
        CHECK(order.of_stage(static_cast<int>(v), k + 1) - own >= 0);
        sum += own;
        // The stage's last layer was its turn: no stage with layers left had a smaller share then.
        for (std::size_t u = 0; u < layers.size() && own > 0; ++u)
          CHECK((order.of_stage(static_cast<int>(u), k) == layers[u] ||
                 (own - 1) * layers[u] <= order.of_stage(static_cast<int>(u), k) * layers[v]));
      }
      CHECK(sum == k);
    }
  }
}

TEST_CASE(
    "Block costs: a stage is full once it exceeds its share, and a large head leaves the last without a "
    "block") {
  ModelShape model = builtin_model("wlb-550m");
  model.layers = 16;
  model.heads = model.kv_heads = 32;
  model.hidden = 2048;
  model.head_dim = 64;
  model.ffn = 8192;
  model.vocab = 131072;  // a head of four layers' parameters: shares of 20 layers
  Layout layout;
  layout.stage_division = StageDivision::block_costs;
  CHECK(layers_of_stages(model, layout) == std::vector<int>{16});
  layout.pipeline = 4;  // shares of 5
  CHECK(layers_of_stages(model, layout) == std::vector<int>{6, 5, 5, 0});
  CHECK(refusal(model, layout) == "");
  layout.pipeline = 8;  // of 2.5; norm and head fill the seventh, the loss has the last
  CHECK(layers_of_stages(model, layout) == std::vector<int>{3, 3, 2, 3, 2, 3, 0, 0});
  CHECK(refusal(model, layout) == "");
  layout.pipeline = 16;  // of 1.25
  CHECK(refusal(model, layout) ==
        "study.json: parallel.pipeline: expected pipeline x virtual_pipeline stages that all get a block by "
        "framework.stage_division block-costs (parallel.stage_layers or stage_division even divides "
        "otherwise), "
        "found 16: the last 1 would get none");
  layout.virtual_pipeline = 1 << 22;
  CHECK(refusal(model, layout)
            .starts_with(
                "study.json: parallel.pipeline: expected pipeline x virtual_pipeline of at most 16 layers"));
  layout.virtual_pipeline = 1;
  layout.stage_layers = split_layers(16, 16);  // what a user says goes first
  CHECK(refusal(model, layout) == "");
  CHECK(layers_of_stages(model, layout) == std::vector<int>(16, 1));
  layout.stage_layers.clear();
  layout.count_embedding_and_head = true;
  CHECK(refusal(model, layout) == "");
  for (int layers = 1; layers <= 40; ++layers)
    for (int stages = 1; stages <= 40; ++stages) {
      model.layers = layers;
      const BlockDivision division = divide_by_block_costs(model, stages);
      REQUIRE(std::accumulate(division.layers.begin(), division.layers.end(), 0) == layers);
      REQUIRE(division.filled >= 1);
      REQUIRE(division.filled <= stages);
    }
}

TEST_CASE("Embedding and head count as a layer each: Llama 3 405B has 7, 8, ... 8, 7 layers on 16 stages") {
  const ModelShape& model = builtin_model("llama3.1-405b");
  Layout layout;
  layout.pipeline = 16;
  std::vector<int> split = layers_of_stages(model, layout);
  CHECK(split == split_layers(126, 16));
  layout.count_embedding_and_head = true;
  split = layers_of_stages(model, layout);
  std::vector<int> expected(16, 8);
  expected.front() = expected.back() = 7;
  CHECK(split == expected);
  for (const int chunks : {2, 4, 8}) {  // 128 counted layers: 4, 2, 1 a chunk; with 8 the ends hold no layer
    layout.virtual_pipeline = chunks;
    split = layers_of_stages(model, layout);
    CHECK(refusal(model, layout) == "");
    REQUIRE(split.size() == static_cast<std::size_t>(16 * chunks));
    CHECK(split.front() == 8 / chunks - 1);
    CHECK(split.back() == 8 / chunks - 1);
    CHECK(std::all_of(split.begin() + 1, split.end() - 1, [&](int n) { return n == 8 / chunks; }));
  }
  layout.virtual_pipeline = 9;
  CHECK(refusal(model, layout) ==
        "study.json: parallel.pipeline: expected pipeline x virtual_pipeline of at most 128 layers with "
        "embedding and "
        "head, found 144");
  layout = {};
  layout.count_embedding_and_head = true;
  CHECK(layers_of_stages(model, layout) == std::vector<int>{126});
}

TEST_CASE(
    "Stages get the layers that the layout gives them, the last perhaps none; each virtual stage one "
    "number") {
  const ModelShape& model = builtin_model("llama3.1-8b");
  Layout layout;
  layout.pipeline = 4;
  layout.stage_layers = {12, 10, 10, 0};
  CHECK(refusal(model, layout) == "");
  CHECK(layers_of_stages(model, layout) == layout.stage_layers);
  CHECK(first_layers(model, layout) == std::vector<int>{0, 12, 22, 32});
  const std::vector<StageLayers> stages = stage_layers(model, layout);
  CHECK(stages.front().count[at(LayerKind::dense)] == 12);
  CHECK(stages.back().count[at(LayerKind::dense)] == 0);
  layout.bidirectional = true;  // the copies in the other order
  CHECK(layers_of_stages(model, layout) == std::vector<int>{12, 10, 10, 0, 0, 10, 10, 12});
  layout.bidirectional = false;
  layout.virtual_pipeline = 2;
  CHECK(refusal(model, layout) ==
        "study.json: parallel.stage_layers: expected layers of 8 stages (pipeline x virtual_pipeline), found "
        "4 numbers");
  layout.virtual_pipeline = 1;
  layout.stage_layers = {12, 10, 10, 1};
  CHECK(refusal(model, layout) ==
        "study.json: parallel.stage_layers: expected the model's 32 layers, found 33");
  layout.stage_layers = {12, 10, 10, 0};
  layout.count_embedding_and_head = true;
  CHECK(refusal(model, layout) ==
        "study.json: parallel.stage_layers: expected no count_embedding_and_head next to it, which shares "
        "layers out");
}

TEST_CASE("A ring of context-parallel ranks is refused for a model with sliding windows") {
  ModelShape model = builtin_model("llama3.1-8b");
  model.sliding_window = 4096;
  Layout layout;
  layout.context = 2;
  CHECK(refusal(model, layout) == "");
  layout.context_comm = ContextComm::ring;
  CHECK(
      refusal(model, layout) ==
      "study.json: parallel.context_comm: expected all-gather or ulysses or ulysses-all-gather or group-cast "
      "for a model with sliding windows, found ring");
}

TEST_CASE(
    "From both ends each block of layers has a copy on the opposite rank, and micro-batches go both ways") {
  // Ranks 0..3 hold blocks 0..3 and, as virtual stages 4..7, blocks 3..0.
  Layout layout;
  layout.pipeline = 4;
  layout.bidirectional = true;
  const VirtualStages order = layout.stage_order();
  CHECK(order.count() == 8);
  CHECK(layout.virtual_stages() == 8);
  const int blocks[] = {0, 1, 2, 3, 3, 2, 1, 0};
  for (int v = 0; v < 8; ++v) CHECK(order.block_of(v) == blocks[v]);
  CHECK(order.first(0) == 0);
  CHECK(order.first(1) == 7);
  CHECK(order.further(2, 1) == 3);
  CHECK(order.further(6, 1) == 5);
  CHECK(order.further(6, -1) == 7);
  for (const int v : {3, 4}) CHECK(order.is_last(v));
  for (int v = 0; v < 8; ++v) CHECK_FALSE(order.wraps(v, 1));
  ModelShape model = builtin_model("llama2-7b");
  model.layers = 6;
  CHECK(layers_of_stages(model, layout) == std::vector<int>{1, 2, 2, 1, 1, 2, 2, 1});
  layout.bidirectional = false;
  layout.virtual_pipeline = 2;
  CHECK(layout.stage_order().wraps(3, 1));
  CHECK(layout.stage_order().wraps(4, -1));
  CHECK(layout.stage_order().further(3, 1) == 4);
}
