// Which policy of a study is best, by how much, how sure that is, and why: the facts that the table's lines
// and the head of report.html both tell.
#pragma once

#include <string>
#include <vector>

#include "sim/study/study_result.h"

namespace equipoise {

// The most tokens a second and GPU of the rows that ran; null if none did. Ties go to the first.
const PolicyResult* winner_of(const StudyResult& result);
// The policy that needs the most memory; ties go to the first.
const PolicyResult* fullest_of(const StudyResult& result);

// "wlb is fastest; it is limited by ...": lines that end with a newline, none where nothing ran.
std::string limits_line(const Study& study, const StudyResult& result);
// The winner's slowest GPU beside the fastest and the mean, as WLB-LLM's Fig. 1 and 4 show them.
std::string spread_line(const StudyResult& result);
std::string memory_line(const StudyResult& result);

// Sentences, the first the verdict itself: who, how much. Then how sure, against the next best, and why.
std::vector<std::string> verdict_of(const Study& study, const StudyResult& result);

}  // namespace equipoise
