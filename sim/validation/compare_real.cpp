#include "sim/validation/compare_real.h"

#include <algorithm>
#include <map>

#include "policies/base/index.h"
#include "sim/step/op_run.h"
#include "sim/validation/step_ops.h"

namespace equipoise {
namespace {

using execution::ExecutableStep;

void compare_row(const RealRow& row, const RealResult& result, const InStepTimes* times,
                 Validation& validation) {
  PolicyPairs policy;
  policy.label = row.label;
  std::map<int, std::vector<const TimedStep*>> by_step;
  for (const TimedStep& timed : result.timed) {
    ++policy.runs;
    if (timed.stolen > kMostStolen)
      ++policy.dropped_runs;
    else
      by_step[timed.step].push_back(&timed);
  }
  if (policy.runs > 0 && policy.dropped_runs == policy.runs)
    validation.notes.push_back(
        row.label + ": all " + std::to_string(policy.runs) +
        " runs were dropped, for others had the processor: measure on a quieter machine");
  const RankGrid& grid = row.ready.models->grid;
  for (const auto& [number, runs] : by_step) {
    const ExecutableStep& step = row.steps[at(number)];
    StepPair pair;
    pair.step = number;
    pair.predicted_seconds = to_seconds(run(step.program).makespan);
    if (times != nullptr) {
      pair.alone_seconds = pair.predicted_seconds;
      pair.predicted_seconds = to_seconds(run(in_step(step.program, *times)).makespan);
    }
    for (const Lane& lane : step.step.lanes)
      for (const MicroBatch& micro_batch : lane.micro_batches) pair.tokens += micro_batch.tokens();
    const std::size_t first = validation.ops.size();
    for (const TimedStep* timed : runs) {
      pair.measured_seconds.push_back(timed->seconds);
      const StepOps ops(step, grid, timed->ranks);
      std::size_t next = first;
      for (const StepOp& op : ops.all()) {
        if (!op.counts()) continue;
        if (timed == runs.front()) {
          OpPair& made = validation.ops.emplace_back();
          made.op = op.kind();
          made.label = row.label;
          made.step = number;
          made.lane = op.recorded->lane;
          made.stage = op.place.stage;
          made.micro_batch = op.micro_batch;
          made.rank = op.rank;
          made.predicted_seconds = op.simulated_seconds;
          if (times != nullptr) {
            made.alone_seconds = made.predicted_seconds;
            made.predicted_seconds = times->seconds(made.op, made.predicted_seconds);
          }
        }
        validation.ops.at(next++).measured_seconds.push_back(ops.measured_seconds(op));
      }
    }
    policy.steps.push_back(std::move(pair));
  }
  validation.policies.push_back(std::move(policy));
}

}  // namespace

void compare_real(const std::vector<RealRow>& rows, const std::vector<RealResult>& results,
                  const InStepTimes* times, Validation& validation) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].runs())
      compare_row(rows[i], results[i], times, validation);
    else
      validation.notes.push_back(rows[i].label + " was not run: " + rows[i].reason);
  }
}

void keep_kernels(Validation& validation) {
  const auto is_message = [](const OpPair& pair) {
    for (const OpName op : {OpName::tp_all_gather, OpName::tp_reduce_scatter, OpName::cp_all_gather,
                            OpName::cp_reduce_scatter, OpName::cp_ring_step, OpName::cp_all_to_all,
                            OpName::pp_send, OpName::dp_reduce, OpName::dp_all_gather})
      if (pair.op == name_of(op)) return true;
    return false;
  };
  std::erase_if(validation.ops, is_message);
}

}  // namespace equipoise
