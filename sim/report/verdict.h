// Which policy of a study is best, by how much, how sure that is, and why: the facts for the table's lines
// and the head of report.html.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/report/standing.h"
#include "sim/study/study_result.h"

namespace equipoise {

// The share of a row's kernel time that is beyond the profile's samples.
double beyond_samples_share(const RangeUse& use);

// The fastest row's slowest GPU over its fastest and its mean, as in WLB-LLM's Fig. 1 and 4.
std::optional<Note> spread_of(const StudyResult& result);
// The row that needs the most memory, and what it holds.
std::optional<Note> fullest_row(const StudyResult& result);

// Which row is fastest and by how much, which rows are tied with it, and which faster ones were passed over.
Note fastest_line(const StudyResult& result);
// The same without other rows than the baseline, as a page's headline.
Note headline_of(const StudyResult& result);
// What a study found: which row is fastest, why, at what cost, how sure that is. A line begins with its
// label.
struct VerdictLine {
  std::string_view word;
  Note says;
};
std::vector<VerdictLine> verdict_of(const Study& study, const StudyResult& result);

// The sentence on the first row of a standing, and on the faster ones that were passed over, with what they
// need. `compared`: parts of the sentence; `name_of`: how a row is called.
struct StandingWords {
  std::string framework;
  double max_delay = 1;
  std::function<std::string(const PolicyResult&)> name_of;
};
Note fastest_note(const Standing& standing, Notes compared, const StandingWords& words);
// Parts of a sentence about a row: the others that it is significantly faster than and those that it is tied
// with, each with the ratio.
Notes over_others(const std::vector<std::pair<std::string, RowRatio>>& others);

struct Loss {
  double share = 0;  // of a step
  const char* name = "";
};

// Largest first; ties in the order of the code. Each second of a GPU counts once, so that shares add up to at
// most 1, and the rest is computation. Communication in recomputed work counts as communication, and a
// transfer that a stage waits for does not count as waiting. (`bubble_ratio`, by contrast, is 1 - useful time
// over the pipeline's makespan: waiting and recompute in one.)
std::vector<Loss> losses_of(const Metrics& metrics, int stages);

// The time and cost of a job of so many tokens with a row.
struct JobCost {
  double days = 0, gpu_hours = 0;
  std::optional<double> dollars;  // none if the study has no price
};
std::optional<JobCost> job_cost(const PolicyResult& row, double tokens);
// Makes `cost` of summary.json, for every row that ran; null without a job.
nlohmann::json job_cost_json(const StudyResult& result);

// Names the largest three.
Note blame_of(const Metrics& metrics, int stages);

// How much memory is needed, where and when, with its categories by size.
Note peak_of(const PolicyResult& policy);
nlohmann::json memory_json(const PolicyResult& policy);

// The tokens per step of each row, by name, if they differ by more than equal batches do.
std::optional<Note> batch_difference(const std::vector<std::pair<std::string, Metric>>& rows);

// How rows differ in what they recompute; none if all rows that ran follow one rule.
std::optional<Note> recompute_difference(const StudyResult& result);
// A note for each difference between rows: what they recompute, tokens per step, end-of-data steps. They
// belong under every table of these rows.
Notes differences_of(const StudyResult& result);
// What qualifies all rows: notes on the study, on how it was run, and on differences between rows.
Notes notes_of(const Study& study, const StudyResult& result);

}  // namespace equipoise
