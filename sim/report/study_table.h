// The tables of a study as plain text: its comparison, a paper's figures next to ours, the one table of a
// sweep.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/report/text_table.h"
#include "sim/study/study_result.h"

namespace equipoise {

// One line that says what was run, without the study's name.
std::string heading_text(const Study& study, const StudyResult& result);
// All columns, the verdict, and the source of the times (`--wide`; study_screen.h has the first output).
std::string study_table(const Study& study, const StudyResult& result);

// The parts of the table, for other tables of rows: the header, optionally with a status column, and the line
// of a row that is not ok.
std::vector<std::string> comparison_header(bool with_status);
std::vector<std::string> comparison_cells(const PolicyResult& row, bool with_status);
// All rows. Columns are omitted that are shown only if rows differ, and do not.
struct ComparisonTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};
ComparisonTable comparison_of(const StudyResult& result);
// Removes columns whose rows must differ to be shown and do not, and columns that must not be empty and are.
void drop_equal_columns(ComparisonTable& comparison);
std::string reason_line(const PolicyResult& row);
bool all_ok(const StudyResult& result);
RowFigures figures_of(const PolicyResult& row);
// The row's cell in the column whose title begins with `title`. `alone` gives the figure without what the
// table adds to it.
std::string cell_of(const PolicyResult& row, std::string_view title, bool alone);
const PolicyResult* row_with_label(const StudyResult& result, const std::string& label);  // null: none
// One line that says where the times of a table come from.
std::string source_line(const Study& study, const StudyResult& result);

struct PublishedRow {
  std::string label;
  std::string metric;  // "status" if the source says whether the run fits in memory
  std::optional<double> simulated, published;
  const char* simulated_status = "ok";  // of "status"
  bool published_fits = true;
  std::string against;  // for a speed-up, the label of the row that it is relative to
  std::string source;

  // The difference as a percentage of the published figure; none if one is missing or it is 0.
  [[nodiscard]] std::optional<double> difference_percent() const;
};

// In the order of the study file, with figures by key.
std::vector<PublishedRow> next_to_published(const StudyResult& result);

// The table of these rows, empty without rows.
std::string published_table(const std::vector<PublishedRow>& rows);
// What the table shows of one case. It is only text, so that a sweep does not keep results.
struct SweepCase {
  std::string name;
  std::vector<std::vector<std::string>> lines;  // cells, one line per policy
  std::string reasons;                          // why rows did not run, and how rows differ
  std::string source;                           // where the times come from; empty if nothing ran
};
SweepCase sweep_case(const std::string& name, const Study& study, const StudyResult& result);

// The table at the end of a sweep, with a line per case and policy.
class SweepTable {
 public:
  void add(const SweepCase& one);
  [[nodiscard]] bool empty() const { return lines_.empty(); }
  // The table, then the reasons of rows that did not run, how rows differ, and where the times come from.
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::vector<std::string>> lines_;
  std::string reasons_;
  struct Source {
    std::string line;
    std::string cases;
  };
  std::vector<Source> sources_;
};

}  // namespace equipoise
