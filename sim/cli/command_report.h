// `equipoise report`: the page of a saved result, or of two side by side.
#pragma once

#include <iosfwd>
#include <string>

#include "sim/cli/commands.h"

namespace equipoise {

struct ReportOptions {
  std::string first, second;  // folders of --out, or their summary.json; empty: only one
  std::string out;            // page; empty: none
  Format format = Format::table;
};

// Prints the table of the one, or what changed from the first to the second.
int run_report_command(const ReportOptions& options, std::ostream& out, std::ostream& log);

}  // namespace equipoise
