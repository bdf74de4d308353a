// Who is called fastest, and what is significant: by hand, then whatever the baseline is.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "policies/base/random.h"
#include "sim/report/standing.h"
#include "tests/notes.h"

using namespace equipoise;
using nlohmann::json;

namespace {

constexpr std::int64_t kTokens = 1000;

// A row of steps of equal tokens that take so many picoseconds each, on one GPU.
PolicyResult row_of(const std::string& label, const std::vector<Picoseconds>& times, Metric delay = 0.0) {
  PolicyResult row;
  row.run.label = label;
  for (const Picoseconds time : times) {
    StepFigures step;
    step.work.tokens = kTokens;
    step.times.makespan = time;
    row.metrics.seconds += to_seconds(time);
    row.metrics.tokens += kTokens;
    row.steps.push_back(step);
  }
  row.metrics.tokens_per_second_per_gpu = row.metrics.tokens / row.metrics.seconds;
  row.metrics.token_delay_mean = delay;
  return row;
}

StudyResult study_of(std::vector<PolicyResult> rows) {
  StudyResult result;
  result.batches = rows.front().steps.size();
  result.policies = std::move(rows);
  return result;
}

std::vector<Picoseconds> times(std::size_t steps, Picoseconds each) {
  return std::vector<Picoseconds>(steps, each);
}

std::vector<std::string> labels(const std::vector<Rival>& rivals) {
  return each_of(rivals, [](const Rival& rival) { return rival.row->run.label; });
}

}  // namespace

