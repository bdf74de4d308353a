// The cluster's network as a graph: GPUs, an NVSwitch per node, a NIC per GPU, leaf and spine switches.
//
//   GPU -- NVSwitch (all GPUs of the node)          nvlink_GBps each way
//   GPU -- NIC -- leaf                              nic_GBps each way
//   leaf -- every spine                             the leaf's NICs together / oversubscription, evenly split
//
// Rail-optimised: NIC i of every node of a pod goes to leaf i of the pod, so GPUs of equal number in a node
// are one leaf apart, and traffic between rails first crosses the NVSwitch to the GPU on the receiver's rail
// (as NCCL's PXN does). Plain fat tree: all NICs of consecutive nodes share a leaf.
//
// Routes are shortest paths; among the spines a pair of GPUs always takes the same one, spread by the sum of
// their numbers. Every cable is two links, one for each direction.
#pragma once

#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/topology/fair_share.h"
#include "sim/topology/wiring.h"

namespace equipoise {

struct FabricOptions {
  int gpus = 1;
  int gpus_per_node = 1;
  double nvlink_GBps = 0;  // needed where a node has two GPUs of these
  double nic_GBps = 0;     // and where there are two nodes
  Wiring wiring = Wiring::rail;
  double oversubscription = 1;  // of the leaves' uplinks
  int nodes_per_pod =
      32;  // nodes whose NICs share leaves (rail); a fat tree's leaf takes 1/gpus_per_node of them
  int spines = 8;
};

class Fabric {
 public:
  using Vertex = std::uint32_t;
  struct Link {
    double bytes_per_second = 0;
  };
  using Graph = boost::compressed_sparse_row_graph<boost::directedS, boost::no_property, Link,
                                                   boost::no_property, std::uint32_t, std::uint32_t>;

  // Throws UserError for counts or rates that make no network.
  explicit Fabric(const FabricOptions& options);

  [[nodiscard]] const FabricOptions& options() const { return options_; }
  [[nodiscard]] const Graph& graph() const { return graph_; }
  [[nodiscard]] Vertex gpu(int number) const { return static_cast<Vertex>(number); }
  [[nodiscard]] std::size_t links() const { return boost::num_edges(graph_); }
  [[nodiscard]] std::vector<double> capacities() const;  // by LinkId = edge index

  // The links from one GPU to another, in order.
  [[nodiscard]] std::vector<LinkId> route(int from_gpu, int to_gpu) const;
  // All hops of a ring over the GPUs in this order, each link with how often it is crossed; sorted by link.
  [[nodiscard]] std::vector<LinkUse> ring(const std::vector<int>& gpus) const;
  [[nodiscard]] std::vector<LinkUse> uses(const std::vector<LinkId>& route) const;
  // Rate of a flow that has the network for itself.
  [[nodiscard]] double alone(const std::vector<LinkUse>& uses) const;

 private:
  [[nodiscard]] Vertex nvswitch(int gpu) const;
  [[nodiscard]] Vertex nic(int gpu) const;
  [[nodiscard]] int leaf_number(int gpu) const;
  [[nodiscard]] Vertex leaf(int number) const;
  [[nodiscard]] Vertex spine(int number) const;
  [[nodiscard]] LinkId link(Vertex from, Vertex to) const;

  FabricOptions options_;
  int nodes_ = 1;
  int leaves_ = 1;
  Graph graph_;
};

}  // namespace equipoise
