// What a config.json says of the model's shape in addition to its sizes: windows, activations, experts,
// parts, and what is refused because it is not modelled. The files are made by hand in the form of the
// published ones.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "policies/base/error.h"
#include "sim/workload/model_hf.h"
#include "tests/scratch_folder.h"

using namespace equipoise;
using nlohmann::json;

namespace {

ModelShape read(const json& config, const HfOptions& options = {}, Notes* notes = nullptr) {
  const test::Scratch folder;
  return read_hf_config(folder.write("config.json", config.dump()), options, notes);
}

std::string refusal(const json& config, const HfOptions& options = {}) {
  const test::Scratch folder;
  const std::string file = folder.write("config.json", config.dump());
  try {
    (void)read_hf_config(file, options);
  } catch (const UserError& e) {
    const std::string message = e.what();
    CHECK(message.rfind(file + ": ", 0) == 0);
    CHECK(message.find('\n') == std::string::npos);
    return message.substr(file.size() + 2);
  }
  return "";
}

json with(json config, const json& more) {
  config.update(more);
  return config;
}

HfOptions gated(bool is) {
  HfOptions options;
  options.gated_ffn = is;
  return options;
}

HfOptions ignoring(const char* key) {
  HfOptions options;
  options.ignore = {key};
  return options;
}

int sliding(const ModelShape& m) {
  const LayerCounts counts = m.layer_counts();
  return counts[2] + counts[3];
}

// What Transformers writes in addition to the shape.
const json kUsual = json::parse(R"({
  "_name_or_path": "x", "architectures": ["XForCausalLM"], "attention_dropout": 0.1, "bos_token_id": 1,
  "eos_token_id": [2, 3], "initializer_range": 0.02, "max_position_embeddings": 32768, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 8.0, "rope_type": "llama3"}, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
  "transformers_version": "4.43.0", "use_cache": true, "pretraining_tp": 1, "pad_token_id": null})");

json llama() {
  return with(kUsual, json::parse(R"({
    "model_type": "llama", "attention_bias": false, "mlp_bias": false, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "tie_word_embeddings": false, "vocab_size": 128256})"));
}

json mistral() {
  return with(llama(), {{"model_type", "mistral"}, {"sliding_window", 4096}, {"vocab_size", 32000}});
}

json gemma2() {
  return with(kUsual, json::parse(R"({
    "model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 256,
    "cache_implementation": "hybrid", "head_dim": 256, "hidden_size": 3584, "intermediate_size": 14336,
    "num_attention_heads": 16, "num_hidden_layers": 42, "num_key_value_heads": 8, "sliding_window": 4096,
    "sliding_window_size": 4096, "vocab_size": 256000})"));
}

json qwen2_moe() {
  return with(kUsual, json::parse(R"({
    "model_type": "qwen2_moe", "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5632,
    "num_attention_heads": 16, "num_hidden_layers": 24, "num_key_value_heads": 16, "vocab_size": 151936,
    "decoder_sparse_step": 1, "moe_intermediate_size": 1408, "norm_topk_prob": false, "num_experts": 60,
    "num_experts_per_tok": 4, "output_router_logits": false, "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 5632, "sliding_window": 32768, "max_window_layers": 21,
    "use_sliding_window": false, "tie_word_embeddings": false})"));
}

json deepseek_v3() {
  return with(kUsual, json::parse(R"({
    "model_type": "deepseek_v3", "attention_bias": false, "aux_loss_alpha": 0.001, "ep_size": 1,
    "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432,
    "kv_lora_rank": 512, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "quantization_config": {"fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": true, "tie_word_embeddings": false,
    "topk_group": 4, "topk_method": "noaux_tc", "vocab_size": 129280,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}})"));
}

}  // namespace

TEST_CASE("Llama: nothing but its sizes counts, and it is the built-in model") {
  const ModelShape m = read(llama());
  CHECK(m.parameters() == builtin_model("llama3.1-8b").parameters());
  CHECK(m.gated_ffn);
  CHECK(m.sliding_window == 0);
}

TEST_CASE("Mistral: all layers slide; without a window none does") {
  const ModelShape m = read(mistral());
  CHECK(m.sliding_window == 4096);
  CHECK(sliding(m) == 32);
  CHECK(m.parameters() == read(with(mistral(), {{"sliding_window", nullptr}})).parameters());
  CHECK(sliding(read(with(mistral(), {{"sliding_window", nullptr}}))) == 0);
  // Documents may be longer than the positions that the file states.
  CHECK(sliding(read(with(mistral(), {{"max_position_embeddings", 4096}}))) == 32);
  CHECK(refusal(with(mistral(), {{"sliding_window", "4K"}})) ==
        "sliding_window: expected an integer in 0..2147483647, found \"4K\"");
}

