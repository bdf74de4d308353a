// Reading Hugging Face config.json files.
//
// A config is read whole: every key is one that shapes the model and is read here, one that shapes nothing
// (kHarmless), one that is off (null, false, empty), or one that is refused by name. So nothing that we do
// not model passes for what we do.
#include "sim/workload/model_hf.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/files.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/workload/hf_config.h"
#include "sim/workload/hf_indexer.h"
#include "sim/workload/hf_recurrence.h"
#include "traces/json_text.h"

namespace equipoise {
namespace {

using nlohmann::json;

// ---- Keys that are not read ----

// Why keys are ignored: no parameters, FLOPs or bytes that we count depend on them. (Biases and norms other
// than those of Q, K, V and the two of a layer are below a thousandth of a model and not counted.)
struct PassedOver {
  std::string_view why, keys;  // separated by spaces
};
constexpr PassedOver kPassedOver[] = {
    {"what Transformers writes into every config",
     "_name_or_path architectures auto_map dtype torch_dtype transformers_version use_bfloat16 torchscript "
     "return_dict output_attentions output_hidden_states output_router_logits use_cache is_decoder "
     "tokenizer_class prefix problem_type id2label label2id num_labels finetuning_task "
     "task_specific_params chunk_size_feed_forward gradient_checkpointing name quantization_config "
     "compression_config cache_implementation attn_implementation for_llm_compressor is_llama_config "
     "interpolate_factor full_attn_mod model_type"},
    {"what generation takes",
     "max_length min_length do_sample early_stopping num_beams num_beam_groups temperature top_k top_p "
     "typical_p repetition_penalty length_penalty diversity_penalty no_repeat_ngram_size "
     "encoder_no_repeat_ngram_size num_return_sequences output_scores return_dict_in_generate "
     "remove_invalid_values num_logits_to_keep"},
    {"where a token is, which costs nothing that depends on it",
     "max_position_embeddings n_positions n_ctx seq_length model_max_length max_seq_len "
     "max_sequence_length initial_context_length original_max_position_embeddings partial_rotary_factor "
     "rotary_pct rotary_dim rotary_emb_base no_rope_layers no_rope_layer_interval position_embedding_type "
     "alibi attn_temperature_tuning floor_scale attn_scale layer_rope_theta"},
    {"norms, initial values and factors, which scale what is computed",
     "norm_type initializer_range initializer_cutoff_factor init_method query_pre_attn_scalar logit_scale "
     "logits_scaling embedding_multiplier residual_multiplier attention_multiplier clip_qkv "
     "attn_logit_softcapping final_logit_softcapping scale_attn_weights scale_attn_by_inverse_layer_idx "
     "reorder_and_upcast_attn attention_softmax_in_fp32 scale_attention_softmax_in_fp32 use_qk_norm "
     "qk_norm qk_norm_type qk_layernorm swiglu_alpha swiglu_limit pretraining_tp normalization_function "
     "layernorm_full_attention_beta layernorm_linear_attention_beta layernorm_mlp_beta postnorm "
     "use_post_norm embedding_initializer_range scale_emb scale_depth dim_model_base "
     "apply_residual_connection_post_layernorm"},
    {"what another key or the type says, too", "rotary order_of_interleaved_layers"},
    {"biases below a thousandth of a model", "mlp_bias lm_head_bias attention_out_bias"},
    {"heads of other tasks, or of inference alone",
     "summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj "
     "validate_runner_input inference_runner pad_key_length pre_allocate_kv_cache max_batch_size "
     "num_mtp_modules mtp_transformer_layers use_mtp"},
    {"who gets a token, not how much is computed",
     "norm_topk_prob scoring_func topk_method n_group topk_group routed_scaling_factor router_jitter_noise "
     "input_jitter_noise router_dtype use_routing_bias shared_moe_mode aux_loss_alpha seq_aux ep_size "
     "expert_selection_fn shared_expert_combination_strategy router_scaling_factor route_scale "
     "use_expert_bias enable_moe_fp32_combine moe_capacity moe_gate "
     "moe_norm_min moe_use_aux_free moe_router_dtype prefix_dense_sliding_window_pattern"},
};

constexpr std::string_view kHarmlessStarts[] = {"rope_", "_attn_implementation", "mup_", "forced_"};
constexpr std::string_view kHarmlessEnds[] = {"_token_id", "_token_ids",    "_token_index",
                                              "_dropout",  "_dropout_prob", "_pdrop",
                                              "_eps",      "_epsilon",      "_loss_coef"};

constexpr std::string_view kMixers =
    "layers of other mixers than attention (state-space, recurrent, short convolutions) are not modelled";
constexpr std::string_view kExpertRules = "this rule of which layers have which experts is not modelled";
constexpr std::string_view kParallel =
    "attention and FFN side by side are not modelled but for types that are known to have them";
constexpr std::string_view kPerLayer = "layers of unlike shapes are not modelled";
constexpr std::string_view kEncoder = "encoders are not modelled";
constexpr std::string_view kSparse =
    "attention to chosen keys is not modelled but for model_type deepseek_v32 and glm_moe_dsa";
constexpr std::string_view kLatentExperts = "experts in a latent space are not modelled";
constexpr std::string_view kResidualStreams = "several residual streams (hyper-connections) are not modelled";
constexpr std::string_view kOwnKeys = "its config has keys of its own, which are not read";

// A key, or the beginning of several keys.
constexpr std::pair<std::string_view, std::string_view> kRefused[] = {
    {"moe_layer_freq", ""},  // DeepSeek's and those of ERNIE are read
    {"moe_layer_start_index", ""},
    {"moe_layer_end_index", ""},
    {"moe_layer_interval", ""},
    {"moe_num_experts", ""},
    {"moe_num_shared_experts", ""},
    {"attn_layer_", kMixers},
    {"mamba", kMixers},
    {"ssm_", kMixers},
    {"layers_block_type", kMixers},
    {"block_types", kMixers},
    {"hybrid_", kMixers},
    {"linear_", kMixers},
    {"full_attention_interval", kMixers},
    {"attn_type_list", kMixers},
    {"conv_", kMixers},
    {"rnn_", kMixers},
    {"lru_width", kMixers},
    {"expert_layer_", kExpertRules},
    {"interleave_moe_layer_step", kExpertRules},
    {"moe_layers", kExpertRules},
    {"intermediate_size_mlp", kExpertRules},
    {"moe_layer_", kExpertRules},
    {"moe_num_", kExpertRules},
    {"attention_chunk_size", "attention in chunks is not modelled but for Llama 4 (model_type llama4_text)"},
    {"use_parallel_residual", kParallel},
    {"parallel_attn", kParallel},
    {"cross_attention_layers", "cross-attention is not modelled"},
    {"hc_mult", kResidualStreams},
    {"moe_latent_size", kLatentExperts},
    {"routed_expert_hidden_size", kLatentExperts},
    {"attention_other_setting", kPerLayer},
    {"per_layer_config", kPerLayer},
    {"block_configs", kPerLayer},
    {"num_kv_shared_layers", kPerLayer},
    {"num_key_value_heads_per_layer", kPerLayer},
    {"num_attention_heads_per_layer", kPerLayer},
    {"num_query_heads", kPerLayer},
    {"ffn_multipliers", kPerLayer},
    {"index_", kSparse},
    {"sparse_", kSparse},
    {"time_mix", kMixers},
    {"kda_", kMixers},
    {"gdn_", kMixers},
};

constexpr std::pair<std::string_view, std::string_view> kRefusedTypes[] = {
    {"mamba", kMixers},
    {"mamba2", kMixers},
    {"falcon_mamba", kMixers},
    {"jamba", kMixers},
    {"zamba", kMixers},
    {"zamba2", kMixers},
    {"rwkv", kMixers},
    {"xlstm", kMixers},
    {"recurrent_gemma", kMixers},
    {"gemma3n_text", kPerLayer},
    {"gemma4_text", kPerLayer},
    {"gemma4_unified_text", kPerLayer},
    {"nemotron-nas", kPerLayer},
    {"deepseek_v4", "attention to compressed keys, and several residual streams, are not modelled"},
    {"hy_v4", kResidualStreams},
    {"axk2", "norms with a gate of their own are not modelled"},
    {"dots3_note_text", kPerLayer},
    {"minimax_m3_vl_text", "attention to chosen blocks of keys is not modelled"},
    {"step3p5", kPerLayer},
    {"step3p7", kPerLayer},
    {"mimo_v2_flash",
     "attention whose values are narrower than its keys is modelled for latent attention alone"},
    {"bailing_hybrid", "Kimi delta attention whose decays are one product of all heads is not modelled"},
    {"longcat_flash", "layers of two attentions, and experts that compute nothing, are not modelled"},
    {"jetmoe", "experts of attention are not modelled"},
    {"diffllama", "differential attention is not modelled"},
    {"mpt", kOwnKeys},
    {"bloom", kOwnKeys},
    {"opt", kOwnKeys},
    {"dbrx", kOwnKeys},
    {"biogpt", kOwnKeys},
    {"blt", kOwnKeys},
    {"cpmant", kOwnKeys},
    {"ctrl", kOwnKeys},
    {"doge", kOwnKeys},
    {"git", kOwnKeys},
    {"modernbert-decoder", kOwnKeys},
    {"gpt_neo", kOwnKeys},
    {"gpt_neox_japanese", kOwnKeys},
    {"moshi", kOwnKeys},
    {"openai-gpt", kOwnKeys},
    {"reformer", kOwnKeys},
    {"trocr", kOwnKeys},
    {"xglm", kOwnKeys},
    {"xlm", kOwnKeys},
    {"xlnet", kOwnKeys},
    {"hrm_text", "layers that a token passes more than once are not modelled"},
    {"bart", kEncoder},
    {"bert", kEncoder},
    {"bert-generation", kEncoder},
    {"big_bird", kEncoder},
    {"bigbird_pegasus", kEncoder},
    {"blenderbot", kEncoder},
    {"blenderbot-small", kEncoder},
    {"camembert", kEncoder},
    {"data2vec-text", kEncoder},
    {"electra", kEncoder},
    {"ernie", kEncoder},
    {"marian", kEncoder},
    {"mbart", kEncoder},
    {"megatron-bert", kEncoder},
    {"modernbert", kEncoder},
    {"mvp", kEncoder},
    {"plbart", kEncoder},
    {"rembert", kEncoder},
    {"roberta", kEncoder},
    {"roberta-prelayernorm", kEncoder},
    {"roc_bert", kEncoder},
    {"roformer", kEncoder},
    {"whisper", kEncoder},
    {"xlm-roberta", kEncoder},
    {"xlm-roberta-xl", kEncoder},
    {"xmod", kEncoder},
};

// Words that lists of layers use for attention that any layer may have.
constexpr std::string_view kAttentionTypes[] = {"attention",         "full_attention", "sliding_attention",
                                                "chunked_attention", "global",         "local"};

// Activations that read and write the same bytes as a SiLU.
constexpr std::string_view kActivations[] = {
    "silu",       "swish", "gelu",  "gelu_new", "gelu_fast", "gelu_pytorch_tanh",
    "quick_gelu", "relu",  "relu2", "xielu"};

bool holds(const auto& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

bool has_word(std::string_view words, std::string_view word) {
  for (std::size_t at = words.find(word); at != std::string_view::npos; at = words.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || words[at - 1] == ' ') && (end == words.size() || words[end] == ' ')) return true;
  }
  return false;
}

bool shapes_nothing(std::string_view key) {
  return std::ranges::any_of(kPassedOver,
                             [key](const PassedOver& some) { return has_word(some.keys, key); }) ||
         std::ranges::any_of(kHarmlessStarts,
                             [key](std::string_view start) { return key.starts_with(start); }) ||
         std::ranges::any_of(kHarmlessEnds, [key](std::string_view end) { return key.ends_with(end); });
}

// Why a key that shapes the model is refused; empty for an unknown key.
std::string_view why_key_is_refused(std::string_view key) {
  for (const auto& [start, why] : kRefused)
    if (key.starts_with(start)) return why;
  return {};
}

// Why a model_type is refused, whatever else its config says; empty for all others.
std::string_view why_type_is_refused(std::string_view model_type) {
  for (const auto& [type, why] : kRefusedTypes)
    if (model_type == type) return why;
  return {};
}

// ---- What a config's type leaves unsaid ----

json parse(const std::string& path) {
  json config = parse_python_json(read_text_file(path), path);
  if (!config.is_object()) throw UserError(path, ": expected a JSON object (a Hugging Face config.json)");
  if (config.contains("quantization") && !config.contains("model_type"))
    throw UserError(path,
                    ": model_type: expected a model's config.json, found how its weights are quantized");
  return config;
}

// What the class of a model type in Hugging Face Transformers (4.57.1) has without its config saying so, and
// the values of absent keys. A config omits what is as in the class: for a part of a model (text_config)
// everything, for any other tie_word_embeddings if it is true.
struct TypeDefaults {
  bool gated = true;
  bool qkv_bias = false;
  const char* activation = "silu";
  int every_full = 0;     // the last of so many layers sees everything, the others a window; 0: all are alike
  bool window_on = true;  // also without use_sliding_window
  bool llama4 = false;    // whether chunks and experts have keys of their own
  bool expert_bias = false;
  bool gated_attention = false;
  bool parallel_ffn = false;  // attention and FFN side by side, behind one norm
  const char* values = "{}";
};
const TypeDefaults* defaults_of(const std::string& type) {
  constexpr const char* kTied = R"({"tie_word_embeddings": true})";
  constexpr const char* kHead128 = R"({"head_dim": 128})";
  constexpr const char* kGemma3 = R"({"tie_word_embeddings": true, "head_dim": 256, "vocab_size": 262208,
    "num_attention_heads": 8, "num_key_value_heads": 4, "sliding_window": 4096})";
  constexpr const char* kCohere2 =
      R"({"tie_word_embeddings": true, "head_dim": 128, "sliding_window": 4096})";
  constexpr const char* kGatedDelta = R"({"head_dim": 256, "full_attention_interval": 4,
    "linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_value_head_dim": 128,
    "linear_key_head_dim": 128, "linear_conv_kernel_dim": 4})";
  static const std::map<std::string, TypeDefaults> known = {
      {"llama", {}},
      {"mistral", {}},
      {"mixtral", {}},
      {"ministral", {}},
      {"qwen2", {.qkv_bias = true, .window_on = false}},
      {"qwen2_vl", {.qkv_bias = true, .window_on = false}},
      {"qwen2_vl_text", {.qkv_bias = true, .window_on = false}},
      {"qwen2_5_vl", {.qkv_bias = true, .window_on = false}},
      {"qwen2_5_vl_text", {.qkv_bias = true, .window_on = false}},
      {"qwen2_moe", {.qkv_bias = true, .window_on = false}},
      {"qwen3", {.window_on = false, .values = kHead128}},
      {"qwen3_moe", {.window_on = false}},
      {"deepseek_v2", {}},
      {"deepseek_v3", {}},
      {"deepseek_v32", {.values = R"({"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048})"}},
      {"glm_moe_dsa", {.values = R"({"index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048})"}},
      {"llama4_text", {.llama4 = true, .values = kHead128}},
      {"gemma",
       {.activation = "gelu_pytorch_tanh", .values = R"({"tie_word_embeddings": true, "head_dim": 256})"}},
      {"gemma2",
       {.activation = "gelu_pytorch_tanh",
        .every_full = 2,
        .values = R"({"tie_word_embeddings": true, "head_dim": 256, "sliding_window": 4096})"}},
      {"vaultgemma",
       {.activation = "gelu_pytorch_tanh",
        .every_full = 2,
        .values = R"({"tie_word_embeddings": true, "head_dim": 256, "sliding_window": 4096})"}},
      {"gemma3", {.activation = "gelu_pytorch_tanh", .every_full = 6, .values = kGemma3}},
      {"gemma3_text", {.activation = "gelu_pytorch_tanh", .every_full = 6, .values = kGemma3}},
      {"phi3", {}},
      {"phimoe", {}},
      {"olmo", {}},
      {"olmo2", {}},
      {"olmo3", {.every_full = 4}},
      {"olmoe", {}},
      {"granite", {}},
      {"granitemoe", {}},
      {"granitemoeshared", {}},
      {"granitemoehybrid", {}},
      {"stablelm", {}},
      {"smollm3", {.window_on = false, .values = kTied}},
      {"ernie4_5", {.values = R"({"tie_word_embeddings": true, "head_dim": 128})"}},
      {"ernie4_5_moe", {.values = kTied}},
      {"glm", {.qkv_bias = true, .values = kHead128}},
      {"glm4", {.qkv_bias = true, .values = kHead128}},
      {"glm4_moe", {}},
      {"gpt_oss",
       {.qkv_bias = true,
        .every_full = 2,
        .expert_bias = true,
        .values = R"({"head_dim": 64, "sliding_window": 128})"}},
      {"minimax", {}},
      {"minimax_m1", {}},
      {"minimax_text_01", {}},
      {"qwen3_next", {.values = kGatedDelta}},
      {"qwen3_5_text", {.values = kGatedDelta}},
      {"qwen3_5_moe_text", {.values = kGatedDelta}},
      {"olmo_hybrid", {.values = R"({"attn_output_gate": false, "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4})"}},
      {"kimi_linear", {}},
      {"lara_mini", {.values = R"({"attn_output_gate": false})"}},
      {"lfm3", {.values = kTied}},
      {"bamba", {}},
      {"falcon_h1", {.values = R"({"mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_n_groups": 1,
    "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_d_ssm": 1024, "mamba_expand": 2})"}},
      {"lfm2", {.values = R"({"tie_word_embeddings": true, "conv_L_cache": 3, "num_hidden_layers": 32,
    "hidden_size": 2560, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 65536, "block_auto_adjust_ff_dim": true, "block_multiple_of": 256})"}},
      {"lfm2_moe", {.values = R"({"tie_word_embeddings": true, "conv_L_cache": 3, "num_dense_layers": 2})"}},
      {"nemotron_h", {.gated = false, .activation = "relu2", .values = kHead128}},
      {"hunyuan_v1_dense", {}},
      {"seed_oss", {.qkv_bias = true, .values = kHead128}},
      {"helium", {.values = kHead128}},
      {"arcee", {.gated = false, .activation = "relu2"}},
      {"nanochat", {.gated = false, .activation = "relu2"}},
      {"jais2", {.gated = false, .qkv_bias = true, .activation = "relu2"}},
      {"persimmon", {.gated = false, .qkv_bias = true, .activation = "relu2"}},
      {"apertus", {.gated = false, .activation = "xielu"}},
      {"apertus1p5_text", {.gated = false, .activation = "xielu"}},
      {"bitnet", {.activation = "relu2"}},
      {"dots1", {}},
      {"afmoe",
       {.every_full = 4, .gated_attention = true, .values = R"({"head_dim": 128, "num_dense_layers": 1})"}},
      {"beam", {.every_full = 6, .gated_attention = true, .values = kHead128}},
      {"gpt2", {.gated = false, .qkv_bias = true, .activation = "gelu_new", .values = kTied}},
      {"gpt_bigcode", {.gated = false, .qkv_bias = true, .activation = "gelu_pytorch_tanh", .values = kTied}},
      {"starcoder2", {.gated = false, .qkv_bias = true, .activation = "gelu_pytorch_tanh", .values = kTied}},
      {"nemotron", {.gated = false, .activation = "relu2"}},
      {"cohere", {.parallel_ffn = true, .values = kTied}},
      {"cohere2", {.every_full = 4, .parallel_ffn = true, .values = kCohere2}},
      {"cohere2_moe", {.every_full = 4, .parallel_ffn = true, .values = kCohere2}},
      {"gptj", {.gated = false, .activation = "gelu_new", .parallel_ffn = true}},
      {"codegen", {.gated = false, .activation = "gelu_new", .parallel_ffn = true}},
      {"phi", {.gated = false, .qkv_bias = true, .activation = "gelu_new", .parallel_ffn = true}},
      {"gpt_neox", {.gated = false, .qkv_bias = true, .activation = "gelu"}},
      {"falcon", {.gated = false, .activation = "gelu", .values = kTied}},
  };
  const auto it = known.find(type);
  return it == known.end() ? nullptr : &it->second;
}

