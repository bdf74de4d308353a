// What cannot run is a row: its status, why, and the smallest change that makes it run.
#include <nlohmann/json.hpp>
#include <string>

#include "policies/base/text.h"
#include "sim/report/plan_json.h"
#include "sim/report/result_csv.h"
#include "sim/report/study_table.h"
#include "sim/report/summary_json.h"
#include "sim/report/words/words.h"
#include "sim/study/row/pipeline.h"
#include "sim/study/run_study.h"
#include "tests/sim/study/study_case.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

StudyResult run(const json& file, bool ignore_memory = false) {
  RunStudyOptions options;
  options.ignore_memory = ignore_memory;
  options.record_gpus = true;
  return run_study(parse(file), options);
}

// One row of the small study.
PolicyResult row_of(const json& policy, const json& patch = json::object()) {
  return run(small_study_of(policy, patch)).policies[0];
}

// What would make a row run: the value of `key`, which is among the changes.
const NoteValue& advised(const Notes& reasons, std::string_view key) {
  REQUIRE(reasons.size() == 2);
  for (const Note& change : reasons[1].get<Notes>("changes"))
    if (change.kind == "change" && change.text("key") == key) return change.numbers.find("value")->second;
  FAIL(reason_text(reasons));
  return reasons[1].numbers.begin()->second;
}

// The small study with all its memory but for a little: what it holds without recompute is in the way.
json short_of_memory() {
  const double held = row_of("plain").peak.parts.total();
  json file = small_study();
  file["policies"] = {"plain"};
  file.erase("baseline");
  file["cluster"]["memory_GB"] = 0.9 * held / 1e9;
  return file;
}

}  // namespace

TEST_CASE("Results do not depend on how many steps are planned and simulated at a time") {
  for (const json& policy :
       {json("plain"), json("wlb-llm"), json("fixed-4d"), json("chunkflow"), json("skrull"), json("hbp"),
        json{{"name", "plain"}, {"shard", "static-best"}},
        json{{"name", "wlb"}, {"recompute", "auto"}, {"oversize", "split"}, {"max_tokens", 16384}}})
    for (const Fidelity fidelity : {Fidelity::stage, Fidelity::op}) {
      json file = small_study_of(policy);
      file["batch"]["steps"] = 9;
      CAPTURE(file["policies"].dump());
      RunStudyOptions options;
      options.steps.fidelity = fidelity;
      options.record_gpus = true;
      const auto csv_with = [&](std::size_t block) {
        options.steps_of_block = block;
        StudyResult result = run_study(parse(file), options);
        CHECK(result.policies[0].plan.steps.empty());
        result.policies[0].pack_ms = 0;  // measured
        return summary_json(parse(file), result).dump() + steps_csv(result) + gpus_csv(result);
      };
      const std::string whole = csv_with(1000);
      CHECK(csv_with(1) == whole);
      options.jobs = 3;
      CHECK(csv_with(4) == whole);
      options.jobs = 1;
    }
}

TEST_CASE("Out of memory names the fewest layers to recompute that fit") {
  const json file = short_of_memory();
  const PolicyResult row = run(file).policies[0];
  REQUIRE(row.status == RowStatus::oom);
  CHECK(!row.metrics.step_seconds);
  REQUIRE(row.reasons.size() == 2);
  CHECK(row.reasons[0].kind == "needs_memory");
  CHECK(row.reasons[1].kind == "fits_with");
  const json recompute = json::parse(std::get<std::string>(advised(row.reasons, "recompute")));
  const int layers = recompute["layers"];
  const auto status = [&](int recomputed) {
    return row_of({{"name", "plain"}, {"recompute", {{"layers", recomputed}}}},
                  {{"cluster", file["cluster"]}})
        .status;
  };
  CHECK(status(layers) == RowStatus::ok);
  CHECK(status(layers - 1) == RowStatus::oom);
  // What it costs is what a GPU with enough memory shows.
  const json enough = {{"cluster", json::object()}};
  const double whole = *row_of("plain", enough).metrics.tokens_per_second_per_gpu;
  const double less = *row_of({{"name", "plain"}, {"recompute", {{"layers", layers}}}}, enough)
                           .metrics.tokens_per_second_per_gpu;
  CHECK(row.reasons[1].get<Notes>("cost")[0].number("ratio") == doctest::Approx(whole / less));
}