TEST_CASE(
    "Gemma 2: every second layer sees everything, its FFN is gated though it has a GELU, its head is tied") {
  const ModelShape m = read(gemma2());
  CHECK(m.gated_ffn);
  CHECK(m.tied_embeddings);
  CHECK(m.head_dim == 256);
  CHECK(sliding(m) == 21);
  CHECK(m.is_sliding_layer(0));
  CHECK(!m.is_sliding_layer(1));
  CHECK(!m.is_sliding_layer(41));
  // 256,000 x 3,584 + 42 x (two norms, (16 + 2 x 8 + 16) heads of 256, three matrices of 14,336) + a norm.
  CHECK(m.parameters() ==
        256000LL * 3584 + 42 * (2 * 3584LL + 3584 * 256LL * (16 + 16 + 16) + 3 * 3584LL * 14336) + 3584);
  // Gemma 3 writes the pattern, others the layers.
  const ModelShape six = read(with(gemma2(), {{"model_type", "gemma3_text"}, {"sliding_window_pattern", 6}}));
  CHECK(sliding(six) == 35);
  CHECK(!six.is_sliding_layer(5));
  json types = json::array();
  for (int i = 0; i < 42; ++i) types.push_back(i == 7 ? "sliding_attention" : "full_attention");
  const ModelShape one = read(with(gemma2(), {{"layer_types", types}}));
  CHECK(sliding(one) == 1);
  CHECK(one.is_sliding_layer(7));
  types[3] = "linear_attention";
  CHECK(refusal(with(gemma2(), {{"layer_types", types}})) ==
        "layer_types[3]: expected attention, since layers of other mixers than attention (state-space, "
        "recurrent, short convolutions) are not modelled, found \"linear_attention\"");
  types[3] = "global";
  CHECK(refusal(with(gemma2(), {{"layer_types", types}})) ==
        "layer_types[3]: expected full_attention or sliding_attention, found \"global\"");
  types.erase(0);
  CHECK(refusal(with(gemma2(), {{"layer_types", types}}))
            .rfind("layer_types: expected a list of 42 layers", 0) == 0);
}

TEST_CASE("Qwen2 slides only if it says so, and then above its first layers") {
  const json qwen = with(llama(), {{"model_type", "qwen2"},
                                   {"sliding_window", 131072},
                                   {"max_window_layers", 28},
                                   {"max_position_embeddings", 1010000}});
  CHECK(read(qwen).sliding_window == 0);
  CHECK(read(with(qwen, {{"use_sliding_window", false}})).sliding_window == 0);
  const ModelShape m = read(with(qwen, {{"use_sliding_window", true}}));
  CHECK(m.sliding_window == 131072);
  CHECK(sliding(m) == 4);
  CHECK(!m.is_sliding_layer(27));
  CHECK(m.is_sliding_layer(28));
  // A window counts whatever the positions that the file states: documents may be longer.
  CHECK(read(with(mistral(), {{"sliding_window", 32768}})).sliding_window == 32768);
  CHECK(read(with(mistral(), {{"sliding_window", 32767}})).sliding_window == 32767);
}

TEST_CASE("GPT-2 and StarCoder2: a GELU between two matrices, not three") {
  const json gpt2 = json::parse(R"({
    "model_type": "gpt2", "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_inner": null, "n_layer": 12,
    "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
    "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257})");
  const ModelShape small = read(gpt2);
  CHECK(!small.gated_ffn);
  CHECK(small.tied_embeddings);
  CHECK(small.ffn == 4 * 768);
  CHECK(small.ffn_parameters(0) == 2 * 768 * 3072);
  CHECK(static_cast<double>(small.parameters()) == doctest::Approx(124e6).epsilon(0.01));
  const json coder = with(kUsual, json::parse(R"({
    "model_type": "starcoder2", "activation_function": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh",
    "embedding_dropout": 0.1, "residual_dropout": 0.1, "hidden_size": 3072, "intermediate_size": 12288,
    "mlp_type": "default", "norm_epsilon": 1e-05, "norm_type": "layer_norm", "num_attention_heads": 24,
    "num_hidden_layers": 30, "num_key_value_heads": 2, "sliding_window": 4096, "use_bias": true,
    "vocab_size": 49152})"));
  const ModelShape m = read(coder);
  CHECK(!m.gated_ffn);
  CHECK(m.ffn_parameters(0) == 2LL * 3072 * 12288);
  CHECK(m.qkv_bias);
  CHECK(sliding(m) == 30);
}

