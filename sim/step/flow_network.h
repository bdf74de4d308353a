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
// whatever order they came. Tests compare every end with the plain solver (tests/oracle/event_loop.h).
//
// A change costs O(rounds x (flows + their shared links)) of the part that it touches, and log(flows) for
// each flow whose rate it changes.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "policies/base/clock.h"
#include "sim/topology/fabric.h"

namespace equipoise {

using RouteId = std::uint32_t;

// Links, and which of them each route crosses how often. A route lists a link once.
struct RouteTable {
  std::vector<double> capacities;       // by link, bytes per second
  std::vector<std::uint32_t> first{0};  // by route, with one entry more at the end
  std::vector<LinkUse> uses;

  [[nodiscard]] std::size_t routes() const { return first.size() - 1; }
  [[nodiscard]] std::span<const LinkUse> of(RouteId route) const {
    return std::span(uses).subspan(first[route], first[route + 1] - first[route]);
  }
  RouteId add(std::span<const LinkUse> links);
};

// What the flow carries, in the caller's terms.
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
    double limit = 0;       // bytes per second that the links allow which it shares with nobody
    double left = 0;        // picoseconds of work at that pace
    double speed = 0;       // its share of that pace
    Picoseconds since = 0;  // when `left` was computed
    Picoseconds end = kNever;
  };
  // Starts a flow that takes `alone` > 0 at its own pace. It ends at some time after settle().
  void start(RouteId route, double cap, double limit, Picoseconds alone, const FlowTag& tag, Picoseconds now);
  // Gives the flows new rates and ends after all starts and ends of this instant. Throws EngineError where a
  // flow would never end.
  void settle(Picoseconds now);

  [[nodiscard]] Picoseconds next_end() const { return heap_.empty() ? kNever : flows_[heap_.front()].end; }
  // Removes the flow that ends next and returns its tag.
  FlowTag pop();

  // Takes over the flows of another network on the same routes, which uses none of these links and is empty
  // afterwards. Both must be settled.
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
  std::vector<double> alone_;  // by use of a route: the rate at which the flow alone fills the link
  std::vector<Flow> flows_;    // by slot
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> place_;  // by slot: its place in the heap
  std::vector<std::uint32_t> heap_;
  std::vector<std::vector<std::uint32_t>> users_;  // by link: the flows on it
  std::vector<std::uint32_t> changed_links_;       // links on which a flow ended
  std::vector<std::uint32_t> changed_flows_;       // they started

  // A link in the part being solved.
  struct Link {
    double left = 0;
    std::int64_t claims = 0, stopped = 0;
    bool tight = false;
  };
  struct Member {
    std::uint32_t flow = 0;
    double cap = 0;                      // the flow's cap, including links that it has for itself
    std::uint32_t first = 0, count = 0;  // in member_uses_
    double rate = 0;
  };
  std::uint32_t round_ = 0;                           // number of the current solve(), which stamps refer to
  std::vector<std::uint32_t> seen_flow_, seen_link_;  // stamps by slot and link
  std::vector<std::uint32_t> link_place_;             // by link: in links_
  std::vector<Link> links_;
  std::vector<Member> members_;
  std::vector<LinkUse> member_uses_;  // `link` is in links_
  std::vector<std::uint32_t> growing_;
  std::vector<std::uint32_t> open_links_;
  Counts counts_;
};

}  // namespace equipoise