// The architecture decides whether FFNs are gated, not the activation: Gemma gates with GELU, StarCoder2 does
// not. In an unknown type a SiLU means SwiGLU, as in all models that have one.
bool read_gated(HfConfig& config, const std::string& type, const HfOptions& options) {
  const std::initializer_list<const char*> names{"hidden_act", "hidden_activation", "activation_function",
                                                 "mlp_hidden_act", "activation"};
  const std::string key = config.one_of(names);
  for (const char* other : names) (void)config.find(other);
  const TypeDefaults* defaults = defaults_of(type);
  const std::string activation = config.text_or(key, defaults != nullptr ? defaults->activation : "silu");
  const bool silu = activation == "silu" || activation == "swish";
  if (!silu && !holds(kActivations, activation))
    config.fail(key, "an activation that is priced (" + all_joined(kActivations) + ")");
  if (defaults != nullptr || silu) {
    const bool gated = defaults == nullptr || defaults->gated;
    if (options.gated_ffn && *options.gated_ffn != gated)
      throw UserError(config.path(),
                      ": gated_ffn next to hf_config: expected none, since the file says that its FFN is ",
                      gated ? "gated" : "not gated", ", found ", gated ? "false" : "true");
    return gated;
  }
  if (options.gated_ffn) return *options.gated_ffn;
  config.fail(key,
              "silu, or a known model_type, which says whether the FFN is gated, or gated_ffn next to "
              "hf_config in the study");
}

