// Compares a measured log with the simulated steps of a study, and runs the simulation for it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "policies/base/note.h"
#include "sim/step/op_program.h"
#include "sim/study/run_study.h"
#include "sim/validation/figures.h"
#include "sim/validation/measured_log.h"
#include "sim/workload/ops.h"

namespace equipoise {

struct SimulatedOp {
  OpName op{};
  double seconds = 0;  // sum over the step on the log's rank
};

struct SimulatedStep {
  double seconds = 0;
  std::int64_t tokens = 0;
  std::vector<SimulatedOp> ops;  // empty if the log's ops are not compared
};

struct SimulatedPolicy {
  std::string label;
  std::vector<SimulatedStep> steps;
  bool all_reduces = false;  // gradients (ZeRO-0)
  std::int64_t gpus = 1;
  std::int64_t samples_per_step = 1;  // in the global batch: windows, or documents
};

// Pairs each entry with the simulated step of its number, or an entry for several steps with their mean. A
// log that shares no step with the simulation (a job that continued from elsewhere) is compared as a whole:
// its median with the mean of all simulated steps. Notes say what was excluded. Throws UserError for a policy
// that the study does not have, a log of one run for several policies, and an op that is no kind.
Validation compare_with_log(const MeasuredLog& log, const std::vector<SimulatedPolicy>& policies,
                            const ValidationLimits& limits);

// How the log's run differs from the study: in the global batch, the number of GPUs, or the GPU.
Notes unlike_runs(const MeasuredLog& log, const Study& study, const std::string& gpu);

// Reduces the study to the rows that the log has, with notes about them only. With a label it keeps that row
// and what the log says about it, including entries that name no row. Throws UserError if the study has no
// such row, or the log no entry for it.
void keep_rows(const std::string& label, Study& study, MeasuredLog& log);

// --- A study simulated for a comparison with somebody's log: its steps and, on request, the ops of one GPU.

struct SimulatedForLog {
  std::vector<SimulatedPolicy> policies;
  Notes notes;                                   // about the study and its rows, and why rows do not run
  std::map<std::string, double> beyond_samples;  // as a validation's
};

// `gpu` is the number of the GPU whose ops are wanted. With ops all steps run at op fidelity. Throws
// UserError for a GPU that the study does not have.
SimulatedForLog simulate_for_log(const Study& study, const StudyInputs& inputs,
                                 const RunStudyOptions& options, bool with_ops, int gpu = 0);

// Seconds by op on one data x context rank of a stage: kernels and collectives by themselves, without
// waiting. Transfers between stages, in both directions, count as pp_send.
std::vector<SimulatedOp> ops_of_rank(const OpProgram& program, int stage, int replica);

}  // namespace equipoise
