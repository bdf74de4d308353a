#include "profiler/fit/csv.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "policies/base/error.h"
#include "policies/base/text_file.h"
#include "policies/base/utf8.h"

namespace equipoise {
namespace {

// Reads one record from `text` at `at`, which may span lines inside quotes; counts the lines it passes.
std::vector<std::string> next_record(std::string_view text, std::size_t& at, std::size_t& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  while (at < text.size()) {
    const char c = text[at++];
    if (c == '\n') ++line;
    if (quoted) {
      if (c != '"') {
        cells.back() += c;
      } else if (at < text.size() && text[at] == '"') {
        cells.back() += text[at++];
      } else {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      cells.emplace_back();
    } else if (c == '\n') {
      break;
    } else if (c != '\r') {
      cells.back() += c;
    }
  }
  return cells;
}

}  // namespace

CsvTable CsvTable::read(const std::string& path) {
  return parse(read_text_file(path), path);
}

CsvTable CsvTable::parse(std::string_view text, std::string path) {
  CsvTable table;
  table.path_ = std::move(path);
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // spreadsheets write one
  if (text.substr(0, kByteOrderMark.size()) == kByteOrderMark) text.remove_prefix(kByteOrderMark.size());
  std::size_t at = 0;
  std::size_t line = 1;
  while (at < text.size()) {
    const std::size_t first_line = line;
    std::vector<std::string> cells = next_record(text, at, line);
    if (cells.size() == 1 && cells[0].empty()) continue;
    if (table.header_.empty()) {
      table.header_ = std::move(cells);
      continue;
    }
    if (cells.size() != table.header_.size())
      throw UserError(table.path_ + ":" + std::to_string(first_line) + ": expected " +
                      std::to_string(table.header_.size()) + " cells as in the header, found " +
                      std::to_string(cells.size()));
    table.cells_.push_back(std::move(cells));
    table.lines_.push_back(first_line);
  }
  if (table.header_.empty()) throw UserError(table.path_ + ": empty, expected a header line");
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
    throw UserError(path_ + ":" + std::to_string(lines_[index]) + ": " + std::string(column) +
                    ": expected a number, found '" + cell + "'");
  return value;
}

}  // namespace equipoise
