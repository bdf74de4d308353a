// equipoise as a row of random studies: never slower than the rows that it starts from, above the bound that
// it states, on any number of threads the same.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "policies/base/random.h"
#include "policies/packing/equipoise.h"
#include "sim/study/row/bound.h"
#include "sim/study/row/plan_row.h"
#include "sim/study/run_study.h"
#include "tests/sim/study/study_case.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

json random_study(SplitMix64& random) {
  const auto pick = [&random](const std::vector<json>& values) {
    return values[random.next() % values.size()];
  };
  json file = small_study();
  file["trace"]["seed"] = random.next() % 1000;
  file["parallel"] = {
      {"tensor", 2},          {"context", pick({1, 2, 4})}, {"pipeline", pick({1, 2, 4})},
      {"data", pick({1, 2})}, {"zero", pick({1, 2})},       {"recompute", pick({"none", "full"})}};
  if (file["parallel"]["pipeline"] != 1) file["parallel"]["virtual_pipeline"] = pick({1, 2});
  file["batch"] = {{"context_window", "32K"}, {"sequences_per_step", 16}, {"steps", 3}};
  file["policies"] = json::array({{{"name", "equipoise"}, {"moves", 2000}}});
  for (const char* start : {"plain", "fixed-greedy", "lpt", "karmarkar-karp", "wlb"})
    file["policies"].push_back({{"name", start}, {"shard", "adaptive"}});
  file["policies"].push_back({{"name", "wlb"}, {"queues", 2}, {"shard", "adaptive"}, {"label", "wlb 2"}});
  file["baseline"] = "plain";
  return file;
}

double seconds_of(const PolicyResult& row) {
  double seconds = 0;
  for (const StepFigures& step : row.steps) seconds += to_seconds(step.times.makespan);
  return seconds;
}

}  // namespace

TEST_CASE("Equipoise is the fastest of the rows it starts from, and no row is below the bound") {
  SplitMix64 random(11);
  int faster = 0, held = 0;
  for (int trial = 0; trial < 12; ++trial) {
    const json file = random_study(random);
    CAPTURE(file["parallel"].dump());
    const Study study = parse(file);
    const StudyInputs inputs = load_inputs(study);
    RunStudyOptions options;
    options.keep_plans = true;
    options.find_fits = false;
    const StudyResult result = run_study(study, inputs, options);
    const PolicyResult& own = result.policies.front();
    if (own.status != RowStatus::ok) continue;
    const StudyRow row(study, inputs, study.policies.front());
    const double bound = StepBound(*row.models, row.run, false).run_seconds(inputs.documents);
    CHECK(bound <= seconds_of(own));
    bool first = true;
    for (std::size_t r = 1; r < result.policies.size(); ++r) {
      const PolicyResult& other = result.policies[r];
      CAPTURE(other.run.label);
      if (other.status != RowStatus::ok) continue;
      CHECK(bound <= seconds_of(other));
      if (other.metrics.token_delay_mean.value_or(0) > 0.5) continue;
      if (other.metrics.tokens_per_step.value_or(0) < 0.98 * own.metrics.tokens_per_step.value_or(0))
        continue;
      ++held;
      CHECK(seconds_of(own) <= seconds_of(other) * (1 + 1e-12));
      first = first && seconds_of(own) < 0.999 * seconds_of(other);
    }
    faster += first ? 1 : 0;
  }
  CHECK(held > 20);
  CHECK(faster >= 6);
}

