// Reading Hugging Face config.json files.
#include <nlohmann/json.hpp>

#include "policies/error.h"
#include "sim/workload/model.h"
#include "traces/json_text.h"

namespace equipoise {
namespace {

using nlohmann::json;

constexpr std::int64_t kLargest = INT32_MAX;
constexpr std::int64_t kMostLayers = 100000;

std::int64_t positive(const json& config, const std::string& key, const std::string& path,
                      std::int64_t most = kLargest) {
  const auto it = config.find(key);
  if (it != config.end() && it->is_number_integer()) {
    const auto value = it->get<std::int64_t>();
    if (value > 0 && value <= most) return value;
  }
  throw UserError(path + ": " + key + ": expected an integer in 1.." + std::to_string(most) + ", found " +
                  (it == config.end() ? "nothing" : shown_json(*it)));
}

// A key that may be absent or null.
std::int64_t positive_or(const json& config, const std::string& key, std::int64_t fallback,
                         const std::string& path) {
  const auto it = config.find(key);
  return it == config.end() || it->is_null() ? fallback : positive(config, key, path);
}

bool flag_or(const json& config, const std::string& key, bool fallback, const std::string& path) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) return fallback;
  if (!it->is_boolean()) throw UserError(path + ": " + key + ": expected true or false, found " + shown_json(*it));
  return it->get<bool>();
}

json parse(const std::string& path) {
  json config = read_json_file(path);
  if (!config.is_object()) throw UserError(path + ": expected a JSON object (a Hugging Face config.json)");
  return config;
}

void read_moe(const json& config, const std::string& path, ModelShape& m) {
  const char* key = config.contains("n_routed_experts") ? "n_routed_experts" : "num_local_experts";
  if (!config.contains(key) && config.contains("num_experts")) key = "num_experts";
  if (!config.contains(key) || config[key].is_null()) return;
  MoeShape moe;
  moe.experts = static_cast<int>(positive(config, key, path));
  moe.active = static_cast<int>(positive(config, "num_experts_per_tok", path));
  moe.shared = static_cast<int>(positive_or(config, "n_shared_experts", 0, path));
  moe.expert_ffn = positive_or(config, "moe_intermediate_size", m.ffn, path);
  if (config.contains("first_k_dense_replace") && config["first_k_dense_replace"] != 0)
    moe.dense_layers = static_cast<int>(positive_or(config, "first_k_dense_replace", 0, path));
  if (moe.active > moe.experts)
    throw UserError(path + ": num_experts_per_tok: expected at most " + std::to_string(moe.experts) + " (" +
                    key + "), found " + std::to_string(moe.active));
  m.moe = moe;
}

void read_mla(const json& config, const std::string& path, ModelShape& m) {
  if (!config.contains("kv_lora_rank") || config["kv_lora_rank"].is_null()) return;
  MlaShape mla;
  mla.q_lora = positive_or(config, "q_lora_rank", 0, path);
  mla.kv_lora = positive(config, "kv_lora_rank", path);
  mla.nope_dim = static_cast<int>(positive(config, "qk_nope_head_dim", path));
  mla.rope_dim = static_cast<int>(positive(config, "qk_rope_head_dim", path));
  mla.v_dim = static_cast<int>(positive(config, "v_head_dim", path));
  m.mla = mla;
  m.head_dim = mla.nope_dim + mla.rope_dim;
}

}  // namespace

ModelShape read_hf_config(const std::string& path) {
  const json config = parse(path);
  ModelShape m;
  m.name = path;
  m.layers = static_cast<int>(positive(config, "num_hidden_layers", path, kMostLayers));
  m.hidden = positive(config, "hidden_size", path);
  m.heads = static_cast<int>(positive(config, "num_attention_heads", path));
  m.kv_heads = static_cast<int>(positive_or(config, "num_key_value_heads", m.heads, path));
  m.head_dim = static_cast<int>(positive_or(config, "head_dim", m.hidden / m.heads, path));
  m.ffn = positive(config, "intermediate_size", path);
  m.vocab = positive(config, "vocab_size", path);
  m.tied_embeddings = flag_or(config, "tie_word_embeddings", false, path);
  const auto type = config.find("model_type");
  if (type != config.end() && !type->is_string())
    throw UserError(path + ": model_type: expected a string, found " + shown_json(*type));
  // Qwen2 has biases on Q, K and V that its config.json does not state.
  const bool biased = type != config.end() && *type == "qwen2";
  m.qkv_bias = flag_or(config, "attention_bias", biased, path);
  if (m.head_dim < 1)
    throw UserError(path + ": num_attention_heads: expected at most hidden_size heads, found " +
                    std::to_string(m.heads));
  if (m.heads % m.kv_heads != 0)
    throw UserError(path + ": num_key_value_heads: expected a divisor of " + std::to_string(m.heads) +
                    ", found " + std::to_string(m.kv_heads));
  read_moe(config, path, m);
  read_mla(config, path, m);
  return m;
}

}  // namespace equipoise
