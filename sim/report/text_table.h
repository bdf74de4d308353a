// Text in the columns of a terminal: prose in lines, and tables.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace equipoise {

// Columns in a terminal: one per code point, since labels may hold more than ASCII.
std::size_t columns_of(std::string_view text);

// A number stays with its "%". A word of more than `width` columns becomes several.
std::vector<std::string> words_of(const std::string& text, std::size_t width);
// Words in lines of at most `width` columns. `more` ends each line but the last.
std::vector<std::string> wrapped(std::span<const std::string> words, std::size_t width,
                                 const std::string& more = "");
// Prose with longer lines folded at words. What is folded begins after `indent` blanks, if there is room.
std::string folded(const std::string& prose, std::size_t width, std::size_t indent = 0);

// At most `width` columns of each name. "..." replaces what is cut: the end, and where names that differ
// would then look equal the part before they differ.
std::vector<std::string> cut_apart(std::span<const std::string> names, std::size_t width);

inline constexpr std::size_t kLeastOfText = 24;  // columns that text keeps where it is folded

// A header and rows, with numbers aligned right and text left.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : header_(std::move(header)) {}
  // Escapes control characters in names, since the table goes to a terminal.
  void add(std::vector<std::string> row);
  void align_left(std::size_t column) { left_.push_back(column); }
  // The first column and those of align_left are aligned left, the others right, two spaces apart. Where the
  // table is wider than `width`, text is folded within its column.
  [[nodiscard]] std::string text(std::size_t width = std::string::npos) const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> left_ = {0};
};

}  // namespace equipoise
