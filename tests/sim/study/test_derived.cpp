// What follows from memory in a study: L_max, BucketSize, hbp's groups and `recompute: auto`.
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "policies/packing/hbp.h"
#include "policies/packing/wlb.h"
#include "sim/report/study_table.h"
#include "sim/report/summary_json.h"
#include "sim/report/verdict.h"
#include "sim/report/words/words.h"
#include "sim/study/run_study.h"
#include "tests/notes.h"
#include "tests/sim/study/study_case.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

// The rules that a note on recompute tells of, with their rows.
std::string rules_of(const std::optional<Note>& note) {
  return note ? joined_texts(note->get<Notes>("rules"), "; ") : "";
}

StudyResult run(const json& file) {
  return run_study(parse(file), RunStudyOptions{});
}

PolicyResult row_of(const json& policy, const json& patch = json::object()) {
  return run(small_study_of(policy, patch)).policies[0];
}

double seconds_of(const PolicyResult& row) {
  double sum = 0;
  for (const StepFigures& step : row.steps) sum += to_seconds(step.times.makespan);
  return sum;
}

constexpr std::int64_t kWindow = 32768;

// Every document a whole window, so that every micro-batch of plain is full.
json full_windows(int pipeline, int virtual_pipeline, int context, int sequences) {
  return {
      {"trace", {{"distribution", nullptr}, {"seed", nullptr}, {"uniform", kWindow}}},
      {"parallel", {{"pipeline", pipeline}, {"virtual_pipeline", virtual_pipeline}, {"context", context}}},
      {"batch", {{"sequences_per_step", sequences}, {"steps", 2}}}};
}

// hbp on 8 ranks of DP x CP, as its paper's study in small.
json groups_study() {
  json file = small_study();
  file["trace"] = {{"distribution", "tulu3-longcite"}, {"documents", 20000}};
  file["model"] = "llama3.1-8b";
  file["framework"] = "deepspeed";
  file["parallel"] = {{"tensor", 1},        {"context", 4}, {"pipeline", 1},
                      {"data", 2},          {"zero", 3},    {"context_comm", "ulysses"},
                      {"recompute", "auto"}};
  file["cluster"]["gpus_per_node"] = 2;  // exchanges of more than two ranks leave the node
  file["batch"] = {{"context_window", "32K"}, {"sequences_per_step", 8}, {"steps", 12}};
  file["policies"] = {"isf", "hbp"};
  file["baseline"] = "isf";
  return file;
}

}  // namespace

TEST_CASE("A window that fits plain fits wlb, whatever the schedule keeps in flight") {
  const struct {
    int pipeline, virtual_pipeline, context, sequences;
    const char* schedule;
  } cases[] = {{2, 1, 2, 4, "1f1b"},
               {2, 4, 2, 4, "interleaved-1f1b"},
               {4, 4, 1, 4, "interleaved-1f1b"},
               {4, 3, 2, 16, "interleaved-1f1b"},
               {4, 1, 1, 1, "1f1b"},
               {4, 1, 1, 16, "gpipe"}};
  for (const auto& c : cases) {
    CAPTURE(c.schedule);
    CAPTURE(c.virtual_pipeline);
    CAPTURE(c.sequences);
    json patch = full_windows(c.pipeline, c.virtual_pipeline, c.context, c.sequences);
    patch["schedule"] = c.schedule;
    // A little more than what plain's fullest step holds, and a little less.
    const double held = row_of("plain", patch).peak.parts.total();
    patch["cluster"]["memory_GB"] = 1.0001 * held / 1e9;
    const PolicyResult fits = row_of("wlb", patch);
    CHECK(fits.status == RowStatus::ok);
    CHECK(fits.run.pack.max_tokens >= kWindow);
    CHECK(fits.run.pack.max_tokens < kWindow * 11 / 10);
    patch["cluster"]["memory_GB"] = 0.9999 * held / 1e9;
    CHECK(row_of("plain", patch).status == RowStatus::oom);
    CHECK(row_of("wlb", patch).status != RowStatus::ok);
  }
}

TEST_CASE("A plan within its derived sizes fits into memory") {
  for (const char* name : {"wlb", "varlen-solver", "skrull", "round-robin", "hbp"}) {
    CAPTURE(name);
    int ok = 0;
    for (const double memory : {8.0, 9.0, 10.0, 12.0, 16.0, 24.0}) {
      CAPTURE(memory);
      const PolicyResult row =
          row_of({{"name", name}, {"time_limit", 0.01}}, {{"cluster", {{"memory_GB", memory}}}});
      CHECK((row.status != RowStatus::oom || row.reasons[0].kind == "holds_before_any_plan"));
      ok += row.status == RowStatus::ok;
    }
    CHECK(ok > 1);
  }
}

