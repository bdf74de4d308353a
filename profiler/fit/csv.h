// Comma-separated tables with a header line; quoted cells may hold commas and doubled quotes.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace equipoise {

class CsvTable {
 public:
  // Throws UserError when the file cannot be read or a row's cell count differs from the header's.
  static CsvTable read(const std::string& path);
  static CsvTable parse(std::string_view text, std::string path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::vector<std::string>& header() const { return header_; }
  [[nodiscard]] std::size_t rows() const { return cells_.size(); }
  [[nodiscard]] const std::vector<std::string>& row(std::size_t index) const { return cells_[index]; }
  [[nodiscard]] std::size_t line(std::size_t index) const { return lines_[index]; }  // in the file, from 1
  [[nodiscard]] bool has(std::string_view column) const { return find(column).has_value(); }
  // "" where the table has no such column.
  [[nodiscard]] std::string_view text(std::size_t index, std::string_view column) const;
  // Empty where the cell is; throws UserError naming file, line and column where it is no number.
  [[nodiscard]] std::optional<double> number(std::size_t index, std::string_view column) const;

 private:
  [[nodiscard]] std::optional<std::size_t> find(std::string_view column) const;
  std::string path_;
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> cells_;
  std::vector<std::size_t> lines_;
};

}  // namespace equipoise
