#include "sim/study/read_model.h"

#include <filesystem>

#include "policies/base/error.h"
#include "sim/study/json_object.h"
#include "sim/workload/model.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr std::int64_t kLongest = std::int64_t{1} << 31;  // of a window, in tokens

MoeShape read_experts(const json& node, const std::string& where, const ModelShape& model) {
  JsonObject object(node, where);
  MoeShape moe;
  moe.experts = static_cast<int>(object.integer("count", 0, 1, 1 << 20));
  moe.active = static_cast<int>(object.integer("active", 0, 1, 1 << 20));
  moe.expert_ffn = object.integer("ffn", 0, 1, 1 << 26);
  moe.shared_ffn = object.integer("shared_ffn", 0, 1, 1 << 26);
  moe.shared = moe.shared_ffn > 0 ? 1 : 0;
  moe.dense_layers = static_cast<int>(object.integer("dense_layers", 0, 0, model.layers));
  object.finish();
  for (const char* key : {"count", "active", "ffn"})
    if (!object.has(key)) object.fail(key, "a size");
  if (moe.active > moe.experts) object.fail("active", "at most count experts");
  return moe;
}

MlaShape read_mla(const json& node, const std::string& where) {
  JsonObject object(node, where);
  MlaShape mla;
  mla.q_lora = object.integer("q_lora", 0, 1, 1 << 24);
  mla.kv_lora = object.integer("kv_lora", 0, 1, 1 << 24);
  mla.nope_dim = static_cast<int>(object.integer("nope_dim", 0, 1, 1 << 16));
  mla.rope_dim = static_cast<int>(object.integer("rope_dim", 0, 1, 1 << 16));
  mla.v_dim = static_cast<int>(object.integer("v_dim", 0, 1, 1 << 16));
  object.finish();
  for (const char* key : {"kv_lora", "nope_dim", "rope_dim", "v_dim"})
    if (!object.has(key)) object.fail(key, "a size");
  return mla;
}

// A shape written out in the study.
ModelShape read_shape(JsonObject& object) {
  ModelShape m;
  m.name = object.text("name", "custom");
  m.layers = static_cast<int>(object.integer("layers", 0, 1, 100000));
  m.hidden = object.integer("hidden", 0, 1, 1 << 24);
  m.heads = static_cast<int>(object.integer("heads", 0, 1, 1 << 20));
  m.kv_heads = static_cast<int>(object.integer("kv_heads", m.heads, 1, 1 << 20));
  m.head_dim = static_cast<int>(object.integer("head_dim", m.heads > 0 ? m.hidden / m.heads : 0, 1, 1 << 16));
  m.ffn = object.integer("ffn", 0, 1, 1 << 26);
  m.vocab = object.integer("vocab", 0, 1, 1 << 26);
  m.gated_ffn = object.flag("gated_ffn", true);
  m.tied_embeddings = object.flag("tied_embeddings", false);
  m.sliding_window = object.integer("sliding_window", 0, 1, kLongest);
  const std::int64_t every = object.integer("sliding_window_pattern", 0, 2, 100000);
  if (every > 0 && m.sliding_window == 0)
    object.fail("sliding_window", "the window of sliding_window_pattern");
  for (int i = 0; every > 0 && i < m.layers; ++i) m.sliding_layers.push_back((i + 1) % every != 0);
  if (const json* experts = object.find("experts"))
    m.moe = read_experts(*experts, object.where() + ".experts", m);
  if (const json* mla = object.find("mla")) {
    m.mla = read_mla(*mla, object.where() + ".mla");
    if (!object.has("head_dim")) m.head_dim = m.mla->nope_dim + m.mla->rope_dim;
  }
  object.finish();
  for (const char* key : {"layers", "hidden", "heads", "ffn", "vocab"})
    if (!object.has(key)) object.fail(key, "a size");
  if (m.head_dim < 1) object.fail("heads", "at most hidden heads, or a head_dim");
  if (m.mla && m.head_dim != m.mla->nope_dim + m.mla->rope_dim)
    object.fail("head_dim", "mla.nope_dim + mla.rope_dim, or none");
  if (m.heads % m.kv_heads != 0) object.fail("kv_heads", "a divisor of heads");
  check_model_size(m, object.where());
  return m;
}

}  // namespace

ModelShape read_model(const json& node, const std::string& where, const std::string& study,
                      std::vector<std::string>& notes) {
  if (node.is_string())
    return naming(study, [&] { return builtin_model(node.get<std::string>()); });  // says "model: " itself
  JsonObject object(node, where);
  if (object.has("hidden")) return read_shape(object);
  const std::string path = object.text("hf_config", "");
  if (path.empty()) object.fail("hf_config", "the path of a Hugging Face config.json");
  HfOptions options;
  options.layers = static_cast<int>(object.integer("layers", 0, 1, 100000));
  if (object.has("gated_ffn")) options.gated_ffn = object.flag("gated_ffn", true);
  if (const json* keys = object.find("ignore")) {
    if (!keys->is_array()) object.fail("ignore", "a list of keys of the config");
    for (const json& key : *keys) {
      if (!key.is_string()) object.fail("ignore", "a list of keys of the config");
      options.ignore.push_back(key.get<std::string>());
    }
  }
  (void)object.find("gated_ffn");
  object.finish();
  return read_hf_config((std::filesystem::path(study).parent_path() / path).string(), options, &notes);
}

}  // namespace equipoise
