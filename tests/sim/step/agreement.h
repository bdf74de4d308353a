// What every random job is compared with: one fidelity with the other, and a network that has bandwidth to
// spare.
#pragma once

#include <doctest/doctest.h>

#include "sim/step/expansion.h"
#include "sim/step/op_step_simulator.h"
#include "sim/topology/fabric.h"
#include "sim/verify/longest_path.h"
#include "sim/verify/lowering.h"
#include "tests/sim/step/random_job.h"

namespace equipoise::testing {

// Checks that op fidelity tells the stage engine's times; so does, for some seeds, the longest path of the
// task graph, and the program in which every TP rank has its own tasks. Returns the program with TP folded.
inline OpProgram check_fidelities_agree(const Job& job, const Prices& prices, const StepResult& stage,
                                        std::uint64_t seed) {
  OpProgram program = StepExpander(prices.costs, job.shard, job.options, true).expand(job.step);
  const OpResult op = run(program);
  CHECK(op.pipeline_end == stage.times.pipeline);
  CHECK(op.makespan == stage.times.makespan);
  if (seed % 3 == 0) CHECK(run(lower(program, {}, op).graph).makespan == op.makespan);
  if (seed % 3 == 1 && job.layout.tensor > 1) {
    const OpProgram unfolded = StepExpander(prices.costs, job.shard, job.options, false).expand(job.step);
    CHECK(unfolded.ranks() == program.ranks() * job.layout.tensor);
    CHECK(run(unfolded).makespan == op.makespan);
  }
  return program;
}

// NVLink inside nodes, NICs and nothing else between them.
inline Fabric network_of(const RankGrid& grid, double nvlink_GBps, double nic_GBps) {
  FabricOptions options;
  options.gpus = grid.gpus();
  options.gpus_per_node = grid.gpus_per_node();
  options.nvlink_GBps = nvlink_GBps;
  options.nic_GBps = nic_GBps;
  return Fabric(options);
}

struct Slowed {
  Picoseconds alone = 0;
  Picoseconds shared = 0;
  [[nodiscard]] bool longer() const { return shared > alone; }
};

// Checks that links to spare change nothing and NICs of 1 GB/s shorten nothing. A step with every op alone,
// and with such NICs.
inline Slowed check_contention(const Job& job, const Prices& prices) {
  const auto makespan = [&](const Fabric* fabric) {
    OpStepOptions options;
    options.fabric = fabric;
    return OpStepSimulator(prices.costs, job.shard, job.options, options).run(job.step).times.makespan;
  };
  const Fabric to_spare = network_of(prices.grid, 1e6, 1e6), slow = network_of(prices.grid, 450, 1);
  const Slowed step{makespan(nullptr), makespan(&slow)};
  CHECK(makespan(&to_spare) == step.alone);
  CHECK(step.shared >= step.alone);
  return step;
}

}  // namespace equipoise::testing