TEST_CASE("An activation alone does not say whether an FFN is gated") {
  CHECK(read(with(llama(), {{"hidden_act", "gelu"}})).gated_ffn);  // Transformers' Llama always gates
  json other = with(llama(), {{"model_type", "mine"}, {"hidden_act", "gelu"}});
  CHECK(refusal(other) ==
        "hidden_act: expected silu, or a known model_type, which says whether the FFN is gated, or gated_ffn "
        "next to "
        "hf_config in the study, found \"gelu\"");
  CHECK(!read(other, gated(false)).gated_ffn);
  CHECK(read(other, gated(true)).gated_ffn);
  other["hidden_act"] = "silu";
  CHECK(read(other).gated_ffn);
  CHECK_THROWS_WITH(read(other, gated(false)), doctest::Contains("the file says that its FFN is gated"));
  CHECK(refusal(with(llama(), {{"hidden_act", "tanh"}})) ==
        "hidden_act: expected an activation that is priced (silu, swish, gelu, gelu_new, gelu_fast, "
        "gelu_pytorch_tanh, quick_gelu, relu, relu2, xielu), found \"tanh\"");
}

TEST_CASE("Of a model type that is not known a window asks which layers slide") {
  json other = with(llama(), {{"model_type", "mine"}, {"sliding_window", 4096}});
  CHECK(refusal(other).find("sliding_window: expected layer_types or sliding_window_pattern next to it") ==
        0);
  other["sliding_window_pattern"] = 2;
  CHECK(read(other).sliding_window == 4096);
}

TEST_CASE("Qwen2-MoE: a shared expert of its own width, and rules of which layers have experts") {
  const ModelShape m = read(qwen2_moe());
  REQUIRE(m.moe);
  CHECK(m.moe->experts == 60);
  CHECK(m.moe->active == 4);
  CHECK(m.moe->shared_width() == 5632);
  CHECK(m.ffn_parameters(0) == 3LL * 2048 * (60 * 1408 + 5632) + 2048 * 60);
  CHECK(static_cast<double>(m.parameters()) == doctest::Approx(14.3e9).epsilon(0.01));  // as published
  const json counted =
      with(qwen2_moe(), {{"shared_expert_intermediate_size", nullptr}, {"num_shared_experts", 2}});
  CHECK(read(counted).moe->shared_width() == 2 * 1408);
  const ModelShape second = read(with(qwen2_moe(), {{"decoder_sparse_step", 2}, {"mlp_only_layers", {3}}}));
  CHECK(!second.is_moe_layer(0));
  CHECK(second.is_moe_layer(1));
  CHECK(!second.is_moe_layer(2));
  CHECK(!second.is_moe_layer(3));
  CHECK(second.is_moe_layer(5));
  CHECK(second.layer_counts() == LayerCounts{13, 11, 0, 0});
  CHECK(second.ffn_parameters(0) == 3LL * 2048 * 5632);
  CHECK(refusal(with(qwen2_moe(), {{"decoder_sparse_step", 25}}))
            .rfind("decoder_sparse_step: expected a rule", 0) == 0);
}

TEST_CASE(
    "DeepSeek-V3 predicts two tokens, as published: 671B, and 685B with the module and its copies of both "
    "ends") {
  const ModelShape whole = read(deepseek_v3(), {});
  CHECK(whole.mtp_layers == 1);
  CHECK(whole.layers == 61);
  CHECK(whole.layer_counts() == LayerCounts{3, 59, 0, 0});
  // README_WEIGHTS.md of the model: 11.5B of its own, 2.4B active with the shared embedding and head.
  const double module = static_cast<double>(whole.parameters() - builtin_model("deepseek-v3").parameters());
  const double ends = 2.0 * static_cast<double>(whole.embedding_parameters());
  CHECK(module == doctest::Approx(11.5e9).epsilon(0.01));
  CHECK(static_cast<double>(whole.parameters()) + ends == doctest::Approx(685e9).epsilon(0.001));
  const double active = static_cast<double>(whole.active_matmul_parameters() -
                                            builtin_model("deepseek-v3").active_matmul_parameters());
  CHECK(active + ends / 2 ==
        doctest::Approx(2.4e9).epsilon(0.06));  // 2.54e9; the projection, 0.10e9, excluded: 2.44e9
  CHECK(refusal(with(deepseek_v3(), {{"num_nextn_predict_layers", 17}})) ==
        "num_nextn_predict_layers: expected an integer in 0..16, found 17");
}

