// `equipoise merge`: joins the results of a search or a sweep that ran on several machines.
#pragma once

#include <atomic>
#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/simulation.h"

namespace equipoise {

struct MergeOptions : SimulationOptions {
  std::string out;                   // folder for the joined result
  std::vector<std::string> folders;  // shards, or folders that contain shards
  bool what_if = false;              // for a search, as in TuneOptions
  double minutes = 0;                // limit for candidates that the shards did not try; none if 0
};

// Prints and writes what one machine would have. A missing shard or one of another run is an error.
int run_merge_command(const MergeOptions& options, std::ostream& out, std::ostream& log,
                      const std::atomic<bool>& stop);

}  // namespace equipoise
