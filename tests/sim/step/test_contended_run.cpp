// Contended runs against the plain way to the same result: every op of every GPU as a task of a graph, all
// rates shared anew at every change (lower, traffic_of, run_with_contention). Every time, to the picosecond.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "sim/step/contended_run.h"
#include "sim/step/expansion.h"
#include "sim/step/network_routes.h"
#include "sim/step/step_simulator.h"
#include "sim/verify/lowering.h"
#include "tests/oracle/lowered_traffic.h"
#include "tests/sim/step/random_job.h"
#include "tests/sim/step/random_program.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

// Networks of every kind: slow and fast, one spine or eight, small leaves.
Fabric random_network(std::uint64_t seed, const RankGrid& grid) {
  SplitMix64 random(seed ^ 0x5851f42d4c957f2dULL);
  FabricOptions options;
  options.gpus = grid.gpus();
  options.gpus_per_node = grid.gpus_per_node();
  options.nvlink_GBps = below(random, 2) == 0 ? 450 : 30;
  options.nic_GBps = below(random, 2) == 0 ? 50 : 2;
  options.wiring = below(random, 2) == 0 ? Wiring::rail : Wiring::fat_tree;
  options.oversubscription = static_cast<double>(below(random, 4) + 1);
  options.nodes_per_pod = static_cast<int>(below(random, 4)) + 1;
  options.spines = below(random, 2) == 0 ? 1 : 8;
  return Fabric(options);
}

// Ends of every op of a scheduled op by rank, as a replay tells them.
class Ends final : public OpSink {
 public:
  explicit Ends(std::size_t ranks) : of_rank(ranks), start_of_rank(ranks) {}
  void on_op(const OpEvent& event) override {
    of_rank[at(event.rank)].push_back(event.end);
    start_of_rank[at(event.rank)].push_back(event.start);
  }
  std::vector<std::vector<Picoseconds>> of_rank, start_of_rank;
};

// `told`: of `program`, whose TP ranks are folded or not; `graph`: of every GPU. `tensor`: TP ranks of the
// graph.
void check_lane(const OpProgram& program, const OpOptions& options, const OpResult& told,
                const LoweredProgram& graph, const EngineResult& times, std::size_t l, int tensor) {
  const OpLane& lane = program.lanes[l];
  const std::size_t ranks = at(lane.context) * at(program.tensor);
  const std::size_t gpus = at(lane.context) * at(tensor), width = gpus / ranks;
  for (std::size_t s = 0; s < lane.stages.size(); ++s) {
    const LoweredProgram::Stage& stage = graph.lanes[l][s];
    for (std::size_t c = 0; c < lane.stages[s].size(); ++c) {
      Ends ops(ranks);
      replay_scheduled_op(program, options, told, static_cast<int>(l), static_cast<int>(s),
                          static_cast<int>(c), ops);
      for (std::size_t g = 0; g < gpus; ++g) {
        const std::size_t r = g / width, task = c * gpus + g;
        if (!ends_pair(lane.stages[s], c))
          REQUIRE(told.lanes[l].start[s][c * ranks + r] == times.end[stage.begin[task]]);
        REQUIRE(told.lanes[l].end[s][c * ranks + r] == times.end[stage.end[task]]);
        if (stage.input[task] != kNoTask)
          REQUIRE(told.recorded->lanes[l][s].input_end[c * ranks + r] == times.end[stage.input[task]]);
        for (std::size_t i = 0; i < ops.of_rank[r].size(); ++i) {
          const TaskId op = graph.op_tasks[stage.first[c] + i * gpus + g];
          REQUIRE(ops.of_rank[r][i] == times.end[op]);
          // A wait is told from when the rank came to it; as a task it takes no time.
          if (!graph.origin[op].marker) REQUIRE(ops.start_of_rank[r][i] == times.start[op]);
        }
      }
    }
  }
}

void check(const OpProgram& program, const OpOptions& options, const OpResult& told,
           const LoweredProgram& graph, const EngineResult& times, int tensor) {
  CHECK(told.makespan == times.makespan);
  for (std::size_t l = 0; l < program.lanes.size(); ++l)
    check_lane(program, options, told, graph, times, l, tensor);
  for (std::size_t e = 0; e < graph.ends.size(); ++e) {
    const LoweredProgram::End& end = graph.ends[e];
    const std::size_t of = e / (at(tensor) / at(program.tensor));
    for (std::size_t k = 0; k < end.buckets.size(); ++k) {
      REQUIRE(told.buckets[of][k].start == times.start[end.buckets[k]]);
      REQUIRE(told.buckets[of][k].end == times.end[end.buckets[k]]);
    }
    REQUIRE(told.end_begins[of] == times.end[end.border]);
    for (std::size_t i = 0; i < end.steps.size(); ++i)
      REQUIRE(told.recorded->steps_end[of][i] == times.end[end.steps[i]]);
  }
}

