#include "sim/report/screen.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/report/words/words.h"

namespace equipoise {
namespace {

// A column of result_columns() by its title, and the heading that replaces it here.
struct ScreenColumn {
  std::string_view title, shown;
};
constexpr ScreenColumn kScreenColumns[] = {
    {"tokens/s/GPU", "tokens/s/GPU"}, {"speed-up (95 %)", "speed-up (95 %)"}, {"MFU %", "MFU %"},
    {"mem. free GiB", "free GiB"},    {"delay (steady, max)", "mean delay"},  {"runs in", "runs in"}};

constexpr std::size_t kColumnsOfWarning = 40;  // of what it says, which stay

constexpr std::size_t kLeastOfLast = 24;  // columns of a table's last column where that is folded

// Words in lines of at most `width` columns. `more` ends each line but the last.
std::vector<std::string> wrapped(std::span<const std::string> words, std::size_t width,
                                 const std::string& more = "") {
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

// A number stays on the line of its "%".
std::vector<std::string> words_of(const std::string& text, std::size_t width) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = std::min(text.find(' ', begin), text.size());
    if (text.compare(end, 2, " %") == 0) end = std::min(text.find(' ', end + 1), text.size());
    words.push_back(clipped(text.substr(begin, end - begin), width));
    begin = end + 1;
  }
  return words;
}

std::vector<std::string> joined_words(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Removes what follows the last comma, colon or opening bracket; the last word where there is none.
void drop_clause(std::vector<std::string>& words) {
  const auto ends_clause = [](const std::string& word) { return word.ends_with(',') || word.ends_with(':'); };
  std::size_t end = words.size() - 1;
  while (end > 0 && !words[end].starts_with('(') && !ends_clause(words[end - 1])) --end;
  if (end == 0) return words.pop_back();
  words.resize(end);
  if (ends_clause(words.back())) words.back().pop_back();
}

std::size_t widest_of(const ComparisonTable& table, std::size_t column) {
  std::size_t widest = columns_of(table.header[column]);
  for (const auto& row : table.rows) widest = std::max(widest, columns_of(printable(row[column])));
  return widest;
}

}  // namespace

std::vector<std::string> screen_header() {
  std::vector<std::string> header = {"policy"};
  for (const ScreenColumn& column : kScreenColumns) header.emplace_back(column.shown);
  return header;
}

bool is_interrupted(const PolicyResult& row) {
  return !row.reasons.empty() && row.reasons.front().kind == "interrupted_row";
}

std::vector<std::string> screen_cells(const PolicyResult& row) {
  std::vector<std::string> cells = {row.run.label + (row.memory_ignored ? " (oom, ignored)" : "")};
  for (const ScreenColumn& column : kScreenColumns)
    cells.push_back(cell_of(row, column.title, column.title.starts_with("delay")));
  if (!row.simulated()) cells[1] = is_interrupted(row) ? "interrupted" : name_of(row.status);
  return cells;
}

void drop_column(ComparisonTable& table, std::string_view title) {
  const auto found = std::ranges::find(table.header, title);
  if (found == table.header.end()) return;
  const auto place = found - table.header.begin();
  table.header.erase(found);
  for (auto& row : table.rows) row.erase(row.begin() + place);
}

void keep_informative(ComparisonTable& table) {
  for (const auto& [title, nothing] : {std::pair("runs in", "yes"),
                                       {"mean delay", "0.00"},
                                       {"GPUs", ""},
                                       {"noise +-", "-"},
                                       {"profile alone", "-"}}) {
    const auto found = std::ranges::find(table.header, title);
    if (found == table.header.end()) continue;
    const std::size_t place = at(found - table.header.begin());
    const std::string same = *nothing == '\0' && !table.rows.empty() ? table.rows.front()[place] : nothing;
    if (std::ranges::all_of(table.rows,
                            [&](const auto& row) { return row[place] == "-" || row[place] == same; }))
      drop_column(table, title);
  }
}

std::size_t width_from(const ComparisonTable& table, std::size_t first) {
  std::size_t width = 0;
  for (std::size_t c = first; c < table.header.size(); ++c) width += 2 + widest_of(table, c);
  return width;
}

std::string fitted_text(ComparisonTable table, std::size_t names, std::size_t width,
                        std::span<const std::string_view> expendable) {
  for (const std::string_view title : expendable)
    if (width_from(table, 0) - 2 > width) drop_column(table, title);
  for (std::size_t whole = width_from(table, 0) - 2; whole > width; whole = width_from(table, 0) - 2) {
    std::size_t longest = 0;
    for (std::size_t c = 1; c < names; ++c)
      if (widest_of(table, c) > widest_of(table, longest)) longest = c;
    const std::size_t had = widest_of(table, longest), room = had - std::min(had, whole - width);
    for (auto& row : table.rows) row[longest] = clipped(printable(row[longest]), room);
    if (widest_of(table, longest) == had) break;  // the other columns alone are wider
  }
  TextTable text(table.header);
  for (std::size_t c = 1; c < names; ++c) text.align_left(c);
  for (auto& row : table.rows) text.add(std::move(row));
  return text.text();
}

std::string folded(const std::string& text, std::size_t width) {
  std::string all;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t gap = line.rfind("  "), last = gap == std::string::npos ? 0 : gap + 2;
    const std::size_t indent = columns_of(line.substr(0, last)) + kLeastOfLast <= width ? last : 0;
    const std::vector<std::string> lines =
        columns_of(line) <= width ? std::vector<std::string>{line.substr(indent)}
                                  : wrapped(words_of(line.substr(indent), width - indent), width - indent);
    for (std::size_t i = 0; i < lines.size(); ++i)
      all += (i == 0 ? line.substr(0, indent) : std::string(indent, ' ')) + lines[i] + '\n';
  }
  return all;
}

