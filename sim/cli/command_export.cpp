// `equipoise export`: a study's best row as what a training framework is told, or the study as a Slurm job.
#include <filesystem>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "sim/cli/study_commands.h"
#include "sim/export/export.h"
#include "sim/report/verdict.h"

namespace equipoise {
namespace {

constexpr std::string_view kSlurm = "slurm";

// The row of that label; without one the fastest that ran.
const PolicyResult& chosen_row(const StudyResult& result, const std::string& label) {
  std::vector<std::string> known;
  for (const PolicyResult& row : result.policies) {
    if (row.run.label == label) return row;
    known.push_back(row.run.label);
  }
  if (!label.empty())
    throw UserError("--row: unknown row \"" + label + "\"" + did_you_mean(label, known) + " (known: " + joined(known) + ")");
  const PolicyResult* winner = winner_of(result);
  if (winner == nullptr)
    throw UserError("export: no row of the study runs: " + result.policies.front().run.label + ": " +
                    result.policies.front().reason);
  return *winner;
}

void write_slurm(const ExportOptions& options, std::ostream& out) {
  std::vector<std::string> one_case;  // keys that no study has are refused here, not by every task
  for (const std::string& axis : options.sweep) {
    if (axis.find('=') == std::string::npos) throw UserError("--sweep " + axis + ": expected key=a,b,c");
    one_case.push_back(axis.substr(0, axis.find(',')));
  }
  (void)possible_study(options.file, one_case);
  if (!options.set.empty()) throw UserError("--set: allowed with a framework; with --for slurm put it into the study");
  out << slurm_script({std::filesystem::absolute(options.file).lexically_normal().string(), options.sweep, options.tasks});
}

}  // namespace

int run_export_command(const ExportOptions& options, std::ostream& out, std::ostream& log,
                       const std::atomic<bool>& stop) {
  if (options.target == kSlurm) {
    write_slurm(options, out);
    return 0;
  }
  const Exporter& to = exporter_of(options.target, kSlurm);
  if (!options.sweep.empty()) throw UserError("--sweep: allowed with --for slurm, found --for " + options.target);
  const Study study = possible_study(options.file, options.set);
  const StudyResult result = run_within(options, study, stop);
  const ExportedRow row{study, chosen_row(result, options.row)};
  const std::vector<std::string> lost = lost_lines(to, row);
  if (!options.quiet)
    for (const std::string& line : lost)
      log << "note: cannot be expressed for " << to.name << ": " << line << '\n';
  out << export_text(to, row, lost);
  return 0;
}

}  // namespace equipoise
