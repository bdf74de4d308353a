#include "sim/cli/command_export.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "sim/export/export.h"
#include "sim/report/standing.h"
#include "sim/report/words/words.h"
#include "sim/study/read/policy_run.h"

namespace equipoise {
namespace {

constexpr std::string_view kSlurm = "slurm";

// Checked before the study runs, which may take long.
void check_label(const Study& study, const std::string& label) {
  const std::vector<std::string> known = each_of(study.policies, &PolicyRun::label);
  if (!label.empty() && std::ranges::find(known, label) == known.end())
    throw UserError("--row: unknown row \"", label, "\"", did_you_mean(label, known),
                    " (known: ", joined(known), ")");
}

// The row with that label; without a label the study's export_row, else the fastest.
const PolicyResult& chosen_row(const StudyResult& result, const std::string& label) {
  for (const PolicyResult& row : result.policies)
    if (row.run.label == label) return row;
  const PolicyResult* first = standing_of(result).first;
  if (first == nullptr)
    throw UserError("export: no row of the study runs: ", result.policies.front().run.label, ": ",
                    reason_text(result.policies.front().reasons));
  return *first;
}

void write_slurm(const ExportOptions& options, std::ostream& out) {
  std::vector<std::string> one_case = options.set;  // unknown keys are refused here, not by every task
  for (const std::string& axis : options.sweep) {
    if (axis.find('=') == std::string::npos) throw UserError("--sweep ", axis, ": expected key=a,b,c");
    one_case.push_back(axis.substr(0, axis.find(',')));
  }
  (void)possible_study(options.file, one_case);
  if (!options.row.empty()) throw UserError("--row: allowed with a framework; a Slurm job runs all rows");
  out << slurm_script({std::filesystem::absolute(options.file).lexically_normal().string(), options.set,
                       options.sweep, options.tasks});
}

// Whether nothing is lost but whose kernels the times belong to.
bool says_row(const Notes& lost) {
  return std::ranges::all_of(lost, [](const Note& one) { return one.text("key") == "framework"; });
}

// The result of a framework's flags without the settings that no flag expresses: packed and sharded as the
// flags say, on the same layout. Nothing if the flags express the whole row.
struct FlagsAlone {
  std::optional<PolicyResult> row;
  Note what;  // how it packs, or why there is no row
};
std::optional<FlagsAlone> flags_alone(const SimulationOptions& options, const Exporter& to,
                                      const ExportedRow& row, const std::atomic<bool>& stop) {
  if (says_row(lost_notes(to, row))) return std::nullopt;
  if (to.alone.empty()) return FlagsAlone{{}, {"loader_packs", "", {}}};
  Study study = row.study;
  study.policies = {
      read_policy_run({{"name", std::string(to.alone)}, {"shard", "per-document"}}, "export", study)};
  study.baseline = to.alone;
  study.layout = row.layout();
  const std::vector<int>& recomputed = row.recomputed_of_stages();  // the framework has one number for all
  study.layout.recompute_layers =
      std::min(row.model().all_layers(), std::ranges::max(recomputed) * static_cast<int>(recomputed.size()));
  study.schedule = row.schedule();
  study.batch.micro_batches = study.policies.front().pack.micro_batches = 0;  // a window each
  PolicyResult alone = std::move(run_within(options, study, stop, true).policies.front());
  for (const Note& lost : lost_notes(to, {study, alone}))
    if (!says_row({lost})) {
      Note not_even{"not_even_alone", "", lost.numbers};
      not_even.numbers.erase("nearest");
      not_even.numbers.emplace("policy", to.alone);
      return FlagsAlone{{}, std::move(not_even)};
    }
  return FlagsAlone{std::move(alone), {"packed_alone", "", {{"policy", to.alone}}}};
}

}  // namespace

int run_export_command(const ExportOptions& options, std::ostream& out, std::ostream& log,
                       const std::atomic<bool>& stop) {
  if (options.target == kSlurm) {
    write_slurm(options, out);
    return 0;
  }
  const Exporter& to = exporter_of(options.target, kSlurm);
  if (!options.sweep.empty())
    throw UserError("--sweep: allowed with --for slurm, found --for ", options.target);
  const Study study = possible_study(options.file, options.set);
  check_label(study, options.row);
  const StudyResult result = run_within(options, study, stop, true);
  const ExportedRow row{study, chosen_row(result, options.row.empty() ? study.export_row : options.row)};
  Notes notes;
  if (const auto alone = flags_alone(options, to, row, stop)) {
    const Notes what{alone->what};
    notes.push_back(
        alone->row ? Note{"flags_alone", "", {{"what", what}, {"simulated", simulated_text(*alone->row)}}}
                   : Note{"flags_alone_unknown", "", {{"why", what}}});
  }
  for (const Note& lost : lost_notes(to, row)) {
    const auto prefixed = [&](const std::string& where) {
      return about("cannot be expressed" + where, lost);
    };
    if (!options.quiet) log << "note: " << text_of(prefixed(concatenated(" for ", to.name))) << '\n';
    notes.push_back(prefixed(""));
  }
  out << export_text(to, row, notes);
  return 0;
}

}  // namespace equipoise