TEST_CASE("DeepSeek-V3 is the built-in model once its prediction layer is passed over by name") {
  Notes notes;
  const ModelShape m = read(deepseek_v3(), ignoring("num_nextn_predict_layers"), &notes);
  CHECK(m.parameters() == builtin_model("deepseek-v3").parameters());
  CHECK(static_cast<double>(m.parameters()) == doctest::Approx(671e9).epsilon(0.001));  // as published
  CHECK(m.layer_counts() == LayerCounts{3, 58, 0, 0});
  CHECK(m.moe->groups == builtin_model("deepseek-v3").moe->groups);
  CHECK(m.moe->groups_of_token == 4);
  REQUIRE(notes.size() == 2);
  CHECK(notes[0] == Note{"key_passed_over", "model", {{"key", "num_nextn_predict_layers"}}});
  CHECK(notes[1] == Note{"limited_routing", "model", {{"groups", 4}, {"of", 8}}});
}

TEST_CASE(
    "Llama 4's config is the built-in model: chunks but in every fourth layer, experts in all or every "
    "other") {
  const json scout = {{"model_type", "llama4"},
                      {"tie_word_embeddings", false},
                      {"vision_config", {{"hidden_size", 1408}}},
                      {"text_config", json::parse(R"({
    "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
    "vocab_size": 202048, "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1,
    "attention_chunk_size": 8192, "no_rope_layers": [], "attn_temperature_tuning": 4, "floor_scale": 8192,
    "attn_scale": 0.1, "use_qk_norm": true, "for_llm_compressor": false, "moe_layers": null, "attention_bias": false})")}};
  const auto changed = [&](const json& more) {
    json file = scout;
    file["text_config"].update(more);
    return file;
  };
  const auto is_built_in = [](const ModelShape& m, const char* name) {
    const ModelShape& known = builtin_model(name);
    CHECK(m.parameters() == known.parameters());
    CHECK(m.active_matmul_parameters() == known.active_matmul_parameters());
    CHECK(m.layer_counts() == known.layer_counts());
    CHECK(m.sliding_layers == known.sliding_layers);
    CHECK(m.reach().window == 8192);
    CHECK(m.reach().chunked);
  };
  is_built_in(read(scout), "llama4-scout");
  const json maverick = changed({{"num_local_experts", 128}, {"interleave_moe_layer_step", 2}});
  is_built_in(read(maverick), "llama4-maverick");
  json every_other = json::array(), rotary = json::array(), types = json::array();
  for (int layer = 0; layer < 48; ++layer) {
    if (layer % 2 == 1) every_other.push_back(layer);
    rotary.push_back(layer % 4 == 3 ? 0 : 1);
    types.push_back(layer % 4 == 3 ? "full_attention" : "chunked_attention");
  }
  const json lists = {{"num_local_experts", 128}, {"moe_layers", every_other}, {"no_rope_layers", rotary}};
  is_built_in(read(changed(lists)), "llama4-maverick");
  is_built_in(read(changed(with(lists, {{"layer_types", types}, {"no_rope_layers", nullptr}}))),
              "llama4-maverick");
  CHECK(!read(changed({{"attention_chunk_size", 0}})).chunked);
  const auto says = [&](const json& more) { return refusal(changed(more)); };
  CHECK(says({{"no_rope_layers", {1, 0}}}).find("no_rope_layers: expected a list of 48 layers") !=
        std::string::npos);
  CHECK(says({{"moe_layers", 3}}).find("moe_layers: expected a list of layers") != std::string::npos);
  CHECK(says({{"interleave_moe_layer_step", 49}}).find("interleave_moe_layer_step: expected a rule") !=
        std::string::npos);
}

TEST_CASE("DeepSeek-V2 is the built-in model, whatever its router does") {
  json v2 = with(deepseek_v3(), json::parse(R"({
    "model_type": "deepseek_v2", "first_k_dense_replace": 1, "hidden_size": 5120, "intermediate_size": 12288,
    "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 2, "norm_topk_prob": false,
    "num_experts_per_tok": 6, "num_hidden_layers": 60, "routed_scaling_factor": 16.0, "scoring_func": "softmax",
    "topk_group": 3, "topk_method": "group_limited_greedy", "vocab_size": 102400,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"}})"));
  v2.erase("num_nextn_predict_layers");
  v2.erase("quantization_config");
  Notes notes;
  const ModelShape m = read(v2, {}, &notes);
  CHECK(m.parameters() == builtin_model("deepseek-v2").parameters());
  CHECK(m.layer_counts() == LayerCounts{1, 59, 0, 0});
  REQUIRE(notes.size() == 1);
  CHECK(notes[0] == Note{"limited_routing", "model", {{"groups", 3}, {"of", 8}}});
  CHECK(m.moe->groups == builtin_model("deepseek-v2").moe->groups);
  CHECK(m.moe->groups_of_token == builtin_model("deepseek-v2").moe->groups_of_token);
  // With all groups, or with one, there is no limit to tell of.
  notes.clear();
  (void)read(with(v2, {{"topk_group", 8}}), {}, &notes);
  (void)read(with(v2, {{"n_group", nullptr}, {"topk_group", nullptr}}), {}, &notes);
  CHECK(notes.empty());
  CHECK(refusal(with(v2, {{"topk_group", 9}})) == "topk_group: expected at most n_group (8), found 9");
  CHECK(refusal(with(v2, {{"n_group", 7}})) ==
        "n_group: expected a divisor of the 160 routed experts, found 7");
  CHECK(refusal(with(v2, {{"n_group", "8"}})).rfind("n_group: expected an integer", 0) == 0);
  CHECK(refusal(with(v2, {{"moe_layer_freq", {0, 1}}})).rfind("moe_layer_freq: expected an integer", 0) == 0);
}

TEST_CASE("Qwen3-MoE: heads of their own width, experts in every layer, none shared") {
  const json qwen3 = with(kUsual, json::parse(R"({
    "model_type": "qwen3_moe", "attention_bias": false, "decoder_sparse_step": 1, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "max_window_layers": 48,
    "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "output_router_logits": false, "router_aux_loss_coef": 0.001, "sliding_window": null,
    "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936})"));
  const ModelShape m = read(qwen3);
  CHECK(m.query_width() == 4096);
  CHECK(m.moe->shared_width() == 0);
  CHECK(m.layer_counts() == LayerCounts{0, 48, 0, 0});
  // Published: 30.5 billion, 3.3 of them active (with the embedding row that is looked up).
  CHECK(static_cast<double>(m.parameters()) == doctest::Approx(30.5e9).epsilon(0.002));
  CHECK(static_cast<double>(m.active_matmul_parameters() + m.embedding_parameters()) ==
        doctest::Approx(3.3e9).epsilon(0.02));
}

TEST_CASE("Mixtral: every layer has eight experts as wide as the FFN") {
  const ModelShape m = read(with(mistral(), {{"model_type", "mixtral"},
                                             {"sliding_window", nullptr},
                                             {"num_local_experts", 8},
                                             {"num_experts_per_tok", 2},
                                             {"router_aux_loss_coef", 0.02}}));
  CHECK(m.layer_counts() == LayerCounts{0, 32, 0, 0});
  CHECK(static_cast<double>(m.parameters()) == doctest::Approx(46.7e9).epsilon(0.01));  // as published
}

TEST_CASE("Jamba and its like are refused by name") {
  const json jamba = with(mistral(), json::parse(R"({
    "model_type": "jamba", "attn_layer_offset": 4, "attn_layer_period": 8, "expert_layer_offset": 1,
    "expert_layer_period": 2, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2, "num_experts": 16,
    "num_experts_per_tok": 2, "sliding_window": null})"));
  CHECK(refusal(jamba) ==
        "model_type: expected another, since layers of other mixers than attention (state-space, recurrent, "
        "short convolutions) are not modelled, found \"jamba\"");
  json unnamed = jamba;
  unnamed.erase("model_type");
  CHECK(refusal(unnamed).rfind("attn_layer_offset: expected none, since layers of other mixers", 0) == 0);
  const std::pair<const char*, json> others[] = {
      {"attention_chunk_size", 8192},  {"interleave_moe_layer_step", 2}, {"use_parallel_residual", true},
      {"block_configs", {{{"a", 1}}}}, {"num_kv_shared_layers", 10},     {"index_topk", 2048},
  };
  for (const auto& [key, value] : others) {
    const std::string name = key;
    CAPTURE(name);
    const std::string message = refusal(with(llama(), {{key, value}}));
    CHECK(message.rfind(std::string(key) + ": expected none, since ", 0) == 0);
    CHECK(message.find("not modelled") != std::string::npos);
    CHECK(refusal(with(llama(), {{key, nullptr}})) == "");  // off
  }
}

TEST_CASE("Attention and FFN side by side, behind one norm or two") {
  const json falcon = {{"model_type", "falcon"},   {"hidden_size", 512}, {"num_hidden_layers", 2},
                       {"num_attention_heads", 8}, {"vocab_size", 100},  {"multi_query", true},
                       {"num_kv_heads", 8},        {"bias", false}};
  Notes notes;
  const ModelShape one = read(falcon, {}, &notes);
  CHECK(notes.back() == Note{"parallel_ffn", "model", {}});
  CHECK(one.parallel_ffn);
  CHECK(one.one_norm);
  CHECK(one.kv_heads == 1);
  CHECK(one.ffn == 2048);
  json queries_alone = falcon;
  queries_alone.erase("multi_query");  // true in the model's class
  CHECK(read(queries_alone).kv_heads == 1);
  const ModelShape two = read(with(falcon, {{"new_decoder_architecture", true}, {"num_kv_heads", 4}}));
  CHECK(two.parallel_ffn);
  CHECK_FALSE(two.one_norm);
  CHECK(two.kv_heads == 4);
  const ModelShape serial = read(with(falcon, {{"parallel_attn", false}}));
  CHECK_FALSE(serial.parallel_ffn);
  CHECK(serial.parameters() - one.parameters() == 2 * 512);
  // As Cohere writes Command R7B, with a window in three of four layers.
  const json written = json::parse(R"({"model_type": "cohere2", "hidden_size": 4096,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 14336, "vocab_size": 256000, "hidden_act": "silu", "layer_switch": 4,
    "order_of_interleaved_layers": "local_attn_first", "sliding_window": 4096, "sliding_window_pattern": 4,
    "use_parallel_block": true, "use_gated_activation": true, "use_embedding_sharing": true,
    "position_embedding_type": "rope_gptj", "rotary_pct": 1.0, "logit_scale": 0.25})");
  const ModelShape command = read(written);
  CHECK(command.one_norm);
  CHECK(sliding(command) == 24);
  CHECK(static_cast<double>(command.parameters()) == doctest::Approx(8028033024).epsilon(1e-4));
  json switched = with(written, {{"layer_switch", 8}});
  switched.erase("sliding_window_pattern");
  CHECK(sliding(read(switched)) == 28);
  CHECK(refusal(with(llama(), {{"use_parallel_block", true}})).find("use_parallel_block") == 0);
  // Both of GPT-NeoX's norms read the layer's input. StableLM leaves the second out.
  const json residual = {{"use_parallel_residual", true}};
  CHECK_FALSE(read(with(llama(), {{"model_type", "gpt_neox"}, {"hidden_act", "gelu"}})).one_norm);
  CHECK(read(with(with(llama(), residual), {{"model_type", "stablelm"}})).one_norm);
  CHECK(refusal(with(llama(), residual)).find("side by side are not modelled but for types") !=
        std::string::npos);
}

