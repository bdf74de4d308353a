#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/random.h"
#include "sim/topology/rank_grid.h"

using namespace equipoise;

namespace {

void check_shape(GroupShape found, int ranks, int ranks_per_node) {
  CHECK(found.ranks == ranks);
  CHECK(found.ranks_per_node == ranks_per_node);
}

// A grid of any order whose sizes are at most `most`, `most_per_node` GPUs a node at most; without experts.
RankGrid random_grid(SplitMix64& random, int most, int most_per_node) {
  const auto up_to = [&](int n) { return static_cast<int>(random.next() % static_cast<unsigned>(n)) + 1; };
  std::vector<std::string> axes = {"tp", "cp", "dp", "pp"};
  shuffle(axes, random);
  const ParallelSizes sizes{up_to(most), up_to(most), 1, up_to(most), up_to(most)};
  return {axes[0] + "-" + axes[1] + "-" + axes[2] + "-" + axes[3], sizes, up_to(most_per_node)};
}

}  // namespace

TEST_CASE("the default order puts TP inside a node, then CP, DP and pipeline stages") {
  // TP 8 fills a node; CP neighbours are one node apart, so each of 2 CP ranks is in a node of its own.
  const RankGrid p("tp-cp-ep-dp-pp", {8, 2, 1, 1, 4}, 8);
  CHECK(p.gpus() == 64);
  CHECK(p.nodes() == 8);
  check_shape(p.shape(Axis::tensor), 8, 8);
  check_shape(p.shape(Axis::context), 2, 1);
  check_shape(p.shape(Axis::data), 1, 1);
  check_shape(p.shape(Axis::pipeline), 4, 1);
  check_shape(p.hop_shape(0, 1), 2, 1);
  check_shape(p.data_context_shape(), 2, 1);
  // GPU 29 = 5 + 8*(1 + 2*1): tensor 5, context 1, pipeline 1.
  CHECK(p.coordinates(29) == RankCoordinates{5, 1, 0, 1});
  CHECK(p.group(Axis::context, 29) == std::vector<int>{21, 29});
  CHECK(p.group(Axis::pipeline, 29) == std::vector<int>{13, 29, 45, 61});
}

TEST_CASE("several inner axes share a node") {
  // 2 x 2 x 2 = 8: TP, CP and DP of a stage fill one node of 8.
  const RankGrid p("tp-cp-ep-dp-pp", {2, 2, 1, 2, 2}, 8);
  check_shape(p.shape(Axis::tensor), 2, 2);
  check_shape(p.shape(Axis::context), 2, 2);
  check_shape(p.shape(Axis::data), 2, 2);
  check_shape(p.data_context_shape(), 4, 4);
  check_shape(p.shape(Axis::pipeline), 2, 1);
  // Llama 3's order puts the pipeline inside the node and DP outside.
  const RankGrid q("tp-cp-pp-dp", {2, 2, 1, 2, 2}, 8);
  check_shape(q.shape(Axis::pipeline), 2, 2);
  check_shape(q.hop_shape(0, 1), 2, 2);
  check_shape(q.shape(Axis::data), 2, 1);
}

TEST_CASE("TP wider than a node spans two nodes, and a group that straddles a node border counts") {
  check_shape(RankGrid("tp-cp-ep-dp-pp", {16, 1, 1, 1, 1}, 8).shape(Axis::tensor), 16, 8);
  // TP 3 on nodes of 8: GPUs {6, 7, 8} lie over two nodes, so the slowest group has 2 ranks per node.
  check_shape(RankGrid("tp-cp-ep-dp-pp", {3, 1, 1, 8, 1}, 8).shape(Axis::tensor), 3, 2);
}

