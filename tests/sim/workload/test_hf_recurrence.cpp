// Models whose layers mix tokens by linear recurrences, as their published config.json files list them. The
// files are made by hand with those values.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "policies/base/error.h"
#include "sim/workload/model_hf.h"
#include "tests/scratch_folder.h"

using namespace equipoise;
using nlohmann::json;

namespace {

ModelShape hybrid(const json& config, Notes* notes = nullptr, int layers = 0) {
  const test::Scratch folder;
  HfOptions options;
  options.layers = layers;
  return read_hf_config(folder.write("config.json", config.dump()), options, notes);
}

std::string refused(const json& config) {
  const test::Scratch folder;
  const std::string file = folder.write("config.json", config.dump());
  try {
    (void)read_hf_config(file);
  } catch (const UserError& e) {
    return std::string(e.what()).substr(file.size() + 2);
  }
  return "";
}

json changed(json config, const json& more) {
  config.update(more);
  return config;
}

const json kQwen3Next =
    json::parse(R"({"model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48,
  "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120,
  "vocab_size": 151936, "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
  "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
  "decoder_sparse_step": 1, "moe_intermediate_size": 512, "num_experts": 512, "num_experts_per_tok": 10,
  "shared_expert_intermediate_size": 512, "hidden_act": "silu", "tie_word_embeddings": false})");

const json kKimi = json::parse(R"({"model_type": "kimi_linear", "hidden_size": 2304, "num_hidden_layers": 27,
  "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 72, "intermediate_size": 9216,
  "vocab_size": 163840, "kv_lora_rank": 512, "q_lora_rank": null, "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": true, "num_experts": 256,
  "num_experts_per_token": 8, "num_shared_experts": 1, "moe_intermediate_size": 1024,
  "first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_renormalize": true, "num_expert_group": 1,
  "topk_group": 1, "use_grouped_topk": true, "moe_router_activation_func": "sigmoid", "hidden_act": "silu",
  "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
    "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
    "short_conv_kernel_size": 4}, "tie_word_embeddings": false})");

const json kNemotron =
    json::parse(R"({"model_type": "nemotron_h", "hidden_size": 4096, "num_hidden_layers": 52,
  "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
  "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 21504,
  "vocab_size": 131072, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128,
  "conv_kernel": 4, "expand": 2, "chunk_size": 128, "use_conv_bias": true, "mlp_hidden_act": "relu2",
  "tie_word_embeddings": false})");

}  // namespace

TEST_CASE("Qwen3-Next: gated delta nets in three of four layers, gated attention in the fourth") {
  Notes notes;
  const ModelShape m = hybrid(kQwen3Next, &notes);
  CHECK(m.layer_counts() == LayerCounts{0, 12, 0, 0, 0, 36, 0});
  CHECK(m.kind(3) == LayerKind::moe);
  CHECK(m.gated_attention);
  CHECK(m.recurrence->heads == 32);
  CHECK(m.recurrence->key_heads == 16);
  CHECK(notes.back() ==
        Note{"recurrent_layers", "model", {{"rule", "gated delta net"}, {"layers", 36}, {"of", 48}}});
  CHECK(static_cast<double>(m.parameters()) == doctest::Approx(79674391296).epsilon(1e-3));
  json listed = changed(kQwen3Next, {{"layer_types", json::array()}});
  for (int i = 0; i < 48; ++i)
    listed["layer_types"].push_back(i % 4 == 3 ? "full_attention" : "linear_attention");
  CHECK(hybrid(listed).layer_counts() == m.layer_counts());
  listed["layer_types"][5] = "chunked_attention";
  CHECK(
      refused(listed) ==
      "layer_types[5]: expected \"linear_attention\" or \"mamba\" or \"full_attention\" or \"attention\" or "
      "\"sliding_attention\", found \"chunked_attention\"");
  const ModelShape predicting = hybrid(changed(kQwen3Next, {{"mtp_num_hidden_layers", 1}}));
  CHECK(predicting.mtp_layers == 1);
  CHECK(predicting.kind(48) == LayerKind::moe);  // like the last layer
}

TEST_CASE("Kimi-Linear: Kimi delta attention by a list that counts from one, and latent attention") {
  const ModelShape m = hybrid(kKimi);
  CHECK(m.layer_counts() == LayerCounts{0, 7, 0, 0, 1, 19, 0});
  CHECK(!m.is_recurrent_layer(3));
  CHECK(!m.is_recurrent_layer(26));
  CHECK(m.recurrence->rule == Recurrence::kimi_delta);
  CHECK(static_cast<double>(m.parameters()) == doctest::Approx(49133074464).epsilon(1e-3));
  json wrong = kKimi;
  wrong["linear_attn_config"]["kda_layers"][0] = 0;
  CHECK(refused(wrong).find("linear_attn_config: kda_layers: expected a list of layers from 1 on") == 0);
  wrong = kKimi;
  wrong["linear_attn_config"]["expand_v"] = 2;
  CHECK(refused(wrong).find("linear_attn_config: expand_v: expected none, since it is not known") == 0);
  CHECK(refused(changed(kKimi, {{"attn_output_gate", true}}))
            .find("attn_output_gate: expected no gate, since none is modelled for the latent attention") ==
        0);
}