// ---- Which layers slide ----

std::vector<bool> sliding_by_type_list(HfConfig& config, const json& list, int layers,
                                       const std::string& local = "sliding_attention") {
  if (!list.is_array() || static_cast<int>(list.size()) < layers)
    config.fail("layer_types", "a list of " + std::to_string(layers) + " layers");
  std::vector<bool> sliding;
  for (int i = 0; i < layers; ++i) {
    const json& type = list[at(i)];
    if (type != local && type != "full_attention" && type != "attention")
      throw UserError(config.path(), ": layer_types[", i, "]: expected full_attention or ", local, ", found ",
                      shown_json(type));
    sliding.push_back(type == local);
  }
  return sliding;
}

// Llama 4: layers with positions attend in chunks, those without to everything.
void read_chunks(HfConfig& config, ModelShape& m) {
  m.sliding_window = config.count_or("attention_chunk_size", 8192);
  const auto every = config.positive_or("no_rope_layer_interval", 4);
  const json* rotary = config.find("no_rope_layers");  // 1 for layers with positions
  if (rotary != nullptr &&
      (!rotary->is_array() || (!rotary->empty() && static_cast<int>(rotary->size()) < m.layers)))
    config.fail("no_rope_layers", "a list of " + std::to_string(m.layers) + " layers");
  for (int i = 0; i < m.layers; ++i)
    m.sliding_layers.push_back(rotary == nullptr || rotary->empty() ? (i + 1) % every != 0
                                                                    : (*rotary)[at(i)] == 1);
  if (const json* types = config.find("layer_types"))
    m.sliding_layers = sliding_by_type_list(config, *types, m.layers, "chunked_attention");
  const bool any =
      std::find(m.sliding_layers.begin(), m.sliding_layers.end(), true) != m.sliding_layers.end();
  m.chunked = any && m.sliding_window > 0;
  if (m.chunked) return;
  m.sliding_layers.clear();
  m.sliding_window = 0;
}