TEST_CASE("recompute auto by stage fits, recomputes less than auto for all alike, and its plan says where") {
  json file = small_study_of({{"name", "sequence-slices"}, {"slices", 4}},
                             {{"trace", {{"distribution", nullptr}, {"seed", nullptr}, {"uniform", "32K"}}}});
  const PolicyResult none = run(file).policies[0];
  file["cluster"]["memory_GB"] = 0.9 * none.peak.parts.total() / 1e9;
  file["policies"][0]["recompute"] = "auto";
  const PolicyResult alike = run(file).policies[0];
  file["policies"][0]["recompute_by_stage"] = true;
  const PolicyResult by_stage = run(file).policies[0];
  REQUIRE(alike.status == RowStatus::ok);
  REQUIRE(by_stage.status == RowStatus::ok);
  CHECK(by_stage.metrics.step_seconds < alike.metrics.step_seconds);
  CHECK(by_stage.metrics.step_seconds > none.metrics.step_seconds);
  CHECK(test::has_note(by_stage.notes, "recompute_by_stage"));
  // Without auto it says nothing.
  file["policies"][0]["recompute"] = "none";
  CHECK(parse(file).policies[0].idle_keys == std::vector<std::string>{"recompute_by_stage"});
}

TEST_CASE("With recompute by stage sizes from memory are those with all layers recomputed") {
  for (const json& policy : {json{{"name", "wlb"}}, json{{"name", "skrull"}, {"bucket_size", "memory"}}}) {
    CAPTURE(policy.dump());
    json file = small_study_of(policy, {{"cluster", {{"memory_GB", 9}}}});
    file["parallel"]["context"] = 4;
    const auto row = [&](const json& recompute) {
      file["policies"][0].update(recompute);
      return run(file).policies[0];
    };
    const auto sizes = [](const PolicyResult& of) {
      return std::pair(of.run.pack.max_tokens, of.run.pack.bucket_size);
    };
    const PolicyResult full = row({{"recompute", "full"}}), none = row({{"recompute", "none"}});
    const PolicyResult by_stage = row({{"recompute", "auto"}, {"recompute_by_stage", true}});
    REQUIRE(full.status == RowStatus::ok);
    CHECK(sizes(none) < sizes(full));
    CHECK(by_stage.status != RowStatus::unplaceable);
    CHECK(sizes(by_stage) == sizes(full));
  }
}

TEST_CASE("recompute auto is the fewest layers with which the row fits, row by row") {
  json file = small_study();
  file["policies"] = {"plain", "wlb", {{"name", "chunkflow"}, {"chunk_size", "4K"}}};
  file["baseline"] = "plain";
  file["parallel"]["recompute"] = "none";
  file["cluster"]["memory_GB"] = 0.85 * run(file).policies[0].peak.parts.total() / 1e9;
  json chosen = file;
  chosen["parallel"]["recompute"] = "auto";
  const StudyResult result = run(chosen);
  for (std::size_t i = 0; i < result.policies.size(); ++i) {
    const PolicyResult& row = result.policies[i];
    CAPTURE(row.run.label);
    REQUIRE(row.status == RowStatus::ok);
    const int layers = row.run.recompute_layers;
    CHECK((layers > 0) == (i < 2));  // chunks of 4K need none
    const auto with = [&](int count) {
      json stated = file;
      stated["parallel"]["recompute"] = {{"layers", count}};
      return run(stated).policies[i];
    };
    CHECK(with(layers).metrics.step_seconds == row.metrics.step_seconds);
    if (layers > 0) CHECK(with(layers - 1).status != RowStatus::ok);
  }
  CHECK_FALSE(recompute_difference(result).has_value());
  const json summary = summary_json(parse(chosen), result);
  CHECK(summary["policies"][0]["provenance"]["derived"]["recompute_layers"] ==
        result.policies[0].run.recompute_layers);
  // A row of its own may say otherwise, and then the table tells.
  chosen["policies"][1] = {{"name", "wlb"}, {"recompute", "full"}};
  const StudyResult mixed = run(chosen);
  const std::optional<Note> differs = recompute_difference(mixed);
  CHECK(rules_of(differs) == "chosen by memory (plain, chunkflow); full (wlb)");
  CHECK(study_table(parse(chosen), mixed).find(text_of(*differs)) != std::string::npos);
}

TEST_CASE("hbp chooses its recompute by memory: where it needs none it is as rows that say none") {
  json file = groups_study();
  file["cluster"]["memory_GB"] = 2000;
  file["parallel"]["recompute"] = "none";
  const StudyResult none = run(file);
  REQUIRE(none.policies[1].run.recompute_chosen);
  CHECK_FALSE(recompute_difference(none).has_value());
}

