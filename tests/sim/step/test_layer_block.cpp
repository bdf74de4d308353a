// Op lists of CP ranks, joined into the steps of a block.
#include <doctest/doctest.h>

#include <vector>

#include "sim/step/expansion.h"
#include "sim/step/layer_block.h"

using namespace equipoise;

namespace {

Op exchange(Picoseconds duration, double bytes) {
  Op op{OpName::ep_all_to_all, Stream::ep};
  op.duration = duration;
  op.bytes = bytes;
  return op;
}

Op gemm(Picoseconds duration, double flops) {
  Op op{OpName::expert_gemm};
  op.duration = duration;
  op.flops = flops;
  return op;
}

}  // namespace

TEST_CASE(
    "a step says what the busiest rank moves and computes, also where the first has no tokens to send") {
  const std::vector<Op> idle{exchange(0, 0), gemm(5, 50)};  // its experts work for what arrives
  const std::vector<Op> busy{exchange(7, 70), gemm(3, 30)};
  const std::vector<Op> empty;
  const std::vector<const std::vector<Op>*> lists{&idle, &empty, &busy};
  OpBlock block;
  append_ops(lists, block);
  REQUIRE(block.steps.size() == 2);
  CHECK(block.steps[0].name == OpName::ep_all_to_all);
  CHECK(block.steps[0].sync == SyncGroup::expert);
  CHECK(block.steps[0].bytes == 70);
  CHECK(block.steps[1].flops == 50);
  CHECK(block.durations == std::vector<Picoseconds>{0, 0, 7, 5, 0, 3});
  const auto of_ranks = [&](std::size_t step) {
    return std::vector{block.work(block.steps[step], 0), block.work(block.steps[step], 1),
                       block.work(block.steps[step], 2)};
  };
  CHECK(of_ranks(0) == std::vector<RankWork>{{0, 0}, {0, 0}, {70, 0}});
  CHECK(of_ranks(1) == std::vector<RankWork>{{0, 50}, {0, 0}, {0, 30}});
}

TEST_CASE("Ranks that do the same share one note of it") {
  const std::vector<Op> busy{gemm(3, 30)};
  const std::vector<const std::vector<Op>*> lists{&busy, &busy};
  OpBlock block;
  append_ops(lists, block);
  CHECK(block.rank_work.empty());
  CHECK(block.work(block.steps[0], 1) == RankWork{0, 30});
}