TEST_CASE(
    "Where the schedule runs slices, equipoise is never slower than they are, its lanes ordered alike") {
  SplitMix64 random(5);
  int faster = 0, held = 0, cut = 0;
  for (int trial = 0; trial < 8; ++trial) {
    json file = random_study(random);
    file["parallel"]["pipeline"] = 4;
    file["parallel"]["virtual_pipeline"] = 1;
    file["batch"]["sequences_per_step"] = 4;  // few: the pipeline fills by slices alone
    file["schedule"] = "seq1f1b";
    file["policies"] =
        json::array({{{"name", "equipoise"}, {"moves", 2000}, {"own_degrees", trial % 2 == 0}}});
    for (const int slices : {4, 8})
      file["policies"].push_back({{"name", "sequence-slices"},
                                  {"slices", slices},
                                  {"shard", "adaptive"},
                                  {"label", std::to_string(slices)}});
    file.erase("baseline");
    CAPTURE(file["parallel"].dump());
    const Study study = parse(file);
    RunStudyOptions options;
    options.keep_plans = true;
    options.find_fits = false;
    const std::vector<PolicyResult> rows = run_study(study, load_inputs(study), options).policies;
    if (rows.front().status != RowStatus::ok) continue;
    for (const StepFigures& step : rows.front().steps) CHECK_FALSE(step.work.unsynchronized_lanes);
    for (const Step& step : rows.front().plan.steps)
      for (const Lane& lane : step.lanes)
        cut += std::ranges::any_of(lane.micro_batches, [](const MicroBatch& m) { return m.chunk.count > 1; });
    for (std::size_t r = 1; r < rows.size(); ++r) {
      CAPTURE(rows[r].run.label);
      if (rows[r].status != RowStatus::ok) continue;
      ++held;
      CHECK(seconds_of(rows.front()) <= seconds_of(rows[r]) * (1 + 1e-12));
      faster += seconds_of(rows.front()) < 0.99 * seconds_of(rows[r]) ? 1 : 0;
    }
  }
  CHECK(held > 8);
  CHECK(faster > 8);
  CHECK(cut > 0);
}

TEST_CASE("CP degrees of a step's own are never slower, and the layout's where the row says so") {
  int faster = 0, in_two = 0;
  for (const bool pipelined : {false, true}) {
    json file = small_study();
    file["trace"] = {
        {"distribution", pipelined ? "lmsys-chat-1m" : "wlb-128k"}, {"documents", 20000}, {"seed", 0}};
    file["model"] = "llama3.1-8b";
    file["cluster"] = {{"profile", "h100-sxm"}};
    file["parallel"] = {{"context", pipelined ? 2 : 8},
                        {"data", 4},
                        {"pipeline", pipelined ? 4 : 1},
                        {"zero", pipelined ? 1 : 3},
                        {"recompute", "auto"}};
    file["batch"] = {{"context_window", "128K"}, {"sequences_per_step", pipelined ? 16 : 4}, {"steps", 2}};
    file["policies"] = json::array();
    for (const bool own : {true, false})
      file["policies"].push_back({{"name", "equipoise"},
                                  {"moves", 1000},
                                  {"label", own ? "own" : "layout's"},
                                  {"own_degrees", own}});
    file.erase("baseline");
    CAPTURE(pipelined);
    RunStudyOptions options;
    options.keep_plans = true;
    options.find_fits = false;
    const Study study = parse(file);
    const std::vector<PolicyResult> rows = run_study(study, load_inputs(study), options).policies;
    REQUIRE(rows[0].status == RowStatus::ok);
    REQUIRE(rows[1].status == RowStatus::ok);
    CHECK(seconds_of(rows[0]) <= seconds_of(rows[1]) * (1 + 1e-12));
    faster += seconds_of(rows[0]) < 0.99 * seconds_of(rows[1]) ? 1 : 0;
    for (const Step& step : rows[1].plan.steps)
      for (const Lane& lane : step.lanes) CHECK(lane.context == (pipelined ? 2 : 8));
    for (const Step& step : rows[0].plan.steps) in_two += step.lanes.back().barrier_group;
  }
  CHECK(faster >= 1);
  CHECK(in_two > 0);
}

TEST_CASE("A wider bound on delay is never slower, by simulated time" * doctest::test_suite("figures")) {
  SplitMix64 random(23);
  int faster = 0;
  for (int trial = 0; trial < 8; ++trial) {
    json file = random_study(random);
    file["batch"]["steps"] = 5;
    file["policies"] = json::array();
    for (const double max_delay : {0.0, 0.5, 8.0})
      file["policies"].push_back({{"name", "equipoise"},
                                  {"moves", 1000},
                                  {"max_delay", max_delay},
                                  {"own_degrees", trial % 2 == 0},
                                  {"label", std::to_string(max_delay)}});
    file.erase("baseline");
    CAPTURE(file["parallel"].dump());
    const Study study = parse(file);
    RunStudyOptions options;
    options.find_fits = false;
    const std::vector<PolicyResult> rows = run_study(study, load_inputs(study), options).policies;
    if (rows.front().status != RowStatus::ok) continue;
    CHECK(seconds_of(rows[1]) <= seconds_of(rows[0]) * (1 + 1e-12));
    CHECK(seconds_of(rows[2]) <= seconds_of(rows[1]) * (1 + 1e-12));
    faster += seconds_of(rows[2]) < 0.999 * seconds_of(rows[0]) ? 1 : 0;
  }
  CHECK(faster >= 3);
}