void read_windows(HfConfig& config, const TypeDefaults& type, bool known, ModelShape& m) {
  const bool says_on = config.find("use_sliding_window") != nullptr;
  const bool on = config.flag_or("use_sliding_window", type.window_on);
  const std::int64_t window = config.count_or("sliding_window", 0);
  if (config.count_or("sliding_window_size", window) != window)  // Gemma 2 states it twice
    config.fail("sliding_window_size", "the same as sliding_window");
  const std::string every_key = config.one_of(
      {"sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers", "layer_switch"});
  for (const char* key : {"_sliding_window_pattern", "global_attn_every_n_layers", "layer_switch"})
    (void)config.find(key);
  const bool lists = config.find("layer_types") != nullptr;  // which then says it all
  // A type that is not known may state a window as long as its positions, which no layer uses.
  const json* const positions = config.find("max_position_embeddings");
  const std::int64_t longest =
      positions != nullptr && positions->is_number_integer() ? positions->get<std::int64_t>() : 0;
  const bool hides = window > 0 && (longest == 0 || window < longest);
  const std::int64_t every = lists ? type.every_full : config.positive_or(every_key, type.every_full);
  if (!known && !says_on && !lists && config.find(every_key) == nullptr && hides)
    config.fail(
        "sliding_window",
        "layer_types or sliding_window_pattern next to it, since model_type does not say which layers slide");
  // Qwen's first max_window_layers layers have no window.
  const auto full_first = static_cast<int>(type.window_on ? config.count_or("max_window_layers", 0)
                                                          : config.count_or("max_window_layers", 28));
  const json* types = config.find("layer_types");
  if (types != nullptr) {
    m.sliding_layers = sliding_by_type_list(config, *types, m.layers);
  } else {
    for (int i = 0; i < m.layers; ++i)
      m.sliding_layers.push_back(i >= full_first && (every == 0 || (i + 1) % every != 0));
  }
  const bool any = std::ranges::find(m.sliding_layers, true) != m.sliding_layers.end();
  if (on && types != nullptr && any && window == 0)
    config.fail("sliding_window", "the window of layer_types' sliding layers");
  if (!on || window == 0 || !any || (!known && !hides)) {
    m.sliding_layers.clear();
    return;
  }
  m.sliding_window = window;
}

