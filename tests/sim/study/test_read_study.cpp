// Reading studies: what is filled in, and every way to get a file wrong.
#include <filesystem>

#include "policies/packing/hbp.h"
#include "policies/packing/wlb.h"
#include "sim/study/read/policy_run.h"
#include "sim/study/run_study.h"
#include "tests/notes.h"
#include "tests/scratch_folder.h"
#include "tests/sim/study/study_case.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

json with(const char* pointer, const json& value) {
  json file = small_study();
  file[json::json_pointer(pointer)] = value;
  return file;
}

}  // namespace

TEST_CASE("Every shipped study is read without a complaint") {
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(EQUIPOISE_SOURCE_DIR) + "/traces/studies")) {
    if (entry.path().extension() != ".json") continue;
    CAPTURE(entry.path().string());
    const Study study = read_study(entry.path().string(), {});
    CHECK(!study.policies.empty());
    CHECK(!study.name.empty());
    ++count;
  }
  CHECK(count >= 2);
}

TEST_CASE("A study says only what differs from the defaults") {
  const Study study =
      parse(json::parse(R"({"trace": {"uniform": 8192}, "model": "llama2-7b", "policies": ["plain"]})"));
  CHECK(study.name == "study");
  CHECK(study.layout.gpus() == 1);
  CHECK(study.layout.zero == 1);
  CHECK(study.layout.recompute == Recompute::none);
  CHECK(study.framework.preset.name == "megatron");
  CHECK(study.batch.context_window == 131072);
  CHECK(study.batch.sequences_per_step == 1);  // pipeline x data
  CHECK(study.steps == 100);
  CHECK(study.schedule == "1f1b");
  CHECK(study.baseline == "plain");
  CHECK(study.policies[0].shard == "per-sequence");
  CHECK(study.policies[0].sharding.pad == Pad::tail);
}

TEST_CASE("Sizes take K and M, recompute is a word or a number of layers") {
  json file = with("/batch/context_window", "1M");
  CHECK(parse(file).batch.context_window == 1 << 20);
  file = with("/parallel/recompute", json{{"layers", 5}});
  CHECK(parse(file).layout.recompute == Recompute::layers);
  CHECK(parse(file).layout.recompute_layers == 5);
  file = with("/policies/1", json{{"name", "hbp"}, {"groups", "16K:1,32K:2"}});
  REQUIRE(parse(file).policies[1].pack.groups.size() == 2);
  CHECK(parse(file).policies[1].pack.groups[1].length == 32768);
  CHECK(parse(file).policies[1].pack.groups[1].context == 2);
}

TEST_CASE("Presets are the papers' systems, and what is said in addition to them wins") {
  const Study study = parse(small_study());
  CHECK(study.policies[0].name == "plain");
  CHECK(study.policies[0].shard == "per-sequence");
  CHECK(study.policies[0].label == "plain-4d");
  CHECK(study.policies[2].name == "wlb");
  CHECK(study.policies[2].shard == "adaptive");
  CHECK(study.policies[2].pack.of<WlbOptions>().queues == 2);
  const Study other =
      parse(with("/policies/2", json{{"name", "wlb-llm"}, {"queues", 3}, {"shard", "per-document"}}));
  CHECK(other.policies[2].pack.of<WlbOptions>().queues == 3);
  CHECK(other.policies[2].shard == "per-document");
  CHECK(parse(with("/policies/1", "fixed-4d")).policies[1].shard == "static-best");
  CHECK(parse(with("/policies/1", "chunkflow")).policies[1].schedule == "state-aware-1f1b");
}

TEST_CASE("Rows of one name get labels of their own, the baseline may be a name or a label") {
  json file = small_study();
  file["policies"] = {"plain", "plain", {{"name", "wlb"}, {"label", "plain #2"}}, "wlb"};
  file["baseline"] = "wlb";
  const Study study = parse(file);
  CHECK(study.policies[0].label == "plain");
  CHECK(study.policies[1].label == "plain #2");
  CHECK(study.policies[2].label == "plain #2 #2");
  CHECK(study.policies[3].label == "wlb");
  CHECK(study.baseline == "wlb");
}

namespace {

Notes notes_of_no_effect(const json& file) {
  Notes notes = parse(file).notes;
  std::erase_if(notes, [](const Note& note) { return !holds(note.kind, "no_effect"); });
  return notes;
}

}  // namespace

