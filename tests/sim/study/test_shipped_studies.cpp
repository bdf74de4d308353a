// The shipped studies that repeat a paper's experiment, held to what the paper found. Limits are on what a
// simulation can be held to (ratios, orders, what fits in memory), not on the paper's milliseconds.
#include <nlohmann/json.hpp>

#include "sim/study/run_study.h"
#include "tests/sim/study/study_case.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

StudyResult run_shipped(const std::string& name, const std::vector<std::string>& overrides = {}) {
  return run_study(
      read_study(std::string(EQUIPOISE_SOURCE_DIR) + "/traces/studies/" + name + ".json", overrides), {});
}

const Metrics& metrics(const StudyResult& result, const std::string& label) {
  for (const PolicyResult& p : result.policies)
    if (p.run.label == label) return p.metrics;
  FAIL("no row ", label);
  return result.policies.front().metrics;
}

}  // namespace

TEST_CASE("HBP's components on Tulu3 + LongCite: abr 0.506 -> 0.288 -> 0.002, cr 1 -> 0.173") {
  const StudyResult result = run_shipped("hbp-8b");
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
}

TEST_CASE("ChunkFlow at 256K: of (2K,16), (8K,4) and (32K,1) the second is fastest") {
  const StudyResult result = run_shipped("chunkflow-7b-256k");
  const double best = metrics(result, "chunkflow (8K,4)").seconds;
  CHECK(best > 0);
  CHECK(best < metrics(result, "chunkflow (2K,16)").seconds);
  CHECK(best < metrics(result, "chunkflow (32K,1)").seconds);
}
