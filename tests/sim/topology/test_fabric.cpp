#include <doctest/doctest.h>

#include <algorithm>
#include <boost/graph/breadth_first_search.hpp>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <utility>
#include <vector>

#include "policies/base/error.h"
#include "sim/topology/fabric.h"
#include "tests/sim/topology/hgx.h"

using namespace equipoise;
using testing::hgx;

namespace {

// Hops of a shortest path, by Boost's breadth-first search.
std::vector<int> distances(const Fabric& fabric, int from) {
  std::vector<std::pair<Fabric::Vertex, Fabric::Vertex>> edges;
  Fabric::Vertex vertices = 0;
  for (LinkId id = 0; id < fabric.links(); ++id) {
    edges.emplace_back(fabric.link(id).from, fabric.link(id).to);
    vertices = std::max(vertices, fabric.link(id).from + 1);
  }
  const boost::compressed_sparse_row_graph<boost::directedS> graph(boost::edges_are_unsorted_multi_pass,
                                                                   edges.begin(), edges.end(), vertices);
  std::vector<int> distance(vertices, -1);
  distance[fabric.gpu(from)] = 0;
  boost::breadth_first_search(graph, fabric.gpu(from),
                              boost::visitor(boost::make_bfs_visitor(
                                  boost::record_distances(distance.data(), boost::on_tree_edge()))));
  return distance;
}

// Checks that the links join up.
void check_path(const Fabric& fabric, const std::vector<LinkId>& route, int from, int to) {
  Fabric::Vertex at = fabric.gpu(from);
  for (const LinkId link : route) {
    REQUIRE(fabric.link(link).from == at);
    at = fabric.link(link).to;
  }
  CHECK(at == fabric.gpu(to));
}

}  // namespace

TEST_CASE("GPUs of one node talk through the NVSwitch, GPUs of one rail through one leaf") {
  FabricOptions options = hgx();
  options.gpus = 32;
  const Fabric fabric(options);
  CHECK(fabric.route(0, 5).size() == 2);   // GPU, NVSwitch, GPU
  CHECK(fabric.route(3, 11).size() == 4);  // GPU, NIC, leaf 3, NIC, GPU
  CHECK(fabric.route(3, 12).size() == 6);  // first over the NVSwitch to rail 4
  CHECK(fabric.alone(fabric.uses(fabric.route(0, 5))) == 450e9);
  CHECK(fabric.alone(fabric.uses(fabric.route(3, 12))) == 50e9);
  CHECK(fabric.route(7, 7).empty());
}

TEST_CASE("every route joins up and is a shortest path; across rails it takes the NVSwitch first") {
  for (const Wiring wiring : {Wiring::rail, Wiring::fat_tree}) {
    FabricOptions options = hgx();
    options.gpus = 64;
    options.gpus_per_node = 4;
    options.wiring = wiring;
    options.nodes_per_pod = 8;
    options.spines = 3;
    const Fabric fabric(options);
    for (int from = 0; from < options.gpus; from += 5) {
      const std::vector<int> shortest = distances(fabric, from);
      for (int to = 0; to < options.gpus; ++to) {
        const std::vector<LinkId> route = fabric.route(from, to);
        check_path(fabric, route, from, to);
        CHECK(static_cast<int>(route.size()) <= shortest[fabric.gpu(to)] + 2);
        if (wiring == Wiring::fat_tree || from % 4 == to % 4)
          CHECK(static_cast<int>(route.size()) == shortest[fabric.gpu(to)]);
      }
    }
  }
}

TEST_CASE("a leaf's uplinks carry its NICs divided by the oversubscription") {
  FabricOptions options = hgx();
  options.gpus = 128;  // two pods of 8 nodes, 8 rails: each leaf has 8 NICs of 50
  options.nodes_per_pod = 8;
  options.oversubscription = 4;
  options.spines = 2;
  const Fabric fabric(options);
  // From pod 0 to pod 1 on rail 0: GPU, NIC, leaf, spine, leaf, NIC, GPU. Uplink: 8 * 50 / 4 / 2 = 50 GB/s.
  const std::vector<LinkId> route = fabric.route(0, 64);
  REQUIRE(route.size() == 6);
  CHECK(fabric.capacities()[route[2]] == 50e9);
}

TEST_CASE("a ring over nodes crosses each NIC once in each direction") {
  FabricOptions options = hgx();
  options.gpus = 32;
  const Fabric fabric(options);
  const std::vector<LinkUse> ring = fabric.ring({0, 8, 16, 24});
  CHECK(ring.size() == 16);  // four hops of four links, all different
  for (const LinkUse& use : ring) CHECK(use.times == 1);
  CHECK(fabric.alone(ring) == 50e9);
}

TEST_CASE("a network that cannot be is refused") {
  FabricOptions options = hgx();
  options.oversubscription = 0.5;
  CHECK_THROWS_WITH_AS(Fabric{options}, doctest::Contains("cluster.network.oversubscription"), UserError);
}