TEST_CASE("Keys that a policy or its sharding rule does not use are noted") {
  json file = small_study();
  file["policies"] = {
      {{"name", "plain"}, {"chunk_size", 8192}, {"remainder", "tail"}, {"order", "bell"}},
      {{"name", "ffd"}, {"queues", 2}, {"pack_order", "created"}, {"seed", 3}},
      {{"name", "plain"}, {"cost", "quadratic"}, {"search", true}},
      {{"name", "plain"}, {"cost", "quadratic"}, {"shard", "dacp"}, {"bucket_size", "32K"}},
      {{"name", "wlb"}, {"search", true}, {"shard", "adaptive"}, {"pad", "error"}, {"tile", 64}}};
  file["baseline"] = "ffd";
  CHECK(notes_of_no_effect(file) ==
        Notes{{"no_effect_on_policy", "plain", {{"key", "chunk_size"}, {"policy", "plain"}}},
              {"no_effect_on_shard", "plain", {{"key", "remainder"}, {"shard", "per-sequence"}}},
              {"no_effect_on_policy", "ffd", {{"key", "queues"}, {"policy", "ffd"}}},
              {"no_effect_on_policy", "plain #2", {{"key", "cost"}, {"policy", "plain"}}},
              {"no_effect_on_policy", "plain #2", {{"key", "search"}, {"policy", "plain"}}},
              {"no_effect_on_shard", "wlb", {{"key", "pad"}, {"shard", "adaptive"}}},
              {"tile_no_effect", "wlb", {}}});
  CHECK(notes_of_no_effect(small_study()).empty());
  file["policies"] = {{{"name", "hbp"}, {"recompute", "full"}},
                      {{"name", "hbp"}, {"groups", "32K:2"}, {"recompute", "full"}}};
  file["baseline"] = "hbp";
  CHECK(notes_of_no_effect(file) ==
        Notes{{"no_effect_on_policy", "hbp", {{"key", "recompute"}, {"policy", "hbp"}}}});
}

TEST_CASE("With whole documents, keys that shape windows are noted for the policies without use for them") {
  json file = with("/policies", {"padded", "isf", {{"name", "chunkflow"}, {"oversize", "split"}}, "padded"});
  file["baseline"] = "isf";
  file["batch"]["loader"] = "drop";
  file["batch"]["documents_per_step"] = 16;
  CHECK(
      notes_of_no_effect(file) ==
      Notes{{"no_effect_on_policy", "chunkflow", {{"key", "oversize"}, {"policy", "chunkflow"}}},
            {"window_no_effect", "", {{"key", "context_window"}, {"policies", "padded, chunkflow"}}},
            {"window_no_effect", "", {{"key", "sequences_per_step"}, {"policies", "padded, isf, chunkflow"}}},
            {"window_no_effect", "", {{"key", "loader"}, {"policies", "padded, isf, chunkflow"}}}});
}

TEST_CASE("With a budget of tokens a given number of micro-batches is noted, the row's and the study's") {
  json file = small_study_of({{"name", "lpt"}, {"tokens_per_micro_batch", "32K"}, {"micro_batches", 4}});
  CHECK(notes_of_no_effect(file) ==
        Notes{about("lpt", no_effect("micro_batches", "without tokens_per_micro_batch"))});
  file["policies"][0].erase("micro_batches");
  file["batch"]["micro_batches"] = 4;
  CHECK(notes_of_no_effect(file) ==
        Notes{no_effect("batch.micro_batches", "with a policy of a given number of micro-batches")});
  file["policies"][0].erase("tokens_per_micro_batch");
  CHECK(notes_of_no_effect(file).empty());
}

TEST_CASE("A key that acts on one policy only with another key is noted for that policy alone") {
  const json weighs = {{"name", "lpt"}, {"linear_cost", 1}};
  CHECK(notes_of_no_effect(small_study_of(weighs)).empty());  // lpt balances what it weighs
  json in_order = weighs;
  in_order["name"] = "plain";
  CHECK(notes_of_no_effect(small_study_of(in_order)) ==
        Notes{about("plain", no_effect("linear_cost", "with tokens_per_micro_batch"))});
}

TEST_CASE("With whole documents sequences_per_step is the fewest micro-batches, and a note says so") {
  json file = small_study_of("lpt");
  file["batch"].erase("sequences_per_step");
  file["batch"]["documents_per_step"] = 16;
  const auto says = [](const json& study) {
    return test::has_note(parse(study).notes, "sequences_of_documents");
  };
  CHECK_FALSE(says(file));
  file["batch"]["sequences_per_step"] = 64;
  CHECK(says(file));
  file["batch"]["micro_batches"] = 4;
  CHECK_FALSE(says(file));
}

