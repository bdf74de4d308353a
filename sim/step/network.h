// Flows that share links max-min fairly, as they come and go.
//
// Rates change only where something started or ended: the flows that are connected to it over links that two
// or more flows use are solved again, all others keep their rates and their ends. All starts and ends of one
// instant are one change (settle). A flow is a collective, an aggregate of flows that do the same, or a
// transfer; its route is shared by all flows that take it, so that a flow costs about 100 bytes and only
// while it runs.
//
// Exact: progressive filling as in FairShare, in which all links that fill at the same level fill together.
// The rates of connected flows are then a function of these flows alone, bit by bit, whatever else runs, in
// whatever order they came. Tests hold every end against the plain solver (tests/oracle/event_loop.h).
//
// A change costs O(rounds x (flows + their shared links)) of the part that it touches, and log(flows) for
// each flow whose rate it changes.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "policies/base/clock.h"
#include "sim/step/op_program.h"
#include "sim/topology/fabric.h"
#include "sim/topology/rank_grid.h"

namespace equipoise {

using RouteId = std::uint32_t;

// Links, and which of them each route crosses how often. A link stands once in a route.
struct RouteTable {
  std::vector<double> capacities;       // by link, bytes per second
  std::vector<std::uint32_t> first{0};  // by route and one beyond: in uses
  std::vector<LinkUse> uses;

  [[nodiscard]] std::size_t routes() const { return first.size() - 1; }
  [[nodiscard]] std::span<const LinkUse> of(RouteId route) const {
    return std::span(uses).subspan(first[route], first[route + 1] - first[route]);
  }
  RouteId add(std::span<const LinkUse> links);
};

// Whose flow it is, in the caller's terms.
struct FlowTag {
  std::uint32_t kind = 0, first = 0, second = 0;
  friend auto operator<=>(const FlowTag&, const FlowTag&) = default;
};

class FlowNetwork {
 public:
  static constexpr Picoseconds kNever = std::numeric_limits<Picoseconds>::max();

  // `routes` is kept by reference.
  explicit FlowNetwork(const RouteTable& routes);

  struct Flow {
    RouteId route = 0;
    FlowTag tag;
    double cap = 0;         // its own pace, bytes per second
    double limit = 0;       // what links that it shares with nobody allow, bytes per second
    double left = 0;        // picoseconds of work at that pace
    double speed = 0;       // share of that pace it gets
    Picoseconds since = 0;  // `left` is of then
    Picoseconds end = kNever;
  };
  // A flow that takes `alone` > 0 at its own pace begins now. It ends at some time after settle().
  void start(RouteId route, double cap, double limit, Picoseconds alone, const FlowTag& tag, Picoseconds now);
  // Gives the flows their rates and ends after all that started and ended now. Throws EngineError where a
  // flow would never end.
  void settle(Picoseconds now);

  [[nodiscard]] Picoseconds next_end() const { return heap_.empty() ? kNever : flows_[heap_.front()].end; }
  // Takes the flow that ends next off the network; its tag.
  FlowTag pop();

  // Goes on with the flows of another network over the same routes, whose links none of these uses; that one
  // is empty afterwards. Both are settled.
  void adopt(FlowNetwork& other);

  // What it cost, for benchmarks.
  struct Counts {
    std::int64_t flows = 0, solves = 0, solved_flows = 0;
    std::size_t most_flows = 0;  // at one time
  };
  [[nodiscard]] const Counts& counts() const { return counts_; }

 private:
  std::uint32_t insert(const Flow& flow);
  void remove(std::uint32_t flow);
  void visit(std::uint32_t flow);
  void solve(Picoseconds now);
  void fill_links();
  void set_speed(std::uint32_t flow, double rate, Picoseconds now);

  // A binary heap of flows by end, ties by slot.
  [[nodiscard]] bool before(std::uint32_t a, std::uint32_t b) const {
    return flows_[a].end != flows_[b].end ? flows_[a].end < flows_[b].end : a < b;
  }
  void place(std::uint32_t flow, std::size_t at) {
    heap_[at] = flow;
    place_[flow] = static_cast<std::uint32_t>(at);
  }
  void sift(std::uint32_t flow);

  const RouteTable& routes_;
  std::vector<double> alone_;  // by use of a route: the rate at which a flow fills the link by itself
  std::vector<Flow> flows_;    // by slot
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> place_;  // by slot: in the heap
  std::vector<std::uint32_t> heap_;
  std::vector<std::vector<std::uint32_t>> users_;  // by link: the flows on it
  std::vector<std::uint32_t> changed_links_;       // some flow of theirs ended
  std::vector<std::uint32_t> changed_flows_;       // they started