std::string clipped(const std::string& text, std::size_t width) {
  if (columns_of(text) <= width) return text;
  std::string kept;
  for (std::size_t i = 0; i < text.size() && columns_of(kept) + 3 < width; ++i) {
    kept += text[i];
    while (i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xC0U) == 0x80U)
      kept += text[++i];
  }
  return kept + "...";
}

std::string word_of_shell(const std::string& text) {
  const bool is_plain = std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_./:=+-,").find(c) != std::string_view::npos;
  });
  if (is_plain && !text.empty()) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

void LabelledLines::add(std::string_view label, std::string text, std::size_t least,
                        const std::string& advice) {
  text.resize(text.size() - advice.size());
  Part part{std::string(label),
            words_of(printable(text), columns_),
            words_of(printable(advice), columns_),
            {},
            least};
  part.lines = wrapped(joined_words(part.words, part.advice), columns_);
  parts_.push_back(std::move(part));
}

void LabelledLines::add_command(std::string_view label, std::span<const std::string> words) {
  parts_.push_back({std::string(label), {}, {}, wrapped(words, columns_, " \\"), words.size()});
}

bool LabelledLines::cut_to(std::size_t room) {
  for (auto part = parts_.rbegin(); part != parts_.rend() && size() > room; ++part)
    cut(*part, std::max(part->least, part->lines.size() - std::min(part->lines.size(), size() - room)));
  return size() <= room;
}

std::string LabelledLines::text() const {
  std::string all;
  for (const Part& part : parts_)
    for (std::size_t i = 0; i < part.lines.size(); ++i) {
      std::string label = i == 0 ? part.label : "";
      label.resize(kLabelWidth, ' ');
      all += label + part.lines[i] + '\n';
    }
  return all;
}

std::size_t LabelledLines::size() const {
  std::size_t lines = 0;
  for (const Part& part : parts_) lines += part.lines.size();
  return lines;
}

// Before words that say what to do the text ends with a clause: a half one would be read on into them.
void LabelledLines::cut(Part& part, std::size_t lines) const {
  while (part.lines.size() > lines && !part.words.empty()) {
    part.advice.empty() ? part.words.pop_back() : drop_clause(part.words);
    std::vector<std::string> shown = part.words;
    shown.emplace_back(part.advice.empty() ? "..." : "...;");
    part.lines = wrapped(joined_words(shown, part.advice), columns_);
  }
}

void add_warning(LabelledLines& lines, const Warning& warning) {
  lines.add("Warning", warning.text, 1 + (kColumnsOfWarning + columns_of(warning.advice)) / lines.columns(),
            warning.advice);
}

void add_report(LabelledLines& lines, const std::string& out, std::size_t notes) {
  Notes more;
  if (notes > 0) more.push_back({"more_notes", "", {{"notes", notes}}});
  const std::string page = (std::filesystem::path(out) / "report.html").string();
  lines.add("Report",
            text_of(out.empty() ? Note{"report_by_out", "", {{"more", more}}}
                                : Note{"report_at", "", {{"file", page}, {"more", more}}}),
            1);
}

}  // namespace equipoise
