#include "sim/tune/what_if.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/parallel.h"
#include "policies/base/random.h"
#include "sim/study/models.h"
#include "sim/tune/candidate_text.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr std::size_t kOtherLayouts = 4, kOtherPolicies = 4;
constexpr double kSpareTokens = 1.1;

std::string policy_of(const Candidates& candidates, Point point) {
  return candidates.rows[point.row].entry["name"].get<std::string>();
}

// The winner, then the best of other layouts and of other policies with its claim; at equal steps the first.
std::vector<Point> rivals_of(const Candidates& candidates, const SearchResult& found, Point winner) {
  const Claim claim = found.tried[found.ranking.front()].trial.claim;
  std::vector<Point> rivals = {winner};
  std::set<std::uint32_t> layouts = {winner.layout};
  std::set<std::string> policies = {policy_of(candidates, winner)};
  std::set<double> times;
  for (const std::size_t i : found.ranking) {
    const auto& [point, trial] = found.tried[i];
    if (trial.claim != claim) break;
    if (!times.insert(trial.seconds_per_token).second) continue;
    const bool other_layout = layouts.size() <= kOtherLayouts && layouts.insert(point.layout).second;
    const bool other_policy =
        policies.size() <= kOtherPolicies && policies.insert(policy_of(candidates, point)).second;
    if (other_layout || other_policy) rivals.push_back(point);
  }
  return rivals;
}

struct Scenario {
  std::string change;
  json cluster = json::object();  // dotted keys of the study's cluster
  const StudyInputs* inputs = nullptr;
};

WhatIf try_scenario(const Candidates& candidates, const std::vector<Point>& rivals, const Scenario& scenario,
                    const SearchOptions& options) {
  WhatIf result;
  result.change = scenario.change;
  std::vector<Trial> trials(rivals.size());
  RunStudyOptions run = options.run;
  run.jobs = 1;
  parallel_for(std::max(1, options.run.jobs), rivals.size(), [&](int, std::size_t i) {
    end_if_stopped(run);
    options.show("what if " + scenario.change + ": " + candidate_text(candidates, rivals[i]));
    json file = candidate_json(candidates, rivals[i]);
    for (const auto& [key, value] : scenario.cluster.items()) set_study_key(file, key + "=" + value.dump());
    TrialLimits limits;
    limits.token_delay = options.most_delay;
    limits.longest_delay = options.longest_delay;
    trials[i] = try_candidate(parse_case(file, options.name), *scenario.inputs, limits, run);
  });
  result.winner_runs = trials.front().outcome == Outcome::ok;
  result.winner_seconds = trials.front().seconds_per_token;
  result.reason = trials.front().reason;
  for (std::size_t i = 1; i < rivals.size(); ++i) {
    if (trials[i].outcome != Outcome::ok) continue;
    if (result.rival_seconds > 0 && trials[i].seconds_per_token >= result.rival_seconds) continue;
    result.rival_seconds = trials[i].seconds_per_token;
    result.rival = candidate_text(candidates, rivals[i]);
  }
  result.stays =
      result.winner_runs && (result.rival_seconds == 0 || result.winner_seconds <= result.rival_seconds);
  return result;
}

}  // namespace

Trace bootstrap_trace(const StudyInputs& inputs, std::uint64_t seed) {
  Trace drawn;
  drawn.origin = inputs.trace.origin + ", drawn again with replacement";
  const auto& lengths = inputs.trace.lengths;
  const double wanted =
      kSpareTokens * static_cast<double>(inputs.documents.tokens + inputs.documents.dropped_tokens +
                                         inputs.documents.cut_tokens);
  SplitMix64 random(seed);
  for (double tokens = 0; tokens < wanted;) {
    const std::int64_t length = lengths[at(random.next() % lengths.size())];
    drawn.lengths.push_back(length);
    tokens += static_cast<double>(length);
  }
  return drawn;
}

void sensitivity(const Candidates& candidates, const SearchResult& found, Point first,
                 const StudyInputs& inputs, const SearchOptions& options, std::vector<WhatIf>& results) {
  const std::vector<Point> rivals = rivals_of(candidates, found, first);
  const Study winner = parse_case(candidate_json(candidates, first), options.name);
  std::vector<Scenario> scenarios;
  if (const double nic = nic_GBps(winner.cluster, inputs.profile); nic > 0) {
    scenarios.push_back({"NIC x0.5", {{"cluster.network.nic_GBps", nic * 0.5}}, &inputs});
    scenarios.push_back({"NIC x2", {{"cluster.network.nic_GBps", nic * 2}}, &inputs});
  }
  const double capacity = RunModels(winner, winner.layout, inputs.profile).memory.capacity_bytes();
  scenarios.push_back({"memory x0.8", {{"cluster.memory_GB", capacity * 0.8 / 1e9}}, &inputs});
  StudyInputs others{Profile::load(winner.cluster.profile), bootstrap_trace(inputs, 1), {}, {}};
  bool drawn = true;
  try {
    others.documents = documents_of(winner, others.trace);
  } catch (const UserError&) {
    drawn = false;  // a drawn trace does not fill its windows
  }
  if (drawn) scenarios.push_back({"other documents", json::object(), &others});
  for (const Scenario& scenario : scenarios)
    results.push_back(try_scenario(candidates, rivals, scenario, options));
}

}  // namespace equipoise
