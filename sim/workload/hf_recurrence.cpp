#include "sim/workload/hf_recurrence.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "policies/base/index.h"
#include "policies/base/text.h"

namespace equipoise {
namespace {

using nlohmann::json;

// The keys of a family of types. Without a name the value is that of the model's attention.
struct Family {
  std::vector<std::string_view> types;
  Recurrence rule{};
  const char *heads = nullptr, *key_heads = nullptr, *value_dim = nullptr, *key_dim = nullptr;
  const char* convolution = nullptr;
  const char* within = nullptr;             // the object that has these keys
  std::vector<const char*> without_effect;  // on what is counted, unless another key is "auto"
  bool next_to_attention = false;
};

const std::vector<Family>& families() {
  static const std::vector<const char*> kOfKimi = {"mla_use_nope", "use_grouped_topk", "num_expert_group",
                                                   "moe_renormalize", "moe_router_activation_func"};
  const auto of_mamba = [](std::vector<std::string_view> types, std::vector<const char*> without_effect,
                           bool next_to_attention = false) {
    return Family{.types = std::move(types),
                  .rule = Recurrence::mamba2,
                  .heads = "mamba_n_heads",
                  .key_heads = "mamba_n_groups",
                  .value_dim = "mamba_d_head",
                  .key_dim = "mamba_d_state",
                  .convolution = "mamba_d_conv",
                  .without_effect = std::move(without_effect),
                  .next_to_attention = next_to_attention};
  };
  static const std::vector<Family> all = {
      {.types = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "lara_mini"},
       .rule = Recurrence::gated_delta,
       .heads = "linear_num_value_heads",
       .key_heads = "linear_num_key_heads",
       .value_dim = "linear_value_head_dim",
       .key_dim = "linear_key_head_dim",
       .convolution = "linear_conv_kernel_dim",
       .without_effect = {"full_attention_interval", "mamba_ssm_dtype", "linear_a_log_min",
                          "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor",
                          "linear_allow_neg_eigval", "output_gate_type"}},
      {.types = {"kimi_linear"},
       .rule = Recurrence::kimi_delta,
       .heads = "num_heads",
       .key_heads = "num_heads",
       .value_dim = "head_dim",
       .key_dim = "head_dim",
       .convolution = "short_conv_kernel_size",
       .within = "linear_attn_config",
       .without_effect = kOfKimi},
      {.types = {"kimi_linear"},  // as Transformers 5 writes it
       .rule = Recurrence::kimi_delta,
       .heads = "linear_num_heads",
       .key_heads = "linear_num_heads",
       .value_dim = "linear_head_dim",
       .key_dim = "linear_head_dim",
       .convolution = "linear_conv_kernel_dim",
       .without_effect = kOfKimi},
      of_mamba(
          {"granitemoehybrid", "bamba"},
          {"mamba_expand", "mamba_chunk_size", "mamba_conv_bias", "mamba_proj_bias", "attn_rotary_emb",
           "time_step_limit", "time_step_max", "time_step_min", "time_step_floor", "z_loss_coefficient"}),
      of_mamba({"falcon_h1"},
               {"mamba_d_ssm",
                "mamba_expand",
                "mamba_chunk_size",
                "mamba_conv_bias",
                "mamba_proj_bias",
                "mamba_norm_before_gate",
                "mamba_rms_norm",
                "mamba_use_mlp",
                "projectors_bias",
                "time_step_limit",
                "time_step_max",
                "time_step_min",
                "time_step_floor",
                "attention_in_multiplier",
                "attention_out_multiplier",
                "key_multiplier",
                "lm_head_multiplier",
                "mlp_multipliers",
                "mlp_expansion_factor",
                "ssm_in_multiplier",
                "ssm_multipliers",
                "ssm_out_multiplier"},
               true),
      {.types = {"lfm2", "lfm2_moe", "lfm3"},
       .rule = Recurrence::convolution,
       .convolution = "conv_L_cache",
       .without_effect = {"conv_bias", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "block_dim",
                          "block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init",
                          "block_use_swiglu", "full_attn_idxs", "num_heads", "theta", "use_pos_enc",
                          "use_sandwich_norm", "use_attention_gate"}},
      {.types = {"nemotron_h"},
       .rule = Recurrence::mamba2,
       .heads = "mamba_num_heads",
       .key_heads = "n_groups",
       .value_dim = "mamba_head_dim",
       .key_dim = "ssm_state_size",
       .convolution = "conv_kernel",
       .without_effect = {"expand", "chunk_size", "use_conv_bias", "use_mamba_kernels", "mamba_hidden_act",
                          "mamba_proj_bias", "mamba_num_groups", "mamba_ssm_cache_dtype", "time_step_limit",
                          "time_step_max", "time_step_min", "time_step_floor", "time_step_rank",
                          "residual_in_fp32", "rescale_prenorm_residual", "hidden_dropout",
                          "attention_head_dim", "moe_shared_expert_overlap"}},
      {.types = {"minimax", "minimax_m1", "minimax_text_01"},
       .rule = Recurrence::lightning,
       .without_effect = {"block_size", "full_attn_alpha_factor", "full_attn_beta_factor",
                          "linear_attn_alpha_factor", "linear_attn_beta_factor", "mlp_alpha_factor",
                          "mlp_beta_factor"}},
  };
  return all;
}

// ---- Which layers ----

const json& list_of(HfConfig& config, const char* key, int least) {
  const json* const list = config.find(key);
  if (list == nullptr || !list->is_array() || static_cast<int>(list->size()) < least)
    config.fail(key, least > 0 ? "a list of " + std::to_string(least) + " layers" : "a list of layers");
  return *list;
}

// By a word or a number for each layer.
std::vector<bool> by_kinds(HfConfig& config, const char* key, int layers, const std::vector<json>& recurrent,
                           const std::vector<json>& attention) {
  const json& list = list_of(config, key, layers);
  std::vector<bool> recurs;
  for (int i = 0; i < layers; ++i) {
    const json& kind = list[at(i)];
    recurs.push_back(std::ranges::find(recurrent, kind) != recurrent.end());
    if (!recurs.back() && std::ranges::find(attention, kind) == attention.end())
      throw UserError(config.path(), ": ", key, "[", i, "]: expected ",
                      all_joined(recurrent, " or ", [](const json& one) { return shown_json(one); }), " or ",
                      all_joined(attention, " or ", [](const json& one) { return shown_json(one); }),
                      ", found ", shown_json(kind));
  }
  return recurs;
}

// By the numbers of some layers, the first of which has number `first`.
std::vector<bool> by_numbers(HfConfig& config, const char* key, int layers, int first, bool named) {
  std::vector<bool> recurs(at(layers), !named);
  for (const json& layer : list_of(config, key, 0)) {
    if (!layer.is_number_integer() || layer < first || layer >= first + kMostLayers)
      config.fail(key, "a list of layers from " + std::to_string(first) + " on");
    if (layer < first + layers) recurs[at(layer.get<int>() - first)] = named;
  }
  return recurs;
}

std::vector<bool> recurrent_layers(HfConfig& config, const Family& family, HfConfig& own, int layers) {
  if (family.next_to_attention) return std::vector<bool>(at(layers), true);
  const bool convolves = family.rule == Recurrence::convolution;
  if (config.find("layer_types") != nullptr)
    return by_kinds(config, "layer_types", layers,
                    convolves ? std::vector<json>{"conv"} : std::vector<json>{"linear_attention", "mamba"},
                    {"full_attention", "attention", "sliding_attention"});
  if (convolves && config.find("full_attn_idxs") == nullptr) return std::vector<bool>(at(layers), false);
  if (convolves) return by_numbers(config, "full_attn_idxs", layers, 0, false);
  if (config.find("attn_type_list") != nullptr) return by_kinds(config, "attn_type_list", layers, {0}, {1});
  if (config.find("attn_layer_indices") != nullptr)
    return by_numbers(config, "attn_layer_indices", layers, 0, false);
  if (family.within != nullptr) {
    return by_numbers(own, "kda_layers", layers, 1, true);
  }
  if (family.rule != Recurrence::gated_delta)
    config.fail("layer_types", "a list of layers with attention or a recurrence");
  const std::int64_t every = config.positive("full_attention_interval");
  std::vector<bool> recurs;
  for (int i = 0; i < layers; ++i) recurs.push_back((i + 1) % every != 0);
  return recurs;
}

// The layers that layer_types calls sliding_attention attend to a window.
void read_windows(HfConfig& config, ModelShape& m) {
  const json* const types = config.find("layer_types");
  const json* const window = config.find("sliding_window");
  if (types == nullptr || std::ranges::find(*types, "sliding_attention") == types->end()) return;
  if (window == nullptr) config.fail("sliding_window", "the window of layer_types' sliding layers");
  m.sliding_window = config.positive("sliding_window");
  for (int i = 0; i < m.layers; ++i) m.sliding_layers.push_back((*types)[at(i)] == "sliding_attention");
}

// ---- Blocks that are each a mixer or an FFN ----

enum class Block : std::uint8_t { recurrence, attention, ffn, experts };
constexpr char kBlockSigns[] = "M*-E";
constexpr std::string_view kBlockWords[] = {"mamba",         "attention", "mlp", "moe", "linear_attention",
                                            "full_attention"};  // the last two: of mixers again
constexpr std::size_t kBlocks = 4;

const char* pattern_key(HfConfig& config) {
  return config.find("hybrid_override_pattern") != nullptr ? "hybrid_override_pattern" : "layers_block_type";
}

int blocks_of_pattern(const json& pattern) {
  if (pattern.is_string()) return static_cast<int>(pattern.get_ref<const std::string&>().size());
  return pattern.is_array() ? static_cast<int>(pattern.size()) : 0;
}

std::vector<Block> read_blocks(HfConfig& config, const char* key, int count) {
  const json& pattern = *config.find(key);
  const std::string signs = pattern.is_string() ? pattern.get<std::string>() : "";
  if (blocks_of_pattern(pattern) < count)
    config.fail(key, "a pattern of num_hidden_layers (" + std::to_string(count) + ") blocks");
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < at(count); ++i) {
    const std::size_t found =
        pattern.is_string()
            ? std::string_view(kBlockSigns).find(signs[i])
            : static_cast<std::size_t>(std::ranges::find(kBlockWords, pattern[i]) - std::begin(kBlockWords));
    if (found >= std::size(kBlockWords))
      config.fail(key, "M, *, - and E, or mamba, attention, mlp and moe, for its blocks");
    blocks.push_back(static_cast<Block>(found % kBlocks));
  }
  return blocks;
}

