#include "sim/report/screen.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

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

// Removes what follows the last comma, colon or opening bracket; the last word where too little would stay.
void drop_clause(std::vector<std::string>& words) {
  constexpr std::size_t kLeastKept = 24;  // columns
  const auto ends_clause = [](const std::string& word) { return word.ends_with(',') || word.ends_with(':'); };
  std::size_t end = words.size() - 1;
  while (end > 0 && !words[end].starts_with('(') && !ends_clause(words[end - 1])) --end;
  std::size_t kept = 0;
  for (const std::string& word : std::span(words).first(end)) kept += columns_of(word) + 1;
  if (kept < kLeastKept) return words.pop_back();
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

void drop_without_news(ComparisonTable& table, std::string_view title, std::string_view nothing) {
  const std::size_t place = at(std::ranges::find(table.header, title) - table.header.begin());
  const auto is_news = [&](const auto& row) { return row[place] != "-" && row[place] != nothing; };
  if (place < table.header.size() && std::ranges::none_of(table.rows, is_news)) drop_column(table, title);
}

void keep_informative(ComparisonTable& table) {
  drop_without_news(table, "runs in", "yes");
  drop_without_news(table, "mean delay", "0.00");
}

std::size_t fit_columns(ComparisonTable& table, const TableFit& fit) {
  const auto others = [&] {
    std::size_t width = 2 * (table.header.size() - 1);
    for (std::size_t c = fit.names; c < table.header.size(); ++c) width += widest_of(table, c);
    return std::min(width, fit.width);
  };
  for (const auto& [title, names] : fit.expendable) {
    std::size_t needed = 0;
    for (std::size_t c = 0; c < fit.names; ++c) needed += std::min(widest_of(table, c), names);
    if (others() + needed > fit.width) drop_column(table, title);
  }
  return fit.width - others();
}

std::string fitted_text(ComparisonTable table, const TableFit& fit) {
  const std::size_t room = fit_columns(table, fit);
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < fit.names; ++c) widths.push_back(widest_of(table, c));
  while (std::reduce(widths.begin(), widths.end()) > room && std::ranges::max(widths) > 0)
    --*std::ranges::max_element(widths);
  TextTable text(table.header);
  for (std::size_t c = 0; c < fit.names; ++c) {
    text.align_left(c);
    std::vector<std::string> names;
    for (const auto& row : table.rows) names.push_back(printable(row[c]));
    names = cut_apart(names, std::max(widths[c], columns_of(table.header[c])));
    for (std::size_t i = 0; i < names.size(); ++i) table.rows[i][c] = names[i];
  }
  if (const auto found = std::ranges::find(table.header, fit.text); found != table.header.end())
    text.align_left(at(found - table.header.begin()));
  for (auto& row : table.rows) text.add(std::move(row));
  return text.text(fit.width);
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

Note page_in(const std::string& out) {
  if (out.empty()) return {"report_by_out", "", {}};
  return {"report_at", "", {{"file", (std::filesystem::path(out) / "report.html").string()}}};
}

std::string Warning::whole() const {
  return (where.empty() ? "" : where + ": ") + text;
}

void LabelledLines::add(std::string_view label, const std::string& text, std::size_t least) {
  Part part{std::string(label), {}, words_of(printable(text), columns_), {}, {}, least};
  part.lines = lines_of(part, "");
  parts_.push_back(std::move(part));
}

void LabelledLines::add(const Warning& warning) {
  const auto& [kind, text, advice, where] = warning;
  Part part{"Warning",
            words_of(printable(where.empty() ? "" : where + ":"), columns_),
            words_of(printable(text.substr(0, text.size() - advice.size())), columns_),
            words_of(printable(advice), columns_),
            {},
            1 + (columns_of(where) + kColumnsOfWarning + columns_of(advice)) / columns_};
  part.lines = lines_of(part, "");
  parts_.push_back(std::move(part));
}

void LabelledLines::add_report(Note where, const std::string& option, std::size_t notes) {
  Notes more;
  if (notes > 0) more.push_back({"more_notes", "", {{"option", option}, {"notes", notes}}});
  where.numbers.insert_or_assign("more", more);
  add("Report", text_of(where), 1);
}

void LabelledLines::add_command(std::string_view label, std::span<const std::string> words) {
  parts_.push_back({std::string(label), {}, {}, {}, wrapped(words, columns_, " \\"), words.size()});
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

std::vector<std::string> LabelledLines::lines_of(const Part& part, std::string_view cut) const {
  std::vector<std::string> words = part.where;
  words.insert(words.end(), part.words.begin(), part.words.end());
  if (!cut.empty()) words.emplace_back(cut);
  words.insert(words.end(), part.advice.begin(), part.advice.end());
  return wrapped(words, columns_);
}

// Before words that say what to do the text ends with a clause: a half one would be read on into them.
void LabelledLines::cut(Part& part, std::size_t lines) const {
  while (part.lines.size() > lines && !part.words.empty()) {
    part.advice.empty() ? part.words.pop_back() : drop_clause(part.words);
    part.lines = lines_of(part, part.advice.empty() ? "..." : "...;");
  }
}

}  // namespace equipoise
