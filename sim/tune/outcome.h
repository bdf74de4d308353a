// What a search ends with: its best candidates as a study shows a row, against the study's own baseline.
#pragma once

#include <vector>

#include "sim/study/study_result.h"
#include "sim/tune/search.h"

namespace equipoise {

struct RankedRow {
  Point point;
  Study study;         // best.json of this candidate
  StudyResult result;  // its one row, compared with the baseline
  [[nodiscard]] const PolicyResult& row() const { return result.policies.front(); }
};

struct Baseline {
  Study study;         // the user's, with its baseline row alone
  StudyResult result;  // one row, which may not have run
  [[nodiscard]] const PolicyResult& row() const { return result.policies.front(); }
};

// `study`: the user's, absolute. A layout that is impossible is a refused row.
Baseline run_baseline(const nlohmann::json& study, const StudyInputs& inputs, const RunStudyOptions& options);

// The `most` best of the search, run in full. Speed-ups are of seconds per token, whatever the number of
// GPUs.
std::vector<RankedRow> ranked_rows(const Candidates& candidates, const SearchResult& found, std::size_t most,
                                   const StudyInputs& inputs, const Baseline& baseline,
                                   const RunStudyOptions& options);

}  // namespace equipoise