TEST_CASE("Layers of short convolutions, of sliding windows and of full attention") {
  const json config = {
      {"model_type", "lfm3"},       {"hidden_size", 256},
      {"num_hidden_layers", 3},     {"num_attention_heads", 4},
      {"num_key_value_heads", 2},   {"head_dim", 64},
      {"intermediate_size", 512},   {"vocab_size", 100},
      {"conv_L_cache", 3},          {"sliding_window", 64},
      {"use_attention_gate", true}, {"layer_types", {"conv", "sliding_attention", "full_attention"}}};
  const ModelShape m = read(config);
  CHECK(m.kind(0) == LayerKind::recurrent_dense);
  CHECK(m.kind(1) == LayerKind::sliding_dense);
  CHECK(m.kind(2) == LayerKind::dense);
  CHECK(m.reach().window == 64);
  CHECK(refusal(with(config, {{"sliding_window", nullptr}})).find("sliding_window: expected the window") ==
        0);
}

TEST_CASE("What is not modelled of 2026's models is named, before a size is missed") {
  CHECK(refusal({{"producer", {{"name", "modelopt"}}}, {"quantization", {{"quant_algo", "FP8"}}}})
            .find("model_type: expected a model's config.json, found how its weights") == 0);
  const std::pair<const char*, const char*> types[] = {
      {"deepseek_v4", "attention to compressed keys"},
      {"hy_v4", "several residual streams"},
      {"step3p5", "layers of unlike shapes"},
      {"minimax_m3_vl_text", "attention to chosen blocks"},
      {"mimo_v2_flash", "attention whose values are narrower"},
      {"bart", "encoders"}};
  for (const auto& [type, why] : types)
    CHECK(refusal({{"model_type", type}}).find(std::string("model_type: expected another, since ") + why) ==
          0);
  const std::pair<const char*, const char*> keys[] = {
      {"moe_latent_size", "experts in a latent space"},
      {"routed_expert_hidden_size", "experts in a latent space"},
      {"hc_mult", "several residual streams"},
      {"cross_attention_layers", "cross-attention"}};
  for (const auto& [key, why] : keys)
    CHECK(refusal({{"model_type", "nemotron_h"}, {key, 4}})
              .find(std::string(key) + ": expected none, since " + why) == 0);
}

