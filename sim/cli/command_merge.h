// `equipoise merge`: the results of a search or a sweep that several machines shared.
#pragma once

#include <atomic>
#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/simulation.h"

namespace equipoise {

struct MergeOptions : SimulationOptions {
  std::string out;                   // folder of the whole
  std::vector<std::string> folders;  // shards, or folders that hold some
  bool what_if = false;              // of a search: see TuneOptions
  double minutes = 0;                // most of trying what the shards of a search did not; 0: any
};

// Prints and writes what one machine would have. A shard that is missing or of another run is an error.
int run_merge_command(const MergeOptions& options, std::ostream& out, std::ostream& log,
                      const std::atomic<bool>& stop);

}  // namespace equipoise