TEST_CASE("A bad study is refused in one line: file, key, what was found, what is allowed") {
  const struct {
    const char* pointer;
    json value;
    const char* says;
  } cases[] = {
      {"/modle", "x", "study.json: unknown key \"modle\", did you mean \"model\"?"},
      {"/batch/contxt_window", 1,
       "study.json: batch: unknown key \"contxt_window\", did you mean \"context_window\"?"},
      {"/parallel/tensr", 1, "study.json: parallel: unknown key \"tensr\", did you mean \"tensor\"?"},
      {"/cluster/network/nic_gbps", 1,
       "study.json: cluster.network: unknown key \"nic_gbps\", did you mean \"nic_GBps\"?"},
      {"/policies/1/queue", 1, "study.json: policies[1]: unknown key \"queue\", did you mean \"queues\"?"},
      {"/trace/flie", "x", "study.json: trace: unknown key \"flie\", did you mean \"file\"?"},
      {"/framework", json{{"tp_overlapp", true}}, "study.json: framework: unknown key \"tp_overlapp\""},
      {"/framework", "megatronn",
       "study.json: framework: unknown framework \"megatronn\", did you mean \"megatron\"?"},
      {"/framework", 7, "study.json: framework: expected a preset's name, a file or an object, found 7"},
      {"/framework", json{{"preset", "fsdpp"}},
       "study.json: framework: unknown framework \"fsdpp\", did you mean \"fsdp\"?"},
      {"/framework", "no/such.json", "study.json: framework: no/such.json: no such file"},
      {"/framework", json{{"preset", 3}}, "study.json: framework.preset: expected a string, found 3"},
      {"/framework", json{{"reduce_each_micro_batch", 1}},
       "study.json: framework.reduce_each_micro_batch: expected true or false, found 1"},
      {"/framework", json{{"seconds_per_op", -1}}, "study.json: framework.seconds_per_op: expected"},
      {"/framework", json{{"optimizer_bytes", 0}}, "study.json: framework.optimizer_bytes: expected"},
      {"/framework", json{{"logit_bytes", 3}}, "study.json: framework.logit_bytes: expected"},
      {"/framework", json{{"recompute_ahead", 1}}, "study.json: framework.recompute_ahead: expected"},
      {"/name", 3, "study.json.name: expected a string, found 3"},
      {"/trace", "wlb-128k", "study.json: trace: expected an object, found \"wlb-128k\""},
      {"/trace/repeat", "yes", "study.json: trace.repeat: expected true or false, found \"yes\""},
      {"/trace/file", "x.txt",
       "study.json: trace: expected one of file, uniform, distribution and mixture, found 2"},
      {"/trace/uniform", 0, "study.json: trace.uniform: expected an integer in 1..2147483648, found 0"},
      {"/trace/documents", 1.5,
       "study.json: trace.documents: expected an integer in 1..4294967296, found 1.5"},
      {"/model", "llama2-7bb", "study.json: model: unknown name \"llama2-7bb\", did you mean \"llama2-7b\""},
      {"/model", json{{"hf_config", 3}}, "study.json: model.hf_config: expected a string, found 3"},
      {"/model", json{{"hf_config", "no/such.json"}}, "no/such.json: cannot be read"},
      {"/model", json{{"hidden", 64}}, "study.json: model.layers: expected a size, found nothing"},
      {"/model",
       json{{"hidden", 64},
            {"layers", 2},
            {"heads", 2},
            {"ffn", 64},
            {"vocab", 64},
            {"sliding_window_pattern", 2}},
       "study.json: model.sliding_window: expected the window of sliding_window_pattern, found nothing"},
      {"/model", json{{"hidden", 64}, {"sliding_window", 0}},
       "study.json: model.sliding_window: expected an integer in 1..2147483648, found 0"},
      {"/model", json{{"hf_config", "x"}, {"ignore", "all"}},
       "study.json: model.ignore: expected a list of keys of the config, found \"all\""},
      {"/model", json{{"hf_config", "x"}, {"gated_ffn", 1}},
       "study.json: model.gated_ffn: expected true or false, found 1"},
      {"/parallel/count_embedding_and_head", 2,
       "study.json: parallel.count_embedding_and_head: expected true or false, found 2"},
      {"/parallel/stage_layers", json::array(),
       "study.json: parallel.stage_layers: expected a list of integers in 0..100000, one a virtual stage, "
       "found []"},
      {"/parallel/stage_layers", json{6, -1},
       "study.json: parallel.stage_layers: expected a list of integers in 0..100000, one a virtual stage, "
       "found [6,-1]"},
      {"/parallel/tensor", 5,
       "study.json: parallel.tensor: expected a divisor of the model's 12 heads, found 5"},
      {"/parallel/tensor", 0, "study.json: parallel.tensor: expected an integer in 1..4194304, found 0"},
      {"/parallel/tensor", "two",
       "study.json: parallel.tensor: expected an integer in 1..4194304, as a number or with K or M "
       "(\"32K\"), found \"two\""},
      {"/parallel/data", 4194304,
       "study.json: parallel: expected tensor x context x pipeline x data of at most 4194304 GPUs"},
      {"/parallel/data", 1e300, "study.json: parallel.data: expected an integer in 1..4194304, found 1e+300"},
      {"/parallel/data", 18446744073709551615U,
       "study.json: parallel.data: expected an integer in 1..4194304"},
      {"/parallel/virtual_pipeline", 4194304,
       "study.json: parallel.pipeline: expected pipeline x virtual_pipeline of at most 16 layers"},
      {"/parallel/zero", 4, "study.json: parallel.zero: expected an integer in 0..3, found 4"},
      {"/parallel/reduce_each_micro_batch", true,
       "study.json: parallel: unknown key \"reduce_each_micro_batch\" here, expected in framework"},
      {"/parallel/schedule", "gpipe",
       "study.json: parallel: unknown key \"schedule\" here, expected in the study itself, for all rows, or "
       "in an "
       "entry of policies"},
      {"/shard", "adaptive", "study.json: unknown key \"shard\" here, expected in an entry of policies"},
      {"/framework", json{{"exchange_sms", "8K"}},
       "study.json: framework.exchange_sms: expected an integer in 0..1024, found \"8K\""},
      {"/parallel/context_comm", "tree",
       "study.json: parallel.context_comm: expected one of all-gather, ring, ulysses, ulysses-ring, "
       "ulysses-all-gather, group-cast, disaggregated, found \"tree\""},
      {"/parallel/block", 0, "study.json: parallel.block: expected an integer in 1..2147483648, found 0"},
      {"/parallel/recompute", "some",
       "study.json: parallel.recompute: expected one of none, selective, full, auto, found \"some\""},
      {"/parallel/recompute", json{{"layer", 3}},
       "study.json: parallel.recompute: unknown key \"layer\", did you mean \"layers\"?"},
      {"/parallel/recompute", json::object(),
       "study.json: parallel.recompute.layers: expected an integer in 0..100000, or modules instead of it, "
       "found nothing"},
      {"/batch/steps", -1, "study.json: batch.steps: expected an integer in 1..10000000, found -1"},
      {"/batch/steps", "9223372036854775807", "study.json: batch.steps: expected an integer in 1..10000000"},
      {"/batch/context_window", "-9223372036854775808",
       "study.json: batch.context_window: expected an integer in 1..2147483648"},
      {"/batch/context_window", 2147483649,
       "study.json: batch.context_window: expected an integer in 1..2147483648, found 2147483649"},
      {"/batch/loader", "keep", "study.json: batch.loader: expected one of carry, drop, found \"keep\""},
      {"/batch/micro_batch_size", 3,
       "study.json: batch.sequences_per_step: expected a multiple of micro_batch_size x parallel.data = 3, "
       "found 4"},
      {"/precision", "fp4", "study.json.precision: expected one of bf16, fp8, found \"fp4\""},
      {"/schedule", "2f2b", "study.json: schedule: unknown name \"2f2b\""},
      {"/policies", json::array(), "study.json.policies: expected a list of at least one policy, found []"},
      {"/policies/0", 7, "study.json: policies[0]: expected an object, found 7"},
      {"/policies/0", "wlbb",
       "study.json: policies[0]: policy: unknown name \"wlbb\", did you mean \"wlb\"?"},
      {"/policies/1/recompute", json{{"layers", 17}},
       "study.json: policies[1].recompute.layers: expected 0..16, found 17"},
      {"/policies/1/shard", "per-documnt", "study.json: policies[1]: "},
      {"/policies/1/pad", "errors",
       "study.json: policies[1].pad: expected one of error, tail, found \"errors\""},
      {"/policies/1/thresholds", json{4096, 1024},
       "study.json: policies[1].thresholds: expected rising thresholds, found [4096,1024]"},
      {"/policies/1/groups", "16K",
       "study.json: policies[1].groups: expected length:degree pairs such as 16K:1,128K:8, found 16K"},
      {"/policies/1/oversize", "skip",
       "study.json: policies[1].oversize: expected one of error, drop, truncate, split, found \"skip\""},
      {"/policies/1/pack_order", "random",
       "study.json: policies[1].pack_order: expected one of shuffled, created, found \"random\""},
      {"/policies/1/node_limit", 0,
       "study.json: policies[1].node_limit: expected an integer in 1..2147483647"},
      {"/policies/1", json{{"name", "fixed-solver"}, {"node_limit", 10}, {"time_limit", 1}},
       "study.json: policies[1].node_limit: expected one of time_limit and node_limit, not both, found 10"},
      {"/policies/1/schedule", "1f1c", "study.json: policies[1]: schedule: unknown name \"1f1c\""},
      {"/policies/1/published", json{{"metrics", {{"abr", 1}}}},
       "study.json: policies[1].published.source: expected where the figures are"},
      {"/policies/1/published", json{{"source", "a paper"}},
       "study.json: policies[1].published: expected metrics or status, found neither"},
      {"/policies/1/published", json{{"source", "a paper"}, {"metrics", {{"speed_up", 1.4}}}},
       "study.json: policies[1].published.metrics: unknown key \"speed_up\", did you mean \"speedup\"?"},
      {"/policies/1/published", json{{{"source", "a paper"}, {"metrics", {{"abr", "high"}}}}},
       "study.json: policies[1].published[0].metrics.abr: expected a number"},
      {"/policies/1/published",
       json{{"source", "a paper"}, {"against", "plan-4d"}, {"metrics", {{"speedup", 1.4}}}},
       "study.json: policies[1].published.against: expected the name of one of the policies, found "
       "\"plan-4d\", did you mean \"plain-4d\"?"},
      {"/mtp_layers", -1, "study.json.mtp_layers: expected an integer in 0..16, found -1"},
      {"/mtp_layers", true, "study.json.mtp_layers: expected an integer in 0..16, found true"},
      {"/cluster/watts", 700, "study.json: cluster.watts: expected an object, found 700"},
      {"/cluster/watts",
       {{"idle_W", 70}},
       "study.json: cluster.watts.attention_W: expected watts of a GPU, found nothing"},
      {"/cluster/watts",
       {{"idle_W", 0}},
       "study.json: cluster.watts.idle_W: expected a number in 0.001..100000.0, found 0"},
      {"/lora", 16, "study.json: lora: expected an object, found 16"},
      {"/lora", json::object(), "study.json: lora.dim: expected a size, found nothing"},
      {"/lora", json{{"dim", 0}}, "study.json: lora.dim: expected an integer in 1..65536, found 0"},
      {"/lora", json{{"rank", 8}}, "study.json: lora: unknown key \"rank\""},
      {"/lora", json{{"dim", 7}}, "study.json: parallel.tensor: expected a divisor of lora.dim = 7, found 2"},
      {"/lora", json{{"dim", 8}, {"target_modules", json::array()}},
       "study.json: lora.target_modules: expected a list of linear_qkv, linear_proj, linear_fc1, linear_fc2"},
      {"/lora", json{{"dim", 8}, {"target_modules", {"q_prej"}}},
       "of their names in PEFT (q_proj, k_proj, ...), or \"all-linear\", found [\"q_prej\"]"},
      {"/lora", json{{"dim", 8}, {"target_modules", {"router"}}},
       "study.json: lora.target_modules: expected"},
      {"/parallel/activation_offload", 1.5, "study.json: parallel.activation_offload: expected"},
      {"/parallel/activation_offload", "all", "study.json: parallel.activation_offload: expected"},
      {"/frozen", "head", "study.json.frozen: expected a list of embedding, linear_qkv, linear_proj, "},
      {"/frozen", {"layers:8"}, "head and {\"layers\": N}, each at most once"},
      {"/frozen", json::array({json{{"layers", -1}}}), "study.json: frozen.layers: expected "},
      {"/frozen", json::array({json{{"layer", 1}}}), "study.json: frozen: unknown key \"layer\""},
      {"/frozen", json::array({json{{"layers", 8}}}), "study.json.frozen: expected embedding with layers 8"},
      {"/frozen", json::array({"embedding", json{{"layers", 99}}}),
       "study.json.frozen: expected layers in 0.."},
      {"/frozen", json::array({"embedding", json{{"layers", 1}}, json{{"layers", 2}}}), "each at most once"},
      {"/frozen", {"heads"}, "study.json.frozen: expected a list of embedding,"},
      {"/frozen", {"head", "head"}, ", each at most once, found [\"head\",\"head\"]"},
      {"/framework",
       {{"gradient_bucket_MB", 1e-9}},
       "framework.gradient_bucket_MB: expected 0 or a number in 0.1..100000.0"},
      {"/frozen", {"router"}, "study.json.frozen: expected no router for a model without experts"},
      {"/frozen",
       {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "norms"},
       "study.json.frozen: expected something of the layers to train, or lora"},
      {"/baseline", "plan-4d",
       "study.json.baseline: expected the name of one of the policies, found \"plan-4d\", did you mean "
       "\"plain-4d\"?"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.pointer);
    CAPTURE(c.value.dump());
    const std::string message = refusal(with(c.pointer, c.value));
    CAPTURE(message);
    CHECK(holds(message, c.says));
  }
  for (const char* key : {"trace", "model", "policies"}) {
    json file = small_study();
    file.erase(key);
    CHECK(holds(refusal(file), std::string("study.json.") + key + ": expected "));
  }
}

