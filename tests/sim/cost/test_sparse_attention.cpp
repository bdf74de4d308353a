// The cost of attention to chosen keys: public figures, laws of pairs and ranks, bytes counted by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "policies/base/error.h"
#include "sim/cost/kept_bytes.h"
#include "sim/cost/policy_costs.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

constexpr auto kChoosing = static_cast<std::size_t>(Mixer::attention);
constexpr auto kReusing = static_cast<std::size_t>(Mixer::window);

// DeepSeek V3.2 without its modules of multi-token prediction.
ModelShape indexed_model() {
  ModelShape m = builtin_model("deepseek-v3");
  m.indexer = IndexerShape{64, 128, 2048, {}};
  return m;
}

Layout ranks_of(int tensor, int context) {
  Layout layout;
  layout.tensor = tensor;
  layout.context = context;
  return layout;
}

}  // namespace

TEST_CASE("Its rates are those of the public figures, on the GPU that they were measured on") {
  ModelShape m = indexed_model();
  m.indexer->reuses.assign(at(m.layers), true);
  const Models models(m, Layout{});
  const QueryKeys late{1024, 65536};  // whose queries all attend to 2,048 keys
  RangeUse use;
  const AttentionTimes reusing = models.costs.attention.times({&late, 1}, use, 2048);
  const double pairs = 1024.0 * 2048;
  const auto tflops = [&](double flops, Picoseconds time) { return flops * pairs / to_seconds(time) / 1e12; };
  CHECK(tflops(2 * 128 * (576 + 512), reusing.forward) == doctest::Approx(640).epsilon(0.01));
  CHECK(tflops(2 * 128 * (3 * 576 + 2 * 512), reusing.backward) == doctest::Approx(100).epsilon(0.01));
  // Scores of all keys, whose number the bound of chosen ones does not change.
  const AttentionTimes indexing = models.costs.attention.times({&late, 1}, use, 0);
  CHECK(indexing.forward > reusing.forward);
  CHECK(indexing.backward > reusing.backward);
}

TEST_CASE("A document's chosen pairs grow with its length, and the scored ones with its square") {
  const Models models(indexed_model(), Layout{});
  const auto forward = [&](std::int64_t tokens) {
    return static_cast<double>(cost_of(models, documents({tokens})).attention_forward[kChoosing][0]);
  };
  // Of a x + b x^2 + c, f(2x) - 2 f(x) is 2 b x^2 - c, whose growth from 2x to 4x is four times that before.
  const double one = forward(1 << 15), two = forward(1 << 16), four = forward(1 << 17),
               eight = forward(1 << 18);
  const double growth = (four - 2 * two) - (two - 2 * one);  // 6 b x^2
  CHECK((eight - 2 * four) - (four - 2 * two) == doctest::Approx(4 * growth).epsilon(1e-3));
  CHECK(growth / 6 > 0.3 * one);
  CHECK(growth / 6 < 0.7 * one);               // what is left is linear
  CHECK(forward(1024) * 3.9 < forward(2048));  // below 2,048 keys all keys are chosen
  const ProfiledWorkload workload(models.costs, 131072);
  CHECK(workload.attention_seconds(65536) < 3 * workload.attention_seconds(32768));
}

TEST_CASE("Every TP rank runs the whole indexer and at least 64 heads") {
  RangeUse use;
  const QueryKeys late{1024, 65536};
  const auto time = [&](int tensor, std::int64_t window) {
    const Models models(indexed_model(), ranks_of(tensor, 1));
    return models.costs.attention.times({&late, 1}, use, window);
  };
  const AttentionTimes of_two = time(2, 0), of_four = time(4, 0);
  CHECK(of_two.forward == of_four.forward);
  CHECK(std::abs(time(1, 2048).forward - 2 * time(2, 2048).forward) <= 2);
}