bool mixes(Block block) {
  return block == Block::recurrence || block == Block::attention;
}

// Keeps the blocks of the first layers, each of which begins with a mixer.
void keep_first(const HfConfig& config, const char* key, int layers, std::vector<Block>& blocks) {
  if (std::ranges::count_if(blocks, mixes) < layers)
    config.fail(key, "a pattern with the mixers of " + std::to_string(layers) + " layers");
  int begun = 0;
  blocks.erase(std::ranges::find_if(blocks, [&](Block b) { return mixes(b) && ++begun > layers; }),
               blocks.end());
}

// Modules of multi-token prediction are counted as layers like the last one, so their blocks have to be its.
void check_predictions(HfConfig& config, std::span<const Block> blocks) {
  const std::int64_t modules = config.count_or("num_nextn_predict_layers", 0, kMostPredictions);
  const auto mixer = std::find_if(blocks.rbegin(), blocks.rend(), mixes);
  const auto last = blocks.last(static_cast<std::size_t>(mixer - blocks.rbegin()) + 1);
  bool alike = false;
  for (const char* key : {"mtp_hybrid_override_pattern", "mtp_layers_block_type"}) {
    const json* const pattern = config.find(key);
    if (modules == 0 || pattern == nullptr) continue;
    alike = std::ranges::equal(read_blocks(config, key, blocks_of_pattern(*pattern)), last);
    if (!alike) break;
  }
  if (modules > 0 && !alike)
    config.fail(
        "num_nextn_predict_layers",
        "0, since multi-token prediction is modelled only by the blocks (mtp_hybrid_override_pattern) "
        "of the last layer");
}

