// Which policy of a study is best, by how much, how sure that is, and why: the facts that the table's lines
// and the head of report.html both tell.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/report/standing.h"
#include "sim/study/study_result.h"

namespace equipoise {

// The share of a row's kernel times that lie beyond what the profile has samples of.
double beyond_samples_share(const RangeUse& use);

// The fastest row's slowest GPU over the fastest and the mean, as WLB-LLM's Fig. 1 and 4 show them.
std::optional<Note> spread_of(const StudyResult& result);
// The row that needs the most memory, and what it holds.
std::optional<Note> fullest_row(const StudyResult& result);

// Who is fastest, by how much, which rows are tied with it, and which faster ones were passed over.
Note fastest_line(const StudyResult& result);
// What a study found: who is fastest, why, at which cost, and how sure that is. A line begins with its word.
struct VerdictLine {
  std::string_view word;
  Note says;
};
std::vector<VerdictLine> verdict_of(const Study& study, const StudyResult& result);

// Parts of a sentence on a row: the others that it is significantly faster than, and those that it is tied
// with, by its ratio over each.
Notes over_others(const std::vector<std::pair<std::string, RowRatio>>& others);

struct Loss {
  double share = 0;  // of a step
  const char* name = "";
};

// Largest first; ties in the order of the code. Each second of a GPU counts once, so that shares add up to 1
// or less: communication in what is recomputed is communication, a transfer that a stage waits for is no
// waiting. What is left is computation. (`bubble_ratio`, by contrast, is 1 - useful time over the pipeline's
// makespan: waiting and recompute in one.)
std::vector<Loss> losses_of(const Metrics& metrics, int stages);

// What a job of so many tokens takes and costs with a row.
struct JobCost {
  double days = 0, gpu_hours = 0;
  std::optional<double> dollars;  // none: the study states no price
};
std::optional<JobCost> job_cost(const PolicyResult& row, double tokens);
// `cost` of summary.json: of every row that ran; null without a job.
nlohmann::json job_cost_json(const StudyResult& result);

// Names the largest three.
Note blame_of(const Metrics& metrics, int stages);

// How much memory, where and when, with its categories by size.
Note peak_of(const PolicyResult& policy);
nlohmann::json memory_json(const PolicyResult& policy);

// The tokens per step of each, by name, where they differ by more than equal batches do.
std::optional<Note> batch_difference(const std::vector<std::pair<std::string, Metric>>& rows);

// What differs in what rows recompute; none where all rows that ran follow one rule.
std::optional<Note> recompute_difference(const StudyResult& result);
// Where rows are not alike, a note each that names them: what they recompute, tokens per step, end-of-data
// steps. They belong under every table of these rows.
Notes differences_of(const StudyResult& result);
// What the reader has to know of all rows: of the study, of how it was run, and where rows differ.
Notes notes_of(const Study& study, const StudyResult& result);

}  // namespace equipoise