TEST_CASE("Multi-token prediction is a study's for any model, and a note says what it trains") {
  json file = small_study();
  CHECK(parse(file).model.mtp_layers == 0);
  file["mtp_layers"] = 1;
  const Study study = parse(file);
  CHECK(study.model.mtp_layers == 1);
  REQUIRE(test::has_note(study.notes, "predicts_tokens"));
  CHECK(test::find_note(study.notes, "predicts_tokens")->count("layers") == 1);
  // A layer more may be recomputed.
  file["parallel"]["recompute"] = {{"layers", study.model.layers + 1}};
  CHECK(parse(file).layout.recompute_layers == study.model.layers + 1);
}

TEST_CASE("Adapters are asked for by PEFT's names of layers as by Megatron's") {
  const std::pair<json, WeightSet> cases[] = {
      {{"q_proj", "k_proj", "v_proj"}, bit_of(WeightKind::qkv)},
      {{"o_proj", "linear_qkv"}, bit_of(WeightKind::proj) | bit_of(WeightKind::qkv)},
      {{"gate_proj", "up_proj"}, bit_of(WeightKind::fc1)},
      {{"down_proj"}, bit_of(WeightKind::fc2)},
      {{"mlp"}, bit_of(WeightKind::fc1) | bit_of(WeightKind::fc2)},
      {{"all-linear"}, kAdaptable},
      {"all-linear", kAdaptable},
  };
  for (const auto& [targets, adapted] : cases) {
    CAPTURE(targets.dump());
    const Study study = parse(with("/lora", {{"dim", 8}, {"target_modules", targets}}));
    CHECK(study.model.training.adapted == adapted);
    CHECK(!test::has_note(study.notes, "adapts_all_of_qkv"));
  }
  const Study some = parse(with("/lora", {{"dim", 8}, {"target_modules", {"q_proj", "v_proj"}}}));
  CHECK(some.model.training.adapted == bit_of(WeightKind::qkv));
  CHECK(test::has_note(some.notes, "adapts_all_of_qkv"));
}

