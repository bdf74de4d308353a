// The incremental solver against the plain one (the event loop over a task graph, which shares all rates anew
// at every change): every end, to the picosecond.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "policies/base/random.h"
#include "sim/step/flow_network.h"
#include "tests/oracle/event_loop.h"

using namespace equipoise;

namespace {

struct Planned {
  Picoseconds start = 0, alone = 0;
  RouteId route = 0;
  double bytes = 0;
};

struct Traffic {
  RouteTable routes;
  std::vector<Planned> flows;
};

// Few links, so that much is shared; starts and sizes on a coarse grid, so that much happens at one time.
Traffic random_traffic(std::uint64_t seed, std::size_t flows) {
  SplitMix64 random(seed);
  const auto below = [&](std::uint64_t n) { return random.next() % n; };
  Traffic traffic;
  const std::size_t links = below(12) + 1;
  for (std::size_t l = 0; l < links; ++l)
    traffic.routes.capacities.push_back(static_cast<double>((below(8) + 1) * 1000));
  const std::size_t routes = below(10) + 1;
  for (std::size_t r = 0; r < routes; ++r) {
    std::vector<LinkUse> uses;
    for (LinkId l = 0; l < links; ++l)
      if (below(3) == 0) uses.push_back({l, static_cast<std::int32_t>(below(3) + 1)});
    if (uses.empty()) uses.push_back({static_cast<LinkId>(below(links)), 1});
    traffic.routes.add(uses);
  }
  for (std::size_t f = 0; f < flows; ++f) {
    const Picoseconds grid = below(2) == 0 ? 1'000'000'000 : 1;
    traffic.flows.push_back(
        {static_cast<Picoseconds>(below(50)) * 1'000'000'000,
         static_cast<Picoseconds>(below(2'000'000'000) / static_cast<std::uint64_t>(grid) + 1) * grid,
         static_cast<RouteId>(below(routes)), static_cast<double>(below(20) + 1)});
  }
  return traffic;
}

std::vector<Picoseconds> incremental(const Traffic& traffic) {
  FlowNetwork network(traffic.routes);
  std::multimap<Picoseconds, std::size_t> starts;
  for (std::size_t f = 0; f < traffic.flows.size(); ++f) starts.emplace(traffic.flows[f].start, f);
  std::vector<Picoseconds> ends(traffic.flows.size(), 0);
  while (!starts.empty() || network.next_end() != FlowNetwork::kNever) {
    const Picoseconds now =
        std::min(network.next_end(), starts.empty() ? FlowNetwork::kNever : starts.begin()->first);
    while (network.next_end() == now) ends[network.pop().first] = now;
    for (; !starts.empty() && starts.begin()->first == now; starts.erase(starts.begin())) {
      const Planned& flow = traffic.flows[starts.begin()->second];
      const double cap = flow.bytes / (static_cast<double>(flow.alone) / kPicosecondsPerSecond);
      network.start(flow.route, cap, cap, flow.alone,
                    {0, static_cast<std::uint32_t>(starts.begin()->second), 0}, now);
    }
    network.settle(now);
  }
  return ends;
}

std::vector<Picoseconds> plain(const Traffic& traffic) {
  TaskGraphBuilder builder;
  LinkTraffic links(traffic.routes.capacities);
  std::vector<TaskId> tasks;
  for (const Planned& flow : traffic.flows) {
    const StreamId stream = builder.add_stream(0);
    builder.add_task(stream, flow.start);
    tasks.push_back(builder.add_task(stream, flow.alone));
    links.add(tasks.back(), traffic.routes.of(flow.route), flow.bytes);
  }
  const EngineResult result = run_with_contention(builder.build(), links);
  std::vector<Picoseconds> ends;
  for (const TaskId task : tasks) ends.push_back(result.end[task]);
  return ends;
}

}  // namespace

TEST_CASE("flows on random networks end when the plain solver says, to the picosecond") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    const Traffic traffic = random_traffic(seed, seed % 4 == 0 ? 200 : 30);
    CHECK(incremental(traffic) == plain(traffic));
  }
}

TEST_CASE("a flow far from a change is not solved again") {
  // Link 0: A and B share 10 B/s; link 1: C and D. A starts and ends: C and D keep their rates. Solved are A
  // and B (2), C and D (2), and after the end of A, of B, of C and of D who is left: 1 + 0 + 1 + 0.
  RouteTable routes;
  routes.capacities = {10, 10};
  const std::vector<LinkUse> first = {{0}}, second = {{1}};
  routes.add(first);
  routes.add(second);
  FlowNetwork network(routes);
  constexpr Picoseconds kSecond = 1'000'000'000'000;
  network.start(0, 10, 10, kSecond, {0, 0, 0}, 0);
  network.start(0, 10, 10, 2 * kSecond, {0, 1, 0}, 0);
  network.start(1, 10, 10, 3 * kSecond, {0, 2, 0}, 0);
  network.start(1, 10, 10, 4 * kSecond, {0, 3, 0}, 0);
  network.settle(0);
  std::vector<Picoseconds> ends(4, 0);
  while (network.next_end() != FlowNetwork::kNever) {
    const Picoseconds now = network.next_end();
    ends[network.pop().first] = now;
    network.settle(now);
  }
  CHECK(ends == std::vector<Picoseconds>{2 * kSecond, 3 * kSecond, 6 * kSecond, 7 * kSecond});
  CHECK(network.counts().flows == 4);
  CHECK(network.counts().most_flows == 4);
  CHECK(network.counts().solved_flows == 6);
}

TEST_CASE("a network goes on with the flows of another") {
  // As above, each link in a network of its own until 1 s.
  RouteTable routes;
  routes.capacities = {10, 10};
  const std::vector<LinkUse> first = {{0}}, second = {{1}};
  routes.add(first);
  routes.add(second);
  constexpr Picoseconds kSecond = 1'000'000'000'000;
  FlowNetwork one(routes), other(routes);
  one.start(0, 10, 10, kSecond, {0, 0, 0}, 0);
  one.start(0, 10, 10, 2 * kSecond, {0, 1, 0}, 0);
  one.settle(0);
  other.start(1, 10, 10, 3 * kSecond, {0, 2, 0}, 0);
  other.start(1, 10, 10, 4 * kSecond, {0, 3, 0}, 0);
  other.settle(0);
  one.adopt(other);
  CHECK(other.next_end() == FlowNetwork::kNever);
  std::vector<Picoseconds> ends(4, 0);
  while (one.next_end() != FlowNetwork::kNever) {
    const Picoseconds now = one.next_end();
    ends[one.pop().first] = now;
    one.settle(now);
  }
  CHECK(ends == std::vector<Picoseconds>{2 * kSecond, 3 * kSecond, 6 * kSecond, 7 * kSecond});
}
