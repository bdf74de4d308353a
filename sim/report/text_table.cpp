#include "sim/report/text_table.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "policies/base/index.h"
#include "policies/base/text.h"

namespace equipoise {
namespace {

bool begins_column(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
}

// The byte at which this column begins.
std::size_t byte_of(const std::string& text, std::size_t column) {
  std::size_t byte = 0;
  for (; byte < text.size(); ++byte)
    if (begins_column(text[byte]) && column-- == 0) break;
  return byte;
}

// Lines of cells of these widths. Only text is longer than its column's width.
void append_row(const std::vector<std::string>& row, const std::vector<std::size_t>& widths,
                const std::vector<bool>& left, std::string& out) {
  std::vector<std::vector<std::string>> cells;
  std::size_t lines = 1;
  for (std::size_t i = 0; i < row.size(); ++i) {
    cells.push_back(columns_of(row[i]) <= widths[i] ? std::vector<std::string>{row[i]}
                                                    : wrapped(words_of(row[i], widths[i]), widths[i]));
    lines = std::max(lines, cells.back().size());
  }
  for (std::size_t line = 0; line < lines; ++line) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string cell = line < cells[i].size() ? cells[i][line] : "";
      const std::string pad(widths[i] - columns_of(cell), ' ');
      out.append(i > 0 ? 2 : 0, ' ').append(left[i] ? cell + pad : pad + cell);
    }
    while (!out.empty() && out.back() == ' ') out.pop_back();
    out += '\n';
  }
}

}  // namespace

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_column));
}

std::vector<std::string> words_of(const std::string& text, std::size_t width) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = std::min(text.find(' ', begin), text.size());
    if (text.compare(end, 2, " %") == 0) end = std::min(text.find(' ', end + 1), text.size());
    std::string word = text.substr(begin, end - begin);
    for (; columns_of(word) > width; word.erase(0, byte_of(word, width)))
      words.push_back(word.substr(0, byte_of(word, width)));
    words.push_back(std::move(word));
    begin = end + 1;
  }
  return words;
}

std::vector<std::string> wrapped(std::span<const std::string> words, std::size_t width,
                                 const std::string& more) {
  std::vector<std::string> lines(1);
  for (const std::string& word : words) {
    std::string& line = lines.back();
    if (line.empty() || columns_of(line) + 1 + columns_of(word) + more.size() <= width) {
      line += (line.empty() ? "" : " ") + word;
    } else {
      line += more;
      lines.push_back(word);
    }
  }
  return lines;
}

std::string folded(const std::string& prose, std::size_t width, std::size_t indent) {
  if (indent + kLeastOfText > width) indent = 0;
  std::string all;
  for (std::size_t begin = 0; begin < prose.size();) {
    const std::size_t end = std::min(prose.find('\n', begin), prose.size());
    const std::string line = prose.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t first = byte_of(line, indent);  // what is before it stays as it is
    const std::vector<std::string> lines =
        columns_of(line) <= width ? std::vector<std::string>{line.substr(first)}
                                  : wrapped(words_of(line.substr(first), width - indent), width - indent);
    for (std::size_t i = 0; i < lines.size(); ++i)
      all += (i == 0 ? line.substr(0, first) : std::string(indent, ' ')) + lines[i] + '\n';
  }
  return all;
}

std::vector<std::string> cut_apart(std::span<const std::string> names, std::size_t width) {
  constexpr std::string_view kCut = "...";
  const std::size_t kept = width - std::min(width, kCut.size());
  std::vector<std::string> shown;
  std::map<std::string, std::vector<std::size_t>> alike;
  for (const std::string& name : names) {
    const bool fits = columns_of(name) <= width;
    shown.push_back(fits ? name : name.substr(0, byte_of(name, kept)).append(kCut));
    alike[shown.back()].push_back(shown.size() - 1);
  }
  for (const auto& [cut, group] : alike) {
    const std::string& first = names[group.front()];
    std::size_t same = std::string::npos;  // bytes that all begin with
    for (const std::size_t i : group)
      if (names[i] != first) {
        const auto other = std::mismatch(first.begin(), first.end(), names[i].begin(), names[i].end());
        same = std::min(same, at(other.first - first.begin()));
      }
    if (same == std::string::npos || kept < 2 * kCut.size()) continue;
    while (same > 0 && same < first.size() && !begins_column(first[same])) --same;
    std::vector<std::string> rests;
    for (const std::size_t i : group) rests.push_back(names[i].substr(same));
    const std::size_t longest = columns_of(std::ranges::max(rests, {}, columns_of));
    const std::size_t tail = std::min(longest, kept - kept / 4);
    rests = cut_apart(rests, tail);
    for (std::size_t i = 0; i < group.size(); ++i)
      shown[group[i]] = first.substr(0, byte_of(first, kept - columns_of(rests[i]))).append(kCut) + rests[i];
  }
  return shown;
}

void TextTable::add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = printable(cell);
  rows_.push_back(std::move(row));
}

std::string TextTable::text(std::size_t width) const {
  std::vector<std::size_t> widths, least;
  std::vector<bool> left(header_.size());
  for (const std::size_t column : left_) left[column] = true;
  for (std::size_t i = 0; i < header_.size(); ++i) {
    widths.push_back(columns_of(header_[i]));
    least.push_back(std::max(widths[i], kLeastOfText));
    for (const auto& row : rows_) widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  const auto room_to_fold = [&](std::size_t i) { return left[i] && widths[i] > least[i] ? widths[i] : 0; };
  while (std::reduce(widths.begin(), widths.end()) + 2 * (widths.size() - 1) > width) {
    const std::size_t widest = std::ranges::max(left_, {}, room_to_fold);
    if (room_to_fold(widest) == 0) break;
    --widths[widest];
  }
  std::string out;
  append_row(header_, widths, left, out);
  for (const auto& row : rows_) append_row(row, widths, left, out);
  return out;
}

}  // namespace equipoise
