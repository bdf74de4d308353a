// What trials choose for a row (`schedule: auto` and its like): the fastest that fits, told, written and read
// again.
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
  for (const StepFigures& step : row.steps) {
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

TEST_CASE("In an interleaved study rows that do not interleave run with one model chunk, and say so") {
  json patch = {{"parallel", {{"virtual_pipeline", 2}}}, {"baseline", nullptr}};
  patch["policies"] = {"plain", kChunks, "skrull", {{"name", "hbp"}, {"groups", "8K:1,32K:2"}}};
  const Study study = parse(small_study_of(json::object(), patch));
  const StudyResult result = run_study(study, RunStudyOptions{});
  json alone = patch;
  alone["parallel"]["virtual_pipeline"] = 1;
  const StudyResult plain = run_study(parse(small_study_of(json::object(), alone)), RunStudyOptions{});
  for (std::size_t i = 0; i < result.policies.size(); ++i) {
    const PolicyResult& row = result.policies[i];
    CAPTURE(row.run.label);
    CHECK(row.status == RowStatus::ok);
    if (!row.run.virtual_pipeline_chosen) {
      CHECK(row.layout.virtual_pipeline == 2);
      continue;
    }
    CHECK(row.layout.virtual_pipeline == 1);
    CHECK(test::has_note(row.notes, "virtual_pipeline_chosen"));
    CHECK(seconds_per_token(row) == seconds_per_token(plain.policies[i]));
  }
  CHECK_FALSE(result.policies[0].run.virtual_pipeline_chosen);
  CHECK(result.policies[1].run.virtual_pipeline_chosen);
  CHECK(summary_json(study, result)["policies"][1]["provenance"]["derived"]["virtual_pipeline"] == 1);
}

TEST_CASE("virtual_pipeline of a row is its own, and auto is the faster of the layout's and 1") {
  json patch = {{"parallel", {{"virtual_pipeline", 2}}}, {"baseline", nullptr}};
  patch["policies"] = {"plain"};
  for (const json& chunks : {json(1), json(2), json("auto")})
    patch["policies"].push_back({{"name", "plain"}, {"virtual_pipeline", chunks}});
  const StudyResult result = run_study(parse(small_study_of(json::object(), patch)), RunStudyOptions{});
  const auto seconds = [&](std::size_t i) { return seconds_per_token(result.policies[i]); };
  CHECK(result.policies[1].layout.virtual_pipeline == 1);
  CHECK(result.policies[1].run.pack.lane_round == 1);
  CHECK(seconds(0) == seconds(2));
  CHECK(seconds(1) != seconds(2));
  CHECK(seconds(3) == std::min(seconds(1), seconds(2)));
  CHECK(test::has_note(result.policies[3].notes, "virtual_pipeline_chosen"));
}

TEST_CASE("chunkflow alone has the chunk size and K with which it is the fastest that fits") {
  json patch = {{"baseline", nullptr}};
  patch["policies"] = {"chunkflow"};
  const int window = 32 * 1024;
  for (int parts = 16; parts > 0; parts /= 2)
    for (int keep = parts; keep > 0; keep /= 2)
      patch["policies"].push_back({{"name", "chunkflow"}, {"chunk_size", window / parts}, {"keep", keep}});
  const Study study = parse(small_study_of(json::object(), patch));
  const StudyResult result = run_study(study, RunStudyOptions{});
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 1; i < result.policies.size(); ++i)
    if (result.policies[i].status == RowStatus::ok)
      least = std::min(least, seconds_per_token(result.policies[i]));
  CHECK(seconds_per_token(result.policies[0]) <= least);
  const std::vector<std::string> kinds = test::kinds_of(result.policies[0].notes);
  CHECK(std::ranges::count(kinds, "size_auto") == 2);
  const json derived = summary_json(study, result)["policies"][0]["provenance"]["derived"];
  CHECK(derived["keep"] == result.policies[0].run.pack.keep);
  CHECK(derived.contains("chunk_size"));
}

TEST_CASE("keep auto leaves the headroom free, and auto is of chunkflow alone") {
  json patch = {{"baseline", nullptr}};
  patch["policies"] = json::array();
  for (const json& keep : {json(8), json(1), json("auto")})
    patch["policies"].push_back({{"name", "chunkflow"}, {"chunk_size", "4K"}, {"keep", keep}});
  const json roomy = small_study_of(json::object(), patch);
  const StudyResult all = run_study(parse(roomy), RunStudyOptions{});
  CHECK(all.policies[2].run.pack.keep == 8);
  const double most = all.policies[0].peak.parts.total(), least = all.policies[1].peak.parts.total();
  REQUIRE(least < 0.9 * most);
  json tight = roomy;
  tight["cluster"] = {{"memory_GB", 1.001 * most / 1e9}, {"memory_headroom", 0.06}};
  const PolicyResult row = run_study(parse(tight), RunStudyOptions{}).policies[2];
  CHECK(row.status == RowStatus::ok);
  CHECK(row.run.pack.keep < 8);
  CHECK(row.peak.parts.total() <= 0.94 * 1.001 * most);
  CHECK(holds(refusal(small_study_of({{"name", "equipoise"}, {"keep", "auto"}})), "auto is for chunkflow"));
}
