#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "sim/topology/fabric.h"
#include "tests/oracle/event_loop.h"
#include "tests/oracle/random_graph.h"
#include "tests/sim/topology/hgx.h"

using namespace equipoise;
using testing::hgx;

namespace {

constexpr Picoseconds kSecond = 1000000000000;

}  // namespace

TEST_CASE("two flows on one link take turns in rate, a third has its own") {
  // Link 0 and 1 carry 10 B/s. A: 40 B, B: 20 B on link 0 (alone 4 s and 2 s), C: 30 B on link 1 (3 s).
  // Shared, A and B get 5 B/s: B ends at 4 s; A has 20 B left and the link alone: 6 s. C ends at 3 s.
  TaskGraphBuilder builder;
  std::vector<TaskId> flow;
  for (const Picoseconds alone : {4, 2, 3})
    flow.push_back(builder.add_task(builder.add_stream(0), alone * kSecond));
  const TaskGraph graph = builder.build();
  LinkTraffic traffic({10, 10});
  const std::vector<LinkUse> first = {{0}}, second = {{1}};
  traffic.add(flow[0], first, 40);
  traffic.add(flow[1], first, 20);
  traffic.add(flow[2], second, 30);
  const EngineResult r = run_with_contention(graph, traffic);
  CHECK(r.end[flow[0]] == 6 * kSecond);
  CHECK(r.end[flow[1]] == 4 * kSecond);
  CHECK(r.end[flow[2]] == 3 * kSecond);
  // At first A, sharing, was to end at 8 s: what was only predicted is no end of the run.
  CHECK(r.makespan == 6 * kSecond);
}

TEST_CASE("a flow that joins later slows the first from then on") {
  // A: 40 B alone on 10 B/s from 0. At 2 s (after compute) B: 40 B. A has 20 B left at 5 B/s: 6 s. B: 20 B by
  // then, the rest at 10 B/s: 8 s.
  TaskGraphBuilder builder;
  const TaskId a = builder.add_task(builder.add_stream(0), 4 * kSecond);
  const StreamId s = builder.add_stream(1);
  builder.add_task(s, 2 * kSecond);
  const TaskId b = builder.add_task(s, 4 * kSecond);
  const TaskGraph graph = builder.build();
  LinkTraffic traffic({10});
  const std::vector<LinkUse> link = {{0}};
  traffic.add(a, link, 40);
  traffic.add(b, link, 40);
  const EngineResult r = run_with_contention(graph, traffic);
  CHECK(r.end[a] == 6 * kSecond);
  CHECK(r.end[b] == 8 * kSecond);
}

TEST_CASE("an oversubscribed spine halves flows between pods and leaves those inside a pod alone") {
  // Pods of one node, two rails; leaves of one NIC; oversubscription 2: uplinks of 25 GB/s under NICs of 50.
  FabricOptions options = hgx();
  options.gpus = 4;
  options.gpus_per_node = 2;
  options.nodes_per_pod = 1;
  options.oversubscription = 2;
  options.spines = 1;
  const Fabric fabric(options);
  const auto seconds_of = [&](int flows, int from, int to) {  // 50 GB each, 1 s at a NIC's rate
    TaskGraphBuilder builder;
    LinkTraffic traffic(fabric.capacities());
    for (int f = 0; f < flows; ++f)
      traffic.add(builder.add_task(builder.add_stream(f), kSecond), fabric.uses(fabric.route(from, to)),
                  50e9);
    return run_with_contention(builder.build(), traffic).makespan / kSecond;
  };
  CHECK(seconds_of(1, 0, 2) == 2);  // the uplink is half a NIC
  CHECK(seconds_of(2, 0, 2) == 4);
  CHECK(seconds_of(1, 0, 1) == 1);  // NVSwitch
}

