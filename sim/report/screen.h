// What first outputs have in common: a screen of at most 110 columns and 25 lines. It has a table of the
// columns that decide, and below it lines that begin with a label. A narrower screen has the same text on
// more lines.
//
//   ComparisonTable table{screen_header(), {}};
//   for (const PolicyResult& row : rows) table.rows.push_back(screen_cells(row));
//   keep_informative(table);
//   out << fitted_text(std::move(table), /*names=*/1, width);
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

// Removes columns that tell nothing: no row delays tokens, all run in the framework or on as many GPUs, no
// noise was measured.
void keep_informative(ComparisonTable& table);
void drop_column(ComparisonTable& table, std::string_view title);
// The columns of the terminal that all cells from column `first` on take.
std::size_t width_from(const ComparisonTable& table, std::size_t first);
// The table as text. Its first `names` columns are aligned left. Where it has no room the expendable columns
// go, one after the other, and then the names are clipped.
std::string fitted_text(ComparisonTable table, std::size_t names, std::size_t width,
                        std::span<const std::string_view> expendable = {});

inline constexpr std::string_view kExpendable[] = {"MFU %"};  // where labels are long
// The text with longer lines folded at words. The rest of a line begins where its last column does, which two
// spaces precede.
std::string folded(const std::string& text, std::size_t width);
// At most so many columns of the terminal; "..." replaces what is cut.
std::string clipped(const std::string& text, std::size_t width);
// Quotes a word for a shell, unless no letter in it is special.
std::string word_of_shell(const std::string& text);

// The lines below a table, each part with its label. A part may be cut to a number of lines where the screen
// has no room for all; the end of it that says what to do is never cut.
class LabelledLines {
 public:
  explicit LabelledLines(std::size_t width) : columns_(width - kLabelWidth) {}

  [[nodiscard]] std::size_t columns() const { return columns_; }  // after the label

  void add(std::string_view label, std::string text, std::size_t least, const std::string& advice = "");
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
    std::vector<std::string> words, advice;
    std::vector<std::string> lines;
    std::size_t least;  // lines that are never cut
  };

  void cut(Part& part, std::size_t lines) const;

  std::size_t columns_;
  std::vector<Part> parts_;
};

// A note on rows or on their comparison that may change a decision.
struct Warning {
  std::string kind;  // the note's kind; of a row that did not run its status and label
  std::string text;
  std::string advice;  // the end of the text that says what to do; may be empty
};
void add_warning(LabelledLines& lines, const Warning& warning);
// Where the page is, or how to get one (`out` is empty then), and how many notes there are besides.
void add_report(LabelledLines& lines, const std::string& out, std::size_t notes);

}  // namespace equipoise