TEST_CASE("Nemotron-H: blocks become layers of a mixer and the FFN behind it") {
  Notes notes;
  const ModelShape dense = hybrid(kNemotron, &notes);
  CHECK(dense.layer_counts() == LayerCounts{4, 0, 0, 0, 20, 0, 4});
  CHECK(static_cast<double>(dense.parameters()) == doctest::Approx(8100852736).epsilon(1e-3));
  CHECK(notes[0] == Note{"blocks_as_layers", "model", {{"blocks", 52}, {"layers", 28}}});
  // A study's first layers: M- three times, M alone, *-, M- four times.
  CHECK(hybrid(kNemotron, &notes, 9).layer_counts() == LayerCounts{1, 0, 0, 0, 7, 0, 1});
  CHECK(hybrid(kNemotron, nullptr, 4).layer_counts() == LayerCounts{0, 0, 0, 0, 3, 0, 1});
  for (const int more : {29, 52}) CHECK_THROWS_AS(hybrid(kNemotron, nullptr, more), UserError);

  const json nano = changed(
      kNemotron, {{"hidden_size", 2688},
                  {"num_key_value_heads", 2},
                  {"intermediate_size", 1856},
                  {"mamba_num_heads", 64},
                  {"n_routed_experts", 128},
                  {"num_experts_per_tok", 6},
                  {"n_shared_experts", 1},
                  {"moe_intermediate_size", 1856},
                  {"moe_shared_expert_intermediate_size", 3712},
                  {"hybrid_override_pattern", "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"}});
  const ModelShape m = hybrid(nano);
  CHECK(m.layer_counts() == LayerCounts{0, 6, 0, 0, 0, 17, 6});
  CHECK(static_cast<double>(m.parameters()) == doctest::Approx(31577937344).epsilon(1e-3));

  const auto pattern = [](const char* text) {
    return refused(changed(kNemotron, {{"hybrid_override_pattern", text}, {"num_hidden_layers", 4}}));
  };
  CHECK(pattern("M-M").find("hybrid_override_pattern: expected a pattern of num_hidden_layers (4) blocks") ==
        0);
  CHECK(pattern("M--M").find("hybrid_override_pattern: expected a mixer before each FFN") == 0);
  CHECK(pattern("M-*M").find("hybrid_override_pattern: expected an FFN behind each attention") == 0);
  CHECK(pattern("M-X-").find("hybrid_override_pattern: expected M, *, - and E") == 0);
  CHECK(pattern("MEME").find("n_routed_experts: expected the experts of hybrid_override_pattern") == 0);
}

TEST_CASE("Nemotron-H: multi-token prediction by the blocks of the last layer, and no others") {
  json mtp = changed(kNemotron, {{"mtp_hybrid_override_pattern", "*-"}, {"num_nextn_predict_layers", 0}});
  CHECK(hybrid(mtp).mtp_layers == 0);
  mtp["num_nextn_predict_layers"] = 1;
  CHECK(
      refused(mtp).find("num_nextn_predict_layers: expected 0, since multi-token prediction is modelled only "
                        "by the blocks (mtp_hybrid_override_pattern) of the last layer") == 0);
  mtp["mtp_hybrid_override_pattern"] = "M-";
  CHECK(hybrid(mtp).layer_counts() == LayerCounts{4, 0, 0, 0, 21, 0, 4});
  mtp["mtp_layers_block_type"] = json::array({"attention", "mlp"});
  CHECK(refused(mtp).find("num_nextn_predict_layers: expected 0") == 0);
  mtp.erase("mtp_layers_block_type");
  mtp.erase("mtp_hybrid_override_pattern");
  CHECK(refused(mtp).find("num_nextn_predict_layers: expected 0") == 0);
}

TEST_CASE("A list of layers that a type does not read is not taken for read") {
  json listed = changed(kNemotron, {{"layer_types", json::array({"attention"})}});
  CHECK(refused(listed).find("layer_types: expected none, since it is not known") == 0);
}