TEST_CASE("hbp recomputes at least the layers that its study states") {
  json file = groups_study();
  for (const json& stated : {json("full"), json{{"layers", 12}}}) {
    file["parallel"]["recompute"] = stated;
    const PolicyResult hbp = run(file).policies[1];
    REQUIRE(!hbp.run.pack.groups.empty());
    for (const Group& group : hbp.run.pack.groups)
      CHECK(group.recompute_layers >= (stated.is_string() ? 32 : 12));
  }
}

TEST_CASE(
    "recompute auto that fits with no number of layers is a row out of memory, with the change that helps") {
  const double held = row_of({{"name", "plain"}, {"recompute", "full"}}).peak.parts.total();
  const PolicyResult row =
      row_of({{"name", "plain"}, {"recompute", "auto"}}, {{"cluster", {{"memory_GB", 0.97 * held / 1e9}}}});
  CHECK(row.status == RowStatus::oom);
  REQUIRE(row.reasons.size() == 2);
  CHECK(row.reasons[1].kind == "fits_with");
  CHECK(row.reasons[1].get<Notes>("changes")[0].text("key").starts_with("parallel."));
}

TEST_CASE("a schedule without virtual stages names the study's key") {
  const PolicyResult row = row_of({{"name", "chunkflow"}, {"chunk_size", "4K"}, {"virtual_pipeline", 2}});
  REQUIRE(!row.reasons.empty());
  CHECK(row.reasons[0].text("error").find("parallel.virtual_pipeline in a study") != std::string::npos);
}

TEST_CASE("hbp that chooses for itself among rows that do not: the table says so") {
  json file = groups_study();
  file["parallel"]["recompute"] = {{"layers", 12}};
  CHECK(rules_of(recompute_difference(run(file))) == "12 layers (isf); chosen by memory (hbp)");
  file["parallel"]["recompute"] = "full";
  CHECK_FALSE(recompute_difference(run(file)).has_value());
  file["parallel"]["recompute"] = "auto";
  CHECK_FALSE(recompute_difference(run(file)).has_value());
  // Groups that the study gives take their own layers under auto, too.
  file["cluster"]["memory_GB"] = 45;
  file["policies"][1] = {{"name", "hbp"}, {"groups", "4K:1,32K:4"}};
  const PolicyResult given = run(file).policies[1];
  CHECK(given.status == RowStatus::ok);
  CHECK(given.run.pack.groups[0].recompute_layers < given.run.pack.groups[1].recompute_layers);
}

TEST_CASE("hbp: more memory is never slower") {
  double before = std::numeric_limits<double>::infinity();
  double first = 0;
  for (const double memory : {30.0, 34.0, 40.0, 48.0, 60.0, 85.0, 141.0, 300.0}) {
    CAPTURE(memory);
    json file = groups_study();
    file["cluster"]["memory_GB"] = memory;
    const PolicyResult row = run(file).policies[1];
    REQUIRE(row.status == RowStatus::ok);
    CHECK(seconds_of(row) <= before);
    before = seconds_of(row);
    if (first == 0) first = before;
  }
  CHECK(before < first);
}

TEST_CASE("hbp: on a slow network never slower than one group of the longest length, nor than isf") {
  for (const double rate : {0.5, 3.0, 12.5, 50.0, 400.0})
    for (const int zero : {1, 3}) {
      CAPTURE(rate);
      CAPTURE(zero);
      json file = groups_study();
      file["parallel"]["zero"] = zero;
      file["cluster"]["network"] = {{"nic_GBps", rate}};
      file["policies"] = {"isf",
                          "hbp",
                          {{"name", "hbp"}, {"groups", "32K:1"}},
                          {{"name", "hbp"}, {"groups", "32K:2"}},
                          {{"name", "hbp"}, {"groups", "32K:4"}},
                          {{"name", "hbp"}, {"groups", "32K:8"}}};
      const StudyResult result = run(file);
      REQUIRE(result.policies[1].status == RowStatus::ok);
      const double chosen = seconds_of(result.policies[1]);
      for (const PolicyResult& row : result.policies) {
        CAPTURE(row.run.label);
        if (row.status == RowStatus::ok) CHECK(chosen <= seconds_of(row));
      }
    }
}