TEST_CASE("What is frozen goes together with adapters and with a tied embedding, or is refused in a line") {
  json file = small_study();
  file["lora"] = {{"dim", 8}, {"target_modules", {"linear_qkv"}}};
  const Study lora = parse(file);
  CHECK(lora.model.training.frozen == kAllWeights);
  CHECK(lora.model.training.adapted == bit_of(WeightKind::qkv));
  // 16 layers of hidden size 1,536: 8 (1,536 + 4,608) each.
  REQUIRE(test::has_note(lora.notes, "trains_part"));
  CHECK(test::find_note(lora.notes, "trains_part")->count("trained") == 786432);
  file["frozen"] = {"linear_qkv", "norms"};
  CHECK(parse(file).model.training.frozen == (bit_of(WeightKind::qkv) | bit_of(WeightKind::norms)));
  file["frozen"] = {"linear_proj"};
  CHECK(holds(refusal(file),
              "study.json.frozen: expected linear_qkv among them, which lora.target_modules has"));
  // With what lora adapts among them or without: there is no use in adding it.
  for (const json& frozen : {json::array({"linear_qkv", "embedding", json{{"layers", 4}}}),
                             json::array({"embedding", json{{"layers", 4}}})}) {
    file["frozen"] = frozen;
    CHECK(holds(refusal(file), "study.json.frozen: expected no layers with lora, which freezes all of them"));
  }
  file["frozen"] = json::array({"linear_qkv", "embedding", json{{"layers", 4}}});
  file.erase("lora");
  CHECK(parse(file).model.training.frozen_layers == 4);
  file["frozen"] = json::array({"embedding", "head", "norms", json{{"layers", 16}}});
  CHECK(holds(refusal(file),
              "study.json.frozen: expected something to train, found all layers and the head frozen"));
  file["frozen"] = json::array({json{{"layers", 0}}});
  CHECK(parse(file).notes == parse(small_study()).notes);
  file["frozen"] = json::array({"embedding", json::object()});
  CHECK(holds(refusal(file), "study.json: frozen.layers: expected an integer in 0..100000, found nothing"));
  file["model"] = "qwen2.5-0.5b";
  file["frozen"] = {"embedding"};
  CHECK(holds(refusal(file),
              "study.json.frozen: expected embedding and head, which are one matrix in qwen2.5-0.5b"));
  file["frozen"] = {"embedding", "head"};
  CHECK(refusal(file).empty());
}

