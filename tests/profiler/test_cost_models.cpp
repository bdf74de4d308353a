// The forms by hand: what a tile, a wave, a byte and a hop cost must follow from the parameters.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "policies/error.h"
#include "profiler/profile/attention_form.h"
#include "profiler/profile/collective_form.h"
#include "profiler/profile/cost_models.h"
#include "profiler/profile/gemm_form.h"
#include "profiler/profile/profile.h"

namespace equipoise {
namespace {

TEST_CASE("every shipped profile loads and builds all of its models") {
  const std::vector<std::string> names = shipped_profiles();
  CHECK(names.size() >= 2);
  for (const std::string& name : names) {
    CAPTURE(name);
    const Profile profile = Profile::load(name);
    CHECK(profile.name() == name);
    const AttentionModel attention(profile, {128, 8, 8});
    const GemmModel gemm(profile, Precision::bf16);
    const ElementwiseModel elementwise(profile);
    RangeUse use;
    const std::vector<QueryKeys> pieces{{1000, 1000}, {10, 500}};
    CHECK(attention.forward_seconds(pieces, use) > 0);
    CHECK(attention.backward_seconds(pieces, use) > attention.forward_seconds(pieces, use));
    CHECK(gemm.seconds(1024, 1024, 1024, use) > 0);
    CHECK(elementwise.seconds(Elementwise::copy, 1e6, use) > 0);
    CHECK(use.calls == 5);
  }
}

TEST_CASE("causal blocks of a tiled call are counted as drawn") {
  // 300 queries at the end of 400 keys, prefix 100. Tiles end at keys 228, 356, 400: 2, 3 and 4 blocks of
  // 128.
  AttentionWork work;
  work.add_causal(300, 400);
  CHECK(work.tiles == 3);
  CHECK(work.blocks == 17);
  CHECK(work.longest == 7);
  // Brute force over many shapes.
  for (std::int64_t queries = 1; queries < 700; queries += 37)
    for (std::int64_t prefix = 0; prefix < 600; prefix += 53) {
      AttentionWork fast;
      fast.add_causal(queries, queries + prefix);
      std::int64_t tiles = 0;
      std::int64_t blocks = 0;
      for (std::int64_t begin = 0; begin < queries; begin += 128, ++tiles)
        blocks += (prefix + std::min(begin + 128, queries) + 63) / 64;
      CHECK(fast.tiles == tiles);
      CHECK(fast.blocks == blocks);
    }
}

}  // namespace
}  // namespace equipoise