TEST_CASE("Two rows are compared by their own ratio: a noisy baseline makes no tie") {
  // Every batch takes `slow` 1.1 times as long as `fast`, so their ratio is 1.1 in every draw. The third
  // row's batches take 1 to 3 times as long in another order: over it, both have wide intervals that overlap.
  SplitMix64 random(7);
  std::vector<Picoseconds> fast, slow, noisy;
  for (int i = 0; i < 20; ++i) {
    fast.push_back(100'000 * static_cast<Picoseconds>(1 + random.next() % 3));
    slow.push_back(fast.back() / 10 * 11);
    noisy.push_back(200'000 * static_cast<Picoseconds>(1 + random.next() % 3));
  }
  StudyResult result = study_of({row_of("noisy", noisy), row_of("slow", slow), row_of("fast", fast)});
  const auto over_noisy = [&](const PolicyResult& row) {
    const PolicyResult& base = result.policies[0];
    return speed_up({row.metrics, row.steps}, {base.metrics, base.steps}, 20);
  };
  const SpeedUp of_slow = over_noisy(result.policies[1]), of_fast = over_noisy(result.policies[2]);
  REQUIRE(*of_fast.speedup_low < *of_slow.speedup_high);  // which was taken for a tie
  for (result.baseline = 0; result.baseline < 3; ++result.baseline) {
    const Standing standing = standing_of(result);
    CHECK(standing.fastest->run.label == "fast");
    CHECK(labels(standing.others) == std::vector<std::string>{"slow", "noisy"});
    CHECK(*standing.others[0].ratio.low == doctest::Approx(1.1));
    CHECK(*standing.others[0].ratio.high == doctest::Approx(1.1));
    CHECK(standing.others[0].ratio.tied() == std::optional(false));
  }
}

TEST_CASE("A tie is by sampling, or else by the error of the prediction") {
  // 1.1 without any sampling error.
  StudyResult result = study_of({row_of("slow", times(8, 110)), row_of("fast", times(8, 100))});
  CHECK(standing_of(result).others[0].ratio.tied_by() == std::nullopt);
  CHECK(standing_json(result)["others"][0]["model_low"].is_null());
  // Nine in ten ratios are 0.95 to 1.02 of a prediction: 1.045 to 1.122, which lies above 1.
  result.expected_error.emplace();
  result.expected_error->speed_up = {0.95, 1.02, 40, 5};
  CHECK(standing_of(result).is_decided());
  CHECK(*standing_of(result).others[0].ratio.model_low == doctest::Approx(1.045));
  // 0.9 of it is 0.99.
  result.expected_error->speed_up->low = 0.9;
  const json other = standing_json(result)["others"][0];
  CHECK(other["tied"] == true);
  CHECK(other["tied_by"] == "model");
  CHECK_FALSE(standing_of(result).is_decided());
  // On twice the GPUs a row is half as fast per GPU.
  result.policies[0].layout.tensor = 2;
  CHECK(*standing_of(result).others[0].ratio.ratio == doctest::Approx(2.2));
  // Two layouts have an interval of their own, or none.
  result.policies[1].layout.context = 2;
  CHECK(standing_of(result).is_decided());
  result.expected_error->speed_up_of_layouts = {0.8, 1.25, 40, 5};
  CHECK(standing_json(result)["others"][0]["model_low"] == doctest::Approx(0.88));
  CHECK_FALSE(standing_of(result).is_decided());
  // Batches that are faster here and slower there: sampling decides before the model does.
  StudyResult mixed = study_of({row_of("a", {100, 300, 100, 300, 100, 300, 100, 310}),
                                row_of("b", {300, 100, 300, 100, 300, 100, 300, 100})});
  mixed.expected_error = result.expected_error;
  CHECK(standing_json(mixed)["others"][0]["tied_by"] == "sampling");
}

TEST_CASE("Below four batches nothing is significant, and nothing is tied") {
  const StudyResult result = study_of({row_of("slow", times(3, 200)), row_of("fast", times(3, 100))});
  const json other = standing_json(result)["others"][0];
  CHECK(other["ratio"] == doctest::Approx(2));
  for (const char* key : {"low", "high", "model_low", "model_high", "tied", "tied_by"})
    CHECK(other[key].is_null());
  CHECK_FALSE(standing_of(result).is_decided());
}

TEST_CASE("The fastest is of those that keep the order and that the framework runs; faster ones follow") {
  // By speed: the whole set reordered, not run, late, in time, in time.
  std::vector<PolicyResult> rows = {row_of("slow", times(8, 200), 0.5), row_of("first", times(8, 100), 1.0),
                                    row_of("late", times(8, 90), 1.5), row_of("lacks", times(8, 80), 0.0),
                                    row_of("whole", times(8, 70), Metric{})};
  rows[3].runs_in = RunsIn::no;
  rows[3].needs = {{"needs_degrees", "", {}}};
  rows[4].runs_in = RunsIn::own_loader;
  StudyResult result = study_of(rows);
  const Standing standing = standing_of(result);
  CHECK(standing.fastest->run.label == "first");
  CHECK(standing.fastest_any_delay->run.label == "whole");
  CHECK(labels(standing.others) == std::vector<std::string>{"slow"});
  CHECK(labels(standing.faster) == std::vector<std::string>{"whole", "lacks", "late"});
  CHECK(test::kinds_of(standing.faster[0].why) == std::vector<std::string>{"orders_anew"});
  CHECK(test::kinds_of(standing.faster[1].why) == std::vector<std::string>{"needs_degrees"});
  CHECK(test::kinds_of(standing.faster[2].why) == std::vector<std::string>{"delays_tokens"});
  const json said = standing_json(result);
  CHECK(said["faster"][2]["label"] == "late");
  CHECK(said["faster"][2]["ratio"] == doctest::Approx(100.0 / 90));
  CHECK(said["faster"][2]["reason"] == "mean delay 1.50");
  // The user's own bound.
  result.max_delay = 2;
  CHECK(standing_of(result).fastest->run.label == "late");
  // A row that does not fit is in none of the lists; where all others see the whole set, none keeps the
  // bound.
  for (std::size_t i = 0; i < 4; ++i) result.policies[i].status = RowStatus::oom;
  const Standing left = standing_of(result);
  CHECK(left.fastest == nullptr);
  CHECK(left.first->run.label == "whole");
  CHECK((left.others.empty() && left.faster.empty()));
}