TEST_CASE(
    "Activations are offloaded of layers that keep them: where layers are recomputed whole it is refused") {
  json file = small_study();
  file["parallel"]["activation_offload"] = 0.5;
  const Study study = parse(file);
  CHECK(test::has_note(study.notes, "activation_offload"));
  file["parallel"]["host_link_GBps"] = 25;  // acts without parallel.optimizer_offload
  CHECK(parse(file).notes.size() == study.notes.size());
  for (const json& recompute : {json("full"), json("auto"), json{{"layers", 2}}}) {
    file["parallel"]["recompute"] = recompute;
    CHECK(holds(refusal(file),
                "study.json: parallel.activation_offload: expected 0 where layers are recomputed "
                "whole (plain-4d), found 0.5"));
  }
  file["parallel"]["recompute"] = {{"modules", {"layernorm"}}};
  CHECK(refusal(file).empty());
}

TEST_CASE("A file that is no JSON, or is not there, is named") {
  const test::Scratch folder;
  const std::string path = folder.write("study.json", "{\"trace\": {");
  CHECK_THROWS_WITH_AS((void)read_study(path, {}), (path + ":1: not JSON, near \"{\"trace\": {\"").c_str(),
                       UserError);
  std::filesystem::remove(path);
  CHECK_THROWS_WITH_AS((void)read_study(path, {}),
                       (path + ": cannot be read: No such file or directory").c_str(), UserError);
  CHECK_THROWS_WITH_AS(
      (void)read_study(folder.folder().string(), {}),
      (folder.folder().string() + ": cannot be read: found a folder, expected a file").c_str(), UserError);
}

