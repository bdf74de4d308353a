// Results for people as plain text: tables, and a study's (its comparison, a paper's figures next to ours,
// the one table of a sweep).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "sim/study/study_result.h"

namespace equipoise {

// Columns of a terminal: code points, since labels may hold more than ASCII.
std::size_t columns_of(std::string_view text);

// A header, rows, numbers to the right, names to the left.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : header_(std::move(header)) {}
  // Control characters of names are escaped: a table is for a terminal.
  void add(std::vector<std::string> row);
  void align_left(std::size_t column) { left_.push_back(column); }
  // The first column and those of align_left to the left, the others to the right, two spaces between.
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> left_ = {0};
};

// What was run, one line without the study's name.
std::string heading_text(const Study& study, const StudyResult& result);
// All columns, the verdict, and what the times come from (`--wide`; study_screen.h has the first output).
std::string study_table(const Study& study, const StudyResult& result);

// Its parts, for other tables of rows: a status column where asked for, and the line of a row that is not ok.
std::vector<std::string> comparison_header(bool with_status);
std::vector<std::string> comparison_cells(const PolicyResult& row, bool with_status);
// All rows, without the columns that show only where rows differ, if they do not.
struct ComparisonTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};
ComparisonTable comparison_of(const StudyResult& result);
// Takes away the columns that are printed only where rows differ, and do not, or where there is something.
void drop_equal_columns(ComparisonTable& comparison);
std::string reason_line(const PolicyResult& row);
bool all_ok(const StudyResult& result);
RowFigures figures_of(const PolicyResult& row);
// The row's cell in the column whose title begins so. `alone`: the figure without what the table has with it.
std::string cell_of(const PolicyResult& row, std::string_view title, bool alone);
const PolicyResult* row_with_label(const StudyResult& result, const std::string& label);  // null: none
// What the times of a table come from, one line.
std::string source_line(const Study& study, const StudyResult& result);

struct PublishedRow {
  std::string label;
  std::string metric;  // "status" where the source says whether the run fits in memory
  std::optional<double> simulated, published;
  const char* simulated_status = "ok";  // of "status"
  bool published_fits = true;
  std::string against;  // of a speed-up: label of the row it is over
  std::string source;

  // A share of the published figure, in percent; none where one of them is missing or the published one is 0.
  [[nodiscard]] std::optional<double> difference_percent() const;
};

// Rows and sources in the order of the study file, figures by key.
std::vector<PublishedRow> next_to_published(const StudyResult& result);

// The table of these rows, empty without rows.
std::string published_table(const std::vector<PublishedRow>& rows);
// What the table shows of one case: text only, so a sweep of many holds no results of those that are
// finished.
struct SweepCase {
  std::string name;
  std::vector<std::vector<std::string>> lines;  // cells, a line a policy
  std::string reasons;                          // of rows that did not run, and what differs between rows
  std::string source;                           // what the times come from; empty: nothing ran
};
SweepCase sweep_case(const std::string& name, const Study& study, const StudyResult& result);

// The one table at the end of a sweep: a line per case and policy.
class SweepTable {
 public:
  void add(const SweepCase& one);
  [[nodiscard]] bool empty() const { return lines_.empty(); }
  // The table, and below it the reasons of the rows that did not run, what differs between rows, and what the
  // times come from.
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