struct Plain {
  LoweredProgram graph;
  EngineResult times;
};
Plain run_plainly(const OpProgram& program, const OpOptions& options, const OpResult& alone,
                  const RankGrid& grid, const Fabric& network) {
  Plain plain{lower(program, options, alone), {}};
  plain.times = run_with_contention(plain.graph.graph, traffic_of(plain.graph, program, grid, network));
  return plain;
}

}  // namespace

TEST_CASE("a job on a random network takes the times of its task graph, with TP folded and without") {
  int folded = 0, slowed = 0, experts = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    Job job = random_job(seed);
    if (seed % 3 == 0) job.layout.zero = 2 + static_cast<int>(seed % 2);
    if (job.model.moe && job.layout.context * job.layout.data % 2 == 0) {
      job.layout.expert = 2;
      job.layout.expert_tensor = seed % 2 == 0 ? job.layout.tensor : 1;
    }
    CAPTURE(seed);
    CAPTURE(job.text);
    std::optional<Prices> prices;
    try {
      prices.emplace(job, seed % 2 == 0 ? 8 : 4);
    } catch (const UserError&) {
      continue;
    }
    const Fabric network = random_network(seed, prices->grid);
    const OpOptions options;
    const OpProgram program = StepExpander(prices->costs, job.shard, job.options, false).expand(job.step);
    const OpResult alone = run(program, options);
    const Plain plain = run_plainly(program, options, alone, prices->grid, network);
    const NetworkRoutes routes(program, prices->grid, network);
    CHECK(routes.alike());
    ContendedOptions how;
    how.threads = static_cast<int>(seed % 2) + 1;
    const OpResult told = run_contended(program, options, alone, routes, how).result;
    check(program, options, told, plain.graph, plain.times, program.tensor);
    slowed += told.makespan > alone.makespan ? 1 : 0;
    experts += job.layout.expert > 1 ? 1 : 0;

    const OpProgram fold = StepExpander(prices->costs, job.shard, job.options, true).expand(job.step);
    const NetworkRoutes folds(fold, prices->grid, network);
    if (!folds.alike()) continue;
    ++folded;
    const OpResult alone_folded = run(fold, options);
    const OpResult of_folded = run_contended(fold, options, alone_folded, folds, how).result;
    check(fold, options, of_folded, plain.graph, plain.times, program.tensor);
  }
  CHECK(folded > 80);
  CHECK(slowed > 60);
  CHECK(experts > 10);
}

TEST_CASE("random programs with jitter and slow GPUs take the times of their task graphs") {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    CAPTURE(seed);
    ProgramShape shape = random_shape(seed);
    OpProgram program = RandomProgram(seed, shape, 1'000'000).make();
    SplitMix64 random(seed + 7);
    const auto bytes = [&] { return static_cast<double>(below(random, 5) * 1'000'000); };
    for (OpLane& lane : program.lanes) {
      for (OpBlock& block : lane.blocks)
        for (OpStep& step : block.steps) step.bytes = bytes();
      for (std::size_t i = 0; i < lane.transfers.size(); ++i) lane.transfer_bytes.push_back(bytes());
    }
    for (StageEnd& end : program.ends) {
      for (std::size_t k = 0; k < end.buckets.size(); ++k) end.bucket_bytes.push_back(bytes());
      end.steps.back().bytes = bytes();
    }
    const RankGrid grid("tp-cp-ep-dp-pp", {program.tensor, 1, 1, program.replicas, program.stages},
                        static_cast<int>(seed % 4) + 1);
    const Fabric network = random_network(seed, grid);
    OpOptions options;
    std::vector<double> speed;
    if (seed % 3 == 1) options.jitter = {0.1, seed};
    if (seed % 3 == 2) {
      for (int g = 0; g < grid.gpus(); ++g)
        speed.push_back(1.0 - 0.1 * static_cast<double>(below(random, 3)));
      options.speed = speed;
    }
    const OpResult alone = run(program, options);
    const Plain plain = run_plainly(program, options, alone, grid, network);
    const NetworkRoutes routes(program, grid, network);
    // Lanes that wait for each other at a barrier are never run on two threads.
    if (shape.barriers) CHECK(std::ranges::all_of(routes.lane_sets(), [](int set) { return set == 0; }));
    ContendedOptions how;
    how.threads = 2;
    const OpResult told = run_contended(program, options, alone, routes, how).result;
    check(program, options, told, plain.graph, plain.times, program.tensor);
    // Had every op the network to itself, the times are the op engine's.
    how.share = false;
    const OpResult unshared = run_contended(program, options, alone, routes, how).result;
    CHECK(unshared.makespan == alone.makespan);
    for (std::size_t l = 0; l < program.lanes.size(); ++l) CHECK(unshared.lanes[l].end == alone.lanes[l].end);
  }
}

