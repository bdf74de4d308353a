#include "sim/cli/command_report.h"

#include <nlohmann/json.hpp>
#include <ostream>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "sim/report/comparison.h"
#include "sim/report/study_screen.h"

namespace equipoise {

int run_report_command(const ReportOptions& options, std::ostream& out, std::ostream& log) {
  if (!options.out.empty() && !options.out.ends_with(".html"))
    throw UserError("report: --out ", options.out, ": expected the name of a page that ends in .html");
  const SavedResult first = load_saved(options.first);
  std::string page;
  if (options.second.empty()) {
    if (!options.out.empty()) page = saved_page(first);
    if (options.format == Format::json)
      out << first.summary.dump(2) << '\n';
    else
      out << (options.format == Format::csv ? saved_csv(first)
              : options.wide                ? saved_table(first)
                                            : saved_screen(first, screen_width()));
  } else {
    const SavedResult second = load_saved(options.second);
    const SavedComparison found = compare_saved(first, second);
    if (!options.out.empty()) page = comparison_page(first, second, found);
    if (options.format == Format::json)
      out << comparison_json(first, second, found).dump(2) << '\n';
    else
      out << (options.format == Format::csv
                  ? comparison_csv(found)
                  : comparison_text(first, second, found, options.wide ? SIZE_MAX : screen_width()));
  }
  if (!page.empty()) {
    write_file_atomically(options.out, page);
    log << "note: wrote " << options.out << '\n';
  }
  return 0;
}

}  // namespace equipoise
