#include "sim/report/text_table.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>

#include "policies/base/text.h"

namespace equipoise {
namespace {

// Code points, since labels may hold more than ASCII.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

void append_row(const std::vector<std::string>& row, const std::vector<std::size_t>& widths,
                const std::vector<std::size_t>& left_columns, std::string& out) {
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::size_t pad = widths[i] - width(row[i]);
    const bool left = std::find(left_columns.begin(), left_columns.end(), i) != left_columns.end();
    if (i > 0) out.append(2, ' ');
    if (!left) out.append(pad, ' ');
    out += row[i];
    if (left) out.append(pad, ' ');
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  out += '\n';
}

}  // namespace

void TextTable::add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = printable(cell);
  rows_.push_back(std::move(row));
}

std::string TextTable::text() const {
  std::vector<std::size_t> widths;
  for (const std::string& cell : header_) widths.push_back(width(cell));
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  std::string out;
  append_row(header_, widths, left_, out);
  for (const auto& row : rows_) append_row(row, widths, left_, out);
  return out;
}

}  // namespace equipoise
