// `equipoise report`: the page of one saved result, or of two in comparison.
#pragma once

#include <iosfwd>
#include <string>

#include "sim/cli/commands.h"

namespace equipoise {

struct ReportOptions {
  std::string first, second;  // folders of --out, or their summary.json; with one result `second` is empty
  std::string out;            // path of the page; none if empty
  Format format = Format::table;
  bool wide = false;  // all columns
};

// Prints the table of one result, or what changed from the first to the second.
int run_report_command(const ReportOptions& options, std::ostream& out, std::ostream& log);

}  // namespace equipoise
