// `schedule: auto` of a row: the fastest that fits, told, written and read again.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/report/summary_json.h"
#include "sim/study/pack_request.h"
#include "sim/study/run_study.h"
#include "tests/notes.h"
#include "tests/sim/study/study_case.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

json study_of_schedules(json row, json patch, const std::string& own) {
  patch["schedule"] = own;
  patch["policies"] = json::array();
  patch["baseline"] = nullptr;
  for (const char* schedule : {own.c_str(), "seq1f1b", "state-aware-1f1b", "auto"}) {
    row["schedule"] = schedule;
    patch["policies"].push_back(row);
  }
  return small_study_of(json::object(), patch);
}

double seconds_per_token(const PolicyResult& row) {
  double seconds = 0, tokens = 0;
  for (const StepResult& step : row.steps) {
    seconds += to_seconds(step.times.makespan);
    tokens += static_cast<double>(step.work.tokens);
  }
  return seconds / tokens;
}

// The fastest that fits of the three rows before the last, the first of equals.
const PolicyResult& fastest_of(const StudyResult& result) {
  const PolicyResult* best = nullptr;
  for (std::size_t i = 0; i < 3; ++i) {
    const PolicyResult& row = result.policies[i];
    if (row.status != RowStatus::ok) continue;
    if (best == nullptr || seconds_per_token(row) < seconds_per_token(*best)) best = &row;
  }
  REQUIRE(best != nullptr);
  return *best;
}

// Few micro-batches on four stages, where slices fill the pipeline.
json four_stages() {
  return {{"parallel", {{"pipeline", 4}, {"context", 1}}},
          {"batch", {{"sequences_per_step", 4}, {"steps", 2}}}};
}

const json kChunks = {{"name", "chunkflow"}, {"chunk_size", "8K"}};

}  // namespace

TEST_CASE("schedule auto is the fastest of the three, and all of the row is as with that one") {
  const json slices = {{"name", "sequence-slices"}, {"slices", 4}};
  const json equipoise = {{"name", "equipoise"}, {"moves", 2000}};
  const struct {
    json row, patch;
    std::string own, chosen;
  } cases[] = {
      {{{"name", "plain"}}, four_stages(), "1f1b", "1f1b"},    // all three are alike: the study's own
      {{{"name", "plain"}}, four_stages(), "zb-h1", "zb-h1"},  // which splits backwards, as no other does
      {{{"name", "plain"}}, four_stages(), "gpipe", "seq1f1b"},
      {slices, four_stages(), "1f1b", "seq1f1b"},  // 1f1b takes no slices, state-aware runs them twice
      {kChunks, four_stages(), "state-aware-1f1b", "seq1f1b"},
      {equipoise, four_stages(), "1f1b", "seq1f1b"},
      {slices, {{"parallel", {{"virtual_pipeline", 2}}}}, "interleaved-1f1b", "seq1f1b"},
      {kChunks, {{"parallel", {{"pipeline", 1}}}}, "1f1b", "seq1f1b"}};
  for (const auto& c : cases) {
    CAPTURE(c.row.dump());
    CAPTURE(c.own);
    const Study study = parse(study_of_schedules(c.row, c.patch, c.own));
    const StudyResult result = run_study(study, RunStudyOptions{});
    const PolicyResult &chosen = result.policies[3], &fastest = fastest_of(result);
    REQUIRE(chosen.status == RowStatus::ok);
    CHECK(chosen.run.schedule == fastest.run.schedule);
    CHECK(chosen.run.schedule == c.chosen);
    REQUIRE(test::has_note(chosen.notes, "schedule_auto"));
    CHECK(test::find_note(chosen.notes, "schedule_auto")->text("schedule") == c.chosen);
    const json rows = summary_json(study, result)["policies"];
    const std::size_t same = static_cast<std::size_t>(&fastest - result.policies.data());
    CHECK(rows[3]["metrics"]["step_seconds"] == rows[same]["metrics"]["step_seconds"]);
    CHECK(rows[3]["memory"] == rows[same]["memory"]);
    CHECK(rows[3]["provenance"]["derived"]["schedule"] == c.chosen);
    CHECK_FALSE(rows[same]["provenance"].value("derived", json::object()).contains("schedule"));
  }
}

TEST_CASE("schedule auto takes none that does not fit, and with recompute auto each has its own layers") {
  json file = study_of_schedules(kChunks, four_stages(), "1f1b");
  const StudyResult roomy = run_study(parse(file), RunStudyOptions{});
  const double kept = roomy.policies[1].peak.parts.total(), again = roomy.policies[2].peak.parts.total();
  REQUIRE(again < 0.95 * kept);  // what K keeps of a document's chunks, and all of them
  file["cluster"]["memory_GB"] = 0.98 * kept / 1e9;
  const StudyResult tight = run_study(parse(file), RunStudyOptions{});
  CHECK(tight.policies[1].status == RowStatus::oom);
  CHECK(tight.policies[3].status == RowStatus::ok);
  CHECK(tight.policies[3].run.schedule == "state-aware-1f1b");
  // With some layers recomputed the faster one fits.
  file["parallel"]["recompute"] = "auto";
  const StudyResult recomputed = run_study(parse(file), RunStudyOptions{});
  CHECK(recomputed.policies[1].run.recompute_layers > 0);
  CHECK(recomputed.policies[2].run.recompute_layers == 0);
  CHECK(recomputed.policies[3].run.schedule == "seq1f1b");
  CHECK(recomputed.policies[3].run.recompute_layers == recomputed.policies[1].run.recompute_layers);
}

TEST_CASE("where no schedule fits, auto is the row as without the key") {
  json file = study_of_schedules(kChunks, four_stages(), "1f1b");
  file["cluster"]["memory_GB"] = 5;
  json without = kChunks;
  without["label"] = "without";
  file["policies"].push_back(without);
  const Study study = parse(file);
  const StudyResult result = run_study(study, RunStudyOptions{});
  const PolicyResult &row = result.policies[3], &same = result.policies[4];
  CHECK(row.status == RowStatus::oom);
  CHECK(row.reasons == same.reasons);
  CHECK(row.run.schedule == same.run.schedule);
  CHECK_FALSE(summary_json(study, result)["policies"][3]["provenance"].contains("derived"));
}

TEST_CASE("schedule auto is a row's alone, and not of what packs for one schedule or exchanges attention") {
  CHECK(holds(refusal(small_study_of("plain", {{"schedule", "auto"}})), "study.json: schedule: "));
  json slices = {{"name", "slimpipe"}, {"schedule", "auto"}};
  const json stages = {{"parallel", {{"pipeline", 2}, {"context", 1}}}};
  const Study study = parse(small_study_of(slices, stages));
  CHECK_FALSE(study.policies[0].stage_attention_exchange);
  CHECK(study.notes.front() ==
        Note{"without_exchange",
             "slimpipe",
             {{"fault",
               "study.json: schedule: expected seq1f1b, or stage_attention_exchange false, found auto"}}});
  slices["stage_attention_exchange"] = true;
  CHECK(refusal(small_study_of(slices, stages)) ==
        "study.json: policies[0].stage_attention_exchange: schedule: expected seq1f1b, or "
        "stage_attention_exchange false, found auto");
  PackRequest request;
  request.job = small_study_of({{"name", "plain"}, {"schedule", "auto"}});
  const Study job = study_of_request(request);
  CHECK_THROWS_WITH_AS(row_of_request(request, job, "plain"),
                       "pack: job: policies[0].schedule: expected the one that `study` chose, found auto",
                       UserError);
}
