// `equipoise tune`: finds the fastest policy, options and layout for a study's documents, model and cluster.
#pragma once

#include <atomic>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/simulation.h"

namespace equipoise {

struct MergeOptions;

struct TuneOptions : SimulationOptions {
  std::string file;
  std::vector<std::string> set;   // key.path=value
  std::string space;              // SPACE.json; the default space if empty
  std::int64_t budget = 2'000;    // limit of candidates tried
  double minutes = 0;             // time limit of the search; none if 0
  std::vector<double> max_delay;  // limits of the mean and the largest delay, or one for both; may be empty
  std::int64_t gpus = 0;          // exact number of GPUs; the study's if 0
  bool what_if = false;           // whether to run the winner under other conditions, too
  std::string target;             // framework that must have flags for the layouts; any layout if empty
  std::string out;                // folder for tune.json, best.json and the journal; none if empty
  bool resume = false;            // continues with the journal in `out`
  std::string shard;  // "i/n": one share of the search, into out/shard-i-of-n; by rank, or all, if empty
};

// Prints the ranking and writes out/tune.json and out/best.json. Returns 0 even if no candidate runs or the
// time is over. Returns 130 once `stop` is set: the journal then has what was tried, and the best of it is
// printed. A shard only writes its journal.
int run_tune_command(const TuneOptions& options, std::ostream& out, std::ostream& log,
                     const std::atomic<bool>& stop);

// Ranks what all shards of a search found, from their journals, as if one machine had searched.
int merge_tune(const MergeOptions& options, const std::vector<std::string>& folders, std::ostream& out,
               std::ostream& log, const std::atomic<bool>& stop);

}  // namespace equipoise
