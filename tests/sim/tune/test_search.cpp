// The search finds what trying everything finds, whatever the threads and however often it was interrupted.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "policies/base/random.h"
#include "policies/base/text.h"
#include "sim/report/summary_json.h"
#include "sim/report/words/words.h"
#include "sim/study/run_study.h"
#include "sim/tune/candidate_text.h"
#include "sim/tune/journal.h"
#include "sim/tune/tune_report.h"
#include "tests/scratch_folder.h"
#include "tests/sim/tune/tune_case.h"

namespace equipoise {
namespace {

using nlohmann::json;
using testing::small_space;
using testing::small_study;
using testing::TuneCase;

const TuneCase& small_case() {
  static const TuneCase kCase(small_study(), small_space(), 8);
  return kCase;
}

bool same(const SearchResult& a, const SearchResult& b) {
  if (a.tried.size() != b.tried.size() || a.ranking != b.ranking || a.bounded != b.bounded ||
      a.left != b.left)
    return false;
  for (std::size_t i = 0; i < a.tried.size(); ++i)
    if (!(a.tried[i].point == b.tried[i].point) || !(a.tried[i].trial == b.tried[i].trial)) return false;
  return true;
}

TEST_CASE("pruning leaves the ranking as trying everything has it") {
  SearchOptions all;
  all.prune = false;
  const SearchResult exhaustive = small_case().find(all);
  const SearchResult pruned = small_case().find();
  CHECK(exhaustive.tried.size() + static_cast<std::size_t>(exhaustive.too_large) ==
        static_cast<std::size_t>(exhaustive.candidates));
  CHECK(pruned.complete());
  CHECK(pruned.ranking.size() < exhaustive.ranking.size());  // something was pruned
  REQUIRE(pruned.ranking.size() >= 10);
  for (std::size_t i = 0; i < 10; ++i) {
    const Tried& expected = exhaustive.tried[exhaustive.ranking[i]];
    const Tried& found = pruned.tried[pruned.ranking[i]];
    CHECK(found.point == expected.point);
    CHECK(found.trial.seconds_per_token == expected.trial.seconds_per_token);
  }
}

TEST_CASE("candidates that share a plan come to what they come to alone") {
  const std::vector<Tried> all = small_case().find().tried;
  for (std::size_t i = 0; i < all.size(); i += 5) {
    const Tried& tried = all[i];
    TrialLimits limits;
    limits.seconds_per_token = tried.trial.limit;
    limits.stated_form = small_case().candidates.stated_form();
    const Candidates& candidates = small_case().candidates;
    REQUIRE(tried.trial == try_candidate(candidate_study(candidates, tried.point, "study.json"),
                                         small_case().inputs, limits, {}));
  }
}

TEST_CASE("what is proven slower is slower") {
  SearchOptions all;
  all.prune = false;
  const SearchResult exhaustive = small_case().find(all);
  std::vector<std::pair<Point, double>> truth;
  for (const Tried& tried : exhaustive.tried)
    if (tried.trial.outcome == Outcome::ok) truth.emplace_back(tried.point, tried.trial.seconds_per_token);
  int compared = 0;
  for (const Tried& tried : small_case().find().tried) {
    if (tried.trial.outcome != Outcome::slower) continue;
    for (const auto& [point, seconds] : truth)
      if (point == tried.point) {
        CHECK(tried.trial.seconds_per_token <= seconds);
        ++compared;
      }
  }
  CHECK(compared > 10);
}

TEST_CASE("threads change nothing") {
  SearchOptions two;
  two.run.jobs = 2;
  CHECK(same(small_case().find(), small_case().find(two)));
}

TEST_CASE("a budget is never exceeded, and what it leaves is counted") {
  SearchOptions options;
  options.budget = 40;
  const SearchResult found = small_case().find(options);
  CHECK(found.tried.size() == 40);
  CHECK(found.left > 0);
  CHECK(static_cast<std::int64_t>(found.tried.size()) + found.bounded + found.too_large + found.left ==
        found.candidates);
}

TEST_CASE("a small budget comes within 0.5% of the best of random candidates") {
  SearchOptions options;
  options.budget = 60;
  const SearchResult found = small_case().find(options);
  REQUIRE(!found.ranking.empty());
  const double best = found.tried[found.ranking.front()].trial.seconds_per_token;
  SplitMix64 random(11);
  const Candidates& candidates = small_case().candidates;
  for (int draw = 0; draw < 300; ++draw) {
    const Point point{static_cast<std::uint32_t>(random.next() % candidates.layouts.size()),
                      static_cast<std::uint32_t>(random.next() % candidates.rows.size())};
    const Trial trial = try_candidate(candidate_study(candidates, point, "study.json"), small_case().inputs,
                                      {best, std::numeric_limits<double>::infinity()}, {});
    if (trial.outcome == Outcome::ok) CHECK(best <= trial.seconds_per_token * 1.005);
  }
}

TEST_CASE("a journal cut anywhere leads to the same end") {
  const test::Scratch folder;
  const std::string path = folder.path("tune.journal");
  const json asked = {{"study", "small"}};
  const SearchResult whole = [&] {
    Journal journal(path, asked, false);
    return small_case().find({}, &journal);
  }();
  std::ifstream in(path, std::ios::binary);
  std::stringstream bytes;
  bytes << in.rdbuf();
  const std::string text = bytes.str();
  for (const double share : {0.03, 0.4, 0.77, 1.0}) {
    std::ofstream(path, std::ios::binary)
        << text.substr(0, static_cast<std::size_t>(share * static_cast<double>(text.size())));
    Journal journal(path, asked, true);
    CHECK(same(small_case().find({}, &journal), whole));
    std::ifstream again(path, std::ios::binary);
    std::stringstream written;
    written << again.rdbuf();
    CHECK(written.str() == text);
  }
  CHECK_THROWS_WITH_AS(Journal(path, {{"study", "other"}}, true), doctest::Contains("another search"),
                       UserError);
}

TEST_CASE("what a trial knows tells what it comes to under a lower limit") {
  const TuneCase& c = small_case();
  SplitMix64 random(3);
  int told = 0;
  for (int draw = 0; draw < 40; ++draw) {
    const Point point{static_cast<std::uint32_t>(random.next() % c.candidates.layouts.size()),
                      static_cast<std::uint32_t>(random.next() % c.candidates.rows.size())};
    const auto under = [&](double limit) {
      TrialLimits limits;
      limits.seconds_per_token = limit;
      return try_candidate(candidate_study(c.candidates, point, "study.json"), c.inputs, limits, {});
    };
    const Trial whole = under(std::numeric_limits<double>::infinity());
    if (whole.least.empty()) continue;
    const double first = whole.least.front(), last = whole.least.back();
    for (const double share : {-0.1, 0.0, 0.5, 0.9, 1.0, 1.1}) {
      const double limit = first + share * (last - first);
      const auto expected = under_limit(whole, limit);
      REQUIRE(expected.has_value());
      CHECK(*expected == under(limit));
      CHECK(under_limit(*expected, limit) == expected);
      // What ended early tells nothing of a higher limit.
      if (expected->outcome == Outcome::slower) CHECK(!under_limit(*expected, 2 * last).has_value());
      ++told;
    }
  }
  CHECK(told > 50);
}

TEST_CASE("shares of a search, put together, are the search of one machine" *
          doctest::test_suite("figures")) {
  const test::Scratch folder;
  const TuneCase& c = small_case();
  for (const std::int64_t budget : {10'000, 150}) {
    SearchOptions options;
    options.budget = budget;
    const SearchResult whole = c.find(options);
    for (const int count : {2, 5}) {
      KnownTrials known;
      for (int index = 0; index < count; ++index) {
        const std::string path = folder.path("share");
        {
          Journal journal(path, nullptr, false);
          options.share = {index, count};
          (void)c.find(options, &journal);
        }
        known.add(read_journal(path).tried);
      }
      options.share = {};
      options.known = &known;
      const SearchResult merged = c.find(options);
      CHECK(same(merged, whole));
      // The shares did most of the work. What is left is the borders of batches and, within a budget,
      // candidates that the halving of all moves on and that of a share does not.
      CHECK(merged.ran * 2 <= static_cast<std::int64_t>(merged.tried.size()));
      CHECK(merged.complete() == whole.complete());
      // A share that is missing costs time and nothing else.
      KnownTrials one;
      one.add(read_journal(folder.path("share")).tried);
      options.known = &one;
      CHECK(same(c.find(options), whole));
      options.known = nullptr;
    }
  }
}

// With a policy of CP degrees by micro-batch, which Megatron does not run.
const TuneCase& mixed_case() {
  static const TuneCase kCase = [] {
    nlohmann::json space = {{"parallel.context", {1, 2, 4}}, {"parallel.pipeline", {1, 2}}};
    space["policies"] = small_space()["policies"];
    space["policies"].push_back({{"name", "equipoise"}, {"moves", 50}});
    return TuneCase(small_study(), space, 8);
  }();
  return kCase;
}

TEST_CASE("the winner is the fastest that the framework runs, pruned or not, and faster ones follow") {
  const TuneCase& c = mixed_case();
  SearchOptions all;
  all.prune = false;
  const SearchResult exhaustive = c.find(all), found = c.find();
  CHECK(found.complete());
  const Places expected = places_of(c.candidates, exhaustive, 10),
               places = places_of(c.candidates, found, 10);
  REQUIRE(places.ranking.size() == 10);
  REQUIRE(!places.faster.empty());
  const auto points = [](const std::vector<Place>& of) {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> list;
    for (const Place& place : of) list.emplace_back(place.point.layout, place.point.row);
    return list;
  };
  CHECK(points(places.ranking) == points(expected.ranking));
  CHECK(points(places.faster) == points(expected.faster));
  std::vector<RankedRow> rows, faster;
  const Baseline baseline = baseline_to_run(c.file);
  run_ranked(c.candidates, places.ranking, c.inputs, baseline, {}, rows);
  run_ranked(c.candidates, places.faster, c.inputs, baseline, {}, faster);
  const double bound = SearchOptions().order_delay;
  for (const RankedRow& one : rows) CHECK(claim_of(one.row(), bound) == Claim::fastest);
  for (const RankedRow& one : faster) {
    CHECK(claim_of(one.row(), bound) != Claim::fastest);
    CHECK(*one.row().metrics.tokens_per_second_per_gpu > *rows[0].row().metrics.tokens_per_second_per_gpu);
  }
  const std::vector<WhatIf> none;
  const SearchOptions options;
  const TuneReport report{c.candidates, c.space, options, found, baseline, places, rows, faster, none};
  const std::string said = joined_texts({fastest_line(report)}, "");
  CHECK(said.starts_with(candidate_text(c.candidates, places.ranking[0].point)));
  CHECK(said.find(" Faster than it, but megatron does not run them: ") != std::string::npos);
  CHECK(reach_text(report) == "the fastest that megatron runs in the order of the data");
  CHECK(end_text(report).starts_with(
      "No candidate that megatron runs in the order of the data is faster than the first"));
  const json table = tune_json(report);
  CHECK(table["ranking"].size() == 10);
  CHECK(table["faster"].size() == faster.size());
  for (const json& row : table["faster"]) CHECK(!row["reason"].get<std::string>().empty());
}

TEST_CASE("where the framework runs no candidate, the fastest of all is ranked and that is said") {
  nlohmann::json space = {{"parallel.context", {1, 2, 4}}, {"policies", {"hbp"}}};
  const TuneCase c(small_study(), space, 8);
  const SearchResult found = c.find();
  const Places places = places_of(c.candidates, found, 10);
  REQUIRE(!places.ranking.empty());
  CHECK(places.faster.empty());
  const Baseline baseline = baseline_to_run(c.file);
  std::vector<RankedRow> rows, faster;
  run_ranked(c.candidates, places.ranking, c.inputs, baseline, {}, rows);
  const std::vector<WhatIf> none;
  const SearchOptions options;
  const TuneReport report{c.candidates, c.space, options, found, baseline, places, rows, faster, none};
  CHECK(joined_texts({fastest_line(report)}, "").starts_with("megatron runs none of these rows. "));
}

TEST_CASE("a delay bound leaves out what waits longer") {
  SearchOptions options;
  options.most_delay = 0;
  const SearchResult found = small_case().find(options);
  int late = 0;
  for (const Tried& tried : found.tried) late += tried.trial.outcome == Outcome::late;
  CHECK(late > 0);
  for (const std::size_t i : found.ranking) {
    const Study study = candidate_study(small_case().candidates, found.tried[i].point, "study.json");
    CHECK(run_study(study, small_case().inputs, {}).policies.front().metrics.token_delay_mean == 0.0);
  }
}

TEST_CASE("the winner's study gives the seconds that the search found") {
  const TuneCase& c = small_case();
  const SearchResult found = c.find();
  Baseline baseline = baseline_to_run(c.file);
  CHECK(baseline.row().run.label == "plain-4d");
  CHECK(!baseline.row().simulated());
  run_baseline(baseline, c.inputs, {});
  SearchOptions options;
  options.run.jobs = 2;
  std::vector<RankedRow> rows;
  run_ranked(c.candidates, places_of(c.candidates, found, 3).ranking, c.inputs, baseline, options, rows);
  REQUIRE(rows.size() == 3);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Metrics& m = rows[i].row().metrics;
    const auto tried = std::find_if(found.tried.begin(), found.tried.end(),
                                    [&](const Tried& t) { return t.point == rows[i].point; });
    REQUIRE(tried != found.tried.end());
    CHECK(m.seconds / m.tokens == tried->trial.seconds_per_token);
    REQUIRE(m.speedup.has_value());
    CHECK(*m.speedup >= 1);  // the study's own layout and rows are in the space
  }
}

TEST_CASE("rows of the search are those that a study runs, and no user's stop takes them away") {
  const TuneCase& c = small_case();
  const std::vector<Place> places = places_of(c.candidates, c.find(), 4).ranking;
  std::vector<Place> told = places;
  for (Place& place : told) place.row = nullptr;
  const Baseline baseline = baseline_to_run(c.file);
  SearchOptions options;
  std::vector<RankedRow> again, rows;
  run_ranked(c.candidates, told, c.inputs, baseline, options, again);
  const std::atomic<bool> stop = true;
  options.run.stop = &stop;
  run_ranked(c.candidates, places, c.inputs, baseline, options, rows);
  REQUIRE(rows.size() == 4);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto shown = [](const RankedRow& row) {
      json node = summary_json(row.study, row.result)["policies"][0];
      for (const char* key : {"measured", "gpu_compute_seconds"}) node.erase(key);
      return node;
    };
    CHECK(shown(rows[i]) == shown(again[i]));
  }
}

TEST_CASE("what was run in full stays when the user ends the rest") {
  const TuneCase& c = small_case();
  const SearchResult found = c.find();
  Places places = places_of(c.candidates, found, 10);
  for (Place& place : places.ranking) place.row = nullptr;  // as a journal tells of them
  const Baseline baseline = baseline_to_run(c.file);
  std::atomic<bool> stop = false;
  SearchOptions options;
  options.run.stop = &stop;
  std::vector<std::string> shown;
  options.show = [&](const std::string& what) {
    shown.push_back(what);
    if (shown.size() == 3) stop = true;
  };
  std::vector<RankedRow> rows;
  CHECK_THROWS_AS(run_ranked(c.candidates, places.ranking, c.inputs, baseline, options, rows), Interrupted);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].point == places.ranking[0].point);
  CHECK(rows[1].point == places.ranking[1].point);
  CHECK(shown[0] == "in full 1: " + candidate_text(c.candidates, places.ranking[0].point));
  const std::vector<WhatIf> none;
  const std::vector<RankedRow> nothing;
  const TuneReport report{c.candidates, c.space, options, found, baseline, places, rows, nothing, none, true};
  CHECK(tune_table(report).find("\n3 by the search: " + found_text(report, places.ranking[2]) + ".\n") !=
        std::string::npos);
  CHECK(end_text(report).find("What follows the search was ended early") != std::string::npos);
  CHECK(tune_json(report)["complete"] == true);
  CHECK(tune_json(report)["interrupted"] == true);
}

