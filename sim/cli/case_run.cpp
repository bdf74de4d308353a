#include "sim/cli/case_run.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"
#include "sim/cli/command_verify.h"
#include "sim/report/receipt.h"
#include "sim/report/study_outputs.h"
#include "sim/report/study_table.h"
#include "sim/report/verdict.h"
#include "sim/report/words/words.h"
#include "sim/study/check_result.h"
#include "sim/study/row/details.h"

namespace equipoise {
namespace {

SavedRun saved_run(const StudyCase& c, const AskedStudy& asked, const StudyOptions& options) {
  return {options.version, asked.path, file_of(asked.file, c.assignments), options_json(options.run)};
}

}  // namespace

void print_warnings(const std::vector<Warning>& warnings, std::size_t most, std::ostream& log) {
  const std::size_t shown = std::min(most, warnings.size());
  for (std::size_t i = 0; i < shown; ++i) log << "warning: " << printable(warnings[i].whole()) << '\n';
  if (shown < warnings.size())
    log << "warning: " << counted(warnings.size() - shown, "more warning") << " (--notes)\n";
}

struct CaseRunner::Checked : CheckedResult {
  nlohmann::json receipt;  // with --out
};

// If the case cannot run at all, its rows are refused and the other cases keep their results.
CaseRunner::Checked CaseRunner::checked(const StudyCase& c) const {
  RunStudyOptions run = run_;  // the estimate may let this case's rows run in turn
  const CaseInputs inputs = inputs_of(c, run, limit_, options_.max_output_GB);
  if (!inputs.read) return {{refused_study(c.study, inputs.refused), {}}, {}};
  if (!options_.out.empty())  // before work whose result could not be written
    for (const StudyOutput& output : study_outputs())
      require_no_input((std::filesystem::path(options_.out) / file_name(c.name) / output.file).string());
  Checked done{run_checked(c.study, *inputs.read, run), {}};
  if (!options_.out.empty() && !done.result.incomplete)  // because no other run would repeat it
    done.receipt =
        receipt_of(saved_run(c, asked_, options_), c.study, *inputs.read, done.result, done.checks);
  return done;
}

CaseRunner::Checked CaseRunner::with_progress(const StudyCase& c, const std::string& place) {
  const ProgressLine progress(log_, !options_.quiet);
  std::string row;
  std::optional<TimeLeft> left;
  std::size_t begun = 0;
  // Rows take milliseconds or minutes, so the number of finished rows does not predict the time left.
  run_.progress = [&](const std::string& label) {
    row = concatenated(place, c.name.empty() ? "" : c.name + ": ", label, ", row ", ++begun, " of ",
                       c.study.policies.size());
    left.emplace();
    progress.show(row);
  };
  // This is said before other rows take minutes to find that they have no room either.
  run_.row_done = [&](const PolicyResult& done) {
    const bool may_recompute = !done.run.has_recompute && (done.layout.recompute == Recompute::none ||
                                                           done.layout.recompute == Recompute::selective);
    if (options_.quiet || !place.empty() || c.study.policies.size() == 1 || !may_recompute ||
        done.status != RowStatus::oom || done.run.label != c.study.baseline)
      return;
    progress.show("");
    log_ << "note: " << printable(reason_line(done))
         << "; --set parallel.recompute=auto recomputes the fewest layers with which each row fits\n";
  };
  run_.progress_of_row = [&](double share) {
    if (const std::string text = left->text(share); !text.empty()) progress.show(row + ": " + text);
  };
  return checked(c);
}

void CaseRunner::print_notes(const StudyCase& c, const StudyResult& result) const {
  const auto [warnings, others] = noted_of(notes_of(c.study, result), result);
  if (options_.notes) {
    const std::string which = c.name.empty() ? "note: " : "note: " + c.name + ": ";
    for (const Warning& warning : warnings) log_ << which << printable(warning.text) << '\n';
    for (const std::string& note : others) log_ << which << printable(note) << '\n';
  } else if (c.name.empty() && (options_.format != Format::table || options_.wide)) {
    print_warnings(warnings, kWarningsShown, log_);  // the first output already has them
  }
}

// Prints the checks to stderr, like notes.
void CaseRunner::print_checks_of(const Checked& done) {
  const bool hold =
      std::ranges::all_of(done.checks, [](const Check& check) { return check.holds.value_or(true); });
  if (!hold || !options_.quiet) print_checks(done.checks, Format::table, log_);
  verified_ = verified_ && hold;
}

StudyResult CaseRunner::run(const StudyCase& c, const std::string& folder, const std::string& place) {
  std::optional<StagedFolder> staged;
  if (!folder.empty()) {
    staged.emplace(std::filesystem::path(folder) / file_name(c.name), "--out");
    run_.details.directory = staged->path().string();
  }
  Checked done = with_progress(c, place);
  print_notes(c, done.result);
  if (staged) {
    write_outputs(staged->path().string(), c.study, done.result, done.receipt);
    staged->commit();
  }
  if (options_.run.verify) print_checks_of(done);
  return std::move(done.result);
}

}  // namespace equipoise
