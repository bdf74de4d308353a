#include <doctest/doctest.h>

#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/graph/topological_sort.hpp>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "policies/base/error.h"
#include "sim/step/op_run.h"
#include "sim/verify/longest_path.h"
#include "tests/oracle/random_graph.h"

using namespace equipoise;

namespace {

constexpr Picoseconds ps(std::int64_t n) {
  return Picoseconds{n};
}

// The longest path, by another library: Boost's order, one relaxation of every edge.
std::vector<Picoseconds> ends_by_longest_path(const TaskGraph& graph,
                                              std::span<const Picoseconds> durations) {
  using Csr = boost::compressed_sparse_row_graph<boost::directedS, boost::no_property, boost::no_property,
                                                 boost::no_property, std::uint32_t, std::uint32_t>;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
  for (TaskId t = 0; t < graph.tasks(); ++t)
    for (const TaskId next : graph.successors(t)) edges.emplace_back(t, next);
  const Csr csr(boost::edges_are_unsorted_multi_pass, edges.begin(), edges.end(),
                static_cast<std::uint32_t>(graph.tasks()));
  std::vector<std::uint32_t> reversed;
  boost::topological_sort(csr, std::back_inserter(reversed));
  std::vector<Picoseconds> end(durations.begin(), durations.end());
  for (std::size_t i = reversed.size(); i-- > 0;) {
    const std::uint32_t t = reversed[i];
    for (auto [e, last] = boost::out_edges(t, csr); e != last; ++e) {
      const std::uint32_t next = boost::target(*e, csr);
      end[next] = std::max(end[next], end[t] + durations[next]);
    }
  }
  return end;
}

}  // namespace

TEST_CASE("a stream runs its tasks one at a time, in order") {
  TaskGraphBuilder builder;
  const StreamId s = builder.add_stream(0);
  const TaskId a = builder.add_task(s, ps(3));
  const TaskId b = builder.add_task(s, ps(4));
  const EngineResult r = run(builder.build());
  CHECK(r.start[a] == ps(0));
  CHECK(r.start[b] == ps(3));
  CHECK(r.makespan == ps(7));
}

TEST_CASE("a collective starts when its last member arrives and holds all of them") {
  // Rank 0 computes 2, rank 1 computes 5; the collective runs 5..9; both go on at 9.
  TaskGraphBuilder builder;
  const std::vector<StreamId> s = {builder.add_stream(0), builder.add_stream(1)};
  builder.add_task(s[0], ps(2));
  builder.add_task(s[1], ps(5));
  const TaskId gather = builder.add_collective(s, ps(4));
  const TaskId after0 = builder.add_task(s[0], ps(1));
  const TaskId after1 = builder.add_task(s[1], ps(1));
  const EngineResult r = run(builder.build());
  CHECK(r.start[gather] == ps(5));
  CHECK(r.start[after0] == ps(9));
  CHECK(r.start[after1] == ps(9));
}

TEST_CASE("communication on its own stream overlaps compute, and a transfer holds nobody") {
  // Compute 10 alongside a bucket of 7 that needs only the first kernel (4): 4..11; compute runs on to 14.
  TaskGraphBuilder builder;
  const StreamId compute = builder.add_stream(0);
  const StreamId data = builder.add_stream(0);
  const StreamId other = builder.add_stream(1);
  const TaskId first = builder.add_task(compute, ps(4));
  const TaskId second = builder.add_task(compute, ps(10));
  const TaskId bucket = builder.add_task(data, ps(7));
  builder.add_dependency(first, bucket);
  const TaskId received = builder.add_task(other, ps(1));
  builder.add_transfer(first, received, ps(6));
  const EngineResult r = run(builder.build());
  CHECK(r.end[bucket] == ps(11));
  CHECK(r.end[second] == ps(14));
  CHECK(r.start[received] == ps(10));
}

TEST_CASE("the engine's end times are the longest paths of the graph") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const TaskGraph graph = random_graph(seed, static_cast<int>(seed) * 3 + 1);
    const EngineResult r = run(graph);
    REQUIRE(r.end == ends_by_longest_path(graph, graph.durations()));
  }
}

TEST_CASE("scaling every duration scales the makespan") {
  for (std::uint64_t seed = 0; seed < 50; ++seed)
    CHECK(run(random_graph(seed, 200, 7)).makespan == 7 * run(random_graph(seed, 200)).makespan);
}

TEST_CASE("jitter depends on its seed and on nothing else, and has the stated spread") {
  const Jitter jitter{0.1, 42};
  double sum = 0;
  double squares = 0;
  constexpr int kDraws = 100000;
  for (std::uint64_t key = 0; key < kDraws; ++key) {
    const double z = jitter.standard_normal(key);
    sum += z;
    squares += z * z;
  }
  // Standard errors: of the mean 1/sqrt(1e5) = 0.003, of the variance about 0.004.
  CHECK(std::abs(sum / kDraws) < 0.015);
  CHECK(std::abs(squares / kDraws - 1) < 0.02);
  CHECK(jitter.factor(7) == Jitter{0.1, 42}.factor(7));
  CHECK(jitter.factor(7) != Jitter{0.1, 43}.factor(7));
}

TEST_CASE("a stall says who waits for what") {
  // Two ranks issue the same two collectives in opposite order: each waits for the other for ever.
  TaskGraphBuilder builder;
  const StreamId a = builder.add_stream(0);
  const StreamId b = builder.add_stream(1);
  const TaskId x = builder.add_task(a, ps(1));
  const TaskId y = builder.add_task(b, ps(1));
  builder.add_dependency(x, y);
  builder.add_dependency(y, x);
  builder.add_task(a, ps(1));
  builder.name_tasks([](TaskId t) { return std::string(1, static_cast<char>('A' + t)); });
  CHECK_THROWS_WITH_AS(run(builder.build()), "3 of 3 tasks never ran: A waits for B, which waits for A",
                       EngineError);
}

TEST_CASE("times that are no times are refused") {
  CHECK(to_picoseconds(1.5) == ps(1500000000000));
  for (const double bad : {std::nan(""), -1.0, std::numeric_limits<double>::infinity(), 1e7})
    CHECK_THROWS_AS(to_picoseconds(bad), UserError);
  TaskGraphBuilder builder;
  const StreamId s = builder.add_stream(0);
  CHECK_THROWS_AS(builder.add_task(s, ps(-1)), EngineError);
  builder.add_task(s, std::numeric_limits<Picoseconds>::max());
  builder.add_task(s, ps(1));
  CHECK_THROWS_WITH_AS(run(builder.build()), doctest::Contains("clock"), EngineError);
}
