// `equipoise tune`: the fastest policy, options and layout for a study's documents, model and cluster.
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
  std::string space;              // SPACE.json; empty: the default space
  std::int64_t budget = 2'000;    // most candidates tried
  double minutes = 0;             // the search ends then, whatever it has tried; 0: never
  std::vector<double> max_delay;  // most mean and most largest delay, or one number for both; empty: any
  std::int64_t gpus = 0;          // exactly so many; 0: the study's
  bool what_if = false;           // the winner is run under other conditions, too
  std::string target;             // layouts that this framework has flags for; empty: all
  std::string out;                // folder for tune.json, best.json and the journal; empty: nothing
  bool resume = false;            // go on with the journal in `out`
  std::string shard;  // "i/n": one share of the search, into out/shard-i-of-n; empty: by rank, or all
};

// Prints the ranking and writes out/tune.json and out/best.json. 0 even if no candidate runs or the time is
// over; 130 once `stop` is set: what was tried is in the journal then, and the best of it is printed. A shard
// only writes its journal.
int run_tune_command(const TuneOptions& options, std::ostream& out, std::ostream& log,
                     const std::atomic<bool>& stop);

// Ranks what all shards of a search found, from their journals, as if one machine had searched.
int merge_tune(const MergeOptions& options, const std::vector<std::string>& folders, std::ostream& out,
               std::ostream& log, const std::atomic<bool>& stop);

}  // namespace equipoise
