// A measured log compared with the simulated steps of a study, and the simulation for it.
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
  double seconds = 0;  // sum over the step on the rank that the log is of
};

struct SimulatedStep {
  double seconds = 0;
  std::int64_t tokens = 0;
  std::vector<SimulatedOp> ops;  // empty: the log's ops are not compared
};

struct SimulatedPolicy {
  std::string label;
  std::vector<SimulatedStep> steps;
  bool all_reduces = false;  // gradients (ZeRO-0)
  std::int64_t gpus = 1;
  std::int64_t samples_per_step = 1;  // of the global batch: windows, or documents
};

// Pairs entries with the simulated steps of their numbers; one of several steps with their mean. A log that
// shares no step with the simulation (a job that went on from elsewhere) is compared as a whole: its median
// with the mean of all simulated steps. Notes say what was excluded. Throws UserError for a policy that the
// study has not, a log of one run for several policies, and an op that is no kind.
Validation compare_with_log(const MeasuredLog& log, const std::vector<SimulatedPolicy>& policies,
                            const ValidationLimits& limits);

// What the log says of its run and the study has otherwise: the global batch, the number of GPUs, the GPU.
Notes unlike_runs(const MeasuredLog& log, const Study& study, const std::string& gpu);

// The study with nothing but the rows that the log has, its notes on them alone; with a label that row alone,
// and what the log says of it (entries that name none stay). Throws UserError where the study has no such
// row, or the log no entry of it.
void keep_rows(const std::string& label, Study& study, MeasuredLog& log);

// --- A study simulated for a comparison with somebody's log: its steps and, where asked for, the ops of one
// GPU.

struct SimulatedForLog {
  std::vector<SimulatedPolicy> policies;
  Notes notes;  // of the study and its rows, and rows that do not run, with their reasons
  std::map<std::string, double> beyond_samples;  // as a validation's
};

// `gpu`: whose ops, by number. With ops all steps run at op fidelity. Throws UserError for a GPU that the
// study has not.
SimulatedForLog simulate_for_log(const Study& study, const StudyInputs& inputs,
                                 const RunStudyOptions& options, bool with_ops, int gpu = 0);

// Seconds by op on one data x context rank of a stage: kernels and collectives for themselves, without
// waiting; transfers between stages, arriving and leaving, as pp_send.
std::vector<SimulatedOp> ops_of_rank(const OpProgram& program, int stage, int replica);

}  // namespace equipoise
