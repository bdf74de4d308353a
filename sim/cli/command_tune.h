// `equipoise tune`: the fastest policy, options and layout for a study's documents, model and cluster.
#pragma once

#include <atomic>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/commands.h"

namespace equipoise {

struct TuneOptions {
  std::string file;
  std::vector<std::string> set;  // key.path=value, of the study
  std::string space;             // SPACE.json; empty: the default space
  std::int64_t budget = 10'000;  // most candidates tried
  double max_delay = -1;         // most token_delay_mean; negative: any
  std::int64_t gpus = 0;         // exactly so many; 0: the study's
  std::string out;               // folder for tune.json, best.json and the journal; empty: nothing
  bool resume = false;           // go on with the journal in `out`
  std::string shard;         // "i/n": one share of the search, into out/shard-i-of-n; empty: by rank, or all
  int jobs = 0;              // threads; 0: all cores
  double max_memory_GB = 0;  // 0: default_memory_limit()
  std::string format = "table";
  bool quiet = false;
};

struct MergeOptions;

// Prints the ranking and writes out/tune.json and out/best.json. 0 even if no candidate runs; 130 once `stop`
// is set: what was tried is in the journal then, and the best of it is printed. A shard only writes its
// journal. Throws UserError.
int run_tune_command(const TuneOptions& options, std::ostream& out, std::ostream& log,
                     const std::atomic<bool>& stop);

// The same from the journals of all shards in `folders`, as if one machine had searched.
int merge_tune(const MergeOptions& options, const std::vector<std::string>& folders, std::ostream& out,
               std::ostream& log, const std::atomic<bool>& stop);

}  // namespace equipoise