TEST_CASE("An exchange loads links with what its fullest lane sends, where another brings nothing, too") {
  // Lane 1 sends 2 GB in 1 ms, half of it to the other node, over NICs of 1 GB/s: 1 s.
  OpProgram program;
  program.replicas = 2;
  program.lockstep_groups = 1;
  for (int l = 0; l < 2; ++l) {
    OpLane& lane = program.lanes.emplace_back();
    lane.first_replica = l;
    lane.lockstep = 0;
    lane.expert_group = {0};
    OpStep exchange{OpName::ep_all_to_all, Stream::ep, SyncGroup::expert};
    exchange.bytes = l * 2e9;
    lane.blocks.push_back({{exchange}, {Picoseconds{l} * 1'000'000'000}});
    lane.runs = {{0}};
    lane.stages.resize(1);
    lane.stages[0].emplace_back().run_count = 1;
  }
  FabricOptions options;
  options.gpus = 2;
  options.nic_GBps = 1;
  const RankGrid grid("tp-cp-ep-dp-pp", {1, 1, 1, 2, 1}, 1);
  const Fabric network(options);
  const OpResult alone = run(program, {});
  CHECK(alone.makespan == 1'000'000'000);
  const NetworkRoutes routes(program, grid, network);
  const OpResult told = run_contended(program, {}, alone, routes, {}).result;
  CHECK(std::abs(told.makespan - 1'000'000'000'000) <= 1);
  CHECK(told.makespan == run_plainly(program, {}, alone, grid, network).times.makespan);
}

TEST_CASE("A barrier group without any op holds up nobody") {
  // Two lanes of 5 ps, one after the other, and between them one without micro-batches: 10 ps.
  OpProgram program;
  for (int l = 0; l < 3; ++l) {
    OpLane& lane = program.lanes.emplace_back();
    lane.barrier_group = l;
    lane.stages.resize(1);
    if (l == 1) continue;
    lane.blocks.push_back({{OpStep{OpName::attention}}, {5}});
    lane.runs = {{0}};
    lane.stages[0].emplace_back().run_count = 1;
  }
  const OpResult alone = run(program, {});
  CHECK(alone.makespan == 10);
  const NetworkRoutes routes(program, RankGrid("tp-cp-ep-dp-pp", {1, 1, 1, 1, 1}, 1),
                             Fabric(FabricOptions{}));
  CHECK(run_contended(program, {}, alone, routes, {}).result.makespan == 10);
}

TEST_CASE("TP ranks that take unlike routes are not folded") {
  // TP 2 over two nodes of one GPU under a fat tree of leaves of one node each, CP 2: GPUs 0 1 2 3 are TP
  // pairs (0, 1) and (2, 3). CP ring of TP rank 0: 0 -> 2 -> 0 over spine 2 % 4 = 2; of rank 1: 1 -> 3 over
  // spine 4 % 4 = 0. TP rings: 0 -> 1 over spine 1, 2 -> 3 over spine 5 % 4 = 1. Each is alike. With three
  // spines: 2 % 3 = 2 and 4 % 3 = 1; TP: 1 % 3 = 1 and 5 % 3 = 2. Now ring 0 shares spine 2's links with one
  // of the TP rings, (2, 3), ring 1 spine 1's with (0, 1): leaf 0 -> spine 2 is used by ring 0 alone, leaf 2
  // -> spine 2 by ring 0 and TP ring (2, 3); leaf 1 -> spine 1 by ring 1 and by TP ring (0, 1), leaf 3 ->
  // spine 1 by ring 1 alone. The two cross unlike links.
  const auto alike = [](int spines) {
    OpProgram program;
    program.tensor = 1;
    program.replicas = 2;
    OpLane& lane = program.lanes.emplace_back();
    lane.context = 2;
    lane.stages.resize(1);
    OpStep tp{OpName::tp_all_gather, Stream::tp, SyncGroup::tensor};
    OpStep cp{OpName::cp_all_gather, Stream::cp, SyncGroup::context};
    tp.bytes = cp.bytes = 100;
    lane.blocks.push_back({{tp, cp}, {5, 5, 7, 7}});
    FabricOptions options;
    options.gpus = 4;
    options.nic_GBps = 1;
    options.wiring = Wiring::fat_tree;
    options.nodes_per_pod = 1;
    options.spines = spines;
    return NetworkRoutes(program, RankGrid("tp-cp-ep-dp-pp", {2, 2, 1, 1, 1}, 1), Fabric(options)).alike();
  };
  CHECK(alike(4));
  CHECK_FALSE(alike(3));
}
