// `equipoise export`: a row of a study as settings of a training framework.
#pragma once

#include <atomic>
#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/simulation.h"

namespace equipoise {

struct ExportOptions : SimulationOptions {
  std::string file;
  std::string target;              // megatron, nemo, deepspeed, torchtitan, verl or slurm
  std::string row;                 // label; the fastest if empty
  std::vector<std::string> set;    // key.path=value
  std::vector<std::string> sweep;  // slurm: key.path=a,b,c; a search if empty
  int tasks = 8;                   // slurm
};

// Runs the study, since a run derives some values (recompute auto, L_max), and prints flags or config. What
// cannot be expressed is in comments there, and on `log`.
int run_export_command(const ExportOptions& options, std::ostream& out, std::ostream& log,
                       const std::atomic<bool>& stop);

}  // namespace equipoise