TEST_CASE("experts are spread over the ranks of CP and DP") {
  // Expert grid: tp 2, ep 4, expert-dp 2*4/4 = 2. GPU 11 = 1 + 2*5: merged index 5 = ep 1, expert-dp 1.
  const RankGrid p("tp-cp-ep-dp-pp", {2, 2, 4, 4, 2}, 8);
  CHECK(p.group(Axis::expert, 11) == std::vector<int>{9, 11, 13, 15});
  check_shape(p.shape(Axis::expert), 4, 4);
  check_shape(p.expert_data_shape(), 2, 1);
  CHECK_THROWS_AS(RankGrid("tp-cp-ep-dp-pp", {2, 2, 3, 4, 2}, 8), UserError);
  // pp between ep and dp: with cp 2 the expert grid would put stages at another stride.
  CHECK_THROWS_AS(RankGrid("tp-cp-ep-pp-dp", {1, 2, 8, 4, 2}, 8), UserError);
}

TEST_CASE("experts without tensor parallelism are spread over the ranks of TP, too") {
  // Expert grid of a stage of 2*2*4 = 16 GPUs: etp 1, ep 8, expert-dp 2. GPU 11 = 3 + 8*1: ep 3, expert-dp 1.
  const RankGrid p("tp-cp-ep-dp-pp", {2, 2, 8, 4, 2, 1}, 8);
  CHECK(p.group(Axis::expert, 11) == std::vector<int>{8, 9, 10, 11, 12, 13, 14, 15});
  CHECK(p.group(Axis::tensor, 11) == std::vector<int>{10, 11});  // dense layers stay as they are
  check_shape(p.shape(Axis::expert), 8, 8);
  check_shape(p.expert_tensor_shape(), 1, 1);
  // Each rank of TP has all experts to itself: all 16 share its parameters.
  const RankGrid whole("tp-cp-ep-dp-pp", {2, 2, 1, 4, 2, 1}, 8);
  check_shape(whole.expert_data_shape(), 16, 8);
  // etp 2 of tp 4: GPU 13 of 16 = 1 + 2*(2 + 4*1): ep 2 of 4, expert-dp 1 of 2.
  const RankGrid part("tp-cp-ep-dp-pp", {4, 1, 4, 4, 1, 2}, 8);
  CHECK(part.group(Axis::expert, 13) == std::vector<int>{9, 11, 13, 15});
  check_shape(part.expert_tensor_shape(), 2, 2);
  CHECK_THROWS_AS(RankGrid("tp-cp-ep-dp-pp", {4, 1, 4, 4, 1, 3}, 8), UserError);
}

TEST_CASE("CP groups of another degree are cut from the ranks of CP and DP") {
  const RankGrid p("tp-cp-ep-dp-pp", {1, 8, 1, 4, 1}, 8);
  check_shape(p.context_shape(1), 1, 1);
  check_shape(p.context_shape(4), 4, 4);
  check_shape(p.context_shape(16), 16, 8);
  // 5 and 3 of 8: the second group begins behind the first, so some groups of 5 lie over two nodes of 8.
  check_shape(p.context_shape(5), 5, 3);
  check_shape(p.context_shape(12), 12, 4);  // from the last rank of a node over a whole one to the third
  CHECK_THROWS_AS(static_cast<void>(p.context_shape(33)), UserError);
  CHECK_THROWS_AS(static_cast<void>(p.context_shape(0)), UserError);
}