// ---- Experts ----

// Calls `visit` with each layer that a list in the config names. Returns false if there is no list.
template <class Visit>
bool visit_listed_layers(HfConfig& config, const char* key, int layers, Visit&& visit) {
  const json* list = config.find(key);
  if (list == nullptr) return false;
  if (!list->is_array()) config.fail(key, "a list of layers");
  for (const json& layer : *list) {
    if (!layer.is_number_integer() || layer < 0 || layer >= kMostLayers)
      config.fail(key, "a list of layers in 0.." + std::to_string(kMostLayers - 1));
    if (layer < layers) visit(layer.get<std::size_t>());
  }
  return true;
}

// Which layers have experts where the config says "sparse" or "dense" of each.
void read_mlp_types(HfConfig& config, int layers, std::vector<bool>& sparse) {
  const json* const types = config.find("mlp_layer_types");
  if (types == nullptr) return;
  const auto is_type = [](const json& type) { return type == "sparse" || type == "dense"; };
  if (!types->is_array() || static_cast<int>(types->size()) < layers || !std::ranges::all_of(*types, is_type))
    config.fail("mlp_layer_types", "sparse or dense for each of " + std::to_string(layers) + " layers");
  for (int i = 0; i < layers; ++i) sparse[at(i)] = (*types)[at(i)] == "sparse";
}

