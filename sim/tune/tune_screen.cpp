#include "sim/tune/tune_screen.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "policies/base/text.h"
#include "sim/framework/framework_runs.h"
#include "sim/report/screen.h"
#include "sim/report/verdict.h"
#include "sim/report/words/words.h"
#include "sim/tune/candidate_text.h"

namespace equipoise {
namespace {

constexpr std::size_t kLeastPlaces = 5;

// Layouts are as long as all other columns, and few. So the table has a letter for each.
struct NamedLayouts {
  std::vector<std::string> texts;

  std::string letter_of(const Layout& layout) {
    const std::string text = layout_and_recompute(layout);
    auto known = std::ranges::find(texts, text);
    if (known == texts.end()) known = texts.insert(texts.end(), text);
    return {static_cast<char>('a' + (known - texts.begin()))};
  }
  [[nodiscard]] std::string text() const {
    if (texts.size() == 1) return texts.front() + " in every place";
    std::string all;
    for (std::size_t i = 0; i < texts.size(); ++i)
      all.append(i > 0 ? "; " : "").append(1, static_cast<char>('a' + i)).append(": ").append(texts[i]);
    return all;
  }
};

ComparisonTable table_of(const TuneReport& report, std::size_t places, NamedLayouts& layouts) {
  ComparisonTable table{screen_header(), {}};
  table.header.insert(table.header.begin(), "#");
  table.header.insert(table.header.begin() + 2, "on");
  for (std::size_t i = 0; i < places; ++i) {
    const PolicyResult& row = report.ranking[i].row();
    std::vector<std::string>& cells = table.rows.emplace_back(screen_cells(row));
    cells.front() = label_of(report.ranking[i]);
    cells.insert(cells.begin(), std::to_string(i + 1));
    cells.insert(cells.begin() + 2, layouts.letter_of(row.layout));
  }
  return table;
}

std::string table_text(ComparisonTable table, bool one_layout, std::size_t width) {
  if (one_layout) drop_column(table, "on");
  keep_informative(table);
  std::ranges::replace(table.header, "mean delay", "delay");  // since labels are long here
  return fitted_text(std::move(table), {.width = width, .names = 2});
}

// What may change a decision, without the full stop at its end.
std::vector<Warning> warnings_of(const TuneReport& report) {
  std::vector<Warning> warnings;
  if (const std::optional<Note> unequal = unequal_batches(report))
    warnings.push_back({unequal->kind, text_of(*unequal), advice_of(*unequal)});
  for (const std::string& text : {own_rows_text(report), not_compared_text(report.found)})
    if (!text.empty()) warnings.push_back({"", text.substr(0, text.size() - 2), ""});
  return warnings;
}

// The winner as a job of its framework, or the same search with files that keep what it finds.
void add_next(LabelledLines& lines, const TuneReport& report, const TuneScreenContext& typed) {
  if (typed.out.empty()) {
    std::vector<std::string> words = {"equipoise"};
    for (const std::string& word : typed.again) words.push_back(word_of_shell(word));
    words.insert(words.end(), {"--out", "best"});
    return lines.add_command("Next", words);
  }
  const std::string best = word_of_shell((std::filesystem::path(typed.out) / "best.json").string());
  const FrameworkRuns* framework = framework_runs(report.baseline.study.framework.preset.name);
  std::string_view label = "Next";
  if (framework != nullptr && !framework->target.empty() &&
      report.ranking.front().row().runs_in != RunsIn::no)
    lines.add_command(std::exchange(label, ""), std::vector<std::string>{"equipoise", "export", best, "--for",
                                                                         std::string(framework->target)});
  lines.add_command(label, std::vector<std::string>{"equipoise", "study", best, "--out", "results"});
}

LabelledLines lines_below(const TuneReport& report, const TuneScreenContext& typed,
                          const NamedLayouts& layouts, std::size_t places) {
  LabelledLines below(typed.width);
  const std::string on = layouts.text();
  below.add(layouts.texts.size() == 1 ? "Layout" : "Layouts", on, on.size() / below.columns() + 2);
  below.add("Fastest", text_of(fastest_line(report, places)), 3);
  const RankedRow& winner = report.ranking.front();
  below.add("Why",
            concatenated("The first is limited by ",
                         text_of(blame_of(winner.row().metrics, winner.study.layout.pipeline)), "."),
            1);
  const std::string baseline = baseline_text(report.baseline);
  below.add("Baseline", baseline.substr(0, baseline.size() - 1), 1);
  const SearchResult& found = report.found;
  below.add("Searched",
            concatenated(grouped(static_cast<std::int64_t>(found.tried.size())), " of ",
                         counted(found.candidates, "candidate"), " were tried. ", end_text(report)),
            2);
  if (const std::string without = without_flag_text(report.candidates.none); !without.empty())
    below.add("", without.substr(0, without.size() - 1), 1);
  const std::vector<Warning> warnings = warnings_of(report);
  for (std::size_t i = 0; i < std::min(kWarningsShown, warnings.size()); ++i) below.add(warnings[i]);
  if (places < report.ranking.size())
    below.add("Shown", text_of({"shown_places", "", {{"places", places}, {"of", report.ranking.size()}}}), 1);
  below.add_report(page_in(typed.out), "", 0);
  add_next(below, report, typed);
  return below;
}

}  // namespace

std::string tune_screen(const TuneReport& report, const TuneScreenContext& typed) {
  if (report.ranking.empty()) return folded(tune_table(report), typed.width);  // which is no table then
  const std::string head = folded(about_text(report) + ", simulated", typed.width);
  const auto above = static_cast<std::size_t>(std::ranges::count(head, '\n')) + 1;  // with the table's header
  const std::size_t most = kScreenLines * kScreenWidth / typed.width;
  std::size_t places = report.ranking.size();
  for (;;) {
    NamedLayouts layouts;
    ComparisonTable table = table_of(report, places, layouts);
    LabelledLines below = lines_below(report, typed, layouts, places);
    if (!below.cut_to(most - above - places) && places > kLeastPlaces) {
      --places;
      continue;
    }
    return head + table_text(std::move(table), layouts.texts.size() == 1, typed.width) + below.text() +
           folded(left_text(report) + what_ifs_text(report), typed.width);
  }
}

}  // namespace equipoise
