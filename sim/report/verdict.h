// Which policy of a study is best, by how much, how sure that is, and why: the facts that the table's lines
// and the head of report.html both tell.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/study/study_result.h"

namespace equipoise {

// The most tokens a second and GPU of the rows that ran, of those first that keep up with what arrives; null if none
// did. Ties go to the first.
const PolicyResult* winner_of(const StudyResult& result);

// The share of a row's kernel times that lie beyond what the profile has samples of.
double beyond_samples_share(const RangeUse& use);

// "wlb is fastest; it is limited by ...": lines that end with a newline, none where nothing ran.
std::string limits_line(const Study& study, const StudyResult& result);
// The winner's slowest GPU beside the fastest and the mean, as WLB-LLM's Fig. 1 and 4 show them.
std::string spread_line(const StudyResult& result);
std::string memory_line(const StudyResult& result);

// Sentences, the first the verdict itself: who, how much, and how much of it is extrapolated. Then how sure,
// against the next best, and why.
std::vector<std::string> verdict_of(const Study& study, const StudyResult& result);

struct Loss {
  double share = 0;  // of a step
  const char* name = "";
};

// Largest first; ties in the order of the code. Each second of a GPU counts once, so that shares add up to 1
// or less: communication in what is recomputed is communication, a transfer that a stage waits for is no
// waiting. What is left is computation. (`bubble_ratio`, by contrast, is 1 - useful time over the pipeline's
// makespan: waiting and recompute in one.)
std::vector<Loss> losses_of(const Metrics& metrics, int stages);

// "waiting for other stages 30.1 %, TP communication 4.2 % of a step": the largest three.
std::string blame_text(const Metrics& metrics, int stages);

// One line: "57.2 of 79.1 GiB on stage 0 of lane 0, CP rank 0, ...", categories by size.
std::string peak_text(const PolicyResult& policy);
nlohmann::json memory_json(const PolicyResult& policy);

// Whether the intervals of both speed-ups are known and apart; a baseline's is 1.
bool told_apart(const Metrics& a, const Metrics& b);
// The rows that ran and whose intervals do not lie below the winner's.
std::vector<const PolicyResult*> not_told_apart(const StudyResult& result, const PolicyResult& winner);

// "tokens a step differ by up to 1.12x, and ...": tokens a step of each, by name, where they are further apart than
// equal batches are; else empty.
std::string batch_difference(const std::vector<std::pair<std::string, Metric>>& rows);

// What differs in what rows recompute; empty where all rows that ran follow one rule.
std::string recompute_difference(const StudyResult& result);
// Where rows are not of one kind, a line each, naming them: what they recompute, tokens a step, end-of-data
// steps. For the notes of every table of these rows.
std::vector<std::string> differences_of(const StudyResult& result);
// What the reader has to know of all rows: of the study, of how it was run, and where rows differ.
std::vector<std::string> notes_of(const Study& study, const StudyResult& result);

}  // namespace equipoise
