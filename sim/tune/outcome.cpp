#include "sim/tune/outcome.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "policies/base/error.h"
#include "policies/base/parallel.h"
#include "sim/metrics/metrics.h"
#include "sim/study/row/runs_in.h"
#include "sim/study/run_study.h"
#include "sim/tune/candidate_text.h"

namespace equipoise {

static RunStudyOptions of_one_row(const RunStudyOptions& options) {
  RunStudyOptions run = trial_options(options);
  run.find_fits = false;
  run.progress = nullptr;
  return run;
}

Baseline baseline_to_run(const nlohmann::json& file) {
  Baseline baseline;
  baseline.study = parse_case(file, file.value("name", "study"));
  const auto is_baseline = [&](const PolicyRun& row) { return row.label == baseline.study.baseline; };
  auto& rows = baseline.study.policies;
  const auto found = std::find_if(rows.begin(), rows.end(), is_baseline);
  rows = {found == rows.end() ? rows.front() : *found};
  baseline.result = refused_study(baseline.study, "it was not run before the search was ended");
  return baseline;
}

void run_baseline(Baseline& baseline, const StudyInputs& inputs, const RunStudyOptions& options) {
  const Study& study = baseline.study;
  baseline.result = study.impossible.empty() ? run_study(study, inputs, of_one_row(options))
                                             : refused_study(study, study.impossible);
}

// Rows may have their own recomputation and CP degrees, whatever the layout's are (hbp, flexsp).
static void add_place(const Candidates& candidates, const SearchResult& found, std::size_t i,
                      std::vector<Place>& places) {
  const auto& [point, trial] = found.tried[i];
  if (places.empty() || trial.seconds_per_token != places.back().seconds_per_token) {
    places.push_back({point, trial.seconds_per_token, {}});
    if (const auto row = found.rows.find(i); row != found.rows.end()) places.back().row = row->second;
    return;
  }
  Place& first = places.back();
  first.alike.push_back(point.layout == first.point.layout ? candidates.rows[point.row].label
                                                           : candidate_text(candidates, point));
}

Places places_of(const Candidates& candidates, const SearchResult& found, std::size_t keep) {
  Places places;
  if (found.ranking.empty()) return places;
  const Trial& winner = found.tried[found.ranking.front()].trial;
  std::set<std::pair<Claim, std::string>> policies;
  for (const std::size_t i : found.ranking) {
    const auto& [point, trial] = found.tried[i];
    if (trial.claim == winner.claim)
      add_place(candidates, found, i, places.ranking);
    else if (trial.seconds_per_token < winner.seconds_per_token &&
             policies.emplace(trial.claim, candidates.rows[point.row].entry.at("name").get<std::string>())
                 .second)
      add_place(candidates, found, i, places.faster);
  }
  if (places.ranking.size() > keep) places.ranking.resize(keep);
  return places;
}

void run_ranked(const Candidates& candidates, const std::vector<Place>& places, const StudyInputs& inputs,
                const Baseline& baseline, const SearchOptions& options, std::vector<RankedRow>& rows) {
  const PolicyResult& reference = baseline.row();
  const auto threads = static_cast<std::size_t>(std::max(1, options.run.jobs));
  for (std::size_t next = 0, count = 0; next < places.size(); next += count) {
    count = std::min(places.size() - next, threads);
    RunStudyOptions run = of_one_row(options.run);
    run.jobs = static_cast<int>(threads / count);
    std::vector<std::optional<RankedRow>> ran(count);
    const auto run_one = [&](int, std::size_t i) {
      const Place& place = places[next + i];
      if (place.row == nullptr) end_if_stopped(run);
      RankedRow one{
          place.point, place.alike, parse_case(candidate_json(candidates, place.point), "best.json"), {}};
      if (place.row != nullptr) {
        one.result = study_of_rows(one.study, inputs, run, {*place.row});
      } else {
        options.show("in full " + std::to_string(next + i + 1) + ": " +
                     candidate_text(candidates, place.point));
        one.result = run_study(one.study, inputs, run);
        say_what_runs(one.study, candidates.stated_form(), one.result.policies.front());
      }
      PolicyResult& row = one.result.policies.front();
      static_cast<SpeedUp&>(row.metrics) =
          reference.simulated() && row.simulated()
              ? speed_up({row.metrics, row.steps}, {reference.metrics, reference.steps}, one.result.batches)
              : SpeedUp{};
      ran[i] = std::move(one);
    };
    bool stopped = false;
    try {
      parallel_for(static_cast<int>(count), count, run_one);
    } catch (const Interrupted&) {
      stopped = true;
    }
    for (std::size_t i = 0; i < count && ran[i]; ++i)  // a journal of another version may say that one runs
      if (ran[i]->row().simulated()) rows.push_back(std::move(*ran[i]));
    if (stopped) throw Interrupted();
  }
}

}  // namespace equipoise
