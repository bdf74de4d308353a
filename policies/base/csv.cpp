#include "policies/base/csv.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/text.h"

namespace equipoise {

CsvRecords::CsvRecords(std::string_view text, const std::string& name, char separator)
    : rest_(text), name_(name), separator_(separator) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (rest_.starts_with(kByteOrderMark)) rest_.remove_prefix(kByteOrderMark.size());
}

bool CsvRecords::next(std::vector<std::string>& fields) {
  while (!rest_.empty()) {
    line_ = next_line_;
    fields.clear();
    do fields.push_back(field());
    while (more_);
    if (fields.size() > 1 || fields[0].find_first_not_of(" \t") != std::string::npos) return true;
  }
  return false;
}

std::string CsvRecords::field() {
  std::string value;
  if (!rest_.empty() && rest_.front() == '"') value = quoted();
  const auto end = std::ranges::find_if(rest_, [&](char c) { return c == separator_ || c == '\n'; });
  std::string_view plain = rest_.substr(0, static_cast<std::size_t>(end - rest_.begin()));
  rest_.remove_prefix(plain.size());
  more_ = !rest_.empty() && rest_.front() == separator_;
  if (!more_ && plain.ends_with('\r')) plain.remove_suffix(1);
  if (!rest_.empty()) {
    if (!more_) ++next_line_;
    rest_.remove_prefix(1);
  }
  value += plain;
  return value;
}

std::string CsvRecords::quoted() {
  std::string value;
  std::size_t i = 1;
  for (; i < rest_.size(); ++i) {
    if (rest_[i] == '"') {
      if (i + 1 >= rest_.size() || rest_[i + 1] != '"') break;
      ++i;
    }
    if (rest_[i] == '\n') ++next_line_;
    value += rest_[i];
  }
  if (i >= rest_.size())
    throw UserError(name_, ":", line_,
                    ": a quoted field that starts in this row has no end: the file is truncated or not CSV");
  rest_.remove_prefix(i + 1);
  return value;
}

CsvTable CsvTable::read(const std::string& path) {
  return parse(read_text_file(path), path);
}

CsvTable CsvTable::parse(std::string_view text, std::string path) {
  CsvTable table;
  table.path_ = std::move(path);
  CsvRecords records(text, table.path_);
  if (!records.next(table.header_)) throw UserError(table.path_, ": empty, expected a header line");
  for (std::vector<std::string> cells; records.next(cells);) {
    if (cells.size() != table.header_.size())
      throw UserError(table.path_, ":", records.line(), ": expected ", table.header_.size(),
                      " cells as in the header, found ", cells.size());
    table.cells_.push_back(cells);
    table.lines_.push_back(records.line());
  }
  return table;
}

std::optional<std::size_t> CsvTable::find(std::string_view column) const {
  const auto it = std::find(header_.begin(), header_.end(), column);
  if (it == header_.end()) return std::nullopt;
  return static_cast<std::size_t>(it - header_.begin());
}

std::string_view CsvTable::text(std::size_t index, std::string_view column) const {
  const std::optional<std::size_t> at = find(column);
  return at ? std::string_view(cells_[index][*at]) : std::string_view();
}

std::optional<double> CsvTable::number(std::size_t index, std::string_view column) const {
  const std::string cell(text(index, column));
  if (cell.empty()) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(cell.c_str(), &end);
  if (end != cell.c_str() + cell.size() || !std::isfinite(value))
    throw UserError(path_, ":", lines_[index], ": ", column, ": expected a number, found '", cell, "'");
  return value;
}

std::string csv_cell(std::string_view raw) {
  const std::string text = printable_lines(raw);
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

}  // namespace equipoise
