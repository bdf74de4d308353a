#include "sim/tune/own_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/study/row/runs_in.h"
#include "sim/study/run_study.h"

namespace equipoise {

using nlohmann::json;

namespace {

bool is_late(const Metrics& metrics, const SearchOptions& options) {
  return metrics.token_delay_mean.value_or(0) > options.most_delay ||
         metrics.token_delay_max.value_or(0) > options.longest_delay;
}

Place place_of(Candidates& candidates, Point winner, const Study& study, const json& entry,
               PolicyResult row) {
  say_what_runs(study, candidates.stated_form(), row);
  const Point point{winner.layout, static_cast<std::uint32_t>(candidates.rows.size())};
  candidates.rows.push_back({entry, row.run.label});
  const double gpus = static_cast<double>(row.layout.gpus());
  return {point, 1 / (*row.metrics.tokens_per_second_per_gpu * gpus), {},
          std::make_shared<const PolicyResult>(std::move(row)), true};
}

}  // namespace

void rank_own_rows(Candidates& candidates, const StudyInputs& inputs, const SearchOptions& options,
                   const std::function<bool(const Study&, const PolicyResult&)>& wanted, Places& places) {
  if (places.ranking.empty()) return;
  const Point point = places.ranking.front().point;
  const json file = best_json(candidates, point, places.ranking.front().alike);
  const Study study = parse_case(file, "best.json");
  if (study.policies.size() == 1) return;
  RunStudyOptions run = options.run;
  run.find_fits = false;
  run.progress = nullptr;
  const StudyResult result = run_study(study, inputs, trial_options(run));
  const PolicyResult& winner = result.policies.back();
  if (winner.status != RowStatus::ok) return;  // a journal of another version said that it runs
  const auto claim = [&](const PolicyResult& row) { return claim_of(row, options.order_delay); };
  const auto rate = [](const PolicyResult& row) { return *row.metrics.tokens_per_second_per_gpu; };
  std::size_t fastest = result.policies.size() - 1;  // the winner
  std::vector<std::size_t> elsewhere;                // of a weaker claim
  for (std::size_t i = 0; i + 1 < result.policies.size(); ++i) {
    const PolicyResult& row = result.policies[i];
    if (row.status != RowStatus::ok || (claim(row) >= claim(winner) && rate(row) < rate(winner))) continue;
    Study alone = study;
    alone.policies = {study.policies[i]};
    alone.baseline = row.run.label;
    if (claim(row) > claim(winner))
      elsewhere.push_back(i);
    else if (claim(row) < claim(winner) || is_late(row.metrics, options) || !wanted(alone, row))
      places.omitted.push_back(row.run.label);
    else if (rate(row) == rate(winner))
      places.alike_own.push_back(row.run.label);
    else if (rate(row) > rate(result.policies[fastest]))
      fastest = i;
  }
  const auto place = [&](std::size_t i) {
    return place_of(candidates, point, study, file["policies"][i], result.policies[i]);
  };
  if (&result.policies[fastest] != &winner) {
    places.alike_own.clear();  // they are slower than the new one
    places.ranking.insert(places.ranking.begin(), place(fastest));
    if (places.ranking.size() > options.keep) places.ranking.pop_back();
  }
  const auto has_policy = [&](const std::string& name) {
    return std::ranges::any_of(places.faster, [&](const Place& one) {
      return candidates.rows[one.point.row].entry.at("name") == name;
    });
  };
  for (const std::size_t i : elsewhere)
    if (rate(result.policies[i]) > rate(result.policies[fastest]) && !has_policy(result.policies[i].run.name))
      places.faster.push_back(place(i));
}

}  // namespace equipoise
