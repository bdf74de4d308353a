// Parameter totals and FLOPs of the built-in shapes.
#include <doctest/doctest.h>

#include <set>

#include "policies/base/error.h"
#include "sim/workload/model.h"

using namespace equipoise;

TEST_CASE("Built-in models have the parameters that their makers publish") {
  const struct {
    const char* name;
    std::int64_t parameters;
  } published[] = {
      {"llama2-7b", 6'738'415'616},       {"llama3.1-8b", 8'030'261'248},  {"llama3.1-70b", 70'553'706'496},
      {"llama3.1-405b", 405'853'388'800}, {"qwen2.5-0.5b", 494'032'768},   {"qwen2.5-7b", 7'615'616'512},
      {"qwen2.5-14b", 14'770'033'664},    {"qwen2.5-32b", 32'763'876'352}, {"qwen2.5-72b", 72'706'203'648},
  };
  for (const auto& row : published) {
    CAPTURE(row.name);
    CHECK(builtin_model(row.name).parameters() == row.parameters);
  }
  // As Transformers counts GLM-5 (zai-org/GLM-5): 744 billion, 40 of them active.
  const ModelShape& glm5 = builtin_model("glm-5");
  CHECK(glm5.parameters() == 743'911'199'232);
  CHECK(static_cast<double>(glm5.active_matmul_parameters()) == doctest::Approx(40e9).epsilon(0.05));
  // DeepSeek-V2: published as 235.7 billion, 21.4 active.
  const ModelShape& v2 = builtin_model("deepseek-v2");
  CHECK(static_cast<double>(v2.parameters()) == doctest::Approx(235.7e9).epsilon(0.0005));
  // Active: what a token is multiplied with, and the embedding row it looks up is counted there too.
  CHECK(static_cast<double>(v2.active_matmul_parameters() + v2.embedding_parameters()) ==
        doctest::Approx(21.4e9).epsilon(0.005));
  // DeepSeek-V3: published as 671 billion without its prediction layer, 37 active.
  const ModelShape& v3 = builtin_model("deepseek-v3");
  CHECK(static_cast<double>(v3.parameters()) == doctest::Approx(671e9).epsilon(0.0005));
  CHECK(static_cast<double>(v3.active_matmul_parameters() + v3.embedding_parameters()) ==
        doctest::Approx(37e9).epsilon(0.02));
  // As published: billions in all, and of those that a token meets.
  const struct {
    const char* name;
    double all, active;
  } others[] = {{"qwen3-0.6b", 0.6, 0.6},     {"qwen3-1.7b", 1.7, 1.7},     {"qwen3-4b", 4.0, 4.0},
                {"qwen3-8b", 8.2, 8.2},       {"qwen3-14b", 14.8, 14.8},    {"qwen3-32b", 32.8, 32.8},
                {"qwen3-30b-a3b", 30.5, 3.3}, {"qwen3-235b-a22b", 235, 22}, {"mixtral-8x7b", 46.7, 12.9},
                {"mixtral-8x22b", 141, 39},   {"gpt-oss-20b", 20.9, 3.6},   {"gpt-oss-120b", 116.8, 5.1},
                {"glm-4.5", 355, 32},         {"glm-4.5-air", 106, 12},     {"kimi-k2", 1030, 32},
                {"llama4-scout", 109, 17},    {"llama4-maverick", 400, 17}, {"deepseek-v3.2", 671, 37}};
  for (const auto& other : others) {
    CAPTURE(other.name);
    const ModelShape& m = builtin_model(other.name);
    CHECK(static_cast<double>(m.parameters()) == doctest::Approx(other.all * 1e9).epsilon(0.02));
    if (!m.moe) continue;
    CHECK(static_cast<double>(m.active_matmul_parameters() + m.embedding_parameters()) ==
          doctest::Approx(other.active * 1e9).epsilon(0.2));
  }
  // Named for their size.
  CHECK(static_cast<double>(builtin_model("wlb-550m").parameters()) == doctest::Approx(550e6).epsilon(0.1));
  CHECK(static_cast<double>(builtin_model("wlb-30b").parameters()) == doctest::Approx(30e9).epsilon(0.1));
  CHECK(static_cast<double>(builtin_model("wlb-70b").parameters()) == doctest::Approx(70e9).epsilon(0.1));
}

TEST_CASE("Every built-in name is found once, and a near miss is answered with the nearest") {
  std::set<std::string> names;
  for (const ModelShape& m : builtin_models()) {
    CHECK(names.insert(m.name).second);
    CHECK(&builtin_model(m.name) == &m);
  }
  CHECK(names.size() == 33);
  std::string message;
  try {
    (void)builtin_model("llama2-7bb");
  } catch (const UserError& e) {
    message = e.what();
  }
  CHECK(message.find("llama2-7bb") != std::string::npos);
  CHECK(message.find("did you mean \"llama2-7b\"") != std::string::npos);
}

TEST_CASE("Parameters of a small model by hand") {
  ModelShape m;
  m.layers = 2;
  m.hidden = 8;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 2;
  m.ffn = 16;
  m.vocab = 100;
  // Q 8x8, K and V 8x4 each, output 8x8; gate, up, down 8x16 each; two norms of 8.
  CHECK(m.mixer_parameters(0) == 64 + 2 * 32 + 64);
  CHECK(m.ffn_parameters(0) == 3 * 128);
  CHECK(m.layer_parameters(0) == 192 + 384 + 16);
  CHECK(m.parameters() == 2 * 592 + 2 * 800 + 8);  // embedding, head, last norm
  CHECK(m.kv_width() == 8);
  m.tied_embeddings = true;
  CHECK(m.parameters() == 2 * 592 + 800 + 8);
  m.qkv_bias = true;
  CHECK(m.mixer_parameters(0) == 192 + 16);
  m.gated_ffn = false;
  CHECK(m.ffn_parameters(1) == 2 * 128);
  // The second layer sparse: 4 experts and one shared, of 3 x 8 x 4, and a router of 8 x 4.
  m.gated_ffn = true;
  m.moe = MoeShape{4, 2, 1, 4, 1};
  CHECK(m.ffn_parameters(0) == 384);
  CHECK(m.ffn_parameters(1) == 5 * 96 + 32);
  CHECK(m.active_matmul_parameters() == 800 + 2 * 208 + 384 + 3 * 96 + 32);
}

TEST_CASE("Training FLOPs: 6 per active parameter and token, 12 d per head, layer and causal pair") {
  ModelShape m;
  m.layers = 2;
  m.hidden = 8;
  m.heads = m.kv_heads = 4;
  m.head_dim = 2;
  m.ffn = 16;
  m.vocab = 100;
  // Matmuls: logits 800, per layer 4 x 64 + 384 = 640. Ten tokens: 6 x 2080 x 10 = 124,800. A document of ten
  // tokens has 55 pairs: scores and values 2 x 2 x 2 FLOPs a head and pair, forward and twice that backward:
  // 24 x 4 heads x 2 layers x 55 = 10,560.
  CHECK(m.active_matmul_parameters() == 2080);
  CHECK(m.training_flops(10, 55) == 124800.0 + 10560.0);
  CHECK(m.training_flops(0, 0) == 0);
}
