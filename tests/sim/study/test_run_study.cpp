// Whole studies: the same bits on any number of threads, nothing lost, no errors where a row is due.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "policies/packing/skrull.h"
#include "sim/report/result_csv.h"
#include "sim/report/study_table.h"
#include "sim/report/summary_json.h"
#include "sim/study/row/plan_row.h"
#include "sim/study/run_study.h"
#include "tests/notes.h"
#include "tests/scratch_folder.h"
#include "tests/sim/study/study_case.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

StudyResult run_file(const json& file, int jobs = 1) {
  RunStudyOptions options;
  options.jobs = jobs;
  options.record_gpus = true;
  options.keep_plans = true;
  return run_study(parse(file), options);
}

json summary(const json& file, int jobs) {
  json result = summary_json(parse(file), run_file(file, jobs));
  for (json& policy : result["policies"]) policy.erase("measured");
  return result;
}

std::string refused(const json& file) {
  try {
    (void)run_file(file);
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

// Packing of every kind: free, chunked, placed, grouped, of several CP degrees.
json many_policies() {
  json file = small_study();
  file["policies"] = {"plain-4d",
                      "fixed-4d",
                      "wlb-llm",
                      "random",
                      {{"name", "lpt"}, {"shard", "optimal"}},
                      {{"name", "chunkflow"}, {"chunk_size", "8K"}, {"keep", 2}},
                      {{"name", "skrull"}},
                      {{"name", "hbp"}, {"groups", "8K:1,32K:2"}},
                      {{"name", "dynamic-cp"}}};
  return file;
}

// A recurrence in every layer.
RecurrentShape recurrence_of_heads(int heads, const ModelShape& model) {
  return {.rule = Recurrence::gated_delta,
          .key_heads = heads,
          .heads = heads,
          .key_dim = 64,
          .value_dim = 64,
          .convolution = 4,
          .layers = std::vector<bool>(at(model.layers), true)};
}

}  // namespace

TEST_CASE("A study gives the same bits on 1, 2 and 4 threads") {
  const json one = summary(many_policies(), 1);
  CHECK(one["schema"] == "equipoise.summary/1");
  CHECK(summary(many_policies(), 2).dump() == one.dump());
  CHECK(summary(many_policies(), 4).dump() == one.dump());
  CHECK(steps_csv(run_file(many_policies(), 3)) == steps_csv(run_file(many_policies(), 1)));
}

TEST_CASE("Rows that cannot run end alike whether they run in turn or at the same time as others") {
  json file = small_study();
  file["policies"] = {{{"name", "ffd"}, {"pack_length", 8}},
                      "plain",
                      {{"name", "bfd"}, {"pack_length", 8}},
                      {{"name", "isf"}, {"pack_length", 8}},
                      "fixed-greedy"};
  file["baseline"] = "plain";
  const StudyResult result = run_file(file, 2);
  for (const std::size_t row : {0U, 2U, 3U}) CHECK(result.policies[row].status == RowStatus::unplaceable);
  for (const std::size_t row : {1U, 4U}) CHECK(result.policies[row].status == RowStatus::ok);
  CHECK(summary(file, 2).dump() == summary(file, 1).dump());
}

TEST_CASE("An error that ends a study is its own, whatever other rows are at") {
  const test::Scratch scratch;
  const std::string file = (scratch.folder() / "file").string();
  std::ofstream(file) << "no folder";
  for (const int jobs : {1, 2, 4}) {
    CAPTURE(jobs);
    RunStudyOptions options;
    options.jobs = jobs;
    options.details.directory = file;
    CHECK_THROWS_AS((void)run_study(parse(many_policies()), options), UserError);
  }
}

TEST_CASE(
    "Rows whose labels make one file name are refused where files are written, and run where none are") {
  const test::Scratch scratch;
  json file = small_study();
  file["policies"] = {{{"name", "plain"}, {"label", "a b"}}, {{"name", "wlb"}, {"label", "a_b"}}};
  file["baseline"] = "a_b";
  CHECK(run_file(file, 2).policies[1].simulated());
  RunStudyOptions options;
  options.details.directory = scratch.folder().string();
  CHECK_THROWS_WITH_AS((void)run_study(parse(file), options),
                       "study.json: policies: expected labels that differ in more than spaces, slashes and _ "
                       "where files are written for each, found \"a b\" and \"a_b\"",
                       UserError);
}

TEST_CASE("Every policy runs all tokens of the study and no others") {
  const StudyResult result = run_file(many_policies());
  CHECK(result.tokens == 4 * 4 * 32768);
  for (const PolicyResult& policy : result.policies) {
    CAPTURE(policy.run.label);
    CHECK(policy.status == RowStatus::ok);
    std::int64_t tokens = 0;
    for (const StepFigures& step : policy.steps) tokens += step.work.tokens;
    CHECK(tokens == result.tokens);
    CHECK(policy.metrics.tokens == static_cast<double>(result.tokens));
    REQUIRE(policy.metrics.step_seconds);
    CHECK(*policy.metrics.step_seconds > 0);
    REQUIRE(policy.metrics.mfu);
    CHECK(*policy.metrics.mfu > 0);
    CHECK(*policy.metrics.mfu < 1);
  }
  CHECK(*result.policies[0].metrics.speedup == doctest::Approx(1).epsilon(1e-12));
}

TEST_CASE("static-best is the better of per-sequence and per-document for the whole run") {
  json file = small_study();
  file["policies"] = {{{"name", "plain"}, {"shard", "static-best"}},
                      {{"name", "plain"}, {"shard", "per-sequence"}},
                      {{"name", "plain"}, {"shard", "per-document"}}};
  file.erase("baseline");
  const StudyResult result = run_file(file);
  const double best = result.policies[0].metrics.seconds;
  const double sequence = result.policies[1].metrics.seconds, document = result.policies[2].metrics.seconds;
  CHECK(sequence != document);
  CHECK(best == std::min(sequence, document));
}

TEST_CASE("A derived bucket that holds the longest document is pointed out; a given one is the user's own") {
  json file = small_study();
  file["baseline"] = "skrull";
  file["policies"] = {{{"name", "skrull"}, {"bucket_size", "memory"}},
                      {{"name", "skrull"}, {"bucket_size", "128K"}, {"label", "given"}}};
  const StudyResult result = run_file(file);
  const auto says = [](const PolicyResult& row) { return test::has_note(row.notes, "bucket_holds_longest"); };
  // Documents of at most a window of 32K; the small model leaves room for more on 80 GB.
  REQUIRE(result.policies[0].run.pack.bucket_size > 32768);
  CHECK(says(result.policies[0]));
  CHECK(!says(result.policies[1]));
}

TEST_CASE("Out of memory is a row with its reason and no step time, also where no plan can be made") {
  json file = small_study();
  file["model"] = "llama3.1-70b";
  file["policies"] = {"plain", "wlb", {{"name", "skrull"}}, "hbp"};
  file["baseline"] = "plain";
  const Study study = parse(file);
  const StudyResult result = run_file(file);
  const json out = summary_json(study, result);
  for (const json& policy : out["policies"]) {
    CAPTURE(policy["name"]);
    CHECK(policy["status"] == "oom");
    CHECK(policy["metrics"]["step_seconds"].is_null());
    CHECK(policy["metrics"]["speedup"].is_null());
    CHECK(policy["metrics"]["total_seconds"].is_null());
    CHECK(policy["memory"]["out_of_memory"]["need_bytes"] >
          policy["memory"]["out_of_memory"]["capacity_bytes"]);
    CHECK(!policy["memory"]["out_of_memory"]["message"].get<std::string>().empty());
  }
  CHECK(study_table(study, result).find("plain is out of memory: stage ") != std::string::npos);
  CHECK(steps_csv(result).find('\n') == steps_csv(result).size() - 1);  // the header alone
}

TEST_CASE("A study that cannot run says which file and why") {
  const auto with = [](const char* pointer, const json& value) {
    json file = small_study();
    file[json::json_pointer(pointer)] = value;
    return file;
  };
  const auto says = [](const std::string& message, const std::string& part) {
    CAPTURE(message);
    CAPTURE(part);
    CHECK(message.rfind("study.json: ", 0) == 0);
    CHECK(message.find(part) != std::string::npos);
  };
  says(refused(with("/cluster/profile", "h100")), "cluster.profile: unknown profile \"h100\"");
  says(refused(with("/trace", {{"file", "no_such_trace.txt"}})), "no_such_trace.txt");
  says(refused(with("/trace", {{"distribution", "wlb-129k"}})), "wlb-129k");
  says(refused(with("/trace", {{"uniform", 1024}, {"documents", 10}})),
       "trace: too short: it holds 0 full global batches");
  says(refused(with("/parallel/order", "tp-cp-dp")), "order");
}

TEST_CASE(
    "Padding error: a window that 2 x CP does not divide is a refused row, with tail it is padded and "
    "counted") {
  json file = small_study();
  file["batch"]["context_window"] = 32769;
  file["policies"] = {{{"name", "plain"}, {"shard", "per-sequence"}, {"pad", "error"}}};
  file["baseline"] = "plain";
  const StudyResult error = run_file(file);
  CHECK(error.policies[0].status == RowStatus::refused);
  REQUIRE(error.policies[0].reasons.size() == 2);
  CHECK(error.policies[0].reasons[0].text("error").find("per-sequence sharding over 2") == 0);
  CHECK(error.policies[0].reasons[1] ==
        Note{"runs_with", "", {{"changes", Notes{change_note("pad", "\"tail\"")}}}});
  file["policies"][0]["pad"] = "tail";
  const StudyResult result = run_file(file);
  REQUIRE(result.policies[0].metrics.pr);
  CHECK(*result.policies[0].metrics.pr == doctest::Approx(1 - 32769.0 / 32772));  // the next multiple of 4
}

TEST_CASE("Documents that would take longer than the clock holds do not end a study of short ones") {
  // The profile's W(d) is tabulated up to 4M tokens whatever the window is.
  const json file = {{"trace", {{"uniform", 64}}},
                     {"model", "llama3.1-405b"},
                     {"cluster", {{"profile", "cpu"}}},
                     {"framework", {{"preset", "megatron"}, {"attention_slowdown", 10}}},
                     {"batch", {{"context_window", 64}, {"sequences_per_step", 1}, {"steps", 1}}},
                     {"policies", {"wlb"}}};
  CHECK_NOTHROW((void)run_file(file));
}

TEST_CASE("A bucket that a row gives is tried smaller, whichever policy or rule reads it") {
  for (const json& row :
       {json{{"name", "flexsp"}, {"bucket_size", "1M"}}, json{{"name", "hybrid-cp"}, {"bucket_size", "1M"}},
        json{{"name", "plain"}, {"shard", "dacp"}, {"bucket_size", "1M"}}}) {
    json file = small_study_of(row);
    file["parallel"]["recompute"] = "full";
    file["cluster"]["memory_GB"] = 3;  // not even the largest stage's states: everything is tried
    const PolicyResult result = run_file(file).policies.front();
    REQUIRE(result.status == RowStatus::oom);
    REQUIRE(result.reasons.size() == 2);
    CHECK(result.reasons[1].kind == "none_would_fit");
    const Notes& tried = result.reasons[1].get<Notes>("tried");
    CHECK(std::ranges::find(tried, change_note("bucket_size", 65536)) != tried.end());
  }
}

TEST_CASE("Searches of CP degrees keep to those that share out a recurrence's heads") {
  json file = small_study();
  file["parallel"] = {{"tensor", 1}, {"context", 1}, {"data", 4}, {"recompute", "none"}};
  file["policies"] = json::array({"hbp"});
  file.erase("baseline");
  Study study = parse(file);
  const StudyInputs inputs = load_inputs(study);
  CHECK(degrees_of_lanes(StudyRow(study, inputs, study.policies.front())) == std::vector<int>{1, 2, 4});
  study.model.recurrence = recurrence_of_heads(2, study.model);
  const StudyRow row(study, inputs, study.policies.front());
  CHECK(degrees_of_lanes(row) == std::vector<int>{1, 2});
  CHECK(layers_of_groups(row)(8192, 2) >= 0);
  CHECK(layers_of_groups(row)(8192, 4) == -1);
}

TEST_CASE("Policies with a CP degree for each document are offered those that the heads allow") {
  json file = small_study();
  file["parallel"] = {{"tensor", 1}, {"context", 1}, {"data", 8}, {"recompute", "full"}};
  file["trace"] = {{"uniform", 65536}};
  file["batch"] = {{"context_window", "64K"}, {"documents_per_step", 2}, {"steps", 2}};
  file["policies"] = json::array();
  for (const char* name : {"hybrid-cp", "dynamic-cp", "flexsp"})
    file["policies"].push_back({{"name", name}, {"tokens_per_rank", "32K"}});
  file.erase("baseline");
  Study study = parse(file);
  const auto degrees = [&] {
    std::vector<std::set<int>> chosen;
    for (const PolicyResult& row : run_study(study, {}).policies) {
      REQUIRE(row.status == RowStatus::ok);
      chosen.push_back(row.facts.degrees);
    }
    return chosen;
  };
  for (const std::set<int>& chosen : degrees()) CHECK(*chosen.rbegin() == 4);  // two documents on eight ranks
  // Six heads allow 1, 2, 3 and 6 ranks: of the powers of two only 1 and 2 are left.
  study.model.recurrence = recurrence_of_heads(6, study.model);
  for (const std::set<int>& chosen : degrees()) CHECK(*chosen.rbegin() == 2);
}
