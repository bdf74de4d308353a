// `equipoise study`: runs every policy of a study on the same documents.
#pragma once

#include <atomic>
#include <iosfwd>

#include "sim/cli/study_options.h"

namespace equipoise {

// Prints the comparison (of a sweep: one table, a line per case and policy) and writes the results. All cases
// of a sweep are read and checked before any runs; what only running one finds (a trace that is too short)
// makes its rows refused, and the others run. A study that would take more cases, memory or disk than allowed
// is refused before any case runs. Once `stop` is set the command ends as soon as it can: cases that are
// finished are printed and written, and the status is 130 instead of 0.
int run_study_command(const StudyOptions& options, std::ostream& out, std::ostream& log,
                      const std::atomic<bool>& stop);

}  // namespace equipoise
