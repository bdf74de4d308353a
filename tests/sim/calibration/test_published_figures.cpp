// Two published steps, simulated with the default of their framework and what their source states. A change
// of the cost models or of a preset that leaves a preset's stated error behind fails here, without the tables
// that the presets were fitted to.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/framework/framework.h"
#include "sim/study/read/study.h"
#include "sim/study/run_study.h"
#include "traces/json_text.h"

using namespace equipoise;
using nlohmann::json;

namespace {

double step_seconds(const json& file) {
  RunStudyOptions options;
  options.find_fits = false;
  options.ignore_memory = true;  // the runs existed
  const StudyResult result = run_study(parse_study(file, "figure.json"), options);
  return *result.policies.front().metrics.step_seconds;
}

// How far the preset says that it is off on this benchmark, fitted without it, at worst.
double stated_worst(const char* preset, const char* benchmark) {
  const json file = read_json_file(FrameworkPreset::load(preset).origin);
  return std::abs(file["kernels"]["left_out"]["benchmarks"][benchmark]["worst"].get<double>());
}

json uniform_study(int tokens, json model, json parallel, const char* framework, int sequences, int mbs) {
  return {{"name", "published figure"},
          {"trace", {{"uniform", tokens}}},
          {"model", std::move(model)},
          {"cluster", {{"profile", "h100-sxm"}}},
          {"parallel", std::move(parallel)},
          {"framework", framework},
          {"batch",
           {{"context_window", tokens},
            {"sequences_per_step", sequences},
            {"micro_batch_size", mbs},
            {"steps", 1}}},
          {"policies", {"plain"}}};
}

}  // namespace

TEST_CASE("Llama 3.1 405B on 576 GPUs: 17.20 s a step (NVIDIA dgxc-benchmarking v24.11.1, README_405b.md)") {
  const json study = uniform_study(8192, "llama3.1-405b",
                                   {{"tensor", 8},
                                    {"context", 2},
                                    {"context_comm", "ring"},
                                    {"pipeline", 9},
                                    {"virtual_pipeline", 7},
                                    {"data", 4},
                                    {"recompute", "none"}},
                                   "megatron", 252, 1);
  const double error = step_seconds(study) / 17.20 - 1;
  CAPTURE(error);
  CHECK(std::abs(error) <= stated_worst("megatron", "dgxc_llama3.1-405b"));
}

TEST_CASE("MPT 30B on 256 GPUs: 2,148 tokens/s a GPU (MosaicML llm-foundry, benchmarking/README.md)") {
  const json model = {{"name", "mpt-30b"}, {"layers", 48},   {"hidden", 7168},    {"heads", 56},
                      {"ffn", 28672},      {"vocab", 50368}, {"gated_ffn", false}};
  const json study = uniform_study(2048, model, {{"data", 256}, {"recompute", "full"}}, "fsdp", 2048, 8);
  const double published = 2048.0 * 2048 / 256 / 2148;
  const double error = step_seconds(study) / published - 1;
  CAPTURE(error);
  CHECK(std::abs(error) <= stated_worst("fsdp", "mpt_30b"));
}

TEST_CASE("8B, sequences of 128K with Ulysses of 8 and of 16, 32 H100: 10.2 and 10.5 s (arXiv 2503.07680)") {
  const auto error = [](int degree, int checkpointed, double published) {
    const json study = uniform_study(131072, "llama3.1-8b",
                                     {{"context", degree},
                                      {"data", 32 / degree},
                                      {"zero", 3},
                                      {"recompute", {{"layers", checkpointed}}},
                                      {"context_comm", "ulysses"}},
                                     "deepspeed", 4, 1);
    return step_seconds(study) / published - 1;
  };
  CHECK(std::abs(error(8, 29, 10.2)) <= stated_worst("deepspeed", "sequences_of_128K"));
  CHECK(std::abs(error(16, 23, 10.5)) <= stated_worst("deepspeed", "sequences_of_128K"));
}
