#include "sim/cli/report_pages.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "policies/base/text.h"
#include "sim/report/html_page.h"
#include "sim/report/result_files.h"
#include "sim/report/verdict.h"
#include "sim/tune/space.h"

namespace equipoise {
namespace {

using nlohmann::json;

// The head of a page, all of it plain text.
std::string head(const std::string& kicker, const std::string& verdict, const std::vector<std::string>& lines,
                 const std::vector<std::string>& notes) {
  const auto paragraph = [](const std::string& text, const char* kind) {
    return text.empty() ? text : std::string("<p class=\"") + kind + "\">" + escaped(text) + "</p>\n";
  };
  std::string text =
      "<section id=\"verdict\">\n" + paragraph(kicker, "kicker") + "<h1>" + escaped(verdict) + "</h1>\n";
  for (const std::string& line : lines) text += paragraph(line, "lead");
  for (const std::string& note : notes) text += paragraph(note, "setup");
  return text + "</section>\n";
}

std::string times(double ratio) {
  return fixed(ratio, 2) + "x";
}

std::string name_of_row(const PolicyResult& row) {
  return candidate_text(row.run.label, row.layout);
}

std::vector<std::string> tune_lines(const TuneReport& report) {
  const RankedRow& winner = report.ranking.front();
  const Metrics& m = winner.row().metrics;
  const PolicyResult& baseline = report.baseline.row();
  std::vector<std::string> lines;
  if (m.speedup) {
    std::string gain = times(*m.speedup) + " the speed of " + name_of_row(baseline) + " on " +
                       grouped(report.baseline.study.layout.gpus()) +
                       " GPUs, as the study has it, by seconds per token";
    if (m.speedup_low && m.speedup_high)
      gain += "; resampling its documents puts that between " + times(*m.speedup_low) + " and " +
              times(*m.speedup_high) + " in 95 % of draws";
    lines.push_back(gain + ".");
  }
  if (report.ranking.size() > 1)
    lines.push_back("Next is " + name_of_row(report.ranking[1].row()) + " at " +
                    fixed(*report.ranking[1].row().metrics.tokens_per_second_per_gpu, 0) + " tokens/s/GPU.");
  lines.push_back("It is limited by " + blame_text(m, winner.study.layout.pipeline) + ".");
  lines.push_back(report.found.complete()
                      ? "No candidate of the space is faster: every one was run or proven slower."
                      : grouped(report.found.left) +
                            " candidates that promised less were not reached; a larger --budget would.");
  return lines;
}

// [place in the search, seconds per token] of candidates that ran to their end: every n-th and each that was
// the best so far.
json ran_json(const SearchResult& found) {
  constexpr std::size_t kMost = 2000;
  const std::size_t every = found.tried.size() / kMost + 1;
  json list = json::array();
  double best = 0;
  for (std::size_t i = 0; i < found.tried.size(); ++i) {
    const Trial& trial = found.tried[i].trial;
    if (trial.outcome != Outcome::ok || trial.seconds_per_token <= 0) continue;
    const bool leads = best == 0 || trial.seconds_per_token < best;
    if (leads) best = trial.seconds_per_token;
    if (leads || i % every == 0) list.push_back({i, trial.seconds_per_token});
  }
  return list;
}

}  // namespace

std::string tune_html(const TuneReport& report) {
  const Study& study = report.baseline.study;
  const std::string about =
      study.model.name + " on " + grouped(report.candidates.layouts.front().layout.gpus()) + " GPUs, " +
      grouped(study.steps) + " steps a candidate, framework " + study.framework.preset.name;
  json data = {{"schema", "equipoise.report/1"}, {"kind", "tune"}, {"tune", tune_json(report)}};
  for (const char* long_list : {"tried", "layouts", "rows"})
    data["tune"].erase(long_list);  // tune.json has them
  data["ran"] = ran_json(report.found);
  for (std::size_t i = 0; i < report.ranking.size(); ++i)
    data["names"].push_back(name_of_row(report.ranking[i].row()));
  if (report.ranking.empty())
    return html_page({study.name, head(study.name, "No candidate runs", {}, {about})}, data);
  const RankedRow& winner = report.ranking.front();
  const std::string verdict =
      name_of_row(winner.row()) + " is the fastest of " + grouped(report.found.candidates) +
      " candidates: " + fixed(*winner.row().metrics.tokens_per_second_per_gpu, 0) + " tokens/s/GPU";
  return html_page({study.name, head(study.name, verdict, tune_lines(report),
                                     {about, source_line(winner.study, winner.result)})},
                   data);
}

std::string validation_html(const Validation& validation, const ValidationFigures& figures) {
  std::vector<std::string> lines;
  for (const std::string& broken : figures.broken) lines.push_back(broken);
  if (figures.ranking.measured.size() > 1)
    lines.push_back(figures.ranking.same() ? "Policies rank as they were measured."
                                           : "Policies rank otherwise than they were measured.");
  std::vector<std::string> notes = {"Simulated with profile " + validation.profile + ", measured on " +
                                    validation.device};
  notes.insert(notes.end(), validation.notes.begin(), validation.notes.end());
  double worst = 0;
  for (const PolicyFigures& policy : figures.policies)
    if (std::abs(policy.errors.error()) > std::abs(worst)) worst = policy.errors.error();
  const std::string verdict =
      std::string(figures.passed() ? "Passed" : "Failed") +
      (figures.policies.empty() ? std::string()
                                : ": a policy's mean step is simulated at most " +
                                      signed_percent(std::abs(worst)).substr(1) + " off what was measured");
  return html_page({validation.study, head(validation.study, verdict, lines, notes)},
                   {{"schema", "equipoise.report/1"},
                    {"kind", "validation"},
                    {"validation", validation_json(validation, figures)}});
}

}  // namespace equipoise
