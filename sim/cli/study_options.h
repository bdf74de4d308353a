// The options of `equipoise study`, and what a run takes of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/cli/job.h"
#include "sim/cli/simulation.h"
#include "sim/limits/memory_limit.h"

namespace equipoise {

struct StudyOptions : SimulationOptions {
  std::string file;  // the job's study if empty
  JobOptions job;
  std::string measured_step, row;  // seconds or a log, and the measured row (or the baseline); may be empty
  std::vector<std::string> set;    // key.path=value
  std::vector<std::string> sweep;  // key.path=a,b,c: all combinations run
  int seeds = 0;                   // number of seeds of the trace, counted from its own; 0 runs only its own
  std::string out;                 // directory; nothing is written if empty
  std::string shard;    // "i/n": a share of a sweep's cases, into out/shard-i-of-n; else by rank, or all
  bool resume = false;  // a sweep skips cases that `out` has
  RunStudyOptions run;  // as typed; run_options() has what follows from the others
  // Lanes and stages in timelines. The default is all; at op fidelity, where every kernel is drawn, it is the
  // first lane and the first stage.
  std::optional<std::vector<int>> timeline_lanes, timeline_stages;
  bool notes = false;          // all notes, not only the warnings
  std::string version;         // the program's, for the receipt
  std::int64_t max_cases = kDefaultCases;   // of a sweep
  double max_output_GB = kDefaultOutputGB;  // limit for each case, in out
};

// Throws UserError for options that do not go together.
RunStudyOptions run_options(const StudyOptions& options);

// The lanes, stages, ranks and GPUs that options name must exist in the study. Throws UserError.
void check_parts(const RunStudyOptions& run, const Study& study);

}  // namespace equipoise