TEST_CASE(
    "Where memory decides what is recomputed, short micro-batches recompute less and none takes longer") {
  json file = small_study();
  file["trace"] = {{"file", EQUIPOISE_SOURCE_DIR "/traces/recorded/mixed.txt.zst"}};  // one of 128K is in it
  file["model"] = "llama3.1-8b";
  file["cluster"] = {{"profile", "h100-sxm"}};
  file["batch"] = {{"context_window", "128K"}, {"sequences_per_step", 2}, {"steps", 7}};
  file["policies"] = json::array({{{"name", "equipoise"}, {"moves", 1000}}});
  file.erase("baseline");
  const auto run_with = [&](const json& recompute) {
    file["parallel"] = {{"context", 8}, {"zero", 3}, {"recompute", recompute}};
    const Study study = parse(file);
    RunStudyOptions options;
    options.keep_plans = true;
    const StudyInputs inputs = load_inputs(study);
    PolicyResult row = run_study(study, inputs, options).policies.front();
    REQUIRE(row.status == RowStatus::ok);
    const StudyRow made(study, inputs, row.run);
    CHECK(StepBound(*made.models, row.run, false).run_seconds(inputs.documents) <= seconds_of(row));
    return row;
  };
  const PolicyResult chosen = run_with("auto");
  const int most = chosen.run.recompute_layers;
  REQUIRE(most > 0);
  CHECK(seconds_of(chosen) < seconds_of(run_with({{"layers", most}})));
  int less = 0;
  for (const Step& step : chosen.plan.steps)
    for (const Lane& lane : step.lanes)
      for (const MicroBatch& m : lane.micro_batches) {
        CHECK(m.recompute_layers <= most);
        less += m.recompute_layers >= 0 && m.recompute_layers < most ? 1 : 0;
      }
  CHECK(less > 0);
}

TEST_CASE("No row is below the bound where copies of weights cost every micro-batch the same") {
  json file = small_study();
  file["model"] = "llama3.1-8b";
  file["cluster"] = {{"profile", "h100-sxm"}};
  file["framework"] = "torchtitan";
  file["batch"] = {{"context_window", "8K"}, {"sequences_per_step", 16}, {"steps", 3}};
  file["policies"] = {"plain", "lpt"};
  file["baseline"] = "plain";
  for (const char* precision : {"bf16", "fp8"})
    for (const int zero : {1, 3}) {
      CAPTURE(precision);
      CAPTURE(zero);
      file["precision"] = precision;
      file["parallel"] = {{"data", 8}, {"zero", zero}, {"recompute", "full"}};
      const Study study = parse(file);
      const StudyInputs inputs = load_inputs(study);
      RunStudyOptions options;
      options.ignore_memory = true;
      for (const PolicyResult& row : run_study(study, inputs, options).policies) {
        REQUIRE(row.simulated());
        const StudyRow made(study, inputs, row.run);
        const double bound = StepBound(*made.models, made.run, false).run_seconds(inputs.documents);
        CHECK(bound <= seconds_of(row));
        CHECK(bound > 0.3 * seconds_of(row));
      }
    }
}

