// The shipped studies that repeat a paper's experiment, held to what the paper found. Limits are on what a
// simulation can be held to (ratios, orders, what fits in memory), not on the paper's milliseconds.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "policies/base/text.h"
#include "policies/packing/skrull.h"
#include "sim/report/study_table.h"
#include "sim/study/run_study.h"
#include "tests/sim/study/study_case.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

StudyResult run_shipped(const std::string& name, const std::vector<std::string>& overrides = {}) {
  return run_study(
      read_study(std::string(EQUIPOISE_SOURCE_DIR) + "/traces/studies/" + name + ".json", overrides), {});
}

const PolicyResult& row(const StudyResult& result, const std::string& label) {
  for (const PolicyResult& p : result.policies)
    if (p.run.label == label) return p;
  FAIL("no row ", label);
  return result.policies.front();
}

const Metrics& metrics(const StudyResult& result, const std::string& label) {
  return row(result, label).metrics;
}

}  // namespace

TEST_SUITE_BEGIN("figures");

TEST_CASE("HBP's components on Tulu3 + LongCite: abr 0.506 -> 0.288 -> 0.002, cr 1 -> 0.173") {
  const StudyResult result = run_shipped("hbp-8b", {"batch.steps=171"});
  const Metrics& isf = metrics(result, "isf 128K, CP 8");
  const Metrics& hierarchical = metrics(result, "+ hierarchical");
  const Metrics& balance = metrics(result, "+ balance (hbp, groups as printed)");
  CHECK(std::abs(*isf.abr - 0.506) <= 0.1);
  CHECK(std::abs(*hierarchical.abr - 0.288) <= 0.1);
  CHECK(*balance.abr <= 0.02);
  CHECK(*isf.cr == doctest::Approx(1));
  CHECK(std::abs(*hierarchical.cr - 0.173) <= 0.1);
  CHECK(std::abs(*balance.cr - 0.173) <= 0.1);
  CHECK(*hierarchical.speedup > 1);
  CHECK(*balance.speedup > *hierarchical.speedup);
  CHECK(*metrics(result, "hbp, groups selected").speedup >= *balance.speedup);
  // All rows checkpoint the fewest layers that fit, so that nothing of the speed-up is recompute alone.
  for (const PolicyResult& p : result.policies) CHECK(p.run.recompute_chosen);
}

TEST_CASE("ChunkFlow at 256K: of (2K,16), (8K,4) and (32K,1) the second is fastest") {
  const StudyResult result = run_shipped("chunkflow-7b-256k");
  const double best = metrics(result, "chunkflow (8K,4)").seconds;
  CHECK(best > 0);
  CHECK(best < metrics(result, "chunkflow (2K,16)").seconds);
  CHECK(best < metrics(result, "chunkflow (32K,1)").seconds);
}

TEST_CASE("ChunkFlow Table 5: six peaks within 10 %, and what 256K of context add to 32K") {
  const char* labels[] = {"chunkflow (2K,1)", "chunkflow (4K,1)", "chunkflow (8K,1)"};
  const StudyResult shorter = run_shipped("chunkflow-memory-32k");
  const StudyResult longer = run_shipped("chunkflow-memory-256k");
  for (const StudyResult* result : {&shorter, &longer}) {
    const std::vector<PublishedRow> rows = next_to_published(*result);
    CHECK(rows.size() == 3);
    for (const PublishedRow& row : rows) {
      CAPTURE(row.label);
      REQUIRE(row.metric == "peak_memory_bytes");
      CHECK(std::abs(*row.simulated / *row.published - 1) <= 0.1);
    }
  }
  // The peak is at the second backward of a group: K, V and their gradients of all chunks but the last. 224K
  // tokens more, K and V of one head of 128 on each TP rank in 28 layers, in bf16, twice. (The paper's
  // differences, 3.3 to 4.5 GiB, lie between this and K and V alone, 3.06 GiB.)
  const double added = 224 * 1024.0 * (2 * 128 * 28 * 2) * 2 / kGiB;
  CHECK(added == doctest::Approx(6.125));
  for (const char* label : labels)
    CHECK((*metrics(longer, label).peak_memory_bytes - *metrics(shorter, label).peak_memory_bytes) / kGiB ==
          doctest::Approx(added));
  // K chunks, not K + 1: one chunk's activations less, which is too little by a tenth and more.
  const StudyResult off = run_shipped("chunkflow-memory-32k", {"framework.recompute_ahead=false"});
  CHECK(*metrics(off, labels[2]).peak_memory_bytes < 0.9 * 59.3 * kGiB);
  const StudyResult strict = run_shipped("chunkflow-memory-32k", {"policies.2.strict_keep=true"});
  CHECK(*metrics(strict, labels[2]).peak_memory_bytes == *metrics(off, labels[2]).peak_memory_bytes);
  CHECK(*metrics(strict, labels[1]).peak_memory_bytes == *metrics(shorter, labels[1]).peak_memory_bytes);
}