TEST_CASE("Types of other keys and encoders are refused for that, without a single size") {
  for (const char* type : {"gpt_neo", "xlnet", "openai-gpt"})
    CHECK(refusal({{"model_type", type}, {"vocab_size", 50257}})
              .find("model_type: expected another, since its config has keys of its own") == 0);
  for (const char* type : {"big_bird", "ernie", "xmod"})
    CHECK(refusal({{"model_type", type}, {"hidden_act", "gelu"}})
              .find("model_type: expected another, since encoders are not modelled") == 0);
}

TEST_CASE("A type whose attention passes a gate has the gate's parameters") {
  const json beam = with(llama(), {{"model_type", "beam"}, {"head_dim", 128}});
  json plain = with(llama(), {{"model_type", "llama"}, {"head_dim", 128}});
  const ModelShape gated = read(beam), without = read(plain);
  CHECK(gated.gated_attention);
  CHECK(gated.parameters() - without.parameters() == gated.layers * gated.hidden * gated.query_width());
}

TEST_CASE("The reason of a refusal is what is not modelled, not a key that is absent because of it") {
  const std::pair<json, const char*> others[] = {
      {{{"model_type", "jamba"}, {"attn_layer_offset", 4}, {"mamba_d_state", 16}}, "model_type"},
      {{{"model_type", "mine"}, {"a_multiplier", 1.0}, {"mamba_d_ssm", 1024}}, "mamba_d_ssm"},
      {{{"model_type", "mine"}, {"layer_types", {"linear_attention", "full_attention"}}}, "layer_types[0]"},
      {{{"model_type", "mine"}, {"layer_types", {"full_attention", "conv"}}}, "layer_types[1]"},
      {{{"model_type", "deci"}, {"block_configs", {{{"a", 1}}}}, {"num_key_value_heads", nullptr}},
       "block_configs"},
      {{{"model_type", "deepseek_v4"}, {"index_topk", 2048}}, "model_type"},
  };
  for (const auto& [keys, key] : others) {
    CAPTURE(key);
    json config = with(kUsual, keys);  // without a single size
    const std::string message = refusal(config);
    CAPTURE(message);
    CHECK(message.rfind(key, 0) == 0);
    CHECK(message.find("not modelled") != std::string::npos);
  }
}

