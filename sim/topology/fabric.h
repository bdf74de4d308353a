// The cluster's network as a graph, and what each of the flows that share it gets.
//
// Vertices are GPUs, an NVSwitch per node, a NIC per GPU, leaf and spine switches.
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

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace equipoise {

using LinkId = std::uint32_t;

struct LinkUse {
  LinkId link = 0;
  std::int32_t times = 1;  // how often the flow crosses this link
};

// How nodes are wired to leaf switches.
enum class Wiring { rail, fat_tree };
inline constexpr std::string_view kWiringNames[] = {"rail", "fat-tree"};  // as a study spells them

struct FabricOptions {
  int gpus = 1;
  int gpus_per_node = 1;
  double nvlink_GBps = 0;  // needed if a node has at least two GPUs
  double nic_GBps = 0;     // needed if there are at least two nodes
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
    Vertex from = 0, to = 0;
    double bytes_per_second = 0;
  };

  // Throws UserError if counts or rates make no network.
  explicit Fabric(const FabricOptions& options);

  [[nodiscard]] const FabricOptions& options() const { return options_; }
  [[nodiscard]] Vertex gpu(int number) const { return static_cast<Vertex>(number); }
  [[nodiscard]] std::size_t links() const;
  [[nodiscard]] Link link(LinkId id) const;
  [[nodiscard]] std::vector<double> capacities() const;  // by LinkId

  [[nodiscard]] std::vector<LinkId> route(int from_gpu, int to_gpu) const;
  // All hops of a ring over the GPUs in this order: each link with how often it is crossed, sorted by link.
  [[nodiscard]] std::vector<LinkUse> ring(const std::vector<int>& gpus) const;
  [[nodiscard]] std::vector<LinkUse> uses(const std::vector<LinkId>& route) const;
  // Rate of a flow that has the network to itself.
  [[nodiscard]] double alone(const std::vector<LinkUse>& uses) const;

 private:
  // The functions below number vertices: GPUs, NICs, NVSwitches, leaves, spines.
  [[nodiscard]] Vertex nic(int of_gpu) const { return gpu(options_.gpus + of_gpu); }
  [[nodiscard]] Vertex nvswitch(int of_gpu) const {
    return nic(options_.gpus + of_gpu / options_.gpus_per_node);
  }
  [[nodiscard]] Vertex leaf(int number) const { return nic(options_.gpus + nodes_ + number); }
  [[nodiscard]] Vertex spine(int number) const { return leaf(leaves_ + number); }
  [[nodiscard]] int leaf_number(int gpu) const;
  [[nodiscard]] LinkId link_between(Vertex from, Vertex to) const;

  FabricOptions options_;
  int nodes_ = 1;
  int leaves_ = 1;
  struct Graph;  // from Boost.Graph, which only fabric.cpp includes; a link's id is its edge's index
  std::shared_ptr<const Graph> graph_;
};

// Max-min fair rates of flows that share links, by progressive filling.
//
// All flows' rates grow together; when a link is full its flows stop there, the others go on, until every
// flow is stopped by a full link or by its own cap. The result is the only allocation in which no flow can
// get more without taking from one that has no more than it (Bertsekas and Gallager, Data Networks, 6.5.2).
//
// Example: links of 10. Flows A and B use link 1, B and C link 2, D link 2 too. Link 2 is the tightest: B, C,
// D get 10/3; A gets the rest of link 1, 20/3.
//
// A collective is one flow over all links of its ring, each counted as often as the ring crosses it: its
// members move at the pace of the slowest hop. O(rounds x (links + flow links)); a round stops at least one
// flow.
class FairShare {
 public:
  // Bytes per second of every link.
  explicit FairShare(std::vector<double> capacities) : capacity_(std::move(capacities)) {
    left_.resize(capacity_.size());
    claims_.resize(capacity_.size());
    given_.resize(capacity_.size());
    tight_.resize(capacity_.size());
  }

  struct Flow {
    std::span<const LinkUse> links;
    double cap = 0;   // the most that it could use alone, in bytes per second
    double rate = 0;  // result
  };
  // Sets every flow's rate. Links that fill at the same level fill together, so that the rates are bit-equal
  // for any order of flows and links. Flows without links get their cap.
  void share(std::span<Flow* const> flows);

  [[nodiscard]] std::span<const double> capacities() const { return capacity_; }

 private:
  std::vector<double> capacity_;
  std::vector<double> left_;          // scratch: capacity not yet assigned
  std::vector<std::int64_t> claims_;  // scratch: uses by flows that still grow
  std::vector<std::int64_t> given_;   // scratch: uses by flows that stop now
  std::vector<char> tight_;           // scratch: whether a link is full now
  std::vector<LinkId> used_;          // scratch: links that some flow uses
  std::vector<char> stopped_;         // scratch
};

}  // namespace equipoise
