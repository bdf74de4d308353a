// Which links of the network each op of a program loads, as flows that are solved together.
//
// Collectives move like rings: each member sends (n - 1) / n of the collective's bytes to the next one, an
// all-to-all as much in all, a ring step its bytes to the next rank. A pipeline transfer takes the route
// between its two GPUs. Kernels load no link. Groups lie on GPUs as the rank grid says; gradient buckets and
// the parameter gather at the end go round all replicas of a stage.
//
// What needs no simulation is found here once, not at every event:
//
//   Alike links.  Links that the same flows cross equally often, and that are equally fast, are always
//                 equally full, so that one of them represents all: the NICs of a ring's inner ranks, both
//                 ends of a cable.
//   Alike ranks.  TP ranks do the same at the same time. While TP is folded, the flows of a group's TP ranks
//                 are one flow here, which crosses a link as often as all of them do. That is exact where the
//                 ranks' routes are alike, i.e. cross alike links; alike() says whether all are.
//   Own links.    Links whose users cannot run at the same time (collectives of one rank, which follow each
//                 other) are never shared. They bound a flow's rate. A collective that has no other links
//                 (TP inside a node) is no flow: its duration is known.
//   Slack links.  Links whose users all cross another that is full no later (a NIC below an oversubscribed
//                 uplink) stop nobody.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "policies/base/clock.h"
#include "sim/step/flow_network.h"
#include "sim/step/op_program.h"
#include "sim/topology/fabric.h"
#include "sim/topology/rank_grid.h"

namespace equipoise {

// Bytes that one member of a collective sends. A ring step sends its bytes to the next rank; any other sends
// all but the member's own share.
inline double moved_bytes(OpName name, double bytes, std::size_t members) {
  const auto n = static_cast<double>(members);
  return name == OpName::cp_ring_step ? bytes : bytes * (n - 1) / n;
}

struct OpRoute {
  int members = 0;     // members of the ring, two for a transfer; 0: nothing moves
  bool flows = false;  // whether it shares links with others and takes `route`
  RouteId route = 0;
  double limit = std::numeric_limits<double>::infinity();  // bytes per second that its own links allow
};

// The duration of an op that crosses only its own links, at most `limit` bytes per second.
Picoseconds paced(Picoseconds duration, double bytes, double limit);

class NetworkRoutes {
 public:
  // `program` has TP folded, or unfolded. `reduce` = false keeps every link that flows share, as other
  // simulators see them, and needs TP unfolded; the result is the same.
  NetworkRoutes(const OpProgram& program, const RankGrid& grid, const Fabric& fabric, bool reduce = true);

  // Whether the folded ranks' flows are alike. If not, only the program with unfolded TP can run.
  [[nodiscard]] bool alike() const { return alike_; }
  // How many GPUs a rank of the program represents.
  [[nodiscard]] int width() const { return width_; }
  [[nodiscard]] const RouteTable& table() const { return table_; }

  // The route of the collective that a rank takes part in. Groups are numbered as in interpreter::group_of
  // and interpreter::sync_index.
  [[nodiscard]] const OpRoute& collective(std::size_t lane, std::size_t stage, SyncGroup sync,
                                          std::size_t group, OpName name) const;
  // The route to scheduled ops of `stage` whose input comes from `from`.
  [[nodiscard]] const OpRoute& transfer(std::size_t lane, std::size_t from, std::size_t stage,
                                        std::size_t rank) const;
  // The route of gradient buckets and the parameter gather.
  [[nodiscard]] const OpRoute& end(std::size_t stage, std::size_t tensor) const {
    return ends_[stage * tensor_ + tensor];
  }
  // By lane: lanes of equal number can influence each other before the first gradient bucket.
  [[nodiscard]] const std::vector<int>& lane_sets() const { return lane_sets_; }

 private:
  struct Flow;
  class Builder;
  struct Stage {
    std::vector<OpRoute> context, tensor;         // by TP coordinate; by CP rank
    std::vector<OpRoute> inside;                  // [TP coordinate]: all-to-alls of a nested form
    std::vector<std::vector<OpRoute>> transfers;  // [from stage][rank]; empty: none
  };

  bool alike_ = true;
  int width_ = 1;
  std::size_t tensor_ = 1;  // TP ranks in the program
  RouteTable table_;
  std::vector<std::vector<Stage>> lanes_;                              // [lane][stage]
  std::vector<int> lockstep_of_;                                       // by lane
  std::vector<std::vector<std::vector<OpRoute>>> experts_, replicas_;  // [lockstep group][stage][group]
  std::vector<OpRoute> ends_;
  std::vector<int> lane_sets_;
};

}  // namespace equipoise
