#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "sim/study/run_study.h"
#include "tests/scratch_folder.h"

using namespace equipoise;
using nlohmann::json;

namespace {

json study_json() {
  return json::parse(R"({
    "name": "small", "trace": {"distribution": "wlb-128k", "documents": 4000, "seed": 1}, "model": "wlb-550m",
    "cluster": {"profile": "h100-sxm"},
    "parallel": {"tensor": 2, "context": 2, "pipeline": 4, "data": 2},
    "batch": {"context_window": 65536, "sequences_per_step": 8, "steps": 4},
    "policies": ["plain", {"name": "wlb", "queues": 2, "shard": "adaptive"}], "baseline": "plain"})");
}

Study small_study() {
  return parse_study(study_json(), "test.json");
}

StudyResult run_with(const StepSettings& settings, const DetailOptions& details = {}) {
  RunStudyOptions options;
  options.steps = settings;
  options.details = details;
  return run_study(small_study(), options);
}

}  // namespace

TEST_CASE("a study has the same results at both fidelities, folded or not") {
  const StudyResult stage = run_with({});
  for (const bool fold : {true, false}) {
    StepSettings settings;
    settings.fidelity = Fidelity::op;
    settings.op.fold_tp = fold;
    const StudyResult op = run_with(settings);
    for (std::size_t p = 0; p < stage.policies.size(); ++p) {
      CHECK(op.policies[p].metrics.step_seconds.value() ==
            doctest::Approx(stage.policies[p].metrics.step_seconds.value()).epsilon(1e-9));
      CHECK(op.policies[p].metrics.speedup.value() ==
            doctest::Approx(stage.policies[p].metrics.speedup.value()).epsilon(1e-9));
      CHECK(op.policies[p].metrics.bubble_ratio.value() ==
            doctest::Approx(stage.policies[p].metrics.bubble_ratio.value()).epsilon(1e-9));
      CHECK(op.policies[p].metrics.gpu_compute_imbalance.value() ==
            doctest::Approx(stage.policies[p].metrics.gpu_compute_imbalance.value()).epsilon(0.01));
    }
  }
}

TEST_CASE("a slow GPU slows every policy, wherever it is; one that does not exist is refused") {
  const StudyResult nominal = run_with({});
  for (const int gpu : {0, 7, 31}) {
    StepSettings settings;
    settings.fidelity = Fidelity::op;
    settings.op.stragglers = {{gpu, 0.5}};
    const StudyResult slow = run_with(settings);
    for (std::size_t p = 0; p < slow.policies.size(); ++p)
      CHECK(slow.policies[p].metrics.step_seconds.value() > nominal.policies[p].metrics.step_seconds.value());
    settings.op.fold_tp = false;
    CHECK(run_with(settings).policies[0].metrics.step_seconds.value() ==
          doctest::Approx(slow.policies[0].metrics.step_seconds.value()).epsilon(1e-6));
  }
  StepSettings settings;
  settings.fidelity = Fidelity::op;
  settings.op.stragglers = {{32, 0.5}};
  CHECK_THROWS_WITH_AS(run_with(settings), doctest::Contains("expected GPUs 0 to 31, found 32"), UserError);
}

TEST_CASE("details are written for every policy") {
  const test::Scratch scratch;
  const std::filesystem::path& folder = scratch.folder();
  StepSettings settings;
  settings.fidelity = Fidelity::op;
  DetailOptions details;
  details.directory = folder.string();
  details.steps = 2;
  const StudyResult result = run_with(settings, details);
  for (const PolicyResult& policy : result.policies) {
    CHECK(std::filesystem::file_size(folder / "timeline" / (policy.run.label + ".pftrace")) > 10000);
    std::ifstream in(folder / "critical_path" / (policy.run.label + ".json"));
    const json path = json::parse(in);
    REQUIRE(path["steps"].size() == 2);
    for (const json& step : path["steps"]) {
      double sum = 0;
      for (const auto& [axis, seconds] : step["by_axis"].items()) sum += seconds.get<double>();
      CHECK(sum == doctest::Approx(step["step_seconds"].get<double>()).epsilon(1e-9));
      for (const auto& [what, free] : step["if_free"].items()) CHECK(free["speedup"].get<double>() >= 1);
    }
  }
}

TEST_CASE("critical paths are of the steps that steps.csv has, contention or not") {
  json file = study_json();
  file["cluster"]["network"] = {{"nic_GBps", 2}, {"topology", "rail"}, {"oversubscription", 4}};
  file["cluster"]["gpus_per_node"] = 4;
  file["batch"]["steps"] = 2;
  double alone = 0;
  for (const bool contention : {false, true}) {
    const test::Scratch scratch;
    RunStudyOptions options;
    options.steps.fidelity = Fidelity::op;
    options.steps.op.contention = contention;
    options.details.directory = scratch.folder().string();
    options.details.steps = 2;
    const StudyResult result = run_study(parse_study(file, "test.json"), options);
    for (const PolicyResult& policy : result.policies) {
      std::ifstream in(scratch.folder() / "critical_path" / (policy.run.label + ".json"));
      const json path = json::parse(in);
      REQUIRE(path["steps"].size() == 2);
      for (std::size_t i = 0; i < 2; ++i) {
        const json& step = path["steps"][i];
        CHECK(step["step"] == i);
        CHECK(step["step_seconds"].get<double>() == to_seconds(policy.steps[i].times.makespan));
        double sum = 0;
        for (const auto& [axis, seconds] : step["by_axis"].items()) sum += seconds.get<double>();
        CHECK(sum == doctest::Approx(step["step_seconds"].get<double>()).epsilon(1e-9));
        CHECK(step["if_free"].contains("contention") == contention);
        // When the fullest stage's op ran, in the same step.
        REQUIRE(policy.steps[i].times.peak_op);
        CHECK(policy.steps[i].times.peak_op->end <= policy.steps[i].times.makespan);
      }
    }
    const double seconds = to_seconds(result.policies[0].steps[0].times.makespan);
    if (contention) CHECK(seconds > alone);
    alone = seconds;
  }
}

TEST_CASE("fidelity and stragglers are read as typed or refused") {
  CHECK(parse_fidelity("op") == Fidelity::op);
  CHECK_THROWS_WITH_AS(parse_fidelity("kernel"), "--fidelity: expected one of stage, op, found kernel", UserError);
  CHECK(parse_stragglers("3:0.5,10:0.9") == std::vector<std::pair<int, double>>{{3, 0.5}, {10, 0.9}});
  for (const char* bad : {"3", "3:0", "a:0.5", "3:0.5x", "-1:0.5"})
    CHECK_THROWS_AS(parse_stragglers(bad), UserError);
  CHECK_THROWS_WITH_AS(parse_stragglers("3:0.5,10:0.9,3:0.8"),
                       "--stragglers: expected each GPU once, found GPU 3 twice", UserError);
}
