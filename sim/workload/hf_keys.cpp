#include "sim/workload/hf_keys.h"

#include <algorithm>
#include <array>
#include <utility>

namespace equipoise {
namespace {

constexpr std::string_view kHarmless[] = {
    // What Transformers writes into every config.
    "_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version",
    "use_bfloat16", "torchscript", "return_dict", "output_attentions", "output_hidden_states",
    "output_router_logits", "use_cache", "is_decoder", "tokenizer_class", "prefix", "problem_type",
    "id2label", "label2id", "num_labels", "finetuning_task", "task_specific_params",
    "chunk_size_feed_forward", "gradient_checkpointing", "name", "quantization_config", "compression_config",
    "cache_implementation", "attn_implementation", "is_llama_config", "interpolate_factor", "full_attn_mod",
    // Generation.
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "temperature",
    "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "diversity_penalty",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "num_return_sequences", "output_scores",
    "return_dict_in_generate", "remove_invalid_values",
    // Positions, norms, scales.
    "max_position_embeddings", "n_positions", "n_ctx", "seq_length", "model_max_length", "max_seq_len",
    "max_sequence_length", "initial_context_length", "original_max_position_embeddings",
    "partial_rotary_factor", "rotary_pct", "rotary_dim", "rotary_emb_base", "no_rope_layers",
    "no_rope_layer_interval", "norm_type", "initializer_range", "initializer_cutoff_factor", "init_method",
    "query_pre_attn_scalar", "logit_scale", "logits_scaling", "embedding_multiplier", "residual_multiplier",
    "attention_multiplier", "clip_qkv", "attn_logit_softcapping", "final_logit_softcapping",
    "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn",
    "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "use_qk_norm", "qk_norm", "qk_layernorm",
    "swiglu_limit", "mlp_bias", "pretraining_tp", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "validate_runner_input", "inference_runner",
    "pad_key_length", "pre_allocate_kv_cache", "max_batch_size",
    // Routing: who gets a token, not how much is computed.
    "norm_topk_prob", "scoring_func", "topk_method", "n_group", "topk_group", "routed_scaling_factor",
    "router_jitter_noise", "router_dtype", "aux_loss_alpha", "seq_aux", "ep_size",
    // Read, or of no effect without what reads them.
    "model_type"};

constexpr std::string_view kHarmlessStarts[] = {"rope_", "_attn_implementation", "mup_", "forced_"};
constexpr std::string_view kHarmlessEnds[] = {"_token_id", "_token_ids",    "_token_index",
                                              "_dropout",  "_dropout_prob", "_pdrop",
                                              "_eps",      "_epsilon",      "_loss_coef"};

constexpr std::string_view kMixers =
    "layers of other mixers than attention (state-space, recurrent) are not modelled";
constexpr std::string_view kExpertRules = "this rule of which layers have which experts is not modelled";
constexpr std::string_view kParallel = "attention and FFN side by side are not modelled";
constexpr std::string_view kPerLayer = "layers of unlike shapes are not modelled";

// A key, or the begin of keys.
constexpr std::pair<std::string_view, std::string_view> kRefused[] = {
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
    {"num_nextn_predict_layers", "the layers of multi-token prediction are not modelled"},
    {"attention_chunk_size", "attention in chunks is not modelled"},
    {"use_parallel_residual", kParallel},
    {"parallel_attn", kParallel},
    {"block_configs", kPerLayer},
    {"num_kv_shared_layers", kPerLayer},
    {"ffn_multipliers", kPerLayer},
    {"index_", "sparse attention is not modelled"},
};

constexpr std::pair<std::string_view, std::string_view> kRefusedTypes[] = {
    {"gpt_neox", kParallel},      {"gptj", kParallel},   {"phi", kParallel},  {"cohere", kParallel},
    {"cohere2", kParallel},       {"falcon", kParallel}, {"mamba", kMixers},  {"mamba2", kMixers},
    {"jamba", kMixers},           {"bamba", kMixers},    {"zamba2", kMixers}, {"rwkv", kMixers},
    {"recurrent_gemma", kMixers},
};

constexpr std::string_view kActivations[] = {
    "silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2"};

bool holds(const auto& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

}  // namespace

bool shapes_nothing(std::string_view key) {
  return holds(kHarmless, key) ||
         std::any_of(std::begin(kHarmlessStarts), std::end(kHarmlessStarts),
                     [key](std::string_view start) { return key.starts_with(start); }) ||
         std::any_of(std::begin(kHarmlessEnds), std::end(kHarmlessEnds),
                     [key](std::string_view end) { return key.ends_with(end); });
}

std::string_view why_key_is_refused(std::string_view key) {
  for (const auto& [start, why] : kRefused)
    if (key.starts_with(start)) return why;
  return {};
}

std::string_view why_type_is_refused(std::string_view model_type) {
  for (const auto& [type, why] : kRefusedTypes)
    if (model_type == type) return why;
  return {};
}

bool is_known_activation(std::string_view name) {
  return holds(kActivations, name);
}

std::string known_activations() {
  std::string all;
  for (const std::string_view name : kActivations) all.append(all.empty() ? "" : ", ").append(name);
  return all;
}

}  // namespace equipoise