TEST_CASE("a ring all-reduce built from flows takes 2 (n - 1) / n of its bytes at the link's rate") {
  for (const int n : {2, 4, 8}) {
    FabricOptions options = hgx();
    options.gpus = 8 * n;
    const Fabric fabric(options);
    const double bytes = 8e9;  // 8 GB over n nodes, one GPU each, NICs of 50 GB/s
    const Picoseconds chunk = to_picoseconds(bytes / n / 50e9);
    TaskGraphBuilder builder;
    LinkTraffic traffic(fabric.capacities());
    std::vector<StreamId> streams;
    for (int r = 0; r < n; ++r) streams.push_back(builder.add_stream(r));
    std::vector<TaskId> previous(static_cast<std::size_t>(n), kNoTask);
    for (int step = 0; step < 2 * (n - 1); ++step) {
      std::vector<TaskId> now;
      for (int r = 0; r < n; ++r) {
        const TaskId send = builder.add_task(streams[static_cast<std::size_t>(r)], chunk);
        const TaskId received = previous[static_cast<std::size_t>((r + n - 1) % n)];
        if (received != kNoTask) builder.add_dependency(received, send);
        traffic.add(send, fabric.uses(fabric.route(8 * r, 8 * ((r + 1) % n))), bytes / n);
        now.push_back(send);
      }
      previous = now;
    }
    const EngineResult result = run_with_contention(builder.build(), traffic);
    const Picoseconds closed_form = to_picoseconds(2.0 * (n - 1) / n * bytes / 50e9);
    CHECK(std::abs(result.makespan - closed_form) <= 2 * n);  // each step rounds to a picosecond
  }
}

TEST_CASE("two rings over the same NICs take twice as long") {
  FabricOptions options = hgx();
  options.gpus = 32;
  const Fabric fabric(options);
  TaskGraphBuilder builder;
  LinkTraffic traffic(fabric.capacities());
  for (int ring = 0; ring < 2; ++ring) {
    const TaskId t = builder.add_task(builder.add_stream(ring), kSecond);
    traffic.add(t, fabric.ring({0, 8, 16, 24}), 50e9);
  }
  CHECK(run_with_contention(builder.build(), traffic).makespan == 2 * kSecond);
}

TEST_CASE("where nothing is shared the event loop gives every task the time that the engine gives") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const TaskGraph graph = random_graph(seed, 150, 1000);
    // Every other task has a link of its own, fast enough.
    LinkTraffic traffic(std::vector<double>(graph.tasks(), 1e15));
    for (TaskId t = 0; t < graph.tasks(); ++t) {
      const std::vector<LinkUse> own = {{t}};
      if (t % 2 == 0) traffic.add(t, own, 1000);
    }
    const EngineResult plain = run(graph);
    const EngineResult looped = run_with_contention(graph, traffic);
    CHECK(looped.start == plain.start);
    CHECK(looped.end == plain.end);
    // One link for all: nothing ends earlier.
    LinkTraffic crowded({1e12});
    const std::vector<LinkUse> link = {{0}};
    for (TaskId t = 0; t < graph.tasks(); ++t)
      if (t % 2 == 0) crowded.add(t, link, 1000);
    CHECK(run_with_contention(graph, crowded).makespan >= plain.makespan);
  }
}

TEST_CASE("traffic that makes no sense and stalls are named") {
  TaskGraphBuilder builder;
  const TaskId a = builder.add_task(builder.add_stream(0), 5);
  const TaskId b = builder.add_task(builder.add_stream(1), 5);
  builder.add_dependency(b, b);
  const TaskGraph graph = builder.build();
  const std::vector<LinkUse> link = {{0}}, missing = {{7}};
  LinkTraffic none({10});
  CHECK_THROWS_WITH_AS(run_with_contention(graph, none), doctest::Contains("never ran"), EngineError);
  LinkTraffic nan({10});
  nan.add(a, link, std::nan(""));
  CHECK_THROWS_WITH_AS(run_with_contention(graph, nan), doctest::Contains("bytes"), EngineError);
  LinkTraffic lost({10});
  lost.add(a, missing, 1);
  CHECK_THROWS_WITH_AS(run_with_contention(graph, lost), doctest::Contains("link that does not exist"),
                       EngineError);
}