// Which layers have experts, by the rules of DeepSeek and ERNIE (the first ones dense, then every so many),
// Qwen (every so many, but for a list), Llama 4 (a list, or every so many) and Transformers 5 (a list).
void read_sparse_layers(HfConfig& config, ModelShape& m, MoeShape& moe, bool llama4) {
  const std::string first_key =
      config.one_of({"first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"});
  const auto dense_first = config.count_or(first_key, 0, kMostLayers);
  const auto frequency = config.positive_or("moe_layer_freq", 1);
  const std::string step_key =
      llama4 ? "interleave_moe_layer_step" : config.one_of({"decoder_sparse_step", "moe_layer_interval"});
  const auto step = config.positive_or(step_key, 1);
  const bool says_last = config.find("moe_layer_end_index") != nullptr;
  const auto said_last = says_last ? config.integer("moe_layer_end_index", -1, kMostLayers) : -1;
  const auto last = said_last < 0 ? kMostLayers : said_last;
  std::vector<bool> sparse;
  for (int i = 0; i < m.layers; ++i)
    sparse.push_back(i >= dense_first && i <= last && i % frequency == 0 && (i + 1) % step == 0);
  read_mlp_types(config, m.layers, sparse);
  visit_listed_layers(config, "mlp_only_layers", m.layers, [&](std::size_t layer) { sparse[layer] = false; });
  std::vector<bool> listed(at(m.layers), false);
  if (llama4 &&
      visit_listed_layers(config, "moe_layers", m.layers, [&](std::size_t layer) { listed[layer] = true; }))
    sparse = std::move(listed);
  const auto first = std::find(sparse.begin(), sparse.end(), true);
  if (first == sparse.end())
    throw UserError(config.path(), ": ", dense_first >= m.layers ? first_key : step_key,
                    ": expected a rule that leaves some of ", m.layers, " layers with experts, found none");
  moe.dense_layers = static_cast<int>(first - sparse.begin());
  if (std::find(first, sparse.end(), false) != sparse.end()) moe.sparse = std::move(sparse);
}

// Reads routing to some groups of experts only. It decides who gets a token and to how many nodes it is sent,
// and changes no product.
void read_limited_routing(HfConfig& config, MoeShape& moe, Notes& notes) {
  const std::int64_t groups = config.count_or("n_group", 0);
  const std::int64_t chosen = config.count_or("topk_group", 0);
  if (groups == 0 || chosen == 0) return;
  if (moe.experts % groups != 0)
    config.fail("n_group", "a divisor of the " + std::to_string(moe.experts) + " routed experts");
  if (chosen > groups) config.fail("topk_group", "at most n_group (" + std::to_string(groups) + ")");
  if (chosen == groups) return;
  moe.groups = static_cast<int>(groups);
  moe.groups_of_token = static_cast<int>(chosen);
  notes.push_back({"limited_routing", "model", {{"groups", chosen}, {"of", groups}}});
}

// Of Nemotron-H: the width of the one shared FFN, whatever number of experts it stands for.
constexpr const char* kOneSharedWidth = "moe_shared_expert_intermediate_size";

void read_moe(HfConfig& config, bool llama4, ModelShape& m, Notes& notes) {
  const std::string key =
      config.one_of({"n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"});
  const std::string active = config.one_of(
      {"num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_k", "moe_topk"});
  const std::string shared =
      config.one_of({"n_shared_experts", "num_shared_experts", "moe_num_shared_experts"});
  const json* node = config.find(key);
  if (node == nullptr || *node == 0) {
    if (config.find("shared_expert_intermediate_size") != nullptr || config.find(shared) != nullptr)
      config.fail(key, "the number of routed experts in addition to the shared one");
    return;
  }
  MoeShape moe;
  moe.experts = static_cast<int>(config.positive(key));
  moe.active = static_cast<int>(config.positive(active));
  moe.expert_ffn = config.positive_or(llama4 ? "intermediate_size" : "moe_intermediate_size", m.ffn);
  moe.shared = static_cast<int>(config.count_or(shared, 0));
  const std::string shared_width =
      config.one_of({"shared_expert_intermediate_size", "shared_intermediate_size", kOneSharedWidth});
  if (const std::int64_t width = config.count_or(shared_width, 0); width > 0) {
    if (moe.shared > 0 && shared_width != kOneSharedWidth)
      config.fail(shared_width, "none next to a number of shared experts");
    moe.shared = 1;
    moe.shared_ffn = width;
  }
  if (llama4) moe.shared = 1;
  read_sparse_layers(config, m, moe, llama4);
  if (moe.active > moe.experts)
    throw UserError(config.path(), ": ", active, ": expected at most ", moe.experts, " (", key, "), found ",
                    moe.active);
  read_limited_routing(config, moe, notes);
  m.moe = moe;
}

void read_mla(HfConfig& config, ModelShape& m) {
  if (config.find("kv_lora_rank") == nullptr) return;
  MlaShape mla;
  mla.q_lora = config.positive_or("q_lora_rank", 0);
  mla.kv_lora = config.positive("kv_lora_rank");
  mla.nope_dim = static_cast<int>(config.positive("qk_nope_head_dim"));
  mla.rope_dim = static_cast<int>(config.positive("qk_rope_head_dim"));
  mla.v_dim = static_cast<int>(config.positive("v_head_dim"));
  m.mla = mla;
  (void)config.find("qk_head_dim");  // the sum of the two dims
  m.head_dim = mla.nope_dim + mla.rope_dim;
}

// ---- The rest ----

// Whether attention and FFN are side by side, by type or by a flag, and whether one norm precedes both.
void read_parallel_ffn(HfConfig& config, const std::string& type, bool always, ModelShape& m, Notes& notes) {
  const bool falcon = type == "falcon", neox = type == "gpt_neox";
  m.parallel_ffn = always || (falcon && config.flag_or("parallel_attn", true)) ||
                   ((neox || type == "stablelm") && config.flag_or("use_parallel_residual", neox));
  const std::int64_t norms = falcon && config.flag_or("new_decoder_architecture", false) ? 2 : 1;
  const bool one = falcon ? config.positive_or("num_ln_in_parallel_attn", norms) == 1 : !neox;
  m.one_norm = m.parallel_ffn && one;
  if (m.parallel_ffn) notes.push_back({"parallel_ffn", "model", {}});
  if (type.starts_with("cohere"))  // other keys, or the type, say the same
    for (const char* key :
         {"use_parallel_block", "use_parallel_embedding", "use_embedding_sharing", "use_gated_activation"})
      config.take(key);
}

