// Step times, and where there are any op times, that somebody else measured: `validate --measured LOG`.
//
//   CSV             columns step, step_seconds; optional policy, tokens, and op, seconds (a line an op or a
//                   kind of ops, its sum over the step on one GPU). Equal steps are repetitions. steps.csv
//                   of `study --out` is such a file.
//   training logs   of Megatron-LM ("iteration 10/ 100 | ... | elapsed time per iteration (ms): 1234.5 |"),
//                   torchtitan, DeepSpeed, NeMo, nanotron, verl and Hugging Face's Trainer (line_log.h). With
//                   a log interval an entry is the mean of the steps since the one before. Entries with any
//                   of the log's first 3 iterations are warm-up and excluded, unless nothing else is there.
//   torch.profiler  a Chrome trace of one rank: ProfilerStep#N give the steps, GPU kernels by their names the
//                   kinds of ops (below). All steps of the trace are used: the profiler's schedule has
//                   its own warm-up.
//
// A file may be compressed (gzip, zstd). The form is found by the contents, not by the name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/note.h"
#include "policies/base/text.h"
#include "traces/json_object.h"

namespace equipoise {

struct LoggedSteps {
  std::string policy;       // empty if the log does not say
  std::int64_t step = 0;    // the first step that the entry averages
  std::int64_t count = 1;   // how many
  double seconds = 0;       // per step; 0 if one of the rates below gives it
  std::int64_t tokens = 0;  // 0: unknown
  double tokens_per_second_per_gpu = 0;
  double samples_per_second = 0;
};

struct LoggedOp {
  std::string policy;
  std::int64_t step = 0;
  std::string kind;    // an op of the simulator, or one of the kinds below
  double seconds = 0;  // sum over the step on one rank
};

// What a log says about the run that wrote it; fields are empty if it does not.
struct LoggedRun {
  std::optional<std::int64_t> samples_per_step;  // in its global batch
  std::optional<std::int64_t> gpus;              // its world size
  std::string gpu;                               // as the log names it; empty if unknown
};

struct MeasuredLog {
  std::string form;  // "CSV", "Megatron-LM log", "torch.profiler trace"
  std::string name;  // the file's
  std::vector<LoggedSteps> steps;
  std::vector<LoggedOp> ops;
  LoggedRun run;
  Notes notes;  // what was excluded
};

// Throws UserError with file, line or key, what was found, and what is allowed.
MeasuredLog read_measured_log(const std::string& path);
MeasuredLog parse_measured_log(std::string_view bytes, const std::string& name);

// No real step is longer than 10^7 s.
inline bool is_step_time(double seconds) {
  return seconds > 0 && seconds <= 1e7;
}
// Why a time cannot be in seconds, given the simulated one; empty if it can. Programs log milliseconds, and
// no model of a step is wrong by such a factor.
inline std::string unit_doubt(double seconds, double simulated_seconds) {
  constexpr double kMostOff = 50;
  const double ratio = seconds / simulated_seconds;
  if (ratio <= kMostOff && ratio >= 1 / kMostOff) return "";
  return "expected a time in seconds, found " + short_number(seconds) + ", " +
         (ratio > 1 ? fixed(ratio, 0) + " times" : "1/" + fixed(1 / ratio, 0) + " of") + " the simulated " +
         short_number(simulated_seconds) + " s: in which unit is it?";
}
}  // namespace equipoise
