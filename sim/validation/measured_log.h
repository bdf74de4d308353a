// Step times, and where there are any op times, that somebody else measured: `validate --measured LOG`.
//
//   CSV             columns step, step_seconds; optional policy, tokens, and op, seconds (a line an op or a
//                   kind of ops, its sum over the step on one GPU). Equal steps are repetitions. steps.csv
//                   of `study --out` is such a file.
//   Megatron-LM     the training log: "iteration 10/ 100 | ... | elapsed time per iteration (ms): 1234.5 |".
//                   Iteration i is step i - 1; with a log interval an entry is the mean of the steps since
//                   the one before. Entries with any of the log's first 3 iterations are warm-up and left
//                   out, unless nothing else is there.
//   torch.profiler  a Chrome trace of one rank: ProfilerStep#N give the steps, GPU kernels by their names the
//                   kinds of ops (below). All steps of the trace are used: the profiler's schedule has
//                   its own warm-up.
//
// A file may be compressed (gzip, zstd). The form is told by the contents, not by the name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/text.h"
#include "profiler/profile/json_fields.h"
#include "sim/step/op_program.h"
#include "sim/study/run_study.h"
#include "sim/validation/figures.h"
#include "sim/workload/ops.h"

namespace equipoise {

struct LoggedSteps {
  std::string policy;       // empty: the log does not say
  std::int64_t step = 0;    // the first that the entry is the mean of
  std::int64_t count = 1;   // how many
  double seconds = 0;       // of one
  std::int64_t tokens = 0;  // 0: unknown
};

struct LoggedOp {
  std::string policy;
  std::int64_t step = 0;
  std::string kind;    // an op of the simulator, or a kind of them (below)
  double seconds = 0;  // sum over the step on one rank
};

struct MeasuredLog {
  std::string form;  // "CSV", "Megatron-LM log", "torch.profiler trace"
  std::string name;  // of the file
  std::vector<LoggedSteps> steps;
  std::vector<LoggedOp> ops;
  std::vector<std::string> notes;  // what was left out
};

// Throws UserError: file, line or key, what was found, what is allowed.
MeasuredLog read_measured_log(const std::string& path);
MeasuredLog parse_measured_log(std::string_view bytes, const std::string& name);

// --- Kinds of ops that both a profiler's kernel names and the simulator's ops can be sorted into.

// attention, gemm, all_gather, reduce_scatter, all_reduce, send_recv, elementwise.
std::span<const std::string_view> log_kinds();

// Of a CUDA kernel by its name: flash, fmha and sdpa kernels are attention, gemm, cutlass, nvjet and cublas
// ones GEMMs, NCCL's its collectives; everything else is elementwise.
std::string_view kind_of_kernel(std::string_view name);

// Of a simulated op; empty for what is no kernel (host stalls). `all_reduces`: gradients are all-reduced
// (ZeRO-0), not reduce-scattered.
std::string_view kind_of_op(OpName op, bool all_reduces);

// --- For the readers

// The longest step that is one takes 10^7 s.
inline bool is_step_time(double seconds) {
  return seconds > 0 && seconds <= 1e7;
}
// Why a time cannot be in seconds beside the simulated one; empty where it can. Programs log milliseconds,
// and no model of a step is off by as much.
inline std::string unit_doubt(double seconds, double simulated_seconds) {
  constexpr double kMostOff = 50;
  const double ratio = seconds / simulated_seconds;
  if (ratio <= kMostOff && ratio >= 1 / kMostOff) return "";
  return "expected a time in seconds, found " + short_number(seconds) + ", " +
         (ratio > 1 ? fixed(ratio, 0) + " times" : "1/" + fixed(1 / ratio, 0) + " of") + " the simulated " +
         short_number(simulated_seconds) + " s: in which unit is it?";
}
// A torch.profiler trace, decompressed; `name` is the file's, for errors.
MeasuredLog read_torch_steps(std::string_view text, const std::string& name);

// --- A measured log beside the simulated steps of a study, and the simulation for it (compare_log.cpp)

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
};

// Pairs entries with the simulated steps of their numbers; one of several steps with their mean. A log that
// shares no step with the simulation (a job that went on from elsewhere) is compared as a whole: its median
// with the mean of all simulated steps. Notes say what was left out. Throws UserError for a policy that the
// study has not, a log of one run beside several policies, and an op that is no kind.
Validation compare_with_log(const MeasuredLog& log, const std::vector<SimulatedPolicy>& policies,
                            const ValidationLimits& limits);

// The study with nothing but the rows that the log has, its notes on them alone; with a label that row alone,
// and what the log says of it (entries that name none stay). Throws UserError where the study has no such
// row, or the log no entry of it.
void keep_rows(const std::string& label, Study& study, MeasuredLog& log);

// --- A study simulated for a comparison with somebody's log: its steps and, where asked for, the ops of one
// GPU.

struct SimulatedForLog {
  std::vector<SimulatedPolicy> policies;
  std::vector<std::string> notes;  // of the study and its rows, and rows that do not run, with their reasons
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
