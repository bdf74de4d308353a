// Models whose indexer chooses keys, read from a config.json.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "policies/base/error.h"
#include "sim/workload/model_hf.h"
#include "tests/scratch_folder.h"

using namespace equipoise;
using nlohmann::json;

namespace {

// Few layers in the shape of GLM-5.2, of which some may reuse the choice of the layer before.
json indexing_config() {
  return {{"model_type", "glm_moe_dsa"},
          {"hidden_size", 512},
          {"num_hidden_layers", 5},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 8},
          {"head_dim", 64},
          {"intermediate_size", 1024},
          {"vocab_size", 1000},
          {"q_lora_rank", 256},
          {"kv_lora_rank", 128},
          {"qk_nope_head_dim", 96},
          {"qk_rope_head_dim", 32},
          {"v_head_dim", 128},
          {"n_routed_experts", 16},
          {"num_experts_per_tok", 2},
          {"moe_intermediate_size", 128},
          {"n_shared_experts", 1},
          {"first_k_dense_replace", 1},
          {"index_n_heads", 4},
          {"index_head_dim", 64},
          {"index_topk", 100},
          {"indexer_rope_interleave", true},
          {"layer_types", json(5, "indexed_attention")}};
}

ModelShape indexing_model(const json& config, Notes* notes = nullptr) {
  const test::Scratch folder;
  return read_hf_config(folder.write("config.json", config.dump()), {}, notes);
}

std::string refused_indexer(const json& config) {
  try {
    (void)indexing_model(config);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("An indexer projects compressed queries and the input, and norms its keys") {
  json config = indexing_config();
  Notes notes;
  const ModelShape m = indexing_model(config, &notes);
  REQUIRE(m.indexer);
  CHECK(notes.back() == Note{"indexed_layers", "model", {{"keys", 100}, {"layers", 5}, {"of", 5}}});
  ModelShape without = m;
  without.indexer.reset();
  CHECK(m.layer_parameters(0) - without.layer_parameters(0) == 256 * 4 * 64 + 512 * (64 + 4) + 2 * 64);
  CHECK(m.kind(0) == LayerKind::dense);
  CHECK(m.kind(4) == LayerKind::moe);
  CHECK(m.reach().window == 100);
  CHECK(m.kv_width() == 128 + 32 + 64);
}

TEST_CASE("Layers without an indexer attend to the keys that the layer before chose") {
  json config = indexing_config();
  config["index_topk_freq"] = 2;
  const ModelShape m = indexing_model(config);
  for (const int layer : {0, 1, 3}) CHECK(m.has_indexer(layer));
  for (const int layer : {2, 4}) CHECK(m.kind(layer) == LayerKind::sliding_moe);
  json listed = indexing_config();
  listed["indexer_types"] = {"full", "full", "shared", "full", "shared"};
  CHECK(indexing_model(listed).indexer->reuses == m.indexer->reuses);
  listed["index_topk_pattern"] = "FFFFF";  // Transformers reads the other key first
  CHECK(indexing_model(listed).indexer->reuses == m.indexer->reuses);
  listed["indexer_types"] = nullptr;
  listed["index_topk_pattern"] = "FFSFS";
  CHECK(indexing_model(listed).indexer->reuses == m.indexer->reuses);
  listed["index_topk_pattern"] = "SFSFS";
  CHECK(refused_indexer(listed).find("index_topk_pattern: expected an indexer in the first layer") !=
        std::string::npos);
  listed["index_topk_pattern"] = "FFS";
  CHECK(refused_indexer(listed).find("for each of 5 layers") != std::string::npos);
}

TEST_CASE("Its FLOPs are scores of all causal pairs, and attention to the chosen ones") {
  const ModelShape m = indexing_model(indexing_config());
  const double per_pair = 2.0 * 4 * 64, attention = 6.0 * (128 + 128) * 8;
  const double products = m.training_flops(10, 0, 0);
  CHECK(m.training_flops(10, 1000, 600) ==
        doctest::Approx(products + 5 * (attention * 600 + per_pair * (1000 + 2 * 600))));
}

TEST_CASE("It needs compressed vectors") {
  json config = indexing_config();
  config["q_lora_rank"] = nullptr;
  CHECK(refused_indexer(config).find("q_lora_rank: expected the rank of the compressed vectors") !=
        std::string::npos);
}
