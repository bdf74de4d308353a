// Collectives by hand, and laws of those of the shipped profiles.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "policies/base/error.h"
#include "profiler/profile/collective.h"
#include "profiler/profile/cost_models.h"
#include "profiler/profile/profile.h"

using namespace equipoise;

TEST_CASE("no collective inside a node is shorter than its bytes at the bus rate, nor a longer one shorter") {
  for (const std::string& name : shipped_profiles()) {
    const Profile profile = Profile::load(name);
    if (!profile.json().contains(nlohmann::json::json_pointer("/tables/collective/node"))) continue;
    CAPTURE(name);
    const CollectiveModel collectives(profile, {});
    RangeUse use;
    for (int kind = 0; kind < 5; ++kind)
      for (const int ranks : {2, 4, 8}) {
        const GroupShape group{ranks, 8};
        double before = 0;
        for (double bytes = 64; bytes < 1e11; bytes *= 2) {
          const auto of = static_cast<Collective>(kind);
          const double seconds = collectives.seconds(of, bytes, group, use);
          REQUIRE(seconds >= bytes * collectives.least_seconds_per_byte(of, group) * (1 - 1e-12));
          REQUIRE(seconds >= before);
          before = seconds;
        }
      }
  }
}

TEST_CASE("collectives move nccl-tests' bytes over their slowest link") {
  NodeParameters node;
  node.launch_us = 5;
  node.bus_GBps = 350;
  // 8 GB over 8 ranks: 7 GB on each link, 20 ms.
  CHECK(node_seconds(node, Collective::all_gather, 8e9, 8) == doctest::Approx(20.005e-3).epsilon(1e-9));
  CHECK(node_seconds(node, Collective::all_reduce, 8e9, 8) == doctest::Approx(40.005e-3).epsilon(1e-9));
  node.switch_bus_GBps = 480;
  node.switch_from_ranks = 5;
  // 14 GB at 480 GB/s through the switch; 4 ranks still take the ring: 12 GB at 350.
  CHECK(node_seconds(node, Collective::all_reduce, 8e9, 8) ==
        doctest::Approx(14.0 / 480 + 5e-6).epsilon(1e-9));
  CHECK(node_seconds(node, Collective::all_reduce, 8e9, 4) ==
        doctest::Approx(12.0 / 350 + 5e-6).epsilon(1e-9));

  // Two protocols on 4 ranks. Messages of 10 KB each take half of message_us, beyond 20 KB all of it. The
  // short one reaches 150 / (1 + 1.5 / 3) = 100 GB/s. From where the other's 11 + 3 x 2 us and its 350 GB/s
  // are less, its part of long_us grows: half at ramp_MB.
  NodeParameters two;
  two.bus_GBps = 350;
  two.message_us = 6;
  two.message_KB = 20;
  two.short_GBps = 150;
  two.short_pair_loss = 1.5;
  two.ramp_us = 11;
  two.ramp_rank_us = 2;
  two.long_us = 20;
  two.ramp_MB = 12;
  for (const Collective kind : {Collective::all_to_all, Collective::all_gather}) {
    CHECK(node_seconds(two, kind, 4e4, 4) == doctest::Approx(3e-6 + 3e4 / 100e9).epsilon(1e-9));
    CHECK(node_seconds(two, kind, 16e5, 4) == doctest::Approx(6e-6 + 12e5 / 100e9).epsilon(1e-9));
    CHECK(node_seconds(two, kind, 16e6, 4) ==
          doctest::Approx(6e-6 + 17e-6 + 10e-6 + 12e6 / 350e9).epsilon(1e-9));
  }
  nlohmann::json table = {{"form", "latency-ramp-bus"}, {"parameters", to_json(two)}};
  CHECK(node_parameters(table, "node").short_pair_loss == 1.5);
  table["parameters"]["short_GBps"] = 0;
  CHECK_THROWS_WITH_AS(
      (void)node_parameters(table, "node"),
      "node.parameters.short_GBps: expected above 0 with message_KB, found 0; fit the profile anew",
      UserError);

  NetworkParameters network;
  network.launch_us = 100;
  network.pair_launch_us = 20;
  network.efficiency = 0.8;
  network.pair_efficiency = 0.5;
  // Two nodes of 8, NICs of 50 GB/s. all_reduce of 8 GB: 1 GB a NIC at 40 GB/s is 25 ms, but 15 GB on the
  // links inside at 480 GB/s is 31.25 ms.
  CHECK(network_seconds(network, node, Collective::all_reduce, 8e9, {16, 8}, 50) ==
        doctest::Approx(31.35e-3).epsilon(1e-9));
  // all_gather: 8 * 15/16 / 8 = 0.9375 GB a NIC: 23.4375 ms; inside 7.5 GB at 350: 21.4 ms.
  CHECK(network_seconds(network, node, Collective::all_gather, 8e9, {16, 8}, 50) ==
        doctest::Approx(23.5375e-3).epsilon(1e-9));
  // all_to_all: half of 1 GB leaves the node, at 25 GB/s.
  CHECK(network_seconds(network, node, Collective::all_to_all, 1e9, {16, 8}, 50) ==
        doctest::Approx(20.1e-3).epsilon(1e-9));
  // send_recv: one NIC, 25 GB/s, one hop.
  CHECK(network_seconds(network, node, Collective::send_recv, 1e9, {2, 1}, 50) ==
        doctest::Approx(40.02e-3).epsilon(1e-9));
}