TEST_CASE("the policy's clock knows what steps with experts take") {
  json file = small_study();
  file["model"] = "mixtral-8x7b";
  file["batch"] = {{"context_window", "32K"}, {"sequences_per_step", 32}, {"steps", 6}};
  file["policies"] = json::array({"plain", {{"name", "lpt"}}, {{"name", "wlb"}, {"queues", 2}}});
  file["baseline"] = "plain";
  for (const int expert : {1, 2, 4, 8}) {
    file["parallel"] = {{"tensor", 1},      {"pipeline", 4},       {"data", 8},
                        {"expert", expert}, {"recompute", "full"}, {"zero", 1}};
    const Study study = parse(file);
    const StudyInputs inputs = load_inputs(study);
    RunStudyOptions options;
    options.keep_plans = true;
    options.ignore_memory = true;
    for (const PolicyResult& result : run_study(study, inputs, options).policies) {
      CAPTURE(result.run.label);
      CAPTURE(expert);
      const StudyRow row(study, inputs, result.run);
      const auto workload = workload_of(row);
      LaneShapes shapes(row.run.pack.stages, row.run.pack.chunks);
      StepPacker clock(row.run.pack, {}, *workload, shapes);
      for (std::size_t s = 0; s < result.steps.size(); ++s) {
        const double known = clock.seconds(result.plan.steps[s]) / to_seconds(result.steps[s].times.pipeline);
        CHECK(known > 0.985);  // it has no hops between stages, and the head is every stage's
        CHECK(known < 1);
      }
    }
  }
}

TEST_CASE("Equipoise plans the same on any number of threads") {
  SplitMix64 random(4);
  json file = random_study(random);
  file["policies"] = json::array({{{"name", "equipoise"}, {"moves", 1000}}});
  file.erase("baseline");
  const Study study = parse(file);
  const StudyInputs inputs = load_inputs(study);
  std::vector<Plan> plans;
  for (const int jobs : {1, 3}) {
    RunStudyOptions options;
    options.jobs = jobs;
    options.keep_plans = true;
    plans.push_back(run_study(study, inputs, options).policies.front().plan);
  }
  REQUIRE(plans[0].steps.size() == plans[1].steps.size());
  for (std::size_t s = 0; s < plans[0].steps.size(); ++s)
    for (std::size_t l = 0; l < plans[0].steps[s].lanes.size(); ++l) {
      const Lane &a = plans[0].steps[s].lanes[l], &b = plans[1].steps[s].lanes[l];
      REQUIRE(a.micro_batches.size() == b.micro_batches.size());
      for (std::size_t m = 0; m < a.micro_batches.size(); ++m) {
        CHECK(a.micro_batches[m].slices == b.micro_batches[m].slices);
        CHECK(a.micro_batches[m].placement == b.micro_batches[m].placement);
      }
    }
}

TEST_CASE(
    "With recompute by stage it prices plans as they are checkpointed: no slower than chunkflow with it") {
  const auto rows_of = [](const json& file) {
    const Study study = parse(file);
    return run_study(study, load_inputs(study), {}).policies;
  };
  json file = small_study();
  file["parallel"] = {{"tensor", 1}, {"context", 1}, {"pipeline", 4}, {"data", 1}, {"recompute", "none"}};
  file["batch"] = {{"context_window", "64K"}, {"documents_per_step", 24}, {"steps", 3}};
  const json by_stage = {{"schedule", "seq1f1b"}, {"recompute", "auto"}, {"recompute_by_stage", true}};
  file["policies"] = json::array();
  for (const char* size : {"2K", "4K", "8K"})
    file["policies"].push_back(
        {{"name", "chunkflow"}, {"chunk_size", size}, {"schedule", "seq1f1b"}, {"label", size}});
  file["baseline"] = "2K";
  const PolicyResult kept = rows_of(file)[1];
  file["cluster"]["memory_GB"] = 0.8 * kept.peak.parts.total() / 1e9;
  CHECK(rows_of(file)[1].status == RowStatus::oom);
  for (json& row : file["policies"]) row.update(by_stage);
  file["policies"].push_back(by_stage);
  file["policies"].back()["name"] = "equipoise";
  const std::vector<PolicyResult> rows = rows_of(file);
  const PolicyResult& own = rows.back();
  REQUIRE(own.status == RowStatus::ok);
  for (const PolicyResult& other : rows) {
    CAPTURE(other.run.label);
    CHECK(other.status == RowStatus::ok);
    CHECK(own.metrics.step_seconds <= other.metrics.step_seconds);
  }
}