void read_heads(HfConfig& config, bool one_kv_head, ModelShape& m) {
  const std::string key = config.one_of({"num_attention_heads", "n_head"});
  m.heads = static_cast<int>(config.positive(key));
  const std::int64_t alone = config.flag_or("multi_query", one_kv_head) ? 1 : m.heads;
  const bool falcon40b = config.flag_or("new_decoder_architecture", false);
  const char* const kv_key = falcon40b ? "num_kv_heads" : "num_key_value_heads";
  m.kv_heads = static_cast<int>(config.positive_or(kv_key, falcon40b ? m.heads : alone));
  m.head_dim = static_cast<int>(config.positive_or("head_dim", m.hidden / m.heads));
  if (m.head_dim < 1)
    throw UserError(config.path(), ": ", key, ": expected at most hidden_size heads, found ", m.heads);
  if (m.heads % m.kv_heads != 0)
    throw UserError(config.path(), ": ", kv_key, ": expected a divisor of ", m.heads, ", found ", m.kv_heads);
}

bool is_off(const json& value) {
  return value.is_null() || value == false || value == 0 ||
         ((value.is_array() || value.is_object() || value.is_string()) && value.empty());
}

// Whether a list in the config says that every layer is attention. Keys of other mixers then have no effect.
// MiniMax has a 1 for attention that sees all.
bool all_attention(const HfConfig& config) {
  for (const char* key : {"layer_types", "layers_block_type", "attn_type_list"}) {
    const json list = config.file().value(key, json());
    if (list.is_array() && !list.empty())
      return std::ranges::all_of(list, [](const json& type) {
        return type.is_string() ? holds(kAttentionTypes, type.get_ref<const std::string&>()) : type == 1;
      });
  }
  return false;
}

// Types with a flag for attention and FFN side by side.
bool reads_parallel_ffn(const std::string& type) {
  return type == "falcon" || type == "gpt_neox" || type == "stablelm";
}

// Refuses a model before any key is read whose absence would follow from the reason.
void refuse_other_models(HfConfig& config, const std::string& type) {
  if (const std::string_view why = why_type_is_refused(type); !why.empty())
    config.fail("model_type", "another, since " + std::string(why));
  const bool attention = all_attention(config);
  for (const auto& [key, value] : config.file().items()) {
    const std::string_view why = is_off(value) || shapes_nothing(key) ? "" : why_key_is_refused(key);
    if (why.empty() || (type == "llama4_text" && config.llama4_reads(key)) ||
        (why == kParallel && reads_parallel_ffn(type)) || (why == kMixers && may_recur(type)) ||
        (why == kSparse && may_index(type)))
      continue;
    if (why == kMixers && attention)
      config.take(key);
    else
      throw UserError(config.path(), ": ", key, ": expected none, since ", why, " (\"ignore\": [\"", key,
                      "\"] next to hf_config passes it over), found ", shown_json(value));
  }
  if (const json types = config.file().value("layer_types", json());
      types.is_array() && !may_recur(type) && !may_index(type))
    for (std::size_t i = 0; i < types.size(); ++i)
      if (const json& layer = types[i];
          layer.is_string() && !holds(kAttentionTypes, layer.get_ref<const std::string&>()))
        throw UserError(config.path(), ": layer_types[", i, "]: expected attention, since ", kMixers,
                        ", found ", shown_json(layer));
}

// Granite's dense layers are as wide as a shared expert; models of experts may have no other width.
std::string ffn_width(HfConfig& config, const std::string& key) {
  const auto has = [&](const char* name) { return config.find(name) != nullptr && *config.find(name) != 0; };
  const bool experts =
      has("num_local_experts") || has("num_experts") || has("n_routed_experts") || has("moe_num_experts");
  if (!experts && has("shared_intermediate_size")) return "shared_intermediate_size";
  return config.find(key) == nullptr && experts && has("moe_intermediate_size") ? "moe_intermediate_size"
                                                                                : key;
}

// The FFN of LFM2: its config states the width of one without a gate, of which a gated one has two thirds,
// times a factor, rounded up.
std::int64_t rounded_ffn(HfConfig& config, std::int64_t stated) {
  const std::int64_t width = config.positive_or("block_ff_dim", stated);
  const json* const factor = config.find("block_ffn_dim_multiplier");
  const std::int64_t multiple = config.positive("block_multiple_of");
  if (!config.flag_or("block_auto_adjust_ff_dim", true)) return width;
  if (factor != nullptr && (!factor->is_number() || *factor <= 0 || *factor > kLargest))
    config.fail("block_ffn_dim_multiplier", "a number above 0");
  const double times = factor == nullptr ? 1 : factor->get<double>();
  const auto gated = static_cast<std::int64_t>(times * as_double(2 * width / 3));
  return (gated + multiple - 1) / multiple * multiple;
}

// Refuses every key that was not read, unless it shapes nothing or is off. One line names all of them, so
// that a user need not find them one by one.
void refuse_other_keys(const HfConfig& config) {
  std::vector<std::string> unknown;
  for (const auto& [key, value] : config.file().items())
    if (!config.asked(key) && !is_off(value) && !shapes_nothing(key)) unknown.push_back(key);
  if (unknown.empty()) return;
  const std::string& first = unknown.front();
  const std::string_view why = why_key_is_refused(first);
  std::string others;
  for (std::size_t i = 1; i < unknown.size(); ++i)
    others.append(i == 1 ? "; nor are " : ", ").append(unknown[i]);
  throw UserError(config.path(), ": ", first, ": expected none, since ",
                  why.empty() ? "it is not known and may change the model's shape" : std::string(why),
                  " (\"ignore\": [\"", all_joined(unknown, "\", \""), "\"] next to hf_config passes ",
                  unknown.size() == 1 ? "it" : "them", " over), found ", shown_json(config.file()[first]),
                  others);
}