TEST_CASE("what a search that ended early claims is what it tried, and its end names what goes on with it") {
  const TuneCase& c = small_case();
  SearchResult found = c.find();
  const SearchOptions options;
  const Places places = places_of(c.candidates, found, 10);
  const Baseline baseline = baseline_to_run(c.file);
  const std::vector<RankedRow> rows;
  const std::vector<WhatIf> none;
  const TuneReport report{c.candidates, c.space, options, found, baseline, places, rows, rows, none};
  CHECK(reach_text(report) == "the fastest of " + grouped(found.candidates) + " candidates");
  CHECK(end_text(report).starts_with("No candidate of the space is faster"));
  found.left = 5;
  CHECK(reach_text(report) == "the fastest of " + grouped(static_cast<std::int64_t>(found.tried.size())) +
                                  " tried, of " + grouped(found.candidates) + " candidates");
  CHECK(end_text(report).find("--budget") != std::string::npos);
  found.timed_out = true;
  CHECK(end_text(report).find("--minutes") != std::string::npos);
  CHECK(end_text(report).find("--budget") == std::string::npos);
  found.timed_out = false;
  found.interrupted = true;
  CHECK(end_text(report).find("--resume") != std::string::npos);
  CHECK(end_text(report).find("--budget") == std::string::npos);
}

