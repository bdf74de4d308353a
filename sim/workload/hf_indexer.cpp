#include "sim/workload/hf_indexer.h"

#include <algorithm>

#include "policies/base/index.h"

namespace equipoise {
namespace {

using nlohmann::json;

// The list has a word for each layer, or is a text with a letter for each.
std::vector<bool> reuses_by_list(HfConfig& config, const char* key, int layers) {
  const json& list = *config.find(key);
  const bool letters = list.is_string();
  const auto size =
      letters ? std::ssize(list.get_ref<const std::string&>()) : static_cast<std::ptrdiff_t>(list.size());
  if ((!letters && !list.is_array()) || size < layers)
    config.fail(key, "full or shared (F or S) for each of " + std::to_string(layers) + " layers");
  std::vector<bool> reuses;
  for (int i = 0; i < layers; ++i) {
    const json kind = letters ? json(list.get_ref<const std::string&>().substr(at(i), 1)) : list[at(i)];
    reuses.push_back(kind == "shared" || kind == "S");
    if (!reuses.back() && kind != "full" && kind != "F")
      config.fail(key, "full or shared (F or S) for each layer");
  }
  return reuses;
}

// Which layers reuse the choice of the layer before: by a list, or all but every so many after the first few.
std::vector<bool> reusing_layers(HfConfig& config, int layers) {
  const auto every = config.positive_or("index_topk_freq", 1);
  const auto offset = config.count_or("index_skip_topk_offset", 2);
  const bool words = config.find("indexer_types") != nullptr;
  const bool letters = config.find("index_topk_pattern") != nullptr;
  if (words || letters)  // the words are taken where a file has both
    return reuses_by_list(config, words ? "indexer_types" : "index_topk_pattern", layers);
  std::vector<bool> reuses;
  for (int i = 0; i < layers; ++i) reuses.push_back(std::max<std::int64_t>(i - offset + 1, 0) % every != 0);
  return reuses;
}

}  // namespace

bool may_index(const std::string& model_type) {
  return model_type == "deepseek_v32" || model_type == "glm_moe_dsa";
}

void read_indexer(HfConfig& config, const std::string& model_type, ModelShape& m, Notes& notes) {
  if (!may_index(model_type)) return;
  for (const char* key : {"layer_types", "indexer_rope_interleave", "index_share_for_mtp_iteration"})
    config.take(key);  // all layers are alike
  IndexerShape indexer;
  indexer.heads = static_cast<int>(config.positive("index_n_heads"));
  indexer.dim = static_cast<int>(config.positive("index_head_dim"));
  indexer.top_keys = config.positive("index_topk");
  if (!m.mla || m.mla->q_lora == 0)
    config.fail(m.mla ? "q_lora_rank" : "kv_lora_rank",
                "the rank of the compressed vectors that the indexer and attention read");
  indexer.reuses = reusing_layers(config, m.layers);
  const auto reusing = std::ranges::count(indexer.reuses, true);
  if (reusing == 0) indexer.reuses.clear();
  if (!indexer.reuses.empty() && indexer.reuses.front())
    config.fail(config.one_of({"indexer_types", "index_topk_pattern", "index_skip_topk_offset"}),
                "an indexer in the first layer");
  notes.push_back({"indexed_layers",
                   "model",
                   {{"keys", indexer.top_keys}, {"layers", m.layers - reusing}, {"of", m.layers}}});
  m.indexer = std::move(indexer);
}

}  // namespace equipoise