TEST_CASE("A search over more choices never picks a plan with a longer simulated time") {
  for (const double rate : {3.0, 50.0}) {
    CAPTURE(rate);
    json file = groups_study();
    file["cluster"]["network"] = {{"nic_GBps", rate}};
    file["policies"] = json::array();
    for (const json& lengths : {json{"32K"}, json{"16K", "32K"}, json{"8K", "16K", "32K"},
                                json{"4K", "8K", "16K", "32K"}, json{"2K", "4K", "8K", "16K", "32K"}})
      file["policies"].push_back({{"name", "hbp"}, {"candidates", lengths}});
    file["baseline"] = "hbp";
    const StudyResult result = run(file);
    double before = std::numeric_limits<double>::infinity();
    for (const PolicyResult& row : result.policies) {
      CAPTURE(row.run.pack.of<HbpOptions>().candidate_lengths.size());
      REQUIRE(row.status == RowStatus::ok);
      CHECK(seconds_of(row) <= before);
      before = seconds_of(row);
    }
  }
  // Thresholds: the search has no delay and the equally spaced queues among its choices.
  for (const int seed : {3, 4, 5}) {
    CAPTURE(seed);
    json file = small_study();
    file["trace"]["seed"] = seed;
    file["batch"]["steps"] = 8;
    file["policies"] = {{{"name", "wlb"}, {"search", true}, {"delay_bound", 1e6}}};
    for (int queues = 0; queues <= 4; ++queues)
      file["policies"].push_back({{"name", "wlb"}, {"queues", queues}});
    file["baseline"] = "wlb";
    const StudyResult result = run(file);
    for (const PolicyResult& row : result.policies) CHECK(seconds_of(result.policies[0]) <= seconds_of(row));
  }
}

TEST_CASE(
    "Preset slimpipe exchanges attention among stages where the layout takes it, and says where it does "
    "not") {
  const auto parsed = [](const json& row, int context) {
    return parse(small_study_of(row, {{"parallel", {{"pipeline", 2}, {"context", context}}}}));
  };
  CHECK(parsed({{"name", "slimpipe"}}, 1).policies[0].stage_attention_exchange);
  CHECK_FALSE(parsed({{"name", "seq1f1b"}}, 1).policies[0].stage_attention_exchange);
  CHECK_FALSE(parsed({{"name", "slimpipe"}, {"stage_attention_exchange", false}}, 1)
                  .policies[0]
                  .stage_attention_exchange);
  const Study spread = parsed({{"name", "slimpipe"}}, 2);
  CHECK_FALSE(spread.policies[0].stage_attention_exchange);
  CHECK(spread.impossible.empty());
  REQUIRE(test::has_note(spread.notes, "without_exchange"));
  CHECK(test::find_note(spread.notes, "without_exchange")
            ->text("fault")
            .ends_with("parallel.context: expected 1 or context_comm disaggregated, or "
                       "stage_attention_exchange false, found 2"));
  const auto note_of = [](json row) {
    row["label"] = "row";
    const Study study = parse(small_study_of(row, {{"parallel", {{"pipeline", 2}, {"recompute", "auto"}}}}));
    CHECK_FALSE(study.policies[0].stage_attention_exchange);
    CHECK_FALSE(study.notes.empty());
    return study.notes.empty() ? "" : study.notes.front().text("fault");
  };
  CHECK(note_of({{"name", "slimpipe"}, {"schedule", "1f1b"}}) ==
        "study.json: schedule: expected seq1f1b, or "
        "stage_attention_exchange false, found 1f1b");
  CHECK(note_of({{"name", "slimpipe"}, {"recompute_by_stage", true}}) ==
        "study.json: recompute_by_stage: expected false, or "
        "stage_attention_exchange false, found true");
}

TEST_CASE("A typed stage_attention_exchange is refused where it cannot be, with file and key") {
  const auto refused = [](json row, const json& parallel, const std::string& rest) {
    row["stage_attention_exchange"] = true;
    const std::string words = "study.json: policies[0].stage_attention_exchange: " + rest;
    CHECK_THROWS_WITH_AS(parse(small_study_of(row, {{"parallel", parallel}})), words.c_str(), UserError);
  };
  const json stages = {{"pipeline", 2}, {"data", 4}, {"recompute", "auto"}};
  refused({{"name", "slimpipe"}}, {{"pipeline", 2}, {"context", 2}},
          "parallel.context: expected 1 or context_comm disaggregated, or stage_attention_exchange false, "
          "found 2");
  refused({{"name", "wlb"}, {"schedule", "seq1f1b"}}, {{"pipeline", 2}, {"context", 2}},
          "parallel.context: expected 1 or context_comm disaggregated, or stage_attention_exchange false, "
          "found 2");
  refused({{"name", "slimpipe"}, {"schedule", "1f1b"}}, stages,
          "schedule: expected seq1f1b, or stage_attention_exchange false, found 1f1b");
  refused({{"name", "slimpipe"}, {"recompute_by_stage", true}}, stages,
          "recompute_by_stage: expected false, or stage_attention_exchange false, found true");
  for (const std::string name : {"flexsp", "hbp", "hybrid-cp", "dynamic-cp"})
    refused(
        {{"name", name}, {"schedule", "seq1f1b"}}, stages,
        "name: expected a policy whose lanes have one CP degree, or stage_attention_exchange false, found " +
            name);
}
