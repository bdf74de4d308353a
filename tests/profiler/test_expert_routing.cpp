// Where copies of tokens go, against small cases worked out by hand and against random routings that are
// really carried out.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "profiler/profile/collective.h"

using namespace equipoise;

TEST_CASE("Two of four experts on two nodes of two ranks, by hand") {
  // One expert a rank. Of the 6 pairs of experts 2 lie on one node: 2 - 1/3 nodes on average; always 2 ranks.
  const RoutedToken any = routed_token({4, 2, {4, 2}});
  CHECK(any.copies == 2);
  CHECK(any.nodes == doctest::Approx(5.0 / 3));
  CHECK(any.ranks == doctest::Approx(2));
  // On one node only: both of its ranks.
  const RoutedToken limited = routed_token({4, 2, {4, 2}, 2, 1});
  CHECK(limited.nodes == 1);
  CHECK(limited.ranks == doctest::Approx(2));
  // A limit that a token cannot reach, or of all nodes, is none.
  for (const int most : {0, 2, 3, 100}) CHECK(routed_token({4, 2, {4, 2}, 2, most}).nodes == any.nodes);
  // 100 bytes a token-set: a rank gets 2 / 4 of the copies of every rank.
  const ExchangeLoad direct = direct_load(any, {4, 2}, 100);
  CHECK(direct.node_bytes == doctest::Approx(50));      // from the other rank of its node
  CHECK(direct.network_bytes == doctest::Approx(100));  // from the two ranks of the other
  CHECK(direct.messages == 2);
  // Forwarded: half of what a rank gets comes over NVLink, 5/6 of the tokens go to the other node.
  const ExchangeLoad forwarded = forwarded_load(any, {4, 2}, 100);
  CHECK(forwarded.node_bytes == doctest::Approx(100));
  CHECK(forwarded.network_bytes == doctest::Approx(100.0 * 5 / 6));
}

TEST_CASE("Within a node nothing reaches the network, and with a rank a node nothing NVLink") {
  const RoutedToken node = routed_token({8, 2, {8, 8}});
  CHECK(node.nodes == 1);
  CHECK(direct_load(node, {8, 8}, 1).network_bytes == 0);
  CHECK(direct_load(node, {8, 8}, 1).messages == 0);
  CHECK(forwarded_load(node, {8, 8}, 1).network_bytes == 0);
  const RoutedToken apart = routed_token({8, 2, {8, 1}});
  CHECK(direct_load(apart, {8, 1}, 1).node_bytes == 0);
  CHECK(forwarded_load(apart, {8, 1}, 1).node_bytes == 0);
  // Each of the 8 nodes is a rank: the two counts are one.
  CHECK(apart.nodes == doctest::Approx(apart.ranks));
  CHECK(forwarded_load(apart, {8, 1}, 1).network_bytes == doctest::Approx(apart.nodes * 7 / 8));
}

namespace {

struct Case {
  int experts, active, ranks, in_node, groups, chosen;
  [[nodiscard]] int nodes() const { return ranks / in_node; }
  [[nodiscard]] int rank_of(int expert) const { return expert / (experts / ranks); }
  [[nodiscard]] int node_of(int expert) const { return rank_of(expert) / in_node; }
};

// A token's experts as the closed form supposes them: any, or one of each of the chosen groups and the rest
// of these groups' others.
std::vector<int> routed(const Case& c, std::mt19937_64& random) {
  const bool limited = c.chosen > 0 && c.chosen < c.groups && c.chosen < c.active;
  std::vector<int> groups(static_cast<std::size_t>(limited ? c.groups : 1));
  std::iota(groups.begin(), groups.end(), 0);
  std::shuffle(groups.begin(), groups.end(), random);
  const int each = c.experts / static_cast<int>(groups.size());
  if (limited) groups.resize(static_cast<std::size_t>(c.chosen));
  std::vector<int> chosen, rest;
  for (const int group : groups) {
    const int best = limited ? static_cast<int>(random() % static_cast<unsigned>(each)) : -1;
    for (int i = 0; i < each; ++i) (i == best ? chosen : rest).push_back(group * each + i);
  }
  std::shuffle(rest.begin(), rest.end(), random);
  for (std::size_t i = 0; static_cast<int>(chosen.size()) < c.active; ++i) chosen.push_back(rest[i]);
  return chosen;
}

// Bytes by rank and link, of tokens that are really sent; a token is one byte.
struct Carried {
  std::vector<double> node_sent, node_got, network_sent, network_got;
  explicit Carried(int ranks)
      : node_sent(static_cast<std::size_t>(ranks)),
        node_got(node_sent),
        network_sent(node_sent),
        network_got(node_sent) {}
  void send(const Case& c, int from, int to) {
    if (from == to) return;
    const bool near = from / c.in_node == to / c.in_node;
    (near ? node_sent : network_sent)[static_cast<std::size_t>(from)] += 1;
    (near ? node_got : network_got)[static_cast<std::size_t>(to)] += 1;
  }
};

double sum(const std::vector<double>& of) {
  return std::accumulate(of.begin(), of.end(), 0.0);
}

}  // namespace