TEST_CASE("Inner groups of CP ranks are neighbours, or those of equal number in all of them are") {
  // 8 CP ranks on two nodes of 4 GPUs, inner groups of 4.
  const RankGrid inner("tp-cp-ep-dp-pp", {1, 8, 1, 2, 1, 0, 4, false}, 4);
  CHECK(inner.data_context_group(0) ==
        std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  check_shape(inner.context_shape(4), 4, 4);
  check_shape(inner.outer_shape(8), 2, 1);
  check_shape(inner.outer_shape(16), 4, 1);
  const RankGrid outer("tp-cp-ep-dp-pp", {1, 8, 1, 2, 1, 0, 4, true}, 4);
  CHECK(outer.data_context_group(0) ==
        std::vector<int>{0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15});
  check_shape(outer.context_shape(4), 4, 2);
  check_shape(outer.outer_shape(8), 2, 2);
  for (int gpu = 0; gpu < 16; ++gpu) CHECK(outer.gpu(outer.coordinates(gpu)) == gpu);
}

TEST_CASE("GPU numbers and coordinates are inverse, and groups partition the GPUs, for any order") {
  SplitMix64 random(5);
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    const RankGrid p = random_grid(random, 5, 8);
    for (int g = 0; g < p.gpus(); ++g) REQUIRE(p.gpu(p.coordinates(g)) == g);
    for (const Axis axis : {Axis::tensor, Axis::context, Axis::expert, Axis::data, Axis::pipeline}) {
      std::set<int> first_of_group;
      std::size_t most_nodes = 0;
      for (int g = 0; g < p.gpus(); ++g) {
        const std::vector<int> group = p.group(axis, g);
        REQUIRE(std::count(group.begin(), group.end(), g) == 1);
        REQUIRE(p.group(axis, group.back()) == group);
        first_of_group.insert(group.front());
        std::set<int> nodes;
        for (const int member : group) nodes.insert(p.node(member));
        most_nodes = std::max(most_nodes, nodes.size());
      }
      const GroupShape shape = p.shape(axis);
      const int nodes = static_cast<int>(most_nodes);
      CHECK(shape.ranks_per_node == (shape.ranks + nodes - 1) / nodes);
      CHECK(static_cast<int>(first_of_group.size()) * shape.ranks == p.gpus());
    }
  }
}

TEST_CASE("CP groups of any degree and hops lie over nodes as the worst of them does, for any order") {
  SplitMix64 random(6);
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    const RankGrid p = random_grid(random, 4, 9);
    const ParallelSizes& sizes = p.sizes();
    const int merged = sizes.context * sizes.data;
    for (int degree = 1; degree <= merged; ++degree) {
      const int next = merged % degree == 0 ? degree : 1;
      std::size_t most_nodes = 0;
      for (int g = 0; g < p.gpus(); ++g) {
        const std::vector<int> all = p.data_context_group(g);
        for (int begin = 0; begin + degree <= merged; begin += next) {
          std::set<int> nodes;
          std::for_each(all.begin() + begin, all.begin() + begin + degree,
                        [&](int member) { nodes.insert(p.node(member)); });
          most_nodes = std::max(most_nodes, nodes.size());
        }
      }
      const int nodes = static_cast<int>(most_nodes);
      check_shape(p.context_shape(degree), degree, (degree + nodes - 1) / nodes);
    }
    for (int from = 0; from < sizes.pipeline; ++from)
      for (int to = 0; to < sizes.pipeline; ++to) {
        if (from == to) continue;
        bool together = true;
        for (int g = 0; g < p.gpus(); ++g) {
          RankCoordinates there = p.coordinates(g);
          if (there.pipeline != from) continue;
          there.pipeline = to;
          together = together && p.node(g) == p.node(p.gpu(there));
        }
        check_shape(p.hop_shape(from, to), 2, together ? 2 : 1);
      }
  }
}

TEST_CASE("a wrong order says what is wrong") {
  CHECK_THROWS_WITH_AS(RankGrid("tp-xp-dp-pp", {}, 8), doctest::Contains("unknown axis \"xp\""), UserError);
  CHECK_THROWS_WITH_AS(RankGrid("tp-cp-dp", {}, 8), doctest::Contains("axis pp missing"), UserError);
  CHECK_THROWS_WITH_AS(RankGrid("tp-cp-cp-dp-pp", {}, 8), doctest::Contains("axis cp twice"), UserError);
  CHECK_THROWS_WITH_AS(RankGrid("tp-cp-dp-pp", {1, 2, 2, 1, 1}, 8), doctest::Contains("axis ep missing"),
                       UserError);
  CHECK_THROWS_AS(RankGrid("tp-cp-dp-pp", {0, 1, 1, 1, 1}, 8), UserError);
}