TEST_CASE("A frozen indexer does not learn") {
  ModelShape m = indexed_model();
  const Models trained(m, Layout{});
  m.training.frozen = kAllWeights;
  const Models frozen(m, Layout{});
  const MicroBatch micro_batch = documents({8192});
  CHECK(cost_of(frozen, micro_batch).attention_backward[kChoosing][0] <
        cost_of(trained, micro_batch).attention_backward[kChoosing][0]);
  const auto products = [](const Models& models) {
    return ops_of_pass(models, LayerKind::moe, 1024, true, OpName::weight_gradient).size();
  };
  CHECK(products(frozen) == 0);
  // It keeps neither its queries and weights nor a gradient of the chosen keys' scores.
  ModelShape latent = m;
  latent.indexer->heads = 0;
  const auto kept = [](const ModelShape& model) { return kept_bytes(model, Layout{}, {}, LayerKind::moe); };
  CHECK(kept(m) == kept(latent));
  ModelShape plain = m;
  plain.training = {};
  plain.indexer.reset();
  CHECK(products(trained) == products(Models(plain, Layout{})) + 2);
}

TEST_CASE("FLOPs are those of a rank's own heads, and a backward's are of chosen pairs") {
  const QueryKeys late{1024, 65536};
  const double chosen = 1024.0 * 2048, scored = 1024 * (65536 - 0.5 * 1023);
  RangeUse use;
  for (const int tensor : {1, 8}) {
    const Models models(indexed_model(), ranks_of(tensor, 1));
    const double heads = 128.0 / tensor;
    CHECK(models.costs.attention.forward({&late, 1}, use).flops ==
          doctest::Approx(chosen * 2 * heads * (576 + 512 + 576) + scored * 2 * 64 * 128));
    CHECK(models.costs.attention.backward({&late, 1}, use).flops ==
          doctest::Approx(chosen * (2 * heads * (3 * 576 + 2 * 512) + 2 * 2 * 64 * 128)));
  }
}

TEST_CASE("A CP group gathers the latent keys and those of the indexer, whatever the TP degree") {
  for (const int tensor : {1, 4}) {
    const Models models(indexed_model(), ranks_of(tensor, 4));
    CHECK(models.costs.kv_bytes_per_token() == 2 * (512 + 64 + 128));
    const MicroBatchCost cost = cost_of(models, documents({16384}));
    CHECK(cost.forward[0].syncs() == 1);
    CHECK(cost.backward[0].syncs() == 2);
  }
}

TEST_CASE("Layers that reuse a choice score nothing and need all keys") {
  ModelShape m = indexed_model();
  for (int i = 0; i < m.layers; ++i) m.indexer->reuses.push_back(i % 2 == 1);
  const Models models(m, ranks_of(1, 2));
  const MicroBatchCost cost = cost_of(models, documents({65536}));
  CHECK(cost.attention_forward[kReusing][0] < cost.attention_forward[kChoosing][0]);
  CHECK(cost.kv_useful_tokens ==
        cost_of(Models(indexed_model(), ranks_of(1, 2)), documents({65536})).kv_useful_tokens);
}

TEST_CASE("Kept bytes, counted by hand") {
  const ModelShape m = indexed_model();
  ModelShape plain = m;
  plain.indexer.reset();
  const auto kept = [](const ModelShape& model) { return kept_bytes(model, Layout{}, {}, LayerKind::moe); };
  // In place of each head's queries, keys and values: queries before and after, the result, shared keys, the
  // indexer's 64 queries and weights; a number and a gradient of 2,048 keys.
  const double expanded = 2 * 128 * (192 + 192 + 128);
  const double latent = 2 * (128 * (128 + 576 + 512) + 704 + 64 * 129) + 4 * 2 * 2048;
  CHECK(kept(m) - kept(plain) == doctest::Approx(latent - expanded));
}

TEST_CASE("Other forms of CP than an all-gather are refused") {
  Layout layout = ranks_of(1, 2);
  check_layout(indexed_model(), layout, "study");
  layout.context_comm = ContextComm::ring;
  CHECK_THROWS_WITH_AS(
      check_layout(indexed_model(), layout, "study"),
      "study: parallel.context_comm: expected all-gather for a model with an indexer, found ring", UserError);
  layout.context = 1;
  check_layout(indexed_model(), layout, "study");  // one GPU per replica, and one replica
  layout.data = 2;                                 // of which policies make CP groups
  CHECK_THROWS_AS(check_layout(indexed_model(), layout, "study"), UserError);
}
