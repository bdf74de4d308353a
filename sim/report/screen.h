// What first outputs have in common: a screen of at most 110 columns and 25 lines. It has a table of the
// columns that decide, and below it lines that begin with a label. A narrower screen has the same text on
// more lines.
//
//   ComparisonTable table{screen_header(), {}};
//   for (const PolicyResult& row : rows) table.rows.push_back(screen_cells(row));
//   keep_informative(table);
//   out << fitted_text(std::move(table), {.width = width});
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/report/study_table.h"

namespace equipoise {

inline constexpr std::size_t kScreenWidth = 110, kLeastScreenWidth = 80, kScreenLines = 25;
inline constexpr std::size_t kWarningsShown = 2;

// The label and the columns that decide, of all columns that a table can have.
std::vector<std::string> screen_header();
std::vector<std::string> screen_cells(const PolicyResult& row);
// Whether the user ended the study before the row had ended.
bool is_interrupted(const PolicyResult& row);

void drop_column(ComparisonTable& table, std::string_view title);
// Removes the column, if the table has it and each of its cells is "-" or `nothing`.
void drop_without_news(ComparisonTable& table, std::string_view title, std::string_view nothing = "-");
// Removes columns of screen_header() that tell nothing: no row delays tokens, or all run in the framework.
void keep_informative(ComparisonTable& table);

// A column that goes where the names have fewer columns of the terminal than they need, and than `names`
// each.
struct Expendable {
  std::string_view title;
  std::size_t names;
};
inline constexpr Expendable kExpendable[] = {
    {"MFU %", std::string::npos}, {"free GiB", 12}, {"mean delay", 12}, {"delay", 12}};

// How a table fits into a screen. Its first `names` columns and that with the title `text` are aligned left.
struct TableFit {
  std::size_t width = 0, names = 1;
  std::span<const Expendable> expendable = kExpendable;
  std::string_view text = {};
};
// Drops expendable columns, the first ones first. Returns the columns of the terminal that the names may
// have.
std::size_t fit_columns(ComparisonTable& table, const TableFit& fit);
// The table as text. Where it has no room, expendable columns go, then names are cut (cut_apart).
std::string fitted_text(ComparisonTable table, const TableFit& fit);

// Quotes a word for a shell, unless no letter in it is special.
std::string word_of_shell(const std::string& text);

// A note on rows or on their comparison that may change a decision.
struct Warning {
  std::string kind;  // the note's kind; of a row that did not run its status and label
  std::string text;
  std::string advice;      // the end of the text that says what to do; may be empty
  std::string where = {};  // the cases of a sweep that have it

  [[nodiscard]] std::string whole() const;
};

// The page that is written into the folder of --out, or, without one, how to get it.
Note page_in(const std::string& out);

// The lines below a table, each part with its label. A part may be cut to a number of lines where the screen
// has no room for all; what it is about, and the end of it that says what to do, are never cut.
class LabelledLines {
 public:
  explicit LabelledLines(std::size_t width) : columns_(width - kLabelWidth) {}

  [[nodiscard]] std::size_t columns() const { return columns_; }  // after the label

  void add(std::string_view label, const std::string& text, std::size_t least);
  void add(const Warning& warning);
  // Where more is, and how many more notes `option` has. `where` is a note that takes these.
  void add_report(Note where, const std::string& option, std::size_t notes);
  // A command is never cut, and may be pasted into a shell as it is.
  void add_command(std::string_view label, std::span<const std::string> words);

  // Whether they then have at most so many lines.
  bool cut_to(std::size_t room);

  [[nodiscard]] std::size_t size() const;  // lines
  [[nodiscard]] std::string text() const;

 private:
  static constexpr std::size_t kLabelWidth = 10;

  struct Part {
    std::string label;
    std::vector<std::string> where, words, advice;
    std::vector<std::string> lines;
    std::size_t least;  // lines that are never cut
  };

  void cut(Part& part, std::size_t lines) const;
  [[nodiscard]] std::vector<std::string> lines_of(const Part& part, std::string_view cut) const;

  std::size_t columns_;
  std::vector<Part> parts_;
};

}  // namespace equipoise
