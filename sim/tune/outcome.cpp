#include "sim/tune/outcome.h"

#include <algorithm>

#include "sim/metrics/speedup.h"
#include "sim/study/run_study.h"

namespace equipoise {
namespace {

RunStudyOptions of_one_row(const RunStudyOptions& options) {
  RunStudyOptions run = trial_options(options);
  run.find_fits = false;
  run.progress = nullptr;
  return run;
}

}  // namespace

Baseline run_baseline(const nlohmann::json& file, const StudyInputs& inputs, const RunStudyOptions& options) {
  Baseline baseline;
  baseline.study = parse_case(file, file.value("name", "study"));
  const auto is_baseline = [&](const PolicyRun& row) { return row.label == baseline.study.baseline; };
  auto& rows = baseline.study.policies;
  const auto found = std::find_if(rows.begin(), rows.end(), is_baseline);
  rows = {found == rows.end() ? rows.front() : *found};
  const Study& study = baseline.study;
  baseline.result = study.impossible.empty() ? run_study(study, inputs, of_one_row(options))
                                             : refused_study(study, study.impossible);
  return baseline;
}

std::vector<RankedRow> ranked_rows(const Candidates& candidates, const SearchResult& found, std::size_t most,
                                   const StudyInputs& inputs, const Baseline& baseline,
                                   const RunStudyOptions& options) {
  std::vector<RankedRow> rows;
  const PolicyResult& reference = baseline.row();
  for (const std::size_t i : found.ranking) {
    if (rows.size() == most) break;
    RankedRow ranked{
        found.tried[i].point, candidate_study(candidates, found.tried[i].point, "best.json"), {}};
    ranked.result = run_study(ranked.study, inputs, of_one_row(options));
    PolicyResult& row = ranked.result.policies.front();
    if (!row.simulated()) continue;  // a journal of another version of the program may say that it runs
    row.metrics.speedup = row.metrics.speedup_low = row.metrics.speedup_high = std::nullopt;
    if (reference.simulated())
      compare(reference.metrics, reference.steps, inputs.documents.batches.size(), row.steps, row.metrics);
    rows.push_back(std::move(ranked));
  }
  return rows;
}

}  // namespace equipoise
