#include "sim/report/verdict.h"

#include <algorithm>

#include "policies/base/number_text.h"
#include "sim/study/blame.h"
#include "sim/study/memory_report.h"

namespace equipoise {
namespace {

std::string times(double ratio) {
  return fixed(ratio, 2) + "x";
}

std::string rate(const PolicyResult& row) {
  return fixed(*row.metrics.tokens_per_second_per_gpu, 0) + " tokens/s/GPU";
}

bool has_interval(const Metrics& m) {
  return m.speedup && m.speedup_low && m.speedup_high;
}

const PolicyResult* next_best(const StudyResult& result, const PolicyResult& winner) {
  const PolicyResult* best = nullptr;
  for (const PolicyResult& row : result.policies)
    if (&row != &winner && row.status == RowStatus::ok && row.metrics.tokens_per_second_per_gpu &&
        (best == nullptr ||
         *row.metrics.tokens_per_second_per_gpu > *best->metrics.tokens_per_second_per_gpu))
      best = &row;
  return best;
}

std::string sure_sentence(const PolicyResult& winner, const PolicyResult& baseline) {
  const Metrics& m = winner.metrics;
  if (&winner == &baseline || !m.speedup) return "";
  if (!has_interval(m))
    return "Fewer than four global batches give no interval: how much of this is the luck of these documents "
           "is "
           "not known.";
  const std::string range = "Resampling these documents puts the speed-up between " + times(*m.speedup_low) +
                            " and " + times(*m.speedup_high) + " in 95 % of draws: ";
  return range +
         (*m.speedup_low > 1 ? "it is not the luck of the documents." : "they do not tell the two apart.");
}

std::string next_sentence(const PolicyResult& winner, const PolicyResult& next,
                          const PolicyResult& baseline) {
  if (&next == &baseline && &winner != &baseline) return "";  // the verdict has said it
  std::string text = "Next is " + next.run.label + " at " + rate(next);
  if (next.metrics.speedup) text += " (" + times(*next.metrics.speedup) + ")";
  const bool overlap = has_interval(winner.metrics) && has_interval(next.metrics) && &winner != &baseline &&
                       &next != &baseline && *next.metrics.speedup_high >= *winner.metrics.speedup_low;
  return text + (overlap ? ": too close to tell apart, their intervals overlap." : ".");
}

// What shrinks most from the baseline to the winner.
std::string why_sentence(const Study& study, const PolicyResult& winner, const PolicyResult& baseline) {
  const int stages = study.layout.pipeline;
  const std::vector<Loss> own = losses_of(winner.metrics, stages);
  const std::string limited = "It is limited by " + blame_text(winner.metrics, stages) + ".";
  if (&winner == &baseline || !baseline.simulated()) return limited;
  const Loss* gained = nullptr;
  double most = 0.005, left = 0;
  const std::vector<Loss> before = losses_of(baseline.metrics, stages);
  for (const Loss& loss : before) {
    const auto same = std::find_if(own.begin(), own.end(),
                                   [&](const Loss& l) { return std::string_view(l.name) == loss.name; });
    const double now = same == own.end() ? 0 : same->share;
    if (loss.share - now <= most) continue;
    most = loss.share - now;
    gained = &loss;
    left = now;
  }
  if (gained == nullptr) return limited;
  return baseline.run.label + " loses " + fixed(100 * gained->share, 1) + " % of a step to " + gained->name +
         ", " + winner.run.label + " " + fixed(100 * left, 1) + " %. " + limited;
}

}  // namespace

const PolicyResult* winner_of(const StudyResult& result) {
  const PolicyResult* best = nullptr;
  for (const PolicyResult& p : result.policies)
    if (p.status == RowStatus::ok && p.metrics.tokens_per_second_per_gpu &&
        (best == nullptr || *p.metrics.tokens_per_second_per_gpu > *best->metrics.tokens_per_second_per_gpu))
      best = &p;
  return best;
}

const PolicyResult* fullest_of(const StudyResult& result) {
  const PolicyResult* most = nullptr;
  for (const PolicyResult& p : result.policies)
    if (p.capacity_bytes > 0 && (most == nullptr || p.peak.parts.total() > most->peak.parts.total()))
      most = &p;
  return most;
}

std::string limits_line(const Study& study, const StudyResult& result) {
  const PolicyResult* best = winner_of(result);
  if (best == nullptr) return "";
  return best->run.label + " is fastest; it is limited by " +
         blame_text(best->metrics, study.layout.pipeline) + ".\n";
}

std::string spread_line(const StudyResult& result) {
  const PolicyResult* best = winner_of(result);
  if (best == nullptr) return "";
  const Metrics& m = best->metrics;
  if (!m.gpu_attention_imbalance || !m.gpu_compute_imbalance) return "";
  // A stage without layers has no attention to set the slowest against.
  const auto against = [](const std::optional<double>& fastest, const std::optional<double>& mean) {
    return (fastest ? times(*fastest) + " that of the fastest and " : std::string()) + times(*mean) +
           " the mean";
  };
  return "Its slowest GPU's attention takes " +
         against(m.gpu_attention_slowest_over_fastest, m.gpu_attention_imbalance) +
         " (all compute: " + against(m.gpu_compute_slowest_over_fastest, m.gpu_compute_imbalance) + ").\n";
}

std::string memory_line(const StudyResult& result) {
  const PolicyResult* most = fullest_of(result);
  return most == nullptr ? "" : most->run.label + " holds the most: " + peak_text(*most) + ".\n";
}

std::vector<std::string> verdict_of(const Study& study, const StudyResult& result) {
  const PolicyResult* winner = winner_of(result);
  if (winner == nullptr) return {"No policy of this study runs: each row below says what would make it."};
  const PolicyResult& baseline = result.policies[result.baseline];
  const PolicyResult* next = next_best(result, *winner);
  std::vector<std::string> lines;
  if (winner == &baseline)
    lines.push_back(winner->run.label + ", the baseline, trains fastest: " + rate(*winner) + ".");
  else if (winner->metrics.speedup)
    lines.push_back(winner->run.label + " trains fastest: " + rate(*winner) + ", " +
                    times(*winner->metrics.speedup) + " " + baseline.run.label + ".");
  else
    lines.push_back(winner->run.label + " trains fastest: " + rate(*winner) + "; the baseline " +
                    baseline.run.label + " did not run.");
  const auto add = [&](const std::string& line) {
    if (!line.empty()) lines.push_back(line);
  };
  add(sure_sentence(*winner, baseline));
  if (next != nullptr) add(next_sentence(*winner, *next, baseline));
  add(why_sentence(study, *winner, baseline));
  return lines;
}

}  // namespace equipoise