TEST_CASE("--set reaches every key by its path, lists by index") {
  json file = small_study();
  set_study_key(file, "parallel.context=4");
  CHECK(file["parallel"]["context"] == 4);
  set_study_key(file, "policies.1.pack_window=8");
  CHECK(file["policies"][1]["pack_window"] == 8);
  set_study_key(file, "batch.context_window=64K");  // not JSON: a word
  CHECK(file["batch"]["context_window"] == "64K");
  set_study_key(file, "trace={\"uniform\": 4096}");
  CHECK(file["trace"]["uniform"] == 4096);
  set_study_key(file, "cluster.network.nic_GBps=25");  // makes what is missing
  CHECK(file["cluster"]["network"]["nic_GBps"] == 25);
  const Study study = parse(file);
  CHECK(study.layout.context == 4);
  CHECK(study.batch.context_window == 65536);
  CHECK(study.trace.uniform == 4096);
  for (const char* bad : {"parallel.context", "=4", "policies.3.queues=1", "policies.-1.queues=1",
                          "policies.x.queues=1", "baseline.x=1", "baseline=1e999", "name=\xff"})
    CHECK_THROWS_AS(set_study_key(file, bad), UserError);
  std::string deep;  // a path as deep as this would print, copy and compare by recursion
  for (int i = 0; i < 100000; ++i) deep += "a.";
  CHECK_THROWS_AS(set_study_key(file, deep + "a=1"), UserError);
  CHECK_THROWS_AS(set_study_key(file, "trace=" + std::string(100000, '[') + std::string(100000, ']')),
                  UserError);
}