  // The part being solved.
  struct Link {
    double left = 0;
    std::int64_t claims = 0, stopped = 0;
    bool tight = false;
  };
  struct Member {
    std::uint32_t flow = 0;
    double cap = 0;                      // also of the links it has for itself
    std::uint32_t first = 0, count = 0;  // in member_uses_
    double rate = 0;
  };
  std::uint32_t round_ = 0;                           // of solve(): stamps are of it
  std::vector<std::uint32_t> seen_flow_, seen_link_;  // stamps by slot and link
  std::vector<std::uint32_t> link_place_;             // by link: in links_
  std::vector<Link> links_;
  std::vector<Member> members_;
  std::vector<LinkUse> member_uses_;  // `link` is in links_
  std::vector<std::uint32_t> growing_;
  std::vector<std::uint32_t> open_links_;
  Counts counts_;
};

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
//                 equally full, so that one of them stands for all: the NICs of a ring's inner ranks, both
//                 ends of a cable.
//   Alike ranks.  TP ranks do the same at the same time. While TP is folded, the flows of a group's TP ranks
//                 are one flow here, which crosses a link as often as all of them do. That is exact where the
//                 ranks' routes are alike, i.e. cross alike links; alike() says whether all are.
//   Own links.    Links whose users cannot run at the same time (collectives of one rank, which follow each
//                 other) are never shared. They bound a flow's rate. A collective that has no other links
//                 (TP inside a node) is no flow: its duration is known.
//   Slack links.  Links whose users all cross another that is full no later (a NIC below an oversubscribed
//                 uplink) stop nobody.

// What one of the members of a collective of `bytes` sends: a ring step its bytes, to the next rank; others
// all but its own share.
inline double moved_bytes(OpName name, double bytes, std::size_t members) {
  const auto n = static_cast<double>(members);
  return name == OpName::cp_ring_step ? bytes : bytes * (n - 1) / n;
}

struct OpRoute {
  int members = 0;     // of the ring, two for a transfer; 0: nothing moves
  bool flows = false;  // shares links with others: takes `route`
  RouteId route = 0;
  double limit = std::numeric_limits<double>::infinity();  // bytes per second that its own links allow
};

// Of an op that crosses its own links alone: at most `limit` bytes per second.
Picoseconds paced(Picoseconds duration, double bytes, double limit);

class NetworkRoutes {
 public:
  // `program`: TP folded, or every TP rank its own. `reduce`: off keeps every link that flows share, as other
  // simulators see them; the result is the same. Needs every TP rank its own.
  NetworkRoutes(const OpProgram& program, const RankGrid& grid, const Fabric& fabric, bool reduce = true);

  // Whether the folded ranks' flows are alike. If not, only the program with TP unfolded can be run.
  [[nodiscard]] bool alike() const { return alike_; }
  // GPUs that a rank of the program stands for.
  [[nodiscard]] int width() const { return width_; }
  [[nodiscard]] const RouteTable& table() const { return table_; }

  // Of the collective that a rank takes part in. Groups are numbered as in interpreter::group_of and
  // interpreter::sync_index.
  [[nodiscard]] const OpRoute& collective(std::size_t lane, std::size_t stage, SyncGroup sync,
                                          std::size_t group, OpName name) const;
  // To scheduled ops of `stage`, whose input comes from `from`.
  [[nodiscard]] const OpRoute& transfer(std::size_t lane, std::size_t from, std::size_t stage,
                                        std::size_t rank) const;
  // Gradient buckets and parameter gather.
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
    std::vector<OpRoute> inside;                  // all-to-alls of a nested form, by TP coordinate
    std::vector<std::vector<OpRoute>> transfers;  // [from stage][rank]; empty: none
  };

  bool alike_ = true;
  int width_ = 1;
  std::size_t tensor_ = 1;  // of the program
  RouteTable table_;
  std::vector<std::vector<Stage>> lanes_;                              // [lane][stage]
  std::vector<int> lockstep_of_;                                       // by lane
  std::vector<std::vector<std::vector<OpRoute>>> experts_, replicas_;  // [lockstep group][stage][group]
  std::vector<OpRoute> ends_;
  std::vector<int> lane_sets_;
};

}  // namespace equipoise
