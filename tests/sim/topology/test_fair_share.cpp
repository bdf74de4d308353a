#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "policies/base/random.h"
#include "sim/topology/fabric.h"

using namespace equipoise;

namespace {

constexpr double kNoCap = std::numeric_limits<double>::infinity();

std::vector<double> rates(const std::vector<double>& capacities,
                          const std::vector<std::vector<LinkUse>>& routes, std::vector<double> caps = {}) {
  caps.resize(routes.size(), kNoCap);
  std::vector<FairShare::Flow> flows(routes.size());
  std::vector<FairShare::Flow*> all;
  for (std::size_t f = 0; f < routes.size(); ++f) {
    flows[f].links = routes[f];
    flows[f].cap = caps[f];
    all.push_back(&flows[f]);
  }
  FairShare(capacities).share(all);
  std::vector<double> result;
  for (const auto& flow : flows) result.push_back(flow.rate);
  return result;
}

}  // namespace

TEST_CASE("two flows share a link equally, a third has another to itself") {
  CHECK(rates({10, 8}, {{{0}}, {{0}}, {{1}}}) == std::vector<double>{5, 5, 8});
}

TEST_CASE("a flow held back on one link leaves its share on the other") {
  // Link 0 of 12: A, B. Link 1 of 6: B, C, D. Link 1 is tighter: B, C, D 2 each; A gets 12 - 2 = 10.
  CHECK(rates({12, 6}, {{{0}}, {{0}, {1}}, {{1}}, {{1}}}) == std::vector<double>{10, 2, 2, 2});
}

TEST_CASE("a capped flow leaves the rest to others") {
  // 12 between three, one capped at 2: the others get 5.
  CHECK(rates({12}, {{{0}}, {{0}}, {{0}}}, {2, kNoCap, kNoCap}) == std::vector<double>{2, 5, 5});
  // Flows without links run at their cap.
  CHECK(rates({12}, {{}, {{0}}}, {3, kNoCap}) == std::vector<double>{3, 12});
}

TEST_CASE("a ring that crosses a link twice claims it twice") {
  // 12 between a flow of two hops and one of one hop: x + 2x = 12.
  CHECK(rates({12}, {{{0, 2}}, {{0, 1}}}) == std::vector<double>{4, 4});
}

TEST_CASE("an oversubscribed uplink is shared by the flows that leave the leaf") {
  // Four NICs of 10 below an uplink of 20 (oversubscription 2). Four flows go up, 5 each; a fifth stays below
  // the leaf and shares NIC 0 (link 0): 10 - 5 = 5.
  std::vector<std::vector<LinkUse>> routes;
  for (LinkId nic = 0; nic < 4; ++nic) routes.push_back({{nic}, {4}});
  routes.push_back({{0}});
  CHECK(rates({10, 10, 10, 10, 20}, routes) == std::vector<double>{5, 5, 5, 5, 5});
}

TEST_CASE(
    "no link is overfull, and every flow is stopped by a full link where nobody has more, or by its cap") {
  SplitMix64 random(9);
  for (int round = 0; round < 500; ++round) {
    const std::size_t links = random.next() % 6 + 1;
    std::vector<double> capacities;
    for (std::size_t l = 0; l < links; ++l)
      capacities.push_back(static_cast<double>(random.next() % 100 + 1));
    std::vector<std::vector<LinkUse>> routes(random.next() % 8 + 1);
    std::vector<double> caps;
    for (auto& route : routes) {
      for (LinkId l = 0; l < links; ++l)
        if (random.next() % 3 == 0) route.push_back({l, static_cast<std::int32_t>(random.next() % 2 + 1)});
      caps.push_back(static_cast<double>(random.next() % 60 + 1));
    }
    const std::vector<double> got = rates(capacities, routes, caps);
    std::vector<double> used(links, 0);
    for (std::size_t f = 0; f < routes.size(); ++f)
      for (const LinkUse& use : routes[f]) used[use.link] += got[f] * use.times;
    for (std::size_t l = 0; l < links; ++l) CHECK(used[l] <= capacities[l] * (1 + 1e-9));
    for (std::size_t f = 0; f < routes.size(); ++f) {
      bool stopped = got[f] >= caps[f] * (1 - 1e-9);
      for (const LinkUse& use : routes[f]) {
        bool most_there = true;
        for (std::size_t g = 0; g < routes.size(); ++g)
          for (const LinkUse& other : routes[g])
            most_there &= other.link != use.link || got[g] <= got[f] * (1 + 1e-9);
        stopped |= most_there && used[use.link] >= capacities[use.link] * (1 - 1e-9);
      }
      CHECK(stopped);
    }
  }
}
