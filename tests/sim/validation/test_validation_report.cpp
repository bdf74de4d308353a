#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/validation/validation_report.h"
#include "tests/sim/validation/hand_pairs.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

Validation with_ops() {
  Validation v = two_policies();
  v.ops = {op("gemm", 0, 2, {1}), op("attention", 1, 9, {9})};
  v.notes = {{"all_runs_dropped", "a", {{"runs", 3}}}};
  return v;
}

}  // namespace

TEST_CASE("JSON has the keys of equipoise.validation/1") {
  const Validation v = with_ops();
  const json out = json::parse(validation_json(v, figures_of(v)).dump());
  CHECK(out["schema"] == "equipoise.validation/1");
  CHECK(out["passed"] == false);
  const json& b = out["policies"][1];
  CHECK(b["label"] == "b");
  CHECK(b["predicted_seconds"] == 0.9);
  CHECK(b["measured_seconds"] == 1.0);
  CHECK(b["error"].get<double>() == doctest::Approx(-0.1));
  CHECK(b["noise_seconds"].is_null());
  CHECK(out["policies"][0]["dropped_runs"] == 1);
  CHECK(out["policies"][0]["steps"].size() == 2);
  const json& gemm = out["ops"][1];
  CHECK(gemm["op"] == "gemm");
  CHECK(gemm["count"] == 1);
  CHECK(gemm["mean_abs_error"] == 1.0);
  CHECK(gemm["mean_error"] == 1.0);
  CHECK(gemm["worst"] == 1.0);
  CHECK(gemm["worst_at"]["rank"] == 2);
  // Per step, b (1 s) is faster than a (1.5 s), simulated and measured.
  CHECK(out["ranking"]["predicted"] == json{"b", "a"});
  CHECK(out["ranking"]["measured"] == json{"b", "a"});
  CHECK(out["ranking"]["same"] == true);
  CHECK(out["limits"]["step"] == 0.05);
  CHECK(out["limits"]["op"] == 0.08);
  CHECK(out["micro_batches"]["count"] == 2);
  CHECK(out["broken"].size() == 2);
  REQUIRE(out["notes"].size() == 1);
  CHECK(out["notes"][0]["kind"] == "all_runs_dropped");
  CHECK(out["notes"][0]["numbers"]["runs"] == 3);
}

TEST_CASE("Numbers that are none become null") {
  Validation v = two_policies();
  v.policies[0].steps[0].predicted_seconds = std::nan("");
  const json out = json::parse(validation_json(v, figures_of(v)).dump());
  CHECK(out["policies"][0]["error"].is_null());
  CHECK(out["passed"] == false);
}

TEST_CASE("The text names what broke, and what passed") {
  Validation v = with_ops();
  const std::string text = validation_text(v, figures_of(v));
  CHECK(text.find("BROKEN: step of b: -10.0 %, beyond 5.0 %\n") != std::string::npos);
  CHECK(text.find("BROKEN: op gemm: +100.0 %, beyond 8.0 %\n") != std::string::npos);
  CHECK(text.find("1 of 4") != std::string::npos);  // dropped
  CHECK(text.find("a, step 0, lane 0, stage 1, micro-batch 0, rank 2") != std::string::npos);
  CHECK(text.find("all 3 runs were dropped") != std::string::npos);
  CHECK(text.substr(text.size() - 8) == "\nfailed\n");
  v.other_load = 3.14;  // nobody's fault but the machine's
  const std::string busy = validation_text(v, figures_of(v));
  CHECK(busy.find("BROKEN: step of b") != std::string::npos);
  CHECK(busy.ends_with(
      "\nnot judged: measured while other work ran (3.1 CPUs were busy when the run began); run it again "
      "on a quiet machine\n"));
  CHECK(validation_json(v, figures_of(v))["judged"] == false);
  v.limits = {0.2, 2};
  const std::string good = validation_text(v, figures_of(v));
  CHECK(good.find("BROKEN") == std::string::npos);
  CHECK(good.substr(good.size() - 8) == "\npassed\n");
}