// Makes layers of blocks. An FFN belongs to the mixer before it. If a study asks for the first layers only,
// these are such layers, as stages and recomputation count them, and not blocks.
void read_pattern(HfConfig& config, const char* key, int listed, int asked, ModelShape& m,
                  RecurrentShape& shape, Notes& notes) {
  std::vector<bool> sparse;
  std::vector<Block> blocks = read_blocks(config, key, listed);
  if (asked > 0) keep_first(config, key, asked, blocks);
  for (const Block block : blocks) {
    if (mixes(block)) {
      shape.layers.push_back(block == Block::recurrence);
      shape.without_ffn.push_back(true);
      sparse.push_back(false);
    } else if (shape.without_ffn.empty() || !shape.without_ffn.back()) {
      config.fail(key, "a mixer before each FFN, since an FFN alone is not modelled");
    } else {
      shape.without_ffn.back() = false;
      sparse.back() = block == Block::experts;
    }
  }
  check_predictions(config, blocks);
  m.layers = static_cast<int>(shape.layers.size());
  for (std::size_t i = 0; i < shape.layers.size(); ++i)
    if (shape.without_ffn[i] && !shape.layers[i])
      config.fail(key, "an FFN behind each attention, since attention alone is not modelled");
  const bool experts = std::ranges::find(sparse, true) != sparse.end();
  if (experts && !m.moe) config.fail("n_routed_experts", "the experts of " + std::string(key));
  if (experts)
    m.moe->sparse = std::move(sparse);
  else
    m.moe.reset();
  if (std::ranges::find(shape.without_ffn, true) == shape.without_ffn.end()) shape.without_ffn.clear();
  notes.push_back({"blocks_as_layers", "model", {{"blocks", blocks.size()}, {"layers", m.layers}}});
}

