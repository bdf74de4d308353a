// JSON readers: the parser, studies, profiles and what predicts from them, presets, models, recipes, samples.
#include <nlohmann/json.hpp>

#include "policies/base/files.h"
#include "profiler/fit/recipe.h"
#include "profiler/fit/sample_lists.h"
#include "profiler/profile/profile.h"
#include "sim/framework/framework.h"
#include "sim/report/comparison.h"
#include "sim/report/expectation.h"
#include "sim/study/read/study.h"
#include "sim/workload/model_hf.h"
#include "tests/fuzz/law.h"
#include "tests/scratch_folder.h"
#include "traces/json_text.h"

using namespace equipoise;
using nlohmann::json;

namespace {

const std::string kRoot = EQUIPOISE_SOURCE_DIR;

std::string file(const std::string& path) {
  return read_text_file(kRoot + "/" + path);
}

// A shipped file without its long lists and texts, so that mutants hit what is read.
json shortened(const json& node) {
  if (node.is_object()) {
    json out = json::object();
    for (const auto& [key, value] : node.items())
      if (!(value.is_string() && value.get<std::string>().size() > 60)) out[key] = shortened(value);
    return out;
  }
  return node;
}

// Every model that a simulation takes from a profile, asked once.
void use_profile(const Profile& profile) {
  RangeUse use;
  const std::vector<QueryKeys> pieces = {{4096, 4096}, {128, 8192}};
  const AttentionModel attention(profile, {128, 32, 8});
  (void)attention.forward_seconds(pieces, use);
  (void)attention.backward_seconds(pieces, use);
  (void)GemmModel(profile, Precision::bf16).seconds(4096, 4096, 4096, use);
  (void)ElementwiseModel(profile).seconds(Elementwise::rms_norm, 1e6, use);
  (void)CollectiveModel(profile, {})
      .seconds(Collective::all_gather, 1e6, GroupShape{.ranks = 8, .ranks_per_node = 8}, use);
}

const std::string kConfig = R"({"model_type": "deepseek_v3", "hidden_size": 4096, "num_hidden_layers": 8,
  "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000,
  "n_routed_experts": 16, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 1024,
  "first_k_dense_replace": 1, "q_lora_rank": 512, "kv_lora_rank": 256, "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64, "v_head_dim": 128, "tie_word_embeddings": false, "hidden_act": "silu"})";
const std::string kDense = R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
  "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 32000, "hidden_act": "silu"})";

}  // namespace

TEST_CASE("JSON is parsed or refused") {
  test::check_reader("json",
                     {file("traces/studies/7b-128k.json"), "[1, -2.5e3, \"\\u00e9\", {\"a\": [true, null]}]"},
                     [](const std::string& text) { (void)parse_json(text, "x.json").dump(); });
}

TEST_CASE("Studies are read or refused") {
  test::check_reader("study",
                     {file("traces/studies/7b-128k.json"), file("traces/studies/hbp-8b.json"),
                      file("traces/studies/chunkflow-7b-256k.json"), file("traces/studies/skrull-7b.json")},
                     [](const std::string& text) {
                       (void)parse_study(parse_json(text, "study.json"),
                                         kRoot + "/traces/studies/study.json");
                     });
}

TEST_CASE("Expectations are read or refused, and compared") {
  test::check_reader(
      "expectation",
      {R"({"schema": "equipoise.expectation/1", "study": "s", "baseline": "plain", "documents": 3, "tokens": 9,
           "policies": [{"label": "plain", "status": "ok", "speedup": 1.0, "step_seconds": 2.5},
                        {"label": "wlb", "status": "oom", "speedup": null, "speedup_low": 1.1}]})"},
      [](const std::string& text) {
        const SavedResult read = read_expectation(parse_json(text, "e.json"), "e.json");
        for (const PolicyChange& change : changes_between(read, read, 0, 0)) REQUIRE(!change.moved());
        (void)expectation_json(read).dump();
      });
}

TEST_CASE("Saved results are read and shown, or refused") {
  test::check_reader("summary", {R"({"schema": "equipoise.summary/1", "baseline": "plain",
           "study": {"name": "s", "documents": 3, "tokens": 9, "pipeline": 2, "notes": ["said before"]},
           "policies": [
             {"label": "plain", "status": "ok", "reason": null, "metrics": {"speedup": 1.0, "step_seconds": 2.5,
              "steps": 2, "queue_emptied": true, "exposed_comm_ratio": {"tp": 0.5}},
              "memory": {"capacity_bytes": 8e10, "parameters": 4e10}, "measured": {"pack_ms": 0.5},
              "provenance": {"predictions": 8, "beyond_samples": 1}},
             {"label": "wlb", "status": "oom", "reason": "too large", "reasons": [{"kind": "no_token_fits",
              "about": "", "numbers": {}, "text": "too large"}], "metrics": {}, "memory": null,
              "provenance": {}}]})"},
                     [](const std::string& text) {
                       const SavedResult read = read_summary(parse_json(text, "s.json"), "s.json");
                       (void)saved_table(read);
                       (void)comparison_json(read, read, compare_saved(read, read)).dump();
                     });
}

TEST_CASE("Profiles are read and used, or refused") {
  std::vector<std::string> seeds;
  for (const char* name : {"h200-sxm", "cpu"})
    seeds.push_back(
        shortened(parse_json(file("profiler/profiles/" + std::string(name) + ".json"), name)).dump());
  json by_size = parse_json(seeds.back(), "cpu");
  for (json& kind : by_size["tables"]["collective"]["node"]) {
    kind["form"] = "size-table";
    kind["parameters"] = {{"bytes", {8, 4096, 1048576}}, {"us", {0.5, 2, 70}}, {"rank_us", 0.5}};
  }
  seeds.push_back(by_size.dump());
  test::check_reader("profile", seeds, [](const std::string& text) {
    use_profile(Profile(parse_json(text, "profile.json"), "profile.json"));
  });
}

TEST_CASE("Framework presets are read or refused") {
  test::check_reader(
      "preset", {file("sim/framework/presets/megatron.json"), file("sim/framework/presets/deepspeed.json")},
      [](const std::string& text) {
        (void)FrameworkPreset::read(parse_json(text, "preset.json"), "preset.json");
      });
}

TEST_CASE("Hugging Face configs are read or refused") {
  const test::Scratch folder;
  test::check_reader("hf-config", {kConfig, kDense}, [&](const std::string& text) {
    (void)read_hf_config(folder.write("config.json", text)).parameters();
  });
}

TEST_CASE("Recipes are read or refused") {
  const SampleSet none;
  test::check_reader(
      "recipe",
      {shortened(parse_json(file("profiler/recipes/h200-sxm-measured.json"), "r")).dump(),
       R"({"schema": "equipoise.recipe/1", "name": "x", "device": {}, "tables": {}})"},
      [&](const std::string& text) {
        (void)make_profile(parse_json(text, "recipe.json"), "recipe.json", none);
      },
      0);  // there are no samples to fit
}
