// The options of `equipoise study` as they are typed, and as a run takes them.
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
  std::string fidelity = "stage";
  bool no_fold_tp = false;  // op fidelity: every GPU has its own tasks
  bool contention = false;  // op fidelity: flows share links
  double jitter = 0;        // op fidelity: relative standard deviation
  std::uint64_t jitter_seed = 0;
  std::string stragglers;      // op fidelity: GPU:SPEED,...
  int timeline_steps = 1;      // with out: for every policy
  bool timeline_gzip = false;  // compressed
  // Comma-separated numbers, or "all". The default is all; at op fidelity, where every kernel is drawn, it is
  // the first lane and the first stage.
  std::string timeline_lanes, timeline_stages, timeline_ranks;
  std::string timeline_counters = "memory,tokens";  // or none
  bool chakra = false;         // with out, op fidelity: Chakra execution traces of every policy's first step
  bool ignore_memory = false;  // also times rows that do not fit in memory, and marks them
  std::optional<double> max_delay;  // instead of the study's
  std::string tokens;               // tokens of the job whose time and price are printed: 2T; none if empty
  bool notes = false;          // all notes, not only the warnings
  bool verify = false;         // checks plans, times and sums once more
  std::string version;         // the program's, for the receipt
  std::int64_t max_cases = kDefaultCases;   // of a sweep
  double max_output_GB = kDefaultOutputGB;  // limit for each case, in out
};

// Throws UserError, which names the option.
RunStudyOptions run_options(const StudyOptions& options);

// The lanes, stages, ranks and GPUs that options name must exist in the study. Throws UserError.
void check_parts(const RunStudyOptions& run, const Study& study);

}  // namespace equipoise