TEST_CASE("A model of a mixed type whose layers are all attention is read") {
  const json listed = json::array({"attention", "attention"});
  const json granite = with(llama(), {{"model_type", "granitemoehybrid"},
                                      {"num_hidden_layers", 2},
                                      {"layer_types", listed},
                                      {"mamba_d_state", 128},
                                      {"num_local_experts", 0},
                                      {"shared_intermediate_size", 8192}});
  const ModelShape m = read(granite);
  CHECK(m.ffn == 8192);
  CHECK(!m.moe);
  CHECK(m.sliding_window == 0);
  const ModelShape minimax = read(with(llama(), {{"model_type", "minimax"},
                                                 {"num_hidden_layers", 2},
                                                 {"attn_type_list", {1, 1}},
                                                 {"num_local_experts", 4},
                                                 {"num_experts_per_tok", 2},
                                                 {"use_qk_norm", true},
                                                 {"num_mtp_modules", 3}}));
  CHECK(minimax.moe->experts == 4);
}

TEST_CASE("A key that is absent is as in the model's class; one that is null is not") {
  json smollm = with(llama(), {{"model_type", "smollm3"}});
  smollm.erase("tie_word_embeddings");
  CHECK(read(smollm).tied_embeddings);
  CHECK(!read(with(smollm, {{"tie_word_embeddings", false}})).tied_embeddings);
  json glm = with(smollm, {{"model_type", "glm4"}, {"hidden_size", 5120}});
  CHECK(read(glm).head_dim == 128);
  CHECK(!read(glm).tied_embeddings);
  CHECK(read(with(glm, {{"head_dim", nullptr}})).head_dim == 160);
  CHECK(read(with(glm, {{"head_dim", 64}})).head_dim == 64);
  // The text part of a Gemma 3 states sizes alone.
  const json gemma = {{"model_type", "gemma3"},
                      {"text_config",
                       {{"model_type", "gemma3_text"},
                        {"hidden_size", 2560},
                        {"intermediate_size", 10240},
                        {"num_hidden_layers", 34}}},
                      {"vision_config", {{"hidden_size", 1152}}}};
  const ModelShape m = read(gemma);
  CHECK(m.heads == 8);
  CHECK(m.kv_heads == 4);
  CHECK(m.head_dim == 256);
  CHECK(m.vocab == 262208);
  CHECK(m.tied_embeddings);
  // Of a type that is not known Transformers' base class counts, with a note; without its mark, nothing is
  // said.
  json mine = with(smollm, {{"model_type", "mine"}});
  Notes notes;
  CHECK(read(mine, {}, &notes).tied_embeddings);
  CHECK(notes == Notes{{"tied_by_absence", "model", {{"type", "mine"}}}});
  mine.erase("transformers_version");
  CHECK(!read(mine).tied_embeddings);
}

