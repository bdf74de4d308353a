// A step whose flows share links, told in the op engine's terms.
#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "sim/step/op_step_simulator.h"
#include "tests/sim/step/agreement.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

constexpr double kPerPicosecond = 1e-12;

// Every op of every rank, as a replay tells it.
class AllOps final : public OpSink {
 public:
  void on_op(const OpEvent& event) override { events.push_back(event); }
  std::vector<OpEvent> events;
};

template <class Each>
void for_each_scheduled_op(const OpProgram& program, const Each& each) {
  for (std::size_t l = 0; l < program.lanes.size(); ++l)
    for (std::size_t s = 0; s < program.lanes[l].stages.size(); ++s)
      for (std::size_t c = 0; c < program.lanes[l].stages[s].size(); ++c)
        each(static_cast<int>(l), static_cast<int>(s), static_cast<int>(c));
}

void check_path(const std::vector<PathSegment>& path, Picoseconds makespan) {
  if (makespan == 0) return;
  REQUIRE_FALSE(path.empty());
  CHECK(path.front().start == 0);
  CHECK(path.back().end == makespan);
  for (std::size_t i = 1; i < path.size(); ++i) REQUIRE(path[i].start == path[i - 1].end);
}

}  // namespace

TEST_CASE("With links to spare, all that a contended step tells is that of the step alone") {
  for (std::uint64_t seed = 600; seed < 610; ++seed) {
    const Job job = random_job(seed);
    CAPTURE(job.text);
    const Prices prices(job, 2);
    OpStepOptions options;
    options.fold_tp = false;
    OpStepSimulator alone(prices.costs, job.shard, job.options, options);
    const Fabric fast = network_of(prices.grid, 1e6, 1e6);
    options.fabric = &fast;
    OpStepSimulator shared(prices.costs, job.shard, job.options, options);
    const StepResult a = alone.run(job.step), b = shared.run(job.step);
    CHECK(a.times.makespan == b.times.makespan);
    CHECK(a.times.pipeline == b.times.pipeline);
    CHECK(a.times.gradient_wait == b.times.gradient_wait);
    CHECK(a.times.losses.bubble_ratio == b.times.losses.bubble_ratio);
    CHECK(a.times.losses.idle_seconds == b.times.losses.idle_seconds);
    for (std::size_t s = 0; s < kStreams; ++s)
      CHECK(a.times.exposed_seconds[s] == b.times.exposed_seconds[s]);
    for (std::size_t l = 0; l < alone.result().lanes.size(); ++l) {
      CHECK(alone.result().lanes[l].start == shared.result().lanes[l].start);
      CHECK(alone.result().lanes[l].end == shared.result().lanes[l].end);
    }
    CHECK(alone.result().end_begins == shared.result().end_begins);
    for_each_scheduled_op(alone.program(), [&](int l, int s, int c) {
      AllOps one, other;
      replay_scheduled_op(alone.program(), alone.op_options(), alone.result(), l, s, c, one);
      replay_scheduled_op(shared.program(), shared.op_options(), shared.result(), l, s, c, other);
      REQUIRE(one.events.size() == other.events.size());
      for (std::size_t i = 0; i < one.events.size(); ++i) {
        REQUIRE(one.events[i].rank == other.events[i].rank);
        REQUIRE(one.events[i].arrived == other.events[i].arrived);
        REQUIRE(one.events[i].start == other.events[i].start);
        REQUIRE(one.events[i].end == other.events[i].end);
      }
    });
    check_path(shared.critical_path(), b.times.makespan);
  }
}

TEST_CASE("On a slow network the path, the ops and the exposed time are those of the slow network") {
  for (std::uint64_t seed = 620; seed < 632; ++seed) {
    const Job job = random_job(seed);
    CAPTURE(job.text);
    const Prices prices(job, 2);
    const Fabric slow = network_of(prices.grid, 20, 0.5);
    OpStepOptions options;
    options.fabric = &slow;
    OpStepSimulator shared(prices.costs, job.shard, job.options, options);
    const StepResult r = shared.run(job.step);
    CHECK(r.times.makespan == shared.result().makespan);
    check_path(shared.critical_path(), r.times.makespan);
    const PathShares shares = share_path(shared.program(), shared.critical_path());
    CHECK(std::accumulate(shares.by_stream.begin(), shares.by_stream.end(), Picoseconds{0}) ==
          r.times.makespan);
    // Ops lie inside their scheduled ops, one after another on each rank.
    for_each_scheduled_op(shared.program(), [&](int l, int s, int c) {
      AllOps ops;
      replay_scheduled_op(shared.program(), shared.op_options(), shared.result(), l, s, c, ops);
      const auto& lane = shared.result().lanes[static_cast<std::size_t>(l)];
      const auto ranks = static_cast<std::size_t>(
          shared.program().lanes[static_cast<std::size_t>(l)].context * shared.program().tensor);
      for (const OpEvent& e : ops.events) {
        const std::size_t at = static_cast<std::size_t>(c) * ranks + static_cast<std::size_t>(e.rank);
        REQUIRE(e.start >= e.arrived);
        REQUIRE(e.arrived >= lane.start[static_cast<std::size_t>(s)][at]);
        REQUIRE(e.end <= lane.end[static_cast<std::size_t>(s)][at]);
      }
    });
    // No second of a GPU counts twice.
    const double communication =
        std::accumulate(r.times.exposed_seconds.begin() + 1, r.times.exposed_seconds.end(), 0.0);
    CHECK(communication <= static_cast<double>(r.times.makespan) * kPerPicosecond * (1 + 1e-9));
  }
}