TEST_CASE("Random routings, carried out: every copy arrives once, what is sent is received, as expected") {
  std::mt19937_64 random(7);
  const Case cases[] = {
      {8, 2, 8, 8, 0, 0},
      {64, 6, 16, 4, 0, 0},
      {256, 8, 64, 8, 0, 0},
      {16, 1, 16, 4, 4, 2},
      {64, 8, 8, 1, 0, 0},
      {12, 12, 12, 4, 0, 0},
      // Groups that are nodes, that lie on two nodes each, several of which are a node, or a rank.
      {64, 8, 32, 8, 4, 2},
      {256, 8, 64, 8, 8, 4},
      {160, 6, 40, 8, 5, 3},
      {256, 8, 256, 8, 32, 4},
      {256, 8, 128, 8, 8, 4},
      {256, 8, 16, 8, 8, 4},
      {64, 8, 4, 2, 16, 4},
  };
  for (const Case& c : cases) {
    CAPTURE(c.experts);
    CAPTURE(c.ranks);
    CAPTURE(c.groups);
    const int tokens = 25600 / c.ranks;  // of each rank
    const GroupShape group{c.ranks, c.in_node};
    Carried direct(c.ranks), forwarded(c.ranks);
    for (int from = 0; from < c.ranks; ++from)
      for (int token = 0; token < tokens; ++token) {
        const std::vector<int> experts = routed(c, random);
        REQUIRE(std::set<int>(experts.begin(), experts.end()).size() == static_cast<std::size_t>(c.active));
        std::map<int, int> arrived;  // rank -> times
        for (const int expert : experts) direct.send(c, from, c.rank_of(expert));
        std::map<int, std::set<int>> ranks_of_node;
        for (const int expert : experts) ranks_of_node[c.node_of(expert)].insert(c.rank_of(expert));
        for (const auto& [node, ranks] : ranks_of_node) {
          const int entry =
              node * c.in_node +
              from % c.in_node;  // the GPU on the sender's rail; the sender itself in its own node
          forwarded.send(c, from, entry);
          for (const int rank : ranks) {
            forwarded.send(c, entry, rank);
            arrived[rank] += 1;
          }
        }
        for (const int expert : experts) REQUIRE(arrived[c.rank_of(expert)] == 1);
      }
    const RoutedToken token = routed_token({c.experts, c.active, group, c.groups, c.chosen});
    const auto check = [&](const Carried& carried, const ExchangeLoad& expected) {
      CHECK(sum(carried.node_sent) == sum(carried.node_got));
      CHECK(sum(carried.network_sent) == sum(carried.network_got));
      CHECK(sum(carried.node_got) / c.ranks == doctest::Approx(expected.node_bytes).epsilon(0.04));
      CHECK(sum(carried.network_got) / c.ranks == doctest::Approx(expected.network_bytes).epsilon(0.04));
    };
    check(direct, direct_load(token, group, tokens));
    check(forwarded, forwarded_load(token, group, tokens));
  }
}

TEST_CASE("Nodes chosen by their best expert's score are those of the closed form") {
  // As DeepEP's benchmark and DeepSeek-V3's router do it: 4 of 8 nodes, then 8 of their 128 experts.
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> score(0, 1);
  double nodes = 0, ranks = 0;
  constexpr int kTokens = 4000;
  for (int t = 0; t < kTokens; ++t) {
    std::vector<double> of(256);
    for (double& one : of) one = score(random);
    std::vector<int> order(8);
    std::iota(order.begin(), order.end(), 0);
    const auto best = [&](int node) {
      return *std::max_element(of.begin() + 32 * node, of.begin() + 32 * node + 32);
    };
    std::sort(order.begin(), order.end(), [&](int a, int b) { return best(a) > best(b); });
    std::vector<int> experts;
    for (int i = 0; i < 4; ++i)
      for (int e = 0; e < 32; ++e) experts.push_back(32 * order[static_cast<std::size_t>(i)] + e);
    std::sort(experts.begin(), experts.end(), [&](int a, int b) {
      return of[static_cast<std::size_t>(a)] > of[static_cast<std::size_t>(b)];
    });
    std::set<int> to_nodes, to_ranks;
    for (int i = 0; i < 8; ++i) {
      to_nodes.insert(experts[static_cast<std::size_t>(i)] / 32);
      to_ranks.insert(experts[static_cast<std::size_t>(i)] / 4);
    }
    nodes += static_cast<double>(to_nodes.size()) / kTokens;
    ranks += static_cast<double>(to_ranks.size()) / kTokens;
  }
  const RoutedToken token = routed_token({256, 8, {64, 8}, 8, 4});
  CHECK(token.nodes == doctest::Approx(nodes).epsilon(0.01));
  CHECK(token.ranks == doctest::Approx(ranks).epsilon(0.01));
}

TEST_CASE("The forms of an exchange by hand") {
  // 3 messages of 2 us; 4 MB at 0.5 x 50 GB/s = 160 us and nothing on NVLink.
  CHECK(messages_seconds({2, 0.5}, {0, 4e6, 3}, 100, 50) == doctest::Approx(166e-6));
  // 80 us of NVLink under it: (160^4 + 80^4)^(1/4) = 160 x (1 + 1/16)^(1/4).
  CHECK(messages_seconds({2, 0.5}, {8e6, 4e6, 3}, 100, 50) ==
        doctest::Approx(6e-6 + 160e-6 * std::pow(1 + 1.0 / 16, 0.25)));
  // DeepEP: 10 us, then 9 MB at 0.75 x 200 = 60 us of NVLink alone.
  CHECK(forwarding_seconds({10, 0.75, 0.9}, {9e6, 0, 0}, {200, 0}) == doctest::Approx(70e-6));
  // On a board with more of NVLink the same share of it.
  CHECK(forwarding_seconds({10, 0.75, 0.9}, {9e6, 0, 0}, {400, 0}) == doctest::Approx(40e-6));
}