// Models with several parts have a separate config for the language model.
HfConfig text_part(const std::string& path, Notes& notes) {
  json file = parse(path);
  for (const char* key : {"text_config", "llm_config", "language_config"}) {
    const auto it = file.find(key);
    if (it == file.end() || it->is_null()) continue;
    if (!it->is_object()) throw UserError(path, ": ", key, ": expected an object, found ", shown_json(*it));
    json text = *it;
    // Older files state these once for all parts.
    for (const char* shared : {"tie_word_embeddings", "vocab_size"})
      if (!text.contains(shared) && file.contains(shared)) text[shared] = file[shared];
    notes.push_back({"language_part", "model", {{"part", key}}});
    return {std::move(text), path + ": " + key};
  }
  return {std::move(file), path};
}

}  // namespace

ModelShape read_hf_config(const std::string& path, const HfOptions& options, Notes* notes) {
  Notes found;
  HfConfig config = text_part(path, found);
  for (const std::string& key : options.ignore)
    found.push_back({config.pass_over(key) ? "key_passed_over" : "key_not_there", "model", {{"key", key}}});
  const std::string type_name = config.text_or("model_type", "");
  refuse_other_models(config, type_name);
  if (may_recur(type_name)) config.set_kind(type_name + " may have other mixers than attention");
  for (const char* key : {"is_encoder_decoder", "add_cross_attention"})
    if (config.flag_or(key, false)) config.fail(key, "false: encoders and cross-attention are not modelled");
  const TypeDefaults* known = defaults_of(type_name);
  const TypeDefaults type = known != nullptr ? *known : TypeDefaults{};
  config.set_class_values(json::parse(type.values));
  // Transformers omits the key if it is true, as in its base class.
  if (known == nullptr && !type_name.empty() && !config.says("tie_word_embeddings") &&
      config.says("transformers_version")) {
    config.set_class_values({{"tie_word_embeddings", true}});
    found.push_back({"tied_by_absence", "model", {{"type", type_name}}});
  }
  ModelShape m;
  m.name = path;
  const std::string layers = config.one_of({"num_hidden_layers", "n_layer"});
  const int blocks = may_recur(type_name) && config.find(layers) == nullptr ? blocks_listed(config) : 0;
  const int listed = blocks > 0 ? blocks : static_cast<int>(config.positive(layers, kMostLayers));
  m.layers = options.layers > 0 ? options.layers : listed;
  m.hidden = config.positive(config.one_of({"hidden_size", "n_embd"}));
  read_heads(config, type_name == "gpt_bigcode" || type_name == "falcon", m);
  const std::string ffn = type.llama4 ? "intermediate_size_mlp"
                                      : config.one_of({"intermediate_size", "n_inner", "ffn_hidden_size"});
  // GPT-2's files omit the FFN if it is four times the hidden size.
  constexpr std::string_view kFourTimes[] = {"gpt2", "gpt_bigcode", "gptj", "codegen", "falcon"};
  const bool four_times = holds(kFourTimes, type_name);
  m.ffn = four_times ? config.positive_or(ffn, 4 * m.hidden) : config.positive(ffn_width(config, ffn));
  if (type_name == "lfm2") m.ffn = rounded_ffn(config, m.ffn);
  (void)config.find("n_inner");
  if (type_name == "falcon") config.take("num_kv_heads");  // which a flag replaces
  m.vocab = config.positive("vocab_size");
  m.tied_embeddings = config.flag_or(config.one_of({"tie_embedding", "tie_word_embeddings"}), false);
  m.gated_ffn = read_gated(config, type_name, options);
  const std::initializer_list<const char*> biases{"attention_bias", "qkv_bias", "use_bias", "use_qkv_bias",
                                                  "bias"};
  const std::string bias = config.one_of(biases);
  for (const char* other : biases) (void)config.find(other);
  if (config.text_or("mlp_type", "default") != "default") config.fail("mlp_type", "default");
  m.qkv_bias = config.flag_or(bias, type.qkv_bias);
  if (type.llama4)
    read_chunks(config, m);
  else if (!may_recur(type_name) && !may_index(type_name))
    read_windows(config, type, known != nullptr, m);
  m.gated_attention = type.gated_attention;
  read_parallel_ffn(config, type_name, type.parallel_ffn, m, found);
  read_moe(config, type.llama4, m, found);
  if (m.moe) m.moe->bias = type.expert_bias;
  read_mla(config, m);
  read_indexer(config, type_name, m, found);
  read_recurrence(config, type_name, listed, options.layers, m, found);
  const std::string modules = config.one_of({"num_nextn_predict_layers", "mtp_num_hidden_layers"});
  m.mtp_layers = static_cast<int>(config.count_or(modules, 0, kMostPredictions));
  for (const char* key :
       {"num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_intermediate_size",
        "n_shared_experts", "num_shared_experts", "shared_expert_intermediate_size",
        "shared_intermediate_size", kOneSharedWidth, "first_k_dense_replace", "moe_layer_freq",
        "decoder_sparse_step", "mlp_only_layers", "mlp_layer_types"})
    (void)config.find(key);  // of no effect without experts
  for (const char* key : {"vision_config", "audio_config"})
    if (config.find(key) != nullptr) found.push_back({"other_part", "model", {{"part", key}}});
  refuse_other_keys(config);
  if (notes != nullptr) notes->insert(notes->end(), found.begin(), found.end());
  check_model_size(m, path);
  return m;
}

}  // namespace equipoise