TEST_CASE("What the program chooses leaves the headroom free, and a stated plan that does not is marked") {
  const json wlb = {{"name", "wlb"}, {"queues", 0}};
  const auto with_headroom = [](double share) {
    return json{{"cluster", {{"memory_GB", 14}, {"memory_headroom", share}}}};
  };
  const PolicyResult all = row_of(wlb, with_headroom(0)), some = row_of(wlb, with_headroom(0.06));
  REQUIRE(all.status == RowStatus::ok);
  REQUIRE(some.status == RowStatus::ok);
  CHECK(some.run.pack.max_tokens < all.run.pack.max_tokens);
  CHECK(some.peak.parts.total() <= 0.94 * 14e9);
  CHECK(!all.memory_tight);
  CHECK(!some.memory_tight);

  json stated = {{"name", "plain"}};
  const double held = row_of(stated).peak.parts.total();
  const auto marked = [&](double share) {
    const json cluster = {{"memory_GB", 1.02 * held / 1e9}, {"memory_headroom", share}};
    const PolicyResult row = row_of(stated, {{"cluster", cluster}});
    CHECK(row.status == RowStatus::ok);
    return row.memory_tight;
  };
  CHECK(!marked(0));
  CHECK(marked(0.06));

  json cluster = short_of_memory()["cluster"];
  const auto recomputed = [&](double share) {
    cluster["memory_headroom"] = share;
    return row_of({{"name", "plain"}, {"recompute", "auto"}}, {{"cluster", cluster}}).run.recompute_layers;
  };
  CHECK(recomputed(0) < recomputed(0.3));
}

TEST_CASE("CP ranks instead of replicas come before more GPUs") {
  const json plain = {{"name", "plain"}, {"recompute", "full"}};
  json less = {{"parallel", {{"zero", 2}, {"data", 2}}}};
  less["cluster"]["memory_GB"] = 0.97 * row_of(plain, less).peak.parts.total() / 1e9;
  const PolicyResult row = row_of(plain, less);
  REQUIRE(row.reasons.size() == 2);
  const Note ranks{"context_for_data", "", {{"context", 4}, {"data", 1}}};
  CHECK(row.reasons[1].get<Notes>("changes") == Notes{ranks});
  less["parallel"].update({{"context", 4}, {"data", 1}});
  CHECK(row_of(plain, less).status == RowStatus::ok);
}

TEST_CASE("Where recompute is not enough the search goes on: chunk size, then more GPUs") {
  const PolicyResult chunks = row_of({{"name", "chunkflow"}, {"chunk_size", "32K"}, {"recompute", "full"}});
  REQUIRE(chunks.status == RowStatus::ok);
  const json tight = {{"cluster", {{"memory_GB", 0.97 * chunks.peak.parts.total() / 1e9}}}};
  const json policy = {{"name", "chunkflow"}, {"chunk_size", "32K"}, {"recompute", "full"}};
  const PolicyResult row = row_of(policy, tight);
  REQUIRE(row.status == RowStatus::oom);
  json smaller = policy;
  smaller["chunk_size"] = std::get<std::int64_t>(advised(row.reasons, "chunk_size"));
  CHECK(row_of(smaller, tight).status == RowStatus::ok);

  // Full recompute, and ZeRO-2 over a pipeline, leave plain the optimizer's states, and then fewer tokens a
  // rank.
  const json plain = {{"name", "plain"}, {"recompute", "full"}};
  json less = {{"parallel", {{"zero", 2}}}};
  less["cluster"]["memory_GB"] = 0.97 * row_of(plain, less).peak.parts.total() / 1e9;
  const PolicyResult offloads = row_of(plain, less);
  CHECK(std::get<double>(advised(offloads.reasons, "parallel.optimizer_offload")) == 0.5);
  for (const double share : {0.25, 0.5}) {
    less["parallel"]["optimizer_offload"] = share;
    CHECK(row_of(plain, less).status == (share < 0.5 ? RowStatus::oom : RowStatus::ok));
  }
  less["parallel"]["optimizer_offload"] = 1;
  less.erase("cluster");
  less["cluster"]["memory_GB"] = 0.97 * row_of(plain, less).peak.parts.total() / 1e9;
  const PolicyResult full = row_of(plain, less);
  REQUIRE(full.status == RowStatus::oom);
  REQUIRE(full.reasons.size() == 2);
  less["parallel"]["context"] = full.reasons[1].get<Notes>("changes")[0].count("context");
  CHECK(row_of(plain, less).status == RowStatus::ok);
}

