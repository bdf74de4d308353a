// One case of `equipoise study`: its rows simulated and checked, its notes printed, its folder written.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "sim/cli/study_case.h"
#include "sim/cli/study_options.h"
#include "sim/report/study_screen.h"

namespace equipoise {

// Prints warnings to stderr if the result has no place for them; --quiet does not drop the decisive ones.
void print_warnings(const std::vector<Warning>& warnings, std::size_t most, std::ostream& log);

class CaseRunner {
 public:
  // All are used until the last case has run.
  CaseRunner(const StudyOptions& options, const AskedStudy& asked, RunStudyOptions run,
             const MemoryLimit& limit, std::ostream& log)
      : options_(options), asked_(asked), run_(std::move(run)), limit_(limit), log_(log) {}

  // Writes the case into its folder below `folder`, nowhere if that is empty. `place` is the case's place
  // among the others, for the progress line. Throws UserError.
  StudyResult run(const StudyCase& c, const std::string& folder, const std::string& place = "");

  // Whether every check of --verify held so far.
  [[nodiscard]] bool verified() const { return verified_; }

 private:
  struct Checked;
  [[nodiscard]] Checked checked(const StudyCase& c) const;
  [[nodiscard]] Checked with_progress(const StudyCase& c, const std::string& place);
  void print_notes(const StudyCase& c, const StudyResult& result) const;
  void print_checks_of(const Checked& done);

  const StudyOptions& options_;
  const AskedStudy& asked_;
  RunStudyOptions run_;
  const MemoryLimit& limit_;
  std::ostream& log_;
  bool verified_ = true;
};

}  // namespace equipoise
