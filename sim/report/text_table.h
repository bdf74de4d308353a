// A plain text table: a header, rows, numbers to the right, names to the left.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace equipoise {

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

}  // namespace equipoise
