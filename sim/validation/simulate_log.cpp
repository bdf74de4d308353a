#include "sim/validation/simulate_log.h"

#include <algorithm>
#include <array>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "sim/study/row/simulate.h"

namespace equipoise {
namespace {

using SecondsByOp = std::array<double, static_cast<std::size_t>(OpName::optimizer) + 1>;

double& seconds_of(SecondsByOp& seconds, OpName op) {
  return seconds[at(op)];
}

void add_run(const OpLane& lane, const BlockRun& run, int rank, SecondsByOp& seconds) {
  const OpBlock& block = lane.blocks[run.block];
  for (std::size_t s = 0; s < block.steps.size(); ++s)
    if (!block.steps[s].waits)
      seconds_of(seconds, block.steps[s].name) +=
          run.repeat * to_seconds(block.durations[s * at(lane.context) + at(rank)]);
}

void add_lane(const OpLane& lane, int stage, int rank, SecondsByOp& seconds) {
  for (std::size_t s = 0; s < lane.stages.size(); ++s) {
    const bool own = static_cast<int>(s) == stage;
    for (const ScheduledOp& op : lane.stages[s]) {
      for (std::uint32_t r = 0; own && r < op.run_count; ++r)
        add_run(lane, lane.runs[op.first_run + r], rank, seconds);
      if (op.transfer != kNoTransfer && (own || op.input_stage == stage))
        seconds_of(seconds, OpName::pp_send) += to_seconds(lane.transfers[at(op.transfer + rank)]);
    }
  }
}

void add_end(const StageEnd& end, SecondsByOp& seconds) {
  for (const Picoseconds bucket : end.buckets) seconds_of(seconds, OpName::dp_reduce) += to_seconds(bucket);
  for (std::size_t s = 0; s < end.steps.size(); ++s)
    seconds_of(seconds, end.steps[s].name) += to_seconds(end.durations[s]);
}

// Where a GPU is among those of the layout.
struct GpuPlace {
  int stage = 0, replica = 0;
};
GpuPlace gpu_place_of(const RankGrid& grid, int gpu) {
  const std::vector<int> group = grid.data_context_group(gpu);
  return {grid.coordinates(gpu).pipeline,
          static_cast<int>(std::find(group.begin(), group.end(), gpu) - group.begin())};
}

// The row's steps once more, for their ops.
void add_ops(const Study& study, const StudyInputs& inputs, const RunStudyOptions& options,
             const PolicyResult& row, int gpu, SimulatedPolicy& policy) {
  StudyRow again(study, inputs.documents, &inputs.profile, row.run);
  again.workload = workload_of(again);
  const bool tried = row.run.rule().choice == ShardChoice::static_best;
  const ShardRule rule =
      again.rule(tried ? simulate_plan(again, row.plan, options, Until::all_steps).shard : row.run.shard);
  StepRunner runner(again, rule, again.step_options(), options.steps);
  const GpuPlace place = gpu_place_of(again.models->grid, gpu);
  for (std::size_t i = 0; i < row.plan.steps.size(); ++i) {
    end_if_stopped(options);
    (void)runner.simulate(row.plan.steps[i], i);
    policy.steps[i].ops = ops_of_rank(runner.op()->program(), place.stage, place.replica);
  }
}

}  // namespace

std::vector<SimulatedOp> ops_of_rank(const OpProgram& program, int stage, int replica) {
  SecondsByOp seconds{};
  for (const OpLane& lane : program.lanes)
    if (const int rank = replica - lane.first_replica; rank >= 0 && rank < lane.context)
      add_lane(lane, stage, rank, seconds);
  if (!program.ends.empty()) add_end(program.ends[at(stage)], seconds);
  std::vector<SimulatedOp> ops;
  for (std::size_t op = 0; op < seconds.size(); ++op)
    if (seconds[op] > 0) ops.push_back({static_cast<OpName>(op), seconds[op]});
  return ops;
}

SimulatedForLog simulate_for_log(const Study& study, const StudyInputs& inputs,
                                 const RunStudyOptions& options, bool with_ops, int gpu) {
  if (gpu < 0 || gpu >= study.layout.gpus())
    throw UserError("expected a GPU of 0 to " + std::to_string(study.layout.gpus() - 1) + ", found " +
                    std::to_string(gpu));
  RunStudyOptions run = options;
  run.keep_plans = true;
  run.find_fits = false;
  if (with_ops) run.steps.fidelity = Fidelity::op;
  SimulatedForLog simulated;
  for (const PolicyResult& row : run_study(study, inputs, run).policies) {
    if (!row.simulated()) {
      simulated.notes.push_back(row.run.label + " is " + name_of(row.status) +
                                " and not compared: " + row.reason);
      continue;
    }
    SimulatedPolicy& policy = simulated.policies.emplace_back();
    policy.label = row.run.label;
    policy.all_reduces = row.layout.zero == 0;
    for (const StepResult& step : row.steps)
      policy.steps.push_back({to_seconds(step.times.makespan), step.work.tokens, {}});
    if (with_ops) add_ops(study, inputs, run, row, gpu, policy);
  }
  return simulated;
}

}  // namespace equipoise