TEST_CASE("hbp's typed groups that do not fit run on more ranks") {
  const json wide = {{"name", "hbp"}, {"groups", "8K:1,32K:4"}, {"recompute", "full"}};
  const json narrow = {{"name", "hbp"}, {"groups", "8K:1,32K:2"}, {"recompute", "full"}};
  json patch = {{"parallel", {{"data", 2}}}};
  const double least = row_of(wide, patch).peak.parts.total(),
               most = row_of(narrow, patch).peak.parts.total();
  REQUIRE(least < most);
  patch["cluster"]["memory_GB"] = (least + most) / 2 / 1e9;
  const PolicyResult row = row_of(narrow, patch);
  REQUIRE(row.status == RowStatus::oom);
  CHECK(std::get<std::string>(advised(row.reasons, "groups")) == "\"8K:2,32K:4\"");
}

TEST_CASE("A document that a policy cannot place, a schedule and a sharding that refuse: rows among others") {
  json file = small_study();
  file["batch"]["sequences_per_step"] = 3;  // 3 micro-batches on 2 stages
  file["policies"] = {{{"name", "plain"}, {"schedule", "interleaved-1f1b"}},
                      {{"name", "ffd"}, {"pack_length", "8K"}},
                      {{"name", "plain"}, {"label", "runs"}}};
  file["baseline"] = "ffd";
  const Study study = parse(file);
  const StudyResult result = run(file);
  const json out = summary_json(study, result);
  const auto& rows = out["policies"];
  CHECK(rows[0]["status"] == "refused");
  CHECK(rows[0]["reason"].get<std::string>().find("schedule interleaved-1f1b: ") == 0);
  CHECK(std::get<std::int64_t>(advised(result.policies[0].reasons, "batch.sequences_per_step")) == 4);
  CHECK(rows[0]["reasons"][1]["kind"] == "runs_with");
  CHECK(rows[1]["status"] == "unplaceable");
  const std::int64_t longest = std::get<std::int64_t>(advised(result.policies[1].reasons, "pack_length"));
  CHECK(longest <= 32768);
  file["policies"][1]["pack_length"] = longest;
  CHECK(run(file).policies[1].status == RowStatus::ok);
  file["policies"][1]["pack_length"] = longest - 1;
  CHECK(run(file).policies[1].status == RowStatus::unplaceable);
  CHECK(rows[2]["status"] == "ok");
  CHECK(rows[2]["reason"].is_null());
  CHECK(rows[2]["reasons"].empty());
  for (const json& row : rows) {
    CHECK(row["label"] == row["name"]);
    CHECK(row["metrics"]["speedup"].is_null());  // the baseline did not run
    CHECK(row["metrics"]["step_seconds"].is_null() == (row["status"] != "ok"));
    CHECK(row["memory"].is_null() == (row["status"] != "ok"));
  }
  const std::string table = study_table(study, result);
  for (const char* part :
       {"status", "plain is refused: schedule", "ffd cannot place a document: document ", "Fastest: runs, "})
    CHECK_MESSAGE(table.find(part) != std::string::npos, part);
  // Only the rows that ran have steps and GPUs.
  CHECK(steps_csv(result).find("\nplain,") == std::string::npos);
  CHECK(steps_csv(result).find("\nruns,") != std::string::npos);
  CHECK(gpus_csv(result).find("\nffd,") == std::string::npos);
  CHECK(json::parse(plans_json_text(study, result))["plans"].size() == 3);
}

