// W(d) from a profile.
#include <doctest/doctest.h>

#include <array>

#include "sim/cost/policy_costs.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

TEST_CASE("W grows with every token, and, beyond the kernel's tile, faster than its tokens") {
  for (const int context : {1, 2, 8}) {
    CAPTURE(context);
    Layout layout;
    layout.tensor = 8;
    layout.context = context;
    const Models models(builtin_model("llama2-7b"), layout);
    const ProfiledWorkload workload(models.costs, 131072);
    double before = 0;
    for (std::int64_t d = 1; d <= (std::int64_t{1} << 20); d = d * 5 / 4 + 1) {
      const std::array<std::int64_t, 2> tokens{d, 2 * d};
      std::array<double, 2> w{};
      workload.of(tokens, w);
      CAPTURE(d);
      REQUIRE(w[0] > before);
      // A document that leaves a rank pieces shorter than a tile costs the tile; the steps that tiles make
      // are below 2 % from 32 tiles on.
      if (d >= std::int64_t{32} * 128 * 2 * context) REQUIRE(w[1] >= 2 * w[0] * (1 - 0.02));
      before = w[0];
    }
    // Long documents: attention dominates, and doubling them nearly quadruples it.
    const double once = workload.attention_seconds(262144), twice = workload.attention_seconds(524288);
    CHECK(twice / once > 3.5);
    CHECK(twice / once < 4.2);
  }
}

TEST_CASE("W of a list is W of each, whatever else is in the list") {
  Layout layout;
  layout.tensor = 8;
  const Models models(builtin_model("llama2-7b"), layout);
  const ProfiledWorkload workload(models.costs, 131072);
  const std::array<std::int64_t, 3> tokens{7, 4096, 100000};
  std::array<double, 3> together{}, linear{};
  workload.of(tokens, together);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::array<double, 1> alone{};
    workload.of(std::span(tokens).subspan(i, 1), alone);
    CHECK(alone[0] == together[i]);
    linear[i] = (together[i] - workload.attention_seconds(tokens[i])) / static_cast<double>(tokens[i]);
    CHECK(linear[i] == doctest::Approx(linear[0]));
  }
}