TEST_CASE("Keys that are not known are all named at once") {
  CHECK(
      refusal(with(llama(), {{"frobnication", 3}, {"zeal", 1}, {"wit", 2}})) ==
      "frobnication: expected none, since it is not known and may change the model's shape (\"ignore\": "
      "[\"frobnication\", \"wit\", \"zeal\"] next to hf_config passes them over), found 3; nor are wit, zeal");
}

TEST_CASE("A key that nobody knows is refused unless it is off, shapes nothing or is passed over") {
  CHECK(refusal(with(llama(), {{"frobnication", 3}})) ==
        "frobnication: expected none, since it is not known and may change the model's shape (\"ignore\": "
        "[\"frobnication\"] next to hf_config passes it over), found 3");
  CHECK(read(with(llama(), {{"frobnication", 3}}), ignoring("frobnication")).layers == 32);
  // A key that is read counts as absent, and one that is not there is said not to be.
  CHECK(read(mistral(), ignoring("sliding_window")).sliding_window == 0);
  Notes notes;
  (void)read(llama(), ignoring("frobnication"), &notes);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0] == Note{"key_not_there", "model", {{"key", "frobnication"}}});
  for (const json& off : {json(nullptr), json(false), json(0), json::array(), json::object()})
    CHECK(refusal(with(llama(), {{"frobnication", off}})) == "");
  CHECK(refusal(with(llama(), {{"my_token_id", 7}, {"rope_local_base_freq", 1e4}, {"attn_pdrop", 0.1}})) ==
        "");
  CHECK(
      refusal(with(llama(), {{"is_encoder_decoder", true}})).rfind("is_encoder_decoder: expected false", 0) ==
      0);
}

TEST_CASE("A model of several parts keeps its language model in text_config") {
  const json vision = {{"model_type", "llava"},
                       {"vision_config", {{"hidden_size", 1024}}},
                       {"text_config", mistral()},
                       {"tie_word_embeddings", false}};
  Notes notes;
  const ModelShape m = read(vision, {}, &notes);
  CHECK(m.hidden == 4096);
  CHECK(sliding(m) == 32);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0] == Note{"language_part", "model", {{"part", "text_config"}}});
  // Older files have the sizes of the language model next to the other parts.
  const json flat = with(llama(), {{"model_type", "qwen2_vl"}, {"vision_config", {{"depth", 32}}}});
  notes.clear();
  CHECK(read(flat, {}, &notes).qkv_bias == false);  // as its attention_bias says
  REQUIRE(notes.size() == 1);
  CHECK(notes[0] == Note{"other_part", "model", {{"part", "vision_config"}}});
  json broken = vision;
  broken["text_config"].erase("num_attention_heads");
  CHECK(refusal(broken) ==
        "text_config: num_attention_heads: expected an integer in 1..2147483647, found nothing");
  CHECK(refusal(with(vision, {{"text_config", 5}})) == "text_config: expected an object, found 5");
}
