#include "sim/tune/own_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

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

// Rows of one layout, of which the search has run some. Those that need not run have no result.
class RowsOfLayout {
 public:
  RowsOfLayout(const Candidates& candidates, const SearchResult& found, std::uint32_t layout) {
    for (std::size_t i = 0; i < found.tried.size(); ++i)
      if (found.tried[i].point.layout == layout)
        tried_.push_back({candidates.rows[found.tried[i].point.row].entry, found.tried[i].trial,
                          found.rows.contains(i) ? found.rows.at(i) : nullptr});
    const std::size_t winner = found.ranking.front();
    winner_ = found.tried[winner].trial;
  }

  // `entries`: those of the study's policies.
  std::vector<std::optional<PolicyResult>> run(const Study& study, const json& entries,
                                               const StudyInputs& inputs, const RunStudyOptions& options) {
    std::vector<std::optional<PolicyResult>> rows(study.policies.size());
    Study rest = study;
    rest.policies.clear();
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto known = std::ranges::find(tried_, entries[i], &Known::entry);
      if (known != tried_.end() && known->row != nullptr) {
        rows[i] = *known->row;
        say_what_runs(study, study.layout.context_comm, *rows[i]);
      } else if (known == tried_.end() || !is_slower(known->trial)) {
        rest.policies.push_back(study.policies[i]);
        places.push_back(i);
      }
    }
    if (places.empty()) return rows;
    StudyResult result = run_study(rest, inputs, options);
    for (std::size_t k = 0; k < places.size(); ++k) rows[places[k]] = std::move(result.policies[k]);
    return rows;
  }

 private:
  struct Known {
    json entry;
    Trial trial;
    std::shared_ptr<const PolicyResult> row;
  };

  // No row has a stronger claim than the strongest, whatever form of CP is stated.
  [[nodiscard]] bool is_slower(const Trial& trial) const {
    return trial.outcome == Outcome::slower && winner_.claim == Claim::fastest &&
           trial.seconds_per_token > winner_.seconds_per_token;
  }

  std::vector<Known> tried_;
  Trial winner_;
};

}  // namespace

void rank_own_rows(Candidates& candidates, const StudyInputs& inputs, const SearchResult& found,
                   const SearchOptions& options,
                   const std::function<bool(const Study&, const PolicyResult&)>& wanted, Places& places) {
  if (places.ranking.empty()) return;
  const Point point = places.ranking.front().point;
  const json file = best_json(candidates, point, places.ranking.front().alike);
  const Study study = parse_case(file, "best.json");
  if (study.policies.size() == 1) return;
  RunStudyOptions run = options.run;
  run.find_fits = false;
  const std::vector<std::optional<PolicyResult>> rows =
      RowsOfLayout(candidates, found, point.layout).run(study, file["policies"], inputs, run);
  const std::size_t winner = rows.size() - 1;
  const auto runs = [&](std::size_t i) { return rows[i] && rows[i]->status == RowStatus::ok; };
  if (!runs(winner)) return;  // a journal of another version said it runs
  const auto rate = [&](std::size_t i) { return *rows[i]->metrics.tokens_per_second_per_gpu; };
  const auto rank = [&](std::size_t i) {
    return std::pair(claim_of(*rows[i], options.order_delay), -rate(i));
  };
  const auto may_be_named = [&](std::size_t i) {
    Study alone = study;
    alone.policies = {study.policies[i]};
    alone.baseline = study.policies[i].label;
    return !lateness(rows[i]->metrics, options.most_delay, options.longest_delay) && wanted(alone, *rows[i]);
  };
  std::vector<std::size_t> order = {winner};  // the order of `study`, but for the winner before its equals
  for (std::size_t i = 0; i < winner; ++i)
    if (runs(i)) order.push_back(i);
  std::ranges::stable_sort(order, {}, rank);
  const auto first = std::ranges::find_if(order, [&](std::size_t i) {
    return i == winner || (rank(i).first == rank(winner).first && may_be_named(i));
  });
  const auto place = [&](std::size_t i) {
    return place_of(candidates, point, study, file["policies"][i], *rows[i]);
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
