#include <doctest/doctest.h>

#include "policies/base/error.h"
#include "sim/validation/compare_log.h"

using namespace equipoise;

namespace {

MeasuredLog log_of(const std::string& text) {
  return parse_measured_log(text, "log");
}

// Steps of 1, 2, 3 and 4 s.
SimulatedPolicy four_steps(const char* label) {
  SimulatedPolicy policy;
  policy.label = label;
  for (int s = 1; s <= 4; ++s)
    policy.steps.push_back(
        {1.0 * s, 100, {{OpName::attention, 0.25}, {OpName::qkv_gemm, 0.5}, {OpName::out_gemm, 0.125}}});
  return policy;
}

std::string refusal(const std::string& text, const std::vector<SimulatedPolicy>& policies) {
  try {
    (void)compare_with_log(log_of(text), policies, {});
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("Steps are paired by number, repetitions together, ops by name or kind") {
  const Validation v = compare_with_log(log_of("step,step_seconds,op,seconds\n"
                                               "1,2.5,gemm,0.5\n"
                                               "1,2.7,gemm,0.75\n"
                                               "3,4,qkv_gemm,0.4\n"
                                               "9,1,attention,1\n"),
                                        {four_steps("plain")}, {0.1, 0.2});
  CHECK(v.limits.step == 0.1);
  CHECK(v.device == "CSV log");
  REQUIRE(v.policies.size() == 1);
  REQUIRE(v.policies[0].steps.size() == 2);
  CHECK(v.policies[0].steps[0].step == 1);
  CHECK(v.policies[0].steps[0].predicted_seconds == 2);
  CHECK(v.policies[0].steps[0].measured_seconds == std::vector<double>{2.5, 2.7});
  CHECK(v.policies[0].steps[0].tokens == 100);
  CHECK(v.policies[0].steps[1].predicted_seconds == 4);
  REQUIRE(v.ops.size() == 2);
  CHECK(v.ops[0].op == "gemm");
  CHECK(v.ops[0].predicted_seconds == 0.625);  // both GEMMs of the step
  CHECK(v.ops[0].measured_seconds == std::vector<double>{0.5, 0.75});
  CHECK(v.ops[1].predicted_seconds == 0.5);
  CHECK(v.notes == Notes{{"entries_beyond", "plain", {{"entries", 1}, {"steps", 4}}},
                         {"ops_not_simulated", "plain", {}}});
}

TEST_CASE("An entry of several steps is compared with their mean") {
  MeasuredLog log;
  log.steps = {{"", 2, 2, 3.0, 0}, {"", 0, 2, 1.0, 0}};
  const Validation v = compare_with_log(log, {four_steps("plain")}, {});
  REQUIRE(v.policies[0].steps.size() == 2);
  CHECK(v.policies[0].steps[0].predicted_seconds == 1.5);
  CHECK(v.policies[0].steps[1].predicted_seconds == 3.5);
}

TEST_CASE("A rate becomes seconds by the step's tokens and GPUs, or by the samples of its batch") {
  SimulatedPolicy policy = four_steps("plain");
  policy.gpus = 4;
  policy.samples_per_step = 8;
  MeasuredLog log;
  log.steps = {{"", 1, 1, 0, 0, 10.0}};  // 100 tokens over 4 GPUs at 10 tokens/s each
  CHECK(compare_with_log(log, {policy}, {}).policies[0].steps[0].measured_seconds ==
        std::vector<double>{2.5});
  log.steps = {{"", 1, 1, 0, 0, 0, 4.0}};
  CHECK(compare_with_log(log, {policy}, {}).policies[0].steps[0].measured_seconds ==
        std::vector<double>{2.0});
  log.run.samples_per_step = 16;  // as the log says of its own
  CHECK(compare_with_log(log, {policy}, {}).policies[0].steps[0].measured_seconds ==
        std::vector<double>{4.0});
}

TEST_CASE("What a log says of its run is compared with the study's") {
  Study study;
  study.batch.sequences_per_step = 16;
  study.layout.data = 8;
  study.cluster.profile = "h200-sxm";
  MeasuredLog log;
  CHECK(unlike_runs(log, study, "NVIDIA H200").empty());
  log.run = {256, 8, "NVIDIA H200 SXM 141GB"};
  CHECK(unlike_runs(log, study, "NVIDIA H200") ==
        Notes{{"log_global_batch", "", {{"logged", 256}, {"study", 16}}}});
  study.batch.documents_per_step = 256;
  CHECK(unlike_runs(log, study, "NVIDIA H200").empty());
  log.run = {256, 16, "NVIDIA A100-SXM4-80GB"};
  CHECK(unlike_runs(log, study, "NVIDIA H200") ==
        Notes{{"log_world_size", "", {{"logged", 16}, {"study", 8}}},
              {"log_gpu",
               "",
               {{"logged", "NVIDIA A100-SXM4-80GB"}, {"study", "NVIDIA H200"}, {"profile", "h200-sxm"}}}});
}

TEST_CASE("A log that shares no step is compared as a whole") {
  const Validation v =
      compare_with_log(log_of("step,step_seconds\n100,2\n101,3\n102,7\n"), {four_steps("plain")}, {});
  REQUIRE(v.policies[0].steps.size() == 1);
  CHECK(v.policies[0].steps[0].predicted_seconds == 2.5);
  CHECK(figures_of(v).policies[0].measured_seconds == 3);
  CHECK(v.notes == Notes{{"no_step_of_log", "plain", {{"steps", 4}}}});
}

TEST_CASE("Policies are distinguished by their labels") {
  const std::vector<SimulatedPolicy> two = {four_steps("plain"), four_steps("wlb")};
  const Validation v = compare_with_log(log_of("policy,step,step_seconds\nwlb,0,1\n"), two, {});
  REQUIRE(v.policies.size() == 1);
  CHECK(v.policies[0].label == "wlb");
  CHECK(v.notes.empty());
  CHECK(
      refusal("step,step_seconds\n0,1\n", two) ==
      "log: expected --policy with the row that was run, one of plain, wlb, or a column policy; found a log "
      "of one run");
  CHECK(refusal("policy,step,step_seconds\nwbl,0,1\n", two) ==
        "log: policy: expected one of plain, wlb, found wbl");
  CHECK(refusal("step,step_seconds,op,seconds\n0,1,gem,1\n", {four_steps("plain")})
            .find("log: op: expected one of attention, gemm") == 0);
  CHECK(refusal("step,tokens,step_seconds\n0,99,1\n", {four_steps("plain")}) ==
        "log: step 0 of plain: expected 100 tokens, as simulated, found 99");
}
