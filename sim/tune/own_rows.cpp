#include "sim/tune/own_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/study/row/runs_in.h"
#include "sim/study/run_study.h"

namespace equipoise {

using nlohmann::json;

namespace {

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
  const StudyResult result = run_study(study, inputs, run);
  const std::size_t winner = result.policies.size() - 1;
  if (result.policies[winner].status != RowStatus::ok) return;  // a journal of another version said it runs
  const auto rate = [&](std::size_t i) { return *result.policies[i].metrics.tokens_per_second_per_gpu; };
  const auto rank = [&](std::size_t i) {
    return std::pair(claim_of(result.policies[i], options.order_delay), -rate(i));
  };
  const auto may_be_named = [&](std::size_t i) {
    Study alone = study;
    alone.policies = {study.policies[i]};
    alone.baseline = study.policies[i].label;
    return !lateness(result.policies[i].metrics, options.most_delay, options.longest_delay) &&
           wanted(alone, result.policies[i]);
  };
  std::vector<std::size_t> order = {winner};  // the order of `study`, but for the winner before its equals
  for (std::size_t i = 0; i < winner; ++i)
    if (result.policies[i].status == RowStatus::ok) order.push_back(i);
  std::ranges::stable_sort(order, {}, rank);
  const auto first = std::ranges::find_if(order, [&](std::size_t i) {
    return i == winner || (rank(i).first == rank(winner).first && may_be_named(i));
  });
  const auto place = [&](std::size_t i) {
    return place_of(candidates, point, study, file["policies"][i], result.policies[i]);
  };
  if (*first != winner) {
    places.ranking.insert(places.ranking.begin(), place(*first));
    if (places.ranking.size() > options.keep) places.ranking.pop_back();
    std::erase_if(places.faster, [&](const Place& one) {
      return one.seconds_per_token >= places.ranking.front().seconds_per_token;
    });
  }
  const auto has_policy = [&](const std::string& name) {
    return std::ranges::any_of(places.faster, [&](const Place& one) {
      return candidates.rows[one.point.row].entry.at("name") == name;
    });
  };
  for (auto i = order.begin(); i != first; ++i) places.omitted.push_back(study.policies[*i].label);
  for (auto i = first + 1; i != order.end(); ++i)
    if (rank(*i) == rank(*first))
      places.alike_own.push_back(study.policies[*i].label);
    else if (rate(*i) > rate(*first) && may_be_named(*i) && !has_policy(study.policies[*i].name))
      places.faster.push_back(place(*i));
}

}  // namespace equipoise
