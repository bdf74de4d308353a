// CSV (RFC 4180): records of fields, a table of them under a header line, and one field written.
//
// A field that begins with a quote goes to the next lone quote, over separators and line ends; a doubled
// quote inside is one quote. A byte order mark, as spreadsheets write it, and blank lines are no part of a
// file.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace equipoise {

// Cuts a text into records, one at a time.
class CsvRecords {
 public:
  // `name`: of the file, for errors. `text` and `name` outlive the reader.
  CsvRecords(std::string_view text, const std::string& name, char separator = ',');

  // The next record that is not blank; false at the end. Throws UserError where a quoted field has no end.
  bool next(std::vector<std::string>& fields);
  [[nodiscard]] std::size_t line() const { return line_; }  // where that record begins, from 1

 private:
  std::string field();
  std::string quoted();

  std::string_view rest_;
  const std::string& name_;
  char separator_;
  bool more_ = false;  // fields of this record
  std::size_t line_ = 1;
  std::size_t next_line_ = 1;
};

// A file with a header line, whole in memory.
class CsvTable {
 public:
  // Throws UserError when the file cannot be read or a record has not as many fields as the header.
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

// A field as it is written: quoted where it holds a separator, a quote or a line end. Control characters are
// escaped: tables are shown on terminals, too.
std::string csv_cell(std::string_view raw);

}  // namespace equipoise