// ---- Sizes ----

// The width of a head with a state. Some files leave it to the width of all heads.
int head_width(HfConfig& keys, const char* key, std::int64_t hidden, int heads) {
  const json* const said = keys.find(key);
  if (said == nullptr || *said != "auto") return static_cast<int>(keys.positive(key));
  const std::string inner = keys.find("mamba_d_ssm") != nullptr ? "mamba_d_ssm" : "mamba_expand";
  const std::int64_t width = keys.positive(inner) * (inner == "mamba_expand" ? hidden : 1);
  if (width % heads != 0)
    keys.fail(key, "a number, since " + std::to_string(heads) + " heads do not divide the " +
                       std::to_string(width) + " channels of " + inner);
  return static_cast<int>(width / heads);
}

void read_sizes(HfConfig& keys, const Family& family, const ModelShape& m, RecurrentShape& shape) {
  const auto of_key = [&](const char* key, int otherwise) {
    if (key == nullptr) return otherwise;
    return static_cast<int>(keys.positive(key));
  };
  shape.convolution = of_key(family.convolution, 0);
  if (!shape.facts().state) {  // each channel is a head of its own
    shape.heads = shape.key_heads = static_cast<int>(m.hidden);
    shape.value_dim = shape.key_dim = 1;
    return;
  }
  shape.heads = of_key(family.heads, m.heads);
  shape.key_heads = of_key(family.key_heads, m.heads);
  shape.value_dim =
      family.value_dim == nullptr ? m.head_dim : head_width(keys, family.value_dim, m.hidden, shape.heads);
  shape.key_dim = of_key(family.key_dim, m.head_dim);
  if (shape.heads % shape.key_heads != 0)
    keys.fail(family.key_heads, "a divisor of the " + std::to_string(shape.heads) + " heads with a state");
}

}  // namespace

bool may_recur(const std::string& model_type) {
  return std::ranges::any_of(families(), [&](const Family& family) {
    return std::ranges::find(family.types, model_type) != family.types.end();
  });
}

int blocks_listed(HfConfig& config) {
  const json* const pattern = config.find(pattern_key(config));
  return pattern == nullptr ? 0 : blocks_of_pattern(*pattern);
}

void read_recurrence(HfConfig& config, const std::string& model_type, int listed, int asked, ModelShape& m,
                     Notes& notes) {
  const auto family = std::ranges::find_if(families(), [&](const Family& one) {
    return std::ranges::find(one.types, model_type) != one.types.end() &&
           (one.within == nullptr || config.find(one.within) != nullptr);
  });
  if (family == families().end()) return;
  for (const char* key : family->without_effect) config.take(key);
  RecurrentShape shape{.rule = family->rule, .next_to_attention = family->next_to_attention};
  m.gated_attention = config.flag_or("attn_output_gate", shape.rule == Recurrence::gated_delta);
  if (m.gated_attention && m.mla)
    config.fail("attn_output_gate",
                "no gate, since none is modelled for the latent attention (kv_lora_rank)");
  const json* const within = family->within == nullptr ? nullptr : config.find(family->within);
  if (within != nullptr && !within->is_object()) config.fail(family->within, "an object");
  HfConfig own(within != nullptr ? *within : json::object(),
               config.path() + ": " + (within != nullptr ? family->within : ""));
  for (const char* key : {"kda_layers", "full_attn_layers"}) own.take(key);  // another list may come first
  if (model_type == "nemotron_h") {
    const char* const pattern = pattern_key(config);
    if (config.find(pattern) == nullptr) config.fail("hybrid_override_pattern", "a pattern of blocks");
    read_pattern(config, pattern, listed, asked, m, shape, notes);
  } else {
    shape.layers = recurrent_layers(config, *family, own, m.layers);
    if (!shape.next_to_attention) read_windows(config, m);
  }
  const auto recurring = std::ranges::count(shape.layers, true);
  if (recurring == 0) {
    for (const char* key :
         {family->heads, family->key_heads, family->value_dim, family->key_dim, family->convolution})
      if (key != nullptr) config.take(key);
    return;
  }
  read_sizes(within != nullptr ? own : config, *family, m, shape);
  for (const auto& [key, value] : own.file().items())
    if (!own.asked(key) && !value.is_null())
      own.fail(key, "none, since it is not known and may change the model's shape");
  const char* const kind = !shape.facts().state      ? "convolution_layers"
                           : shape.next_to_attention ? "parallel_layers"
                                                     : "recurrent_layers";
  notes.push_back(
      {kind, "model", {{"rule", std::string(shape.facts().name)}, {"layers", recurring}, {"of", m.layers}}});
  m.recurrence = std::move(shape);
}

}  // namespace equipoise