TEST_CASE("TP folded or every rank by itself, a contended step tells the same") {
  for (std::uint64_t seed = 640; seed < 660; ++seed) {
    const Job job = random_job(seed);
    CAPTURE(job.text);
    const Prices prices(job, 4);
    const Fabric slow = network_of(prices.grid, 20, 0.5);
    OpStepOptions options;
    options.fabric = &slow;
    OpStepSimulator folded(prices.costs, job.shard, job.options, options);
    options.fold_tp = false;
    OpStepSimulator unfolded(prices.costs, job.shard, job.options, options);
    const StepTimes a = folded.run(job.step).times, b = unfolded.run(job.step).times;
    CHECK(unfolded.program().tensor == job.layout.tensor);
    CHECK(a.makespan == b.makespan);
    CHECK(a.exposed_seconds == b.exposed_seconds);
    CHECK(a.recompute_exposed_seconds == b.recompute_exposed_seconds);
    CHECK(a.losses.bubble_ratio == b.losses.bubble_ratio);
    CHECK(a.losses.idle_seconds == b.losses.idle_seconds);
    REQUIRE(a.lanes.size() == b.lanes.size());
    for (std::size_t l = 0; l < a.lanes.size(); ++l) {
      CHECK(a.lanes[l].useful == b.lanes[l].useful);
      CHECK(a.lanes[l].recompute == b.lanes[l].recompute);
    }
    check_path(folded.critical_path(), a.makespan);
    CHECK(share_path(folded.program(), folded.critical_path()).by_stream ==
          share_path(unfolded.program(), unfolded.critical_path()).by_stream);
  }
}

TEST_CASE("What contention adds to a parameter gather is exposed gradient and parameter exchange, by hand") {
  // Two replicas on a node each, NICs of 1 MB/s: the gather sends half of 197,184 parameters of 2 bytes from
  // each, 0.197184 s, and ends the step. The path ends with it; the pipeline is as long as before.
  const ModelShape model = [] {
    ModelShape m;
    m.name = "hand";
    m.layers = 4;
    m.hidden = 64;
    m.heads = m.kv_heads = 2;
    m.head_dim = 32;
    m.ffn = 128;
    m.vocab = 256;
    return m;
  }();
  Job job;
  job.model = model;
  job.layout.data = 2;
  job.layout.recompute = Recompute::none;
  job.shard.fixed = &sharding_policy("per-sequence");
  job.shard.options.pad = Pad::tail;
  job.options.schedule = &schedule_policy("1f1b");
  job.step.lanes.resize(2);
  for (std::size_t l = 0; l < 2; ++l) {
    job.step.lanes[l].context = 1;
    job.step.lanes[l].micro_batches.resize(1);
    job.step.lanes[l].micro_batches[0].slices = {{static_cast<std::int64_t>(l), 0, 512}};
  }
  const Prices prices(job, 1);
  const Fabric slow = network_of(prices.grid, 450, 0.001);
  OpStepOptions options;
  const StepResult alone = OpStepSimulator(prices.costs, job.shard, job.options, options).run(job.step);
  options.fabric = &slow;
  OpStepSimulator shared(prices.costs, job.shard, job.options, options);
  const StepResult r = shared.run(job.step);
  CHECK(r.times.pipeline == alone.times.pipeline);
  CHECK(shared.critical_path().back().name == OpName::dp_all_gather);
  const PathSegment last = shared.critical_path().back();
  CHECK(std::abs((last.end - last.start) - 197'184'000'000) <= 1);
  const auto dp = static_cast<std::size_t>(Stream::dp);
  CHECK(r.times.exposed_seconds[dp] - alone.times.exposed_seconds[dp] ==
        doctest::Approx(static_cast<double>(r.times.makespan - alone.times.makespan) * kPerPicosecond));
}
