// `equipoise export`: a row of a study as settings of a training framework.
#pragma once

#include <atomic>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "sim/cli/simulation.h"

namespace equipoise {

struct Exporter;
class ExportedRow;

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

// The result of a framework's flags without the settings that no flag expresses: packed and sharded as the
// flags say, on the same layout. Nothing if the flags express the whole row.
struct FlagsAlone {
  std::optional<PolicyResult> row;
  Note what;  // how it packs, or why there is no row
};
std::optional<FlagsAlone> flags_alone(const SimulationOptions& options, const Exporter& to,
                                      const ExportedRow& row, const std::atomic<bool>& stop);

}  // namespace equipoise