TEST_CASE("collectives grow with bytes and cost nothing alone or empty") {
  for (const char* name : {"h100-sxm", "h200-sxm"}) {
    const Profile profile = Profile::load(name);
    for (const double nic : {0.0, 25.0, 100.0}) {
      const CollectiveModel model(profile, {nic, ""});
      RangeUse use;
      for (int kind = 0; kind < 5; ++kind) {
        CHECK(model.seconds(static_cast<Collective>(kind), 1e6, {1, 1}, use) == 0);
        CHECK(model.seconds(static_cast<Collective>(kind), 0, {8, 8}, use) == 0);
        for (const GroupShape group :
             {GroupShape{2, 2}, GroupShape{8, 8}, GroupShape{64, 8}, GroupShape{4, 1}}) {
          double before = 0;
          for (double bytes = 8; bytes < 1e11; bytes *= 4) {
            const double now = model.seconds(static_cast<Collective>(kind), bytes, group, use);
            CHECK(now > before);
            before = now;
          }
        }
      }
    }
  }
}

TEST_CASE("all-to-all between nodes takes the way that its network names") {
  nlohmann::json file = Profile::load("h100-sxm").json();
  nlohmann::json& table = file["tables"]["collective"];
  table["networks"]["rail-400"]["parameters"]["launch_us"] = 50;
  table["networks"]["rail-400"]["parameters"]["step_us"] = 10;
  table["exchange"]["rail-aligned"]["parameters"] = {{"message_us", 1}, {"network_efficiency", 0.8}};
  table["exchange"]["cross-rail"]["parameters"] = {{"message_us", 2}, {"network_efficiency", 0.4}};
  table["node"]["all_to_all"]["parameters"]["bus_GBps"] = 1e9;  // nothing to see of the links inside
  const auto seconds = [&](const char* way, double bytes, GroupShape group) {
    table["networks"]["rail-400"]["all_to_all"] = way;
    RangeUse use;
    return CollectiveModel(Profile(file, "mine.json"), {}).seconds(Collective::all_to_all, bytes, group, use);
  };
  // 32 ranks on 4 nodes: 50 + 2 steps of 10 us, 24 messages; 24 / 32 of 64 MB at 40 and 20 GB/s.
  CHECK(seconds("rail-aligned", 64e6, {32, 8}) == doctest::Approx(70e-6 + 24e-6 + 48e6 / 40e9).epsilon(1e-6));
  CHECK(seconds("cross-rail", 64e6, {32, 8}) == doctest::Approx(70e-6 + 48e-6 + 48e6 / 20e9).epsilon(1e-6));
  // 7 of 32 parts go to the node's other ranks; along the rails 7 of 8 of the other 24 pass NVLink, too.
  table["node"]["all_to_all"]["parameters"]["bus_GBps"] = 0.01;
  table["node"]["all_to_all"]["parameters"]["pair_loss"] = 0;
  const double slow = 64e6 / 0.01e9;  // the whole buffer
  CHECK(seconds("rail-aligned", 64e6, {32, 8}) == doctest::Approx(slow * (7 + 21) / 32).epsilon(1e-3));
  CHECK(seconds("cross-rail", 64e6, {32, 8}) == doctest::Approx(slow * 7 / 32).epsilon(1e-3));
}
