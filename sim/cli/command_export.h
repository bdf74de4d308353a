// `equipoise export`: a row of a study as what a training framework is told.
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
  std::string row;                 // label; empty: the fastest
  std::vector<std::string> set;    // key.path=value
  std::vector<std::string> sweep;  // slurm: key.path=a,b,c; empty: a search
  int tasks = 8;                   // slurm
};

// Runs the study, for what a run derives (recompute auto, L_max), and prints flags or config; what cannot be
// expressed is in it as comments, and on `log`.
int run_export_command(const ExportOptions& options, std::ostream& out, std::ostream& log,
                       const std::atomic<bool>& stop);

// What a framework's flags come to of a row without what none of them says: packed and
// sharded as they say, on the same layout. Nothing where they say the row itself.
struct FlagsAlone {
  std::optional<PolicyResult> row;
  Note what;  // as what it packs, or why no row is known
};
std::optional<FlagsAlone> flags_alone(const SimulationOptions& options, const Exporter& to,
                                      const ExportedRow& row, const std::atomic<bool>& stop);

}  // namespace equipoise
