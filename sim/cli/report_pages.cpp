#include "sim/cli/report_pages.h"

#include <algorithm>
#include <cmath>
#include <map>
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
  lines.push_back("It is limited by " + blame_text(m, winner.study.layout.pipeline) + "; " +
                  fixed(100 * beyond_samples_share(winner.row()), 0) +
                  " % of its kernel times are beyond the profile's samples.");
  lines.push_back(report.found.complete()
                      ? "No candidate of the space is faster: every one was run or proven slower."
                      : grouped(report.found.left) +
                            " candidates that promised less were not reached; a larger --budget would.");
  return lines;
}

// What the page draws of all that was tried, bounded whatever the search: layouts as their degrees and the
// values of the space's other keys; trials as [place, layout, row, outcome, seconds per token, delay, peak
// bytes, reason], those that did not run up to kMostTrials; reasons once each.
class SearchOfPage {
 public:
  explicit SearchOfPage(const TuneReport& report) : report_(report) {
    const auto& tried = report.found.tried;
    for (std::size_t i = 0; i < tried.size(); ++i)
      if (i < kMostTrials || tried[i].trial.outcome == Outcome::ok) add(i, tried[i]);
    for (std::size_t i = 0; i < report.found.too_large_layouts.size() && shown_.size() < kMostLayouts; ++i)
      if (const std::string& why = report.found.too_large_layouts[i]; !why.empty())
        too_large_.push_back({layout(i), reason(why)});
  }

  [[nodiscard]] json data() const {
    json rows = json::array(), keys = json::array();
    for (const RowChoice& row : report_.candidates.rows) rows.push_back({row.label, row.entry.at("name")});
    for (const TriedKey& axis : report_.space.shared) keys.push_back(axis.key);
    return {{"outcomes", kOutcomeNames}, {"keys", std::move(keys)}, {"rows", std::move(rows)},
            {"layouts", layouts_},       {"trials", trials_},       {"too_large", too_large_},
            {"reasons", reasons_}};
  }

 private:
  static constexpr std::size_t kMostTrials = 15'000, kMostLayouts = 10'000, kMostReasons = 3'000;

  void add(std::size_t place, const Tried& tried) {
    const Trial& t = tried.trial;
    trials_.push_back({place, layout(tried.point.layout), tried.point.row, static_cast<int>(t.outcome),
                       t.seconds_per_token, t.token_delay ? json(*t.token_delay) : json(nullptr),
                       t.peak_bytes, reason(t.reason)});
  }

  // Its place in the page's list; a layout that nothing was tried on is left out.
  std::size_t layout(std::size_t index) {
    const auto [known, is_new] = shown_.emplace(index, shown_.size());
    if (is_new) {
      const LayoutChoice& choice = report_.candidates.layouts[index];
      const Layout& l = choice.layout;
      json values = json::array();
      for (const TriedKey& axis : report_.space.shared) {
        const auto value = choice.keys.find(axis.key);  // none of it acts in this layout
        values.push_back(value == choice.keys.end() ? json()
                         : value->is_string()       ? *value
                                                    : json(value->dump()));
      }
      layouts_.push_back({l.tensor, l.context, l.pipeline, l.data, l.expert, std::move(values)});
    }
    return known->second;
  }

  json reason(const std::string& text) {
    if (text.empty()) return nullptr;
    const auto known = places_.find(text);
    if (known != places_.end()) return known->second;
    if (reasons_.size() == kMostReasons) return nullptr;  // tune.json has it
    places_.emplace(text, reasons_.size());
    reasons_.push_back(text);
    return reasons_.size() - 1;
  }

  const TuneReport& report_;
  std::map<std::size_t, std::size_t> shown_;
  std::map<std::string, std::size_t> places_;
  json layouts_ = json::array(), trials_ = json::array(), too_large_ = json::array(),
       reasons_ = json::array();
};

}  // namespace

std::string tune_html(const TuneReport& report) {
  const Study& study = report.baseline.study;
  const std::string about =
      study.model.name + " on " + grouped(report.candidates.layouts.front().layout.gpus()) + " GPUs, " +
      grouped(study.steps) + " steps a candidate, framework " + study.framework.preset.name;
  json data = {{"schema", "equipoise.report/1"}, {"kind", "tune"}, {"tune", tune_json(report)}};
  for (const char* long_list : {"tried", "layouts", "rows"})
    data["tune"].erase(long_list);  // tune.json has them
  data["search"] = SearchOfPage(report).data();
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
  if (!figures.ops.empty()) {
    const auto far = std::max_element(
        figures.ops.begin(), figures.ops.end(),
        [](const auto& a, const auto& b) { return std::abs(a.errors.error()) < std::abs(b.errors.error()); });
    const auto within = std::count_if(figures.ops.begin(), figures.ops.end(),
                                      [](const OpFigures& op) { return op.within_limit; });
    lines.push_back(std::to_string(within) + " of " + std::to_string(figures.ops.size()) +
                    " kinds of op are simulated within " + fixed(100 * validation.limits.op, 0) +
                    " % by time; farthest is " + far->op + " at " + signed_percent(far->errors.error()) +
                    ".");
  }
  for (const PolicyFigures& policy : figures.policies)
    lines.push_back(policy.label + ": " + signed_percent(policy.errors.error()) + " by time; single steps " +
                    fixed(100 * policy.errors.mean_abs, 1) + " % on the mean, at most " +
                    signed_percent(policy.errors.worst) + ".");
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
