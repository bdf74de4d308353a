// CSV (RFC 4180): reads records of fields and tables with a header line, and writes fields.
//
// A field that begins with a quote extends to the next single quote, across separators and line ends; a
// doubled quote inside means one quote. The reader skips a byte order mark, which spreadsheets write, and
// blank lines.
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
  // `name`: the file's, for errors. `text` and `name` must outlive the reader.
  CsvRecords(std::string_view text, const std::string& name, char separator = ',');

  // Reads the next record that is not blank; returns false at the end. Throws UserError where a quoted field
  // has no end.
  bool next(std::vector<std::string>& fields);
  [[nodiscard]] std::size_t line() const { return line_; }  // where that record begins, from 1

 private:
  std::string field();
  std::string quoted();

  std::string_view rest_;
  const std::string& name_;
  char separator_;
  bool more_ = false;  // whether this record has more fields
  std::size_t line_ = 1;
  std::size_t next_line_ = 1;
};

// A file with a header line, held in memory.
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
  // The cell's text; empty where the table has no such column.
  [[nodiscard]] std::string_view text(std::size_t index, std::string_view column) const;
  // The cell's number; nothing where the cell is empty. Throws UserError with file, line and column where the
  // cell is no number.
  [[nodiscard]] std::optional<double> number(std::size_t index, std::string_view column) const;

 private:
  [[nodiscard]] std::optional<std::size_t> find(std::string_view column) const;
  std::string path_;
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> cells_;
  std::vector<std::size_t> lines_;
};

// Writes a field, in quotes where it contains a separator, a quote or a line end. Control characters are
// escaped, since terminals show tables too.
std::string csv_cell(std::string_view raw);

}  // namespace equipoise