TEST_CASE("With ignore_memory a row that does not fit has its times, its status and its mark") {
  const json file = short_of_memory();
  const StudyResult marked = run(file, true);
  CHECK(marked.policies[0].status == RowStatus::oom);
  CHECK(marked.policies[0].memory_ignored);
  json roomy = file;
  roomy.erase("cluster");
  CHECK(marked.policies[0].metrics.step_seconds == run(roomy).policies[0].metrics.step_seconds);
  const json out = summary_json(parse(file), marked)["policies"][0];
  CHECK(out["status"] == "oom");
  CHECK(out["memory_ignored"] == true);
  CHECK(out["metrics"]["speedup"] == 1);
  CHECK(study_table(parse(file), marked).find("oom, ignored") != std::string::npos);
  CHECK(study_table(parse(file), marked).find("Fastest: plain") == std::string::npos);

  // The same holds where the model's states leave no room for a plan.
  json states = small_study();
  states["model"] = "llama3.1-70b";
  states["policies"] = {"plain", "wlb", {{"name", "skrull"}}, "hbp"};
  states["baseline"] = "plain";
  for (const PolicyResult& row : run(states, true).policies) {
    CAPTURE(row.run.label);
    CHECK(row.status == RowStatus::oom);
    CHECK(row.metrics.step_seconds);
  }
}

TEST_CASE("A sweep's table has a line for every case and policy, and the reasons name their case") {
  const StudyResult ran = run(small_study());
  const StudyResult refused = refused_study(parse(small_study()), "trace: too short");
  SweepTable table;
  const Study study = parse(small_study());
  table.add(sweep_case("batch.steps=4", study, ran));
  table.add(sweep_case("batch.steps=9", study, refused));
  const std::string text = table.text();
  std::size_t lines = 0;
  for (const char c : text) lines += c == '\n';
  // Header, two cases of three policies, unequal batches and end-of-data steps of the one that ran, three
  // reasons, what was priced.
  CHECK(lines == 1 + 3 + 3 + 2 + 3 + 1);
  CHECK(text.find("batch.steps=4: note: tokens per step differ") != std::string::npos);
  CHECK(text.find("profile h100-sxm. Framework megatron: GEMM x") != std::string::npos);
  CHECK(text.find("batch.steps=9: wlb-llm is refused: trace: too short\n") != std::string::npos);
}

TEST_CASE("DualPipe is a row like others, with its reasons where it cannot run") {
  const json policy = {{"name", "plain"}, {"schedule", "dualpipe"}};
  const json patch = {{"parallel", {{"data", 2}}}, {"batch", {{"sequences_per_step", 16}}}};
  const PolicyResult row = row_of(policy, patch);
  REQUIRE(row.status == RowStatus::ok);
  const PolicyResult plain = row_of("plain", patch);
  // All layers on both ranks, sharded over the copies, too.
  CHECK(row.peak.parts.parameters > 1.9 * plain.peak.parts.parameters);
  CHECK(row.peak.parts.optimizer < 1.2 * plain.peak.parts.optimizer);
  const auto refused = [&](json changed, const char* says) {
    json with = patch;
    with.merge_patch(changed);
    const PolicyResult result = row_of(policy, with);
    CHECK(result.status == RowStatus::refused);
    const std::string reason = reason_text(result.reasons);
    CHECK_MESSAGE(reason.find(says) != std::string::npos, reason);
  };
  refused({{"batch", {{"sequences_per_step", 6}}}},
          "schedule dualpipe: expected an even number of micro-batches");
  refused({{"parallel", {{"zero", 2}}}}, "schedule dualpipe: expected parallel.zero 0 or 1, found 2");
  json chunks = policy;
  chunks["virtual_pipeline"] = 2;
  CHECK(reason_text(row_of(chunks, patch).reasons).find("schedule dualpipe takes 1, found 2") !=
        std::string::npos);
  refused({{"model", "deepseek-v2"},
           {"parallel", {{"tensor", 1}, {"data", 4}, {"expert", 4}, {"context", 1}}},
           {"batch", {{"context_window", "2K"}}},
           {"cluster", {{"memory_GB", 4000}}}},
          "expected framework.expert_overlap dualpipe");
}
