// A study simulated for a comparison with somebody's log: its steps and, where asked for, the ops of one GPU.
#pragma once

#include <string>
#include <vector>

#include "sim/step/op_program.h"
#include "sim/study/run_study.h"
#include "sim/validation/compare_log.h"

namespace equipoise {

struct SimulatedForLog {
  std::vector<SimulatedPolicy> policies;
  std::vector<std::string> notes;  // rows that do not run, with their reasons
};

// `gpu`: whose ops, by number. With ops all steps run at op fidelity. Throws UserError for a GPU that the
// study has not.
SimulatedForLog simulate_for_log(const Study& study, const StudyInputs& inputs,
                                 const RunStudyOptions& options, bool with_ops, int gpu = 0);

// Seconds by op on one data x context rank of a stage: kernels and collectives for themselves, without
// waiting; transfers between stages, arriving and leaving, as pp_send.
std::vector<SimulatedOp> ops_of_rank(const OpProgram& program, int stage, int replica);

}  // namespace equipoise
