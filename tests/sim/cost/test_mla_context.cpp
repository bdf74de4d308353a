// Multi-head latent attention under context parallelism: K is wider than V, and each travels at its own
// width.
#include <doctest/doctest.h>

#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

// DeepSeek-V3: 128 heads; K 128 + 64 wide with its rotary part, V and the output 128.
constexpr double kKeyWidth = 192;
constexpr double kValueWidth = 128;

Layout context_parallel(int tensor, int context, ContextComm form) {
  Layout layout;
  layout.tensor = tensor;
  layout.context = context;
  layout.context_comm = form;
  layout.recompute = Recompute::none;
  return layout;
}

// The exchanges of a layer whose group holds these tokens, all of them distributed.
ContextExchanges exchanges_of(const Models& models, const ExchangedTokens& tokens, int context) {
  ContextExchanges exchanges;
  RangeUse use;
  context_form(models.costs)
      .exchange(models.costs, tokens, context_group(models.costs, context), exchanges, use);
  return exchanges;
}

}  // namespace

TEST_CASE("All-gather: all heads' K and V of a token, as expanded, are its bytes") {
  const Layout layout = context_parallel(4, 8, ContextComm::all_gather);
  const Models models(builtin_model("deepseek-v3"), layout);
  const double token = (128 / 4) * (kKeyWidth + kValueWidth) * 2;  // 20,480 bytes on a TP rank
  CHECK(static_cast<double>(models.costs.kv_bytes_per_token()) == token);
  const ContextExchanges exchanges = exchanges_of(models, {.distributed = 4000, .earlier = 1000}, 8);
  REQUIRE(exchanges.forward.size() == 1);
  REQUIRE(exchanges.backward.size() == 2);
  CHECK(exchanges.forward[0].bytes == 5000 * token);
  CHECK(exchanges.backward[0].bytes == 5000 * token);
  CHECK(exchanges.backward[1].name == OpName::cp_reduce_scatter);
  CHECK(exchanges.backward[1].bytes == 5000 * token);  // their gradients are as wide
  // Heads of equal widths need as much as the mean of the two.
  ModelShape plain = builtin_model("deepseek-v3");
  plain.mla.reset();
  plain.head_dim = 160;
  CHECK(Models(plain, layout).costs.kv_bytes_per_token() == models.costs.kv_bytes_per_token());
}

TEST_CASE("Ring: a step hands on K and V, backward their gradients, too") {
  const Models models(builtin_model("deepseek-v3"), context_parallel(1, 8, ContextComm::ring));
  const double token = 128 * (kKeyWidth + kValueWidth) * 2;
  const ContextExchanges exchanges =
      exchanges_of(models, {.distributed = 7500, .earlier = 80, .fullest = 990}, 8);
  REQUIRE(exchanges.forward.size() == 7);
  for (const Op& step : exchanges.forward) CHECK(step.bytes == 1000 * token);
  // During the first two steps of the backward no gradients have been found to go on, during the last one no
  // block comes; the way home is one more.
  std::vector<double> blocks;
  for (const Op& step : exchanges.backward) blocks.push_back(step.bytes / (1000 * token));
  CHECK(blocks == std::vector<double>{1, 1, 2, 2, 2, 2, 2, 1, 1});
}

TEST_CASE("Ulysses: Q and K at 192, V and the output at 128") {
  const Models models(builtin_model("deepseek-v3"), context_parallel(2, 4, ContextComm::ulysses));
  const double heads = 128 / 2;
  const ContextExchanges exchanges = exchanges_of(models, {.distributed = 4000, .fullest = 1000}, 4);
  REQUIRE(exchanges.forward.size() == 2);
  CHECK(exchanges.forward[0].bytes == 1000 * heads * (kKeyWidth + kKeyWidth + kValueWidth) * 2);
  CHECK(exchanges.forward[1].bytes == 1000 * heads * kValueWidth * 2);
  REQUIRE(exchanges.backward.size() == 2);  // the same gradients, the other way round
  CHECK(exchanges.backward[0].bytes == exchanges.forward[1].bytes);
  CHECK(exchanges.backward[1].bytes == exchanges.forward[0].bytes);
  // Every head has K and V of its own, so none is copied where there are as many ranks as heads.
  const Models wide(builtin_model("deepseek-v3"), context_parallel(2, 64, ContextComm::ulysses));
  CHECK(exchanges_of(wide, {.distributed = 64000, .fullest = 1000}, 64).forward[0].bytes ==
        1000 * heads * (kKeyWidth + kKeyWidth + kValueWidth) * 2);
}
