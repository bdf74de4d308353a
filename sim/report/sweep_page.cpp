#include "sim/report/sweep_page.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/report/html_page.h"
#include "sim/report/standing.h"
#include "sim/report/verdict.h"
#include "sim/report/words/note_json.h"
#include "sim/report/words/words.h"

namespace equipoise {

using nlohmann::json;

constexpr std::size_t kCasesText = 2'000'000;  // bytes for a sweep's cases

json case_of_page(const std::vector<std::string>& assignments, const std::string& folder, const Study& study,
                  const StudyResult& result) {
  json rows = json::array();
  for (const PolicyResult& row : result.policies) {
    const Metrics& m = row.metrics;
    const auto value = [](const Metric& metric) { return metric ? json(*metric) : json(nullptr); };
    rows.push_back({{"label", row.run.label},
                    {"status", row.memory_ignored ? "oom, ignored" : name_of(row.status)},
                    {"reason", reason_text(row.reasons)},
                    {"tokens_per_second_per_gpu", value(m.tokens_per_second_per_gpu)},
                    {"speedup", value(m.speedup)},
                    {"speedup_low", value(m.speedup_low)},
                    {"speedup_high", value(m.speedup_high)},
                    {"step_seconds", value(m.step_seconds)},
                    {"peak_memory_bytes", value(m.peak_memory_bytes)},
                    {"beyond_samples", rounded(beyond_samples_share(row.use), 4)}});
  }
  const Standing standing = standing_of(result);
  return {{"study", study.name},
          {"assignments", assignments},
          {"folder", folder},
          {"baseline", study.baseline},
          {"gpus", study.layout.gpus()},
          {"winner", standing.first != nullptr ? json(standing.first->run.label) : json(nullptr)},
          {"runs", standing.fastest_any_delay != nullptr},
          {"faster", standing_json(result).at("faster")},
          {"notes", notes_of(study, result)},
          {"significant", standing.is_decided()},
          {"rows", std::move(rows)}};
}

void SweepPage::add(const json& one) {
  title_ = one.at("study").get<std::string>();
  if (one.at("winner").is_string()) gpus_.insert(one.at("gpus").get<std::int64_t>());
  ++count_;
  const bool runs = one.at("winner").is_string();
  run_ += runs ? 1 : 0;
  for (const json& row : one.at("rows"))
    if (row.at("label") == one.at("winner"))
      ran_.push_back({one.at("assignments"), row.at("tokens_per_second_per_gpu"), one.at("runs")});
  if (runs && one.at("significant").get<bool>()) {
    const std::string label = one["winner"];
    auto known = std::ranges::find_if(wins_, [&](const auto& w) { return w.first == label; });
    if (known == wins_.end()) known = wins_.insert(wins_.end(), {label, 0});
    ++known->second;
  }
  for (const json& rival : one.at("faster")) {
    const std::string label = rival.at("label");
    auto known = std::ranges::find(faster_, label, &PassedOver::label);
    if (known == faster_.end()) known = faster_.insert(faster_.end(), {label, "", 0, 0});
    ++known->cases;
    if (const double ratio = rival.at("ratio"); ratio > known->ratio) {
      known->ratio = ratio;
      known->why = rival.at("reason");
    }
  }
  const std::string text = one.dump(-1, ' ', false, json::error_handler_t::replace);
  if (cases_.size() + text.size() > kCasesText) {
    ++omitted_;
    return;
  }
  if (!cases_.empty()) cases_ += ',';
  cases_ += text;
}

std::string SweepPage::gpus_note() const {
  if (gpus_.size() < 2) return "";
  const auto text_of = [](std::int64_t gpus) { return std::to_string(gpus); };
  return "cases run on different numbers of GPUs (" + all_joined(gpus_, ", ", text_of) +
         "): tokens/s/GPU compares them, step s and a row's fit into memory do not";
}

SweepPage::Finding SweepPage::finding() const {
  auto wins = wins_;
  std::ranges::stable_sort(wins, std::ranges::greater{}, [](const auto& x) { return x.second; });
  const std::string all = counted(count_, "case");
  std::string verdict = (run_ == 0 ? "No policy runs in any of "
                                   : "No policy is significantly faster than the next in any of ") +
                        all;
  std::string others;
  std::size_t won = 0;
  for (const auto& [label, count] : wins) {
    won += count;
    if (&label == &wins.front().first)
      verdict = label +
                (faster_.empty() ? " is fastest in "
                                 : " is the fastest that its framework runs in the order of the data in ") +
                (count == count_ ? "all " + all : std::to_string(count) + " of " + all);
    else
      others += (others.empty() ? "" : ", ") + listed(label) + " in " + std::to_string(count);
  }
  std::string headline = sweep_finding(ran_);
  std::string more = verdict + '.';
  if (headline.empty()) {
    headline = verdict;
    more.clear();
  }
  if (gpus_.size() > 1)
    headline += ", on " + all_joined(gpus_, " or ", [](std::int64_t n) { return grouped(n); }) + " GPUs";
  const auto in_cases = [&](std::size_t cases) { return concatenated(" in ", cases, " of ", all); };
  if (const auto none = std::ranges::count(ran_, false, &SweptCase::runs); none > 0)
    more += (more.empty() ? "" : " ") + ("The framework runs no row" + in_cases(at(none)) + '.');
  if (!others.empty()) more += (more.empty() ? "" : " ") + ("Others: " + others + ".");
  if (won > 0 && won < run_)
    more += (more.empty() ? "" : " ") + std::string("Not counted: ") + std::to_string(run_ - won) +
            " where the fastest is tied with another policy, or fewer than four batches ran.";
  const std::string faster = all_joined(faster_, "; ", [&](const PassedOver& row) {
    return listed(row.label) + in_cases(row.cases) + (row.cases > 1 ? ", up to " : ", ") +
           fixed(row.ratio, 2) + "x (" + row.why + ')';
  });
  return {std::move(headline), std::move(more), faster.empty() ? "" : faster + '.'};
}

std::string SweepPage::html() const {
  const auto [headline, more, faster] = finding();
  std::vector<std::string> lines, notes;
  if (!more.empty()) lines.push_back(more);
  if (!faster.empty()) lines.push_back("Faster: " + faster);
  if (omitted_ > 0)
    notes.push_back("The last " + std::to_string(omitted_) +
                    " cases are too many for this page; each has its own in its folder.");
  if (const std::string note = gpus_note(); !note.empty()) notes.push_back("Note: " + note + ".");
  return html_page(
      {title_, html_head(title_, headline, lines, notes)},
      {{"schema", "equipoise.report/1"}, {"kind", "sweep"}, {"cases", json::parse('[' + cases_ + ']')}});
}

}  // namespace equipoise