TEST_CASE("cluster.gpus fixes the number of GPUs: the replicas follow from the layout") {
  CHECK(parse(with("/cluster/gpus", 32)).layout.data == 4);  // TP 2 x CP 2 x PP 2
  CHECK(holds(
      refusal(with("/cluster/gpus", 36)),
      "study.json: cluster.gpus: expected a multiple of parallel.tensor x context x pipeline = 8, found 36"));
  json both = with("/cluster/gpus", 32);
  both["parallel"]["data"] = 4;
  CHECK(parse(both).layout.gpus() == 32);
  both["parallel"]["data"] = 2;
  CHECK(holds(refusal(both), "study.json: parallel.data: expected 4 for cluster.gpus 32, or none"));
  // On the command line it outranks the file's replicas, and not those of the command line.
  json file = small_study();
  file["parallel"]["data"] = 2;
  set_study_keys(file, {"parallel.context=4", "cluster.gpus=16"});
  CHECK(parse(file).layout.data == 1);
  set_study_keys(file, {"parallel.data=2", "cluster.gpus=16"});
  CHECK(holds(refusal(file), "parallel.data: expected 1 for cluster.gpus 16"));
}

TEST_CASE("Llama 4 by name, and a shape written out, attend in chunks; a chunk needs its tokens") {
  json file = small_study();
  file["model"] = "llama4-scout";
  file["parallel"]["context_comm"] = "ring";
  CHECK(holds(refusal(file),
              "study.json: parallel.context_comm: expected all-gather or ulysses or ulysses-all-gather or "
              "group-cast"));
  file["parallel"].erase("context_comm");
  const ModelShape scout = parse(file).model;
  CHECK(scout.reach().chunked);
  CHECK(scout.reach().window == 8192);
  CHECK(scout.layer_counts() == LayerCounts{0, 12, 0, 36});  // of four layers the last sees everything
  file["model"] = "llama4-maverick";
  CHECK(parse(file).model.layer_counts() == LayerCounts{0, 12, 24, 12});
  file["model"] = {{"layers", 4},          {"hidden", 256},
                   {"heads", 4},           {"ffn", 512},
                   {"vocab", 1024},        {"chunked_attention", true},
                   {"sliding_window", 64}, {"sliding_window_pattern", 4}};
  CHECK(parse(file).model.chunked);
  file["model"].erase("sliding_window_pattern");
  file["model"].erase("sliding_window");
  CHECK(holds(refusal(file),
              "study.json: model.sliding_window: expected the tokens of a chunk of chunked_attention"));
  file["model"]["chunked_attention"] = "yes";
  CHECK(holds(refusal(file), "study.json: model.chunked_attention: expected true or false"));
}

TEST_CASE("A model written out in a study may slide; a config.json tells what of it is not simulated") {
  json file = small_study();
  file["model"] = {{"layers", 16}, {"hidden", 1536}, {"heads", 12},
                   {"ffn", 4096},  {"vocab", 32000}, {"head_dim", 128}};
  CHECK(parse(file).model.sliding_window == 0);
  file["model"]["sliding_window"] = "4K";
  CHECK(parse(file).model.layer_counts() == LayerCounts{0, 0, 16, 0});
  file["model"]["sliding_window_pattern"] = 4;
  const Study study = parse(file);
  CHECK(study.model.sliding_window == 4096);
  CHECK(study.model.layer_counts() == LayerCounts{4, 0, 12, 0});
  CHECK(!study.model.is_sliding_layer(3));
  const auto seconds = [](const json& of) {
    return run_study(parse(of), {}).policies.front().metrics.seconds;
  };
  const double some = seconds(file);
  file["model"].erase("sliding_window_pattern");
  CHECK(seconds(file) < some);
  file["model"].erase("sliding_window");
  CHECK(seconds(file) > some);
}

TEST_CASE(
    "Nothing is recomputed unless a study says so; selective frees nothing and costs attention's forward") {
  json file = small_study();
  file["parallel"].erase("recompute");
  CHECK(parse(file).layout.recompute == Recompute::none);
  const auto row = [&](const char* recompute) {
    file["parallel"]["recompute"] = recompute;
    return run_study(parse(file), {}).policies.front();
  };
  const PolicyResult none = row("none"), selective = row("selective"), full = row("full");
  CHECK(*selective.metrics.peak_memory_bytes == *none.metrics.peak_memory_bytes);
  CHECK(*full.metrics.peak_memory_bytes < *none.metrics.peak_memory_bytes);
  CHECK(selective.metrics.seconds > none.metrics.seconds);
  CHECK(selective.metrics.seconds < full.metrics.seconds);
  CHECK(selective.metrics.recompute_ratio > 0);
}