TEST_CASE(
    "Skrull's case study: round-robin gains over the baseline and Skrull gains more; neither fits without "
    "roll-back") {
  const StudyResult result = run_shipped("skrull-0.5b");
  CHECK(*metrics(result, "round-robin, as they arrived").speedup > 1);
  CHECK(*metrics(result, "skrull").speedup > *metrics(result, "round-robin, as they arrived").speedup);
  // In ascending micro-batches both rules place alike.
  CHECK(metrics(result, "skrull").seconds == metrics(result, "round-robin").seconds);
  CHECK(row(result, "round-robin, no roll-back").status == RowStatus::oom);
  CHECK(row(result, "skrull, no roll-back").status == RowStatus::oom);
}

TEST_CASE("Skrull's bucket sizes follow from memory: 26K tokens a rank for 0.5B, 13K for 7B, within 25 %") {
  const auto bucket = [](const StudyResult& result) {
    return static_cast<double>(row(result, "skrull").run.pack.bucket_size) / 1024;
  };
  const double small = bucket(run_shipped("skrull-0.5b", {"batch.steps=1"}));
  const double large = bucket(run_shipped("skrull-7b", {"batch.steps=1"}));
  CAPTURE(small);
  CAPTURE(large);
  CHECK(std::abs(small / 26 - 1) <= 0.25);
  CHECK(std::abs(large / 13 - 1) <= 0.25);
}

// `check` runs every one of them (tests/cli/CMakeLists.txt), which takes long enough once.
TEST_CASE("Every shipped study is expected to run, and its baseline to fit") {
  const std::filesystem::path root(EQUIPOISE_SOURCE_DIR);
  int studies = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root / "traces/studies")) {
    if (entry.path().extension() != ".json") continue;
    CAPTURE(entry.path().stem().string());
    std::ifstream file(root / "tests/expected" / entry.path().filename());
    REQUIRE(file);
    const auto expected = nlohmann::json::parse(file);
    const auto is_baseline = [&](const nlohmann::json& row) {
      return row.at("label") == expected.at("baseline");
    };
    const auto& rows = expected.at("policies");
    const auto baseline = std::find_if(rows.begin(), rows.end(), is_baseline);
    REQUIRE(baseline != rows.end());
    CHECK(baseline->at("status") == "ok");
    CHECK(baseline->at("tokens_per_second_per_gpu") > 0);
    ++studies;
  }
  CHECK(studies >= 15);
}

TEST_CASE("The large studies run as people run them: less than half of a step is bubble") {
  for (const char* name : {"7b-128k", "405b-8k-gpus", "405b-131k-gpus"}) {
    CAPTURE(name);
    const StudyResult result = run_shipped(name, {"batch.steps=4"});
    CHECK(*result.policies[result.baseline].metrics.bubble_ratio < 0.5);
    const StudyResult one_chunk = run_shipped(name, {"batch.steps=4", "parallel.virtual_pipeline=1"});
    CHECK(*one_chunk.policies[one_chunk.baseline].metrics.bubble_ratio >
          *result.policies[result.baseline].metrics.bubble_ratio);
  }
}

TEST_CASE(
    "Llama 3 405B: the band of MFU over chunks of a stage, which the paper does not print, holds its "
    "figure") {
  const struct {
    const char* study;
    double published;
  } rows[] = {{"llama3-405b-8k", 0.43}, {"llama3-405b-16k-gpus", 0.41}, {"llama3-405b-128k", 0.38}};
  for (const auto& [name, published] : rows) {
    std::vector<double> band;
    std::ostringstream text;
    text.precision(3);
    for (const char* chunks : {"1", "2", "4", "8"}) {
      RunStudyOptions options;
      options.ignore_memory = true;
      options.find_fits = false;
      const StudyResult result =
          run_study(read_study(std::string(EQUIPOISE_SOURCE_DIR) + "/traces/studies/" + name + ".json",
                               {std::string("parallel.virtual_pipeline=") + chunks}),
                    options);
      const PolicyResult& as_published = row(result, "no checkpointing, as published");
      CHECK(as_published.run.published.front().source == "arXiv 2407.21783, Table 4");
      band.push_back(*as_published.metrics.mfu);
      text << (band.size() == 1 ? "" : ", ") << 100 * band.back();
    }
    MESSAGE(std::string(name) << ": MFU " << text.str() << " % at 1, 2, 4, 8 chunks of a stage, published "
                              << 100 * published << " %");
    CHECK(std::is_sorted(band.begin(), band.end()));  // more chunks, fewer bubbles
    CHECK(band.front() < published);
    CHECK(band.back() > published);
  }
}

TEST_SUITE_END();
