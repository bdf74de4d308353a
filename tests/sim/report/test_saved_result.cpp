// A saved result is read back as it was written.
#include <nlohmann/json.hpp>

#include "policies/base/files.h"
#include "policies/base/random.h"
#include "sim/metrics/metrics.h"
#include "sim/report/result_csv.h"
#include "sim/report/saved_result.h"
#include "sim/report/study_table.h"
#include "sim/report/summary_json.h"
#include "sim/report/verdict.h"
#include "sim/study/run_study.h"
#include "tests/scratch_folder.h"
#include "tests/sim/study/study_case.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

struct Ran {
  Study study;
  StudyResult result;
  json summary;
};

// One row that runs, one whose plan does not fit, one that cannot place a document.
Ran three_ends() {
  json file = small_study();
  file["batch"]["steps"] = 4;
  file["policies"] = {
      "plain-4d", {{"name", "ffd"}, {"pack_length", "4K"}}, {{"name", "plain"}, {"label", "whole"}}};
  Ran ran{parse(file), {}, {}};
  ran.result = run_study(ran.study, {});
  ran.summary = summary_json(ran.study, ran.result);
  return ran;
}

std::string refused(const json& summary) {
  try {
    (void)read_summary(summary, "summary.json");
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("Metrics are read back from JSON, whichever of them are there") {
  SplitMix64 random(7);
  for (int round = 0; round < 50; ++round) {
    Metrics m;
    for (const ResultColumn& column : result_columns())
      if (column.value.set != nullptr && random.next() % 2 == 0)
        column.value.set(m, column.has(kFlag) ? 1 : static_cast<double>(random.next() % 1000));
    const json written = metrics_json(m);
    CHECK(metrics_json(read_metrics(written)) == written);
  }
  for (const ResultColumn& column : result_columns())
    if (!column.key.empty()) CHECK_MESSAGE((column.value.set != nullptr), column.key);
}

TEST_CASE("A summary is read back: rows with status, reasons, metrics, memory and notes, and the study's") {
  const Ran ran = three_ends();
  const SavedResult saved = read_summary(json::parse(ran.summary.dump()), "summary.json");
  CHECK(saved.study == ran.study.name);
  CHECK(saved.baseline == "plain-4d");
  CHECK(saved.result.tokens == ran.result.tokens);
  CHECK(saved.result.notes == notes_of(ran.study, ran.result));
  REQUIRE(saved.result.policies.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    const PolicyResult &read = saved.result.policies[i], &was = ran.result.policies[i];
    CAPTURE(was.run.label);
    CHECK(read.run.label == was.run.label);
    CHECK(read.status == was.status);
    CHECK(read.reasons == was.reasons);
    CHECK(read.notes == was.notes);
    CHECK(metrics_json(read.metrics) == metrics_json(was.metrics));
    CHECK(read.capacity_bytes == was.capacity_bytes);
    CHECK(read.peak.parts.total() == was.peak.parts.total());
    CHECK(read.use == was.use);
  }
  CHECK(saved.result.policies[1].status == RowStatus::unplaceable);
  CHECK(comparison_of(saved.result).rows == comparison_of(ran.result).rows);
}

TEST_CASE("A folder gives the steps, and a result of an earlier version its reasons as they were said") {
  const Ran ran = three_ends();
  const test::Scratch folder;
  json earlier = ran.summary;
  for (json& row : earlier["policies"]) row.erase("reasons");
  folder.write("summary.json", earlier.dump());
  folder.write("steps.csv", steps_csv(ran.result));
  const SavedResult saved = load_saved(folder.path(""));
  CHECK(saved.result.policies[0].steps.size() == ran.result.policies[0].steps.size());
  CHECK(saved.result.policies[0].steps[1].times.makespan == ran.result.policies[0].steps[1].times.makespan);
  REQUIRE(saved.result.policies[1].reasons.size() == 1);
  CHECK(saved.result.policies[1].reasons[0].kind == "text");
}

TEST_CASE("What is no summary is refused by file and key") {
  const json good = three_ends().summary;
  CHECK(refused(good).empty());
  const auto with = [&](const char* pointer, const json& value) {
    json file = good;
    file[json::json_pointer(pointer)] = value;
    return refused(file);
  };
  CHECK(with("/schema", "equipoise.summary/2").starts_with("summary.json: expected \"schema\""));
  CHECK(with("/study/name", 3).starts_with("summary.json: study: expected"));
  CHECK(with("/policies", 3).starts_with("summary.json: policies"));
  CHECK(with("/policies/1/status", "fine").starts_with("summary.json: policies[1].status: expected one of"));
  CHECK(with("/policies/1/metrics/steps", "many").starts_with("summary.json: policies[1]: expected"));
  CHECK(with("/policies/0/memory", 7).starts_with("summary.json: policies[0]: expected"));
}
