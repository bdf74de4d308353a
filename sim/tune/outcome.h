// The end of a search: its best candidates as a study shows a row, compared with the study's own baseline.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/study/study_result.h"
#include "sim/tune/search.h"

namespace equipoise {

struct RankedRow {
  Point point;
  std::vector<std::string> alike;  // others with the same steps, on this layout or another
  Study study;                     // best.json of this candidate
  StudyResult result;              // its only row, compared with the baseline
  [[nodiscard]] const PolicyResult& row() const { return result.policies.front(); }
};

struct Baseline {
  Study study;         // the user's, with only its baseline row
  StudyResult result;  // one row, which may not have run
  [[nodiscard]] const PolicyResult& row() const { return result.policies.front(); }
};

// `study` is the user's, with absolute paths. Its row counts as refused until it runs.
Baseline baseline_to_run(const nlohmann::json& study);
// An impossible layout gives a refused row.
void run_baseline(Baseline& baseline, const StudyInputs& inputs, const RunStudyOptions& options);

// A place of the ranking. Candidates with bit-equal times do not differ, and the first represents all.
struct Place {
  Point point;
  double seconds_per_token = 0;
  std::vector<std::string> alike;
  std::shared_ptr<const PolicyResult> row = nullptr;  // as the search ran it; null if only a journal has it
  bool is_own = false;  // a row of the study that was run after the search (own_rows.h)
};
struct Places {
  std::vector<Place> ranking;  // the winner and those with its claim
  // Faster ones with a weaker claim: the first of each policy.
  std::vector<Place> faster;
  // Labels of the study's rows that best.json is without (own_rows.h): those that make the winner's steps,
  // and those that it would name first.
  std::vector<std::string> alike_own, omitted;
};
Places places_of(const Candidates& candidates, const SearchResult& found, std::size_t keep);

// These places as a study shows a row. Those that a journal tells of are run again, as many at
// once as there are threads. Speed-ups are of seconds per token, whatever the number of GPUs. `rows` has the
// first of them where this throws Interrupted.
void run_ranked(const Candidates& candidates, const std::vector<Place>& places, const StudyInputs& inputs,
                const Baseline& baseline, const SearchOptions& options, std::vector<RankedRow>& rows);

}  // namespace equipoise
