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

}  // namespace

TEST_CASE("All-gather: all heads' K and V of a token, as expanded, are its bytes") {
  const Layout layout = context_parallel(4, 8, ContextComm::all_gather);
  const Models models(builtin_model("deepseek-v3"), layout);
  RangeUse use;
  const double token = (128 / 4) * (kKeyWidth + kValueWidth) * 2;  // 20,480 bytes on a TP rank
  CHECK(static_cast<double>(models.costs.kv_bytes_per_token()) == token);
  CHECK(models.costs.kv_all_gather(5000, 8, use).bytes == 5000 * token);
  CHECK(models.costs.kv_reduce_scatter(5000, 8, use).bytes == 5000 * token);  // their gradients are as wide
  // Heads of equal widths need as much as the mean of the two.
  ModelShape plain = builtin_model("deepseek-v3");
  plain.mla.reset();
  plain.head_dim = 160;
  CHECK(Models(plain, layout).costs.kv_bytes_per_token() == models.costs.kv_bytes_per_token());
}

TEST_CASE("Ring: a step hands on K and V, backward their gradients, too") {
  const Models models(builtin_model("deepseek-v3"), context_parallel(1, 8, ContextComm::ring));
  RangeUse use;
  const double token = 128 * (kKeyWidth + kValueWidth) * 2;
  CHECK(models.costs.ring_step(1000, 8, false, use).bytes == 1000 * token);
  CHECK(models.costs.ring_step(1000, 8, true, use).bytes == 2 * 1000 * token);
}

TEST_CASE("Ulysses: Q and K at 192, V and the output at 128") {
  const Models models(builtin_model("deepseek-v3"), context_parallel(2, 4, ContextComm::ulysses));
  RangeUse use;
  const double heads = 128 / 2;
  CHECK(models.costs.ulysses_exchange(1000, 4, false, use).bytes ==
        1000 * heads * (kKeyWidth + kKeyWidth + kValueWidth) * 2);
  CHECK(models.costs.ulysses_exchange(1000, 4, true, use).bytes == 1000 * heads * kValueWidth * 2);
  // Every head has K and V of its own, so none is copied where there are as many ranks as heads.
  const Models wide(builtin_model("deepseek-v3"), context_parallel(2, 64, ContextComm::ulysses));
  CHECK(wide.costs.ulysses_exchange(1000, 64, false, use).bytes ==
        1000 * heads * (kKeyWidth + kKeyWidth + kValueWidth) * 2);
}