TEST_CASE("what-if runs the winner and its rivals") {
  const TuneCase& c = small_case();
  SearchOptions options;
  options.name = "study.json";
  const SearchResult found = c.find();
  std::vector<WhatIf> what_if;
  sensitivity(c.candidates, found, found.tried[found.ranking.front()].point, c.inputs, options, what_if);
  REQUIRE(what_if.size() == 4);
  CHECK(what_if[2].change == "memory x0.8");
  for (const WhatIf& what : what_if) {
    if (!what.stays) continue;
    CHECK(what.winner_runs);
    CHECK((what.rival_seconds == 0 || what.winner_seconds <= what.rival_seconds));
  }
  CHECK(bootstrap_trace(c.inputs, 1).lengths == bootstrap_trace(c.inputs, 1).lengths);
  CHECK(bootstrap_trace(c.inputs, 1).lengths != bootstrap_trace(c.inputs, 2).lengths);
}

TEST_CASE("where nothing fits the result says why") {
  json file = small_study();
  file["cluster"]["memory_GB"] = 4;
  const TuneCase c(file, {{"parallel.tensor", {1, 2}}}, 8);
  const SearchResult found = c.find();
  CHECK(found.ranking.empty());
  CHECK(found.complete());
  REQUIRE(found.too_large_layouts.size() == c.candidates.layouts.size());
  for (const std::string& why : found.too_large_layouts) {
    const bool said = !why.empty() || !found.tried.front().trial.reason.empty();
    CHECK(said);
  }
}

}  // namespace
}  // namespace equipoise
