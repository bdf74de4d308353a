#include "sim/tune/tune_page.h"

#include <map>
#include <nlohmann/json.hpp>

#include "policies/base/text.h"
#include "sim/report/html_page.h"
#include "sim/report/study_table.h"
#include "sim/report/verdict.h"
#include "sim/report/words/words.h"
#include "sim/tune/candidate_text.h"

namespace equipoise {
namespace {

using nlohmann::json;

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
  std::vector<std::string> lines = {text_of(fastest_line(report))};
  if (m.speedup) {
    std::string gain = times(*m.speedup) + " the speed of " +
                       candidate_text(baseline.run.label, report.baseline.study.layout) + " on " +
                       counted(report.baseline.study.layout.gpus(), "GPU") +
                       ", as the study has it, by seconds per token";
    if (m.speedup_low && m.speedup_high)
      gain += ". Resampling its documents puts that between " + times(*m.speedup_low) + " and " +
              times(*m.speedup_high) + " in 95 % of draws";
    lines.push_back(gain + ".");
  }
  if (const std::string own = own_rows_text(report); !own.empty()) lines.push_back(own);
  if (report.ranking.size() > 1)
    lines.push_back("Next is " + name_of_row(report.ranking[1].row()) + " at " +
                    fixed(*report.ranking[1].row().metrics.tokens_per_second_per_gpu, 0) + " tokens/s/GPU.");
  if (const std::optional<Note> unequal = unequal_batches(report))
    lines.push_back("Global batches are not equal: " + text_of(*unequal) + ".");
  lines.push_back("It is limited by " + text_of(blame_of(m, winner.study.layout.pipeline)) + ". " +
                  fixed(100 * beyond_samples_share(winner.row().use), 0) +
                  " % of its kernel time is beyond the profile's samples.");
  lines.push_back(counts_text(report.found) + halving_text(report.found) + not_compared_text(report.found) +
                  end_text(report));
  return lines;
}

// What the page draws of all that was tried, bounded in size for any search. Layouts are their degrees and
// the values of the space's other keys. Trials are [place, layout, row, outcome, seconds per token, delay,
// peak bytes, reason]; of those that did not run, at most kMostTrials. Each reason is kept once.
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

  // Its place in the page's list; a layout without trials is skipped.
  std::size_t layout(std::size_t index) {
    const auto [known, is_new] = shown_.emplace(index, shown_.size());
    if (is_new) {
      const LayoutChoice& choice = report_.candidates.layouts[index];
      const Layout& l = choice.layout;
      json values = json::array();
      for (const TriedKey& axis : report_.space.shared) {
        const auto value = choice.keys.find(axis.key);  // because none of it has an effect in this layout
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
    if (reasons_.size() == kMostReasons) return nullptr;  // tune.json has the others
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
  const std::string about = about_text(report);
  json data = {{"schema", "equipoise.report/1"}, {"kind", "tune"}, {"tune", tune_json(report)}};
  for (const char* long_list : {"tried", "layouts", "rows"})
    data["tune"].erase(long_list);  // tune.json has them
  data["search"] = SearchOfPage(report).data();
  for (std::size_t i = 0; i < report.ranking.size(); ++i)
    data["names"].push_back(name_of_row(report.ranking[i].row()));
  if (report.ranking.empty()) {
    const std::string best = !report.places.ranking.empty()
                                 ? found_text(report, report.places.ranking.front())
                             : report.found.tried.empty() && report.found.left > 0 ? "No candidate was tried"
                                                                                   : "No candidate runs";
    return html_page({study.name, html_head(study.name, best, {end_text(report)}, {about})}, data);
  }
  const RankedRow& winner = report.ranking.front();
  const auto rate = [](const RankedRow& row) {
    return fixed(*row.row().metrics.tokens_per_second_per_gpu, 0) + " tokens/s/GPU";
  };
  const std::string verdict = name_of_row(winner.row()) + " is " + reach_text(report) + ": " + rate(winner);
  return html_page({study.name, html_head(study.name, verdict, tune_lines(report),
                                          {about, source_line(winner.study, winner.result)})},
                   data);
}

}  // namespace equipoise