TEST_CASE("Lists of other families") {
  json minimax = json::parse(R"({"model_type": "minimax_text_01", "hidden_size": 6144, "num_hidden_layers": 8,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9216,
    "vocab_size": 200064, "num_local_experts": 32, "num_experts_per_tok": 2, "shared_intermediate_size": 0,
    "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1], "hidden_act": "silu", "tie_word_embeddings": false})");
  const ModelShape m = hybrid(minimax);
  CHECK(m.layer_counts() == LayerCounts{0, 1, 0, 0, 0, 7, 0});
  CHECK(m.recurrence->key_heads == 64);
  CHECK(m.recurrence->convolution == 0);
  minimax["attn_type_list"] = json::array({1, 1, 1, 1, 1, 1, 1, 1});
  CHECK(!hybrid(minimax).recurrence);
  minimax.erase("attn_type_list");
  CHECK(refused(minimax).find("layer_types: expected a list of layers with attention or a recurrence") == 0);

  const json bamba = json::parse(R"({"model_type": "bamba", "hidden_size": 4096, "num_hidden_layers": 4,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "attn_layer_indices": [1], "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 128,
    "mamba_n_groups": 1, "mamba_d_conv": 4, "hidden_act": "silu", "tie_word_embeddings": false})");
  CHECK(hybrid(bamba).layer_counts() == LayerCounts{1, 0, 0, 0, 3, 0, 0});
  CHECK(refused(changed(bamba, {{"mamba_n_groups", 3}})) ==
        "mamba_n_groups: expected a divisor of the 128 heads with a state, found 3 (bamba may have other "
        "mixers than attention)");
  CHECK(
      refused(changed(bamba, {{"attn_layer_indices", 1}})) ==
      "attn_layer_indices: expected a list of layers, found 1 (bamba may have other mixers than attention)");
}

TEST_CASE("Falcon-H1: attention and Mamba-2 side by side in each layer") {
  const json falcon = json::parse(R"({"model_type": "falcon_h1", "hidden_size": 1024, "num_hidden_layers": 36,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 2048,
    "vocab_size": 32784, "mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_state": 128,
    "ssm_multipliers": [1.0, 0.5], "attention_in_multiplier": 0.9, "tie_word_embeddings": false})");
  Notes notes;
  const ModelShape m = hybrid(falcon, &notes);
  CHECK(m.layer_counts() == LayerCounts{0, 0, 0, 0, 0, 0, 0, 36});
  CHECK(m.layers_of(Mixer::parallel) == 36);
  CHECK(m.recurrence->value_dim == 64);  // "auto" in the class: the width of all heads over their number
  CHECK(static_cast<double>(m.parameters()) == doctest::Approx(521411104).epsilon(1e-3));
  CHECK(notes.back() == Note{"parallel_layers", "model", {{"rule", "Mamba-2"}, {"layers", 36}, {"of", 36}}});
  CHECK(hybrid(changed(falcon, {{"mamba_d_ssm", nullptr}, {"mamba_n_heads", 32}})).recurrence->value_dim ==
        64);
  CHECK(refused(changed(falcon, {{"mamba_n_heads", 25}})).find("mamba_d_head: expected a number, since 25") ==
        0);
}

TEST_CASE("LFM2: short convolutions in place of attention, and an FFN of two thirds of the width stated") {
  const json lfm2 = json::parse(R"({"model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 12288, "vocab_size": 65536,
    "conv_L_cache": 3, "conv_bias": false, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "block_auto_adjust_ff_dim": true, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256})");
  Notes notes;
  const ModelShape m = hybrid(lfm2, &notes);
  CHECK(m.layer_counts() == LayerCounts{6, 0, 0, 0, 10, 0, 0, 0});
  CHECK(!m.is_recurrent_layer(2));
  CHECK(m.ffn == 8192);
  CHECK(static_cast<double>(m.parameters()) == doctest::Approx(1170340608).epsilon(1e-3));
  CHECK(notes.back() ==
        Note{"convolution_layers", "model", {{"rule", "short convolution"}, {"layers", 10}, {"of", 16}}});
  CHECK(hybrid(changed(lfm2, {{"block_auto_adjust_ff_dim", false}})).ffn == 12288);
  CHECK(hybrid(changed(lfm2, {{"block_ffn_dim_multiplier", 0.99}})).ffn == 8192);  // 8,110 rounded up
  CHECK(hybrid(changed(lfm2, {{"full_attn_idxs", nullptr}})).layers_of(Mixer::attention) == 16);
  json listed = changed(lfm2, {{"layer_types", json::array()}});
  for (int i = 0; i < 16; ++i) listed["layer_types"].push_back(i % 4 == 3 ? "full_attention" : "conv");
  CHECK(hybrid(listed).layers_of(Mixer::recurrence) == 12);
  listed["layer_types"][1] = "mamba";
  CHECK(refused(listed).find("layer_types[1]: expected \"conv\" or") == 0);
  CHECK(refused(changed(lfm2, {{"block_ffn_dim_multiplier", -1}})).find("block_ffn_dim_multiplier") == 0);
}

TEST_CASE("Mixers that are not modelled keep the true reason") {
  CHECK(refused(changed(kNemotron, {{"model_type", "mine"}})).find("state-space") != std::string::npos);
}
