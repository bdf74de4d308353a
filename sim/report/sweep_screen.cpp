#include "sim/report/sweep_screen.h"

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/report/standing.h"
#include "sim/report/sweep_finding.h"
#include "sim/report/words/words.h"

namespace equipoise {

using nlohmann::json;

namespace {

// The parts that all cases have in common, and the number of cases.
std::string head_of(const std::vector<ShownCase>& cases) {
  std::vector<std::string> common;
  const std::vector<std::string>& first = cases.front().head;
  for (std::size_t part = 0; part < first.size(); ++part)
    if (std::ranges::all_of(cases, [&](const ShownCase& one) { return one.head[part] == first[part]; }))
      common.push_back(first[part]);
  common.push_back(counted(cases.size(), "case"));
  return all_joined(common, ", ");
}

std::vector<std::string> line_of_case(const ShownCase& one, std::size_t row) {
  std::vector<std::string> cells = {case_name(one.assignments), one.rows[row].front(),
                                    std::to_string(one.gpus)};
  cells.insert(cells.end(), one.rows[row].begin() + 1, one.rows[row].end());
  return cells;
}

// What the table has of the cases, and what is said about the others.
struct Selection {
  std::vector<std::vector<std::string>> lines;
  std::vector<Note> says;  // none or one
};

Selection all_rows(const std::vector<ShownCase>& cases) {
  Selection chosen;
  for (const ShownCase& one : cases)
    for (std::size_t row = 0; row < one.rows.size(); ++row) chosen.lines.push_back(line_of_case(one, row));
  return chosen;
}

// A line for each of at most so many cases.
Selection fastest_rows(const std::vector<ShownCase>& cases, std::size_t most) {
  std::vector<const ShownCase*> shown;
  for (const ShownCase& one : cases) shown.push_back(&one);
  Note says{"shown_of_cases", "", {}};
  if (cases.size() > most) {
    std::ranges::stable_sort(shown, std::ranges::greater{}, &ShownCase::rate);
    shown.resize(most);
    says = {"shown_cases", "", {{"cases", most}, {"of", cases.size()}}};
  }
  Selection chosen{{}, {std::move(says)}};
  for (const ShownCase* one : shown) chosen.lines.push_back(line_of_case(*one, one->first));
  return chosen;
}

std::string table_text(Selection chosen, std::size_t width) {
  ComparisonTable table{screen_header(), std::move(chosen.lines)};
  table.header.insert(table.header.begin(), "case");
  table.header.insert(table.header.begin() + 2, "GPUs");
  keep_informative(table);
  drop_without_news(table, "GPUs", std::string(table.rows.front()[2]));
  return fitted_text(std::move(table), {.width = width, .names = 2});
}

// The case with the most tokens/s/GPU of those that the framework runs as a study, and a search over its
// layouts.
void add_next(LabelledLines& lines, const std::vector<ShownCase>& cases, const std::string& file,
              const ScreenContext& typed) {
  const ShownCase& best = *std::ranges::max_element(
      cases, {}, [](const ShownCase& one) { return std::pair(one.runs, one.rate); });
  if (file.empty() || best.rate <= 0) return;
  const auto command = [&](const char* name, std::initializer_list<std::string> more) {
    std::vector<std::string> words = {"equipoise", name};
    if (typed.job.empty()) words.push_back(word_of_shell(file));
    for (const std::string& word : typed.job) words.push_back(word_of_shell(word));
    for (const auto* const assignments : {&typed.set, &best.assignments})
      for (const std::string& one : *assignments) words.insert(words.end(), {"--set", word_of_shell(one)});
    words.insert(words.end(), more);
    return words;
  };
  std::string_view label = "Next";
  if (typed.out.empty()) lines.add_command(std::exchange(label, ""), command("study", {"--out", "results"}));
  if (typed.job.empty()) lines.add_command(label, command("tune", {"--out", "best"}));
}

LabelledLines lines_below(const std::vector<ShownCase>& cases, const SweepPage& page, const std::string& file,
                          const ScreenContext& typed, const std::vector<Warning>& warnings,
                          const std::vector<Note>& says) {
  LabelledLines below(typed.width);
  const auto [headline, more, faster] = page.finding();
  below.add("Found", headline + (more.empty() ? "." : ". " + more), 2);
  if (!faster.empty()) below.add("Faster", faster, 1);
  for (const Note& shown : says) below.add("Shown", text_of(shown), 1);
  const std::size_t most = std::min(kWarningsShown, warnings.size());
  for (std::size_t i = 0; i < most; ++i) below.add(warnings[i]);
  std::size_t notes = warnings.size() - most;
  for (const ShownCase& one : cases) notes += one.others;
  below.add_report(page_in(typed.out), "--notes",
                   file.empty() ? 0 : notes);  // only a command that made the cases has --notes
  add_next(below, cases, file, typed);
  return below;
}

}  // namespace

ShownCase shown_case(const std::vector<std::string>& assignments, const Study& study,
                     const StudyResult& result) {
  auto [warnings, others] = noted_of(notes_of(study, result), result);
  ShownCase one{assignments,  head_parts(study, result, true), {}, 0, 0, false, 0, std::move(warnings),
                others.size()};
  const PolicyResult* const first = standing_of(result).first;
  for (std::size_t i = 0; i < result.policies.size(); ++i) {
    const PolicyResult& row = result.policies[i];
    one.rows.push_back(screen_cells(row));
    one.gpus = static_cast<std::int64_t>(row.metrics.gpus);
    if (&row != first) continue;
    one.first = i;
    one.rate = row.metrics.tokens_per_second_per_gpu.value_or(0);
    one.runs = row.runs_in != RunsIn::no;
  }
  return one;
}

json to_json(const ShownCase& shown) {
  json warnings = json::array();
  for (const Warning& warning : shown.warnings)
    warnings.push_back({{"kind", warning.kind}, {"text", warning.text}, {"advice", warning.advice}});
  return {{"assignments", shown.assignments},
          {"head", shown.head},
          {"rows", shown.rows},
          {"first", shown.first},
          {"rate", shown.rate},
          {"runs", shown.runs},
          {"gpus", shown.gpus},
          {"warnings", std::move(warnings)},
          {"others", shown.others}};
}

ShownCase shown_case(const json& node) {
  std::vector<Warning> warnings;
  for (const json& warning : node.at("warnings"))
    warnings.push_back({warning.at("kind"), warning.at("text"), warning.at("advice")});
  return {node.at("assignments"), node.at("head"), node.at("rows"),     node.at("first"), node.at("rate"),
          node.at("runs"),        node.at("gpus"), std::move(warnings), node.at("others")};
}

std::vector<Warning> warnings_of_cases(const std::vector<ShownCase>& cases, const SweepPage& page) {
  struct Found {
    Warning warning;  // of the first case that has it
    std::size_t cases = 0;
  };
  std::vector<Found> found;
  for (const ShownCase& one : cases) {
    std::vector<std::string> counted_here;  // since rows of a case may share a kind
    for (const Warning& warning : one.warnings) {
      if (std::ranges::count(counted_here, warning.kind) > 0) continue;
      counted_here.push_back(warning.kind);
      auto known =
          std::ranges::find_if(found, [&](const Found& f) { return f.warning.kind == warning.kind; });
      if (known == found.end()) {
        known = found.insert(found.end(), {warning, 0});
        known->warning.where = case_name(one.assignments);
      }
      ++known->cases;
    }
  }
  std::vector<Warning> warnings;
  if (const std::string note = page.gpus_note(); !note.empty())
    warnings.push_back({"different_gpus", note, ""});
  for (auto& [warning, count] : found) {
    if (count > 1)
      warning.where = concatenated(count, " of ", counted(cases.size(), "case"), ", in the first");
    warnings.push_back(std::move(warning));
  }
  return warnings;
}

std::string sweep_screen(const std::vector<ShownCase>& cases, const SweepPage& page, const std::string& file,
                         const ScreenContext& typed) {
  const std::string head = folded(head_of(cases), typed.width);
  const auto above = static_cast<std::size_t>(std::ranges::count(head, '\n')) + 1;  // with the table's header
  const std::size_t most = kScreenLines * kScreenWidth / typed.width;
  const std::vector<Warning> warnings = warnings_of_cases(cases, page);
  Selection chosen = all_rows(cases);
  for (std::size_t shown = std::min(cases.size(), most) + 1;;) {
    LabelledLines below = lines_below(cases, page, file, typed, warnings, chosen.says);
    if (below.cut_to(most - std::min(most, above + chosen.lines.size())) || shown == 1)
      return head + table_text(std::move(chosen), typed.width) + below.text();
    chosen = fastest_rows(cases, --shown);
  }
}

}  // namespace equipoise
