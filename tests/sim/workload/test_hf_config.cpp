// Hugging Face config.json files: what they leave out, and what is wrong with bad ones.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "policies/base/error.h"
#include "sim/workload/model_hf.h"
#include "tests/scratch_folder.h"

using namespace equipoise;
using nlohmann::json;

namespace {

ModelShape shape_of(const json& config) {
  const test::Scratch folder;
  return read_hf_config(folder.write("config.json", config.dump()));
}

std::string refusal(const std::string& text) {
  const test::Scratch folder;
  const std::string file = folder.write("config.json", text);
  try {
    (void)read_hf_config(file);
  } catch (const UserError& e) {
    const std::string message = e.what();
    CHECK(message.rfind(file + ":", 0) == 0);  // the file comes first
    CHECK(message.find('\n') == std::string::npos);
    return message.substr(file.size() + 2);
  }
  return "";
}

const json kLlama2 = {{"model_type", "llama"},     {"hidden_size", 4096},        {"num_hidden_layers", 32},
                      {"num_attention_heads", 32}, {"intermediate_size", 11008}, {"vocab_size", 32000}};

json with(json config, const char* key, const json& value) {
  config[key] = value;
  return config;
}

}  // namespace

TEST_CASE("Keys that a config leaves out have their usual meaning") {
  const ModelShape m = shape_of(kLlama2);
  CHECK(m.kv_heads == 32);
  CHECK(m.head_dim == 128);
  CHECK(!m.tied_embeddings);
  CHECK(!m.qkv_bias);
  CHECK(m.parameters() == builtin_model("llama2-7b").parameters());
  CHECK(shape_of(with(kLlama2, "num_key_value_heads", 8)).kv_heads == 8);
  CHECK(shape_of(with(kLlama2, "num_key_value_heads", nullptr)).kv_heads == 32);
  CHECK(shape_of(with(kLlama2, "head_dim", 64)).head_dim == 64);
  CHECK(shape_of(with(kLlama2, "tie_word_embeddings", true)).tied_embeddings);
}

TEST_CASE("Qwen2 has QKV biases that its config does not state") {
  const json qwen = {{"model_type", "qwen2"},     {"hidden_size", 896},         {"num_hidden_layers", 24},
                     {"num_attention_heads", 14}, {"num_key_value_heads", 2},   {"intermediate_size", 4864},
                     {"vocab_size", 151936},      {"tie_word_embeddings", true}};
  CHECK(shape_of(qwen).parameters() == builtin_model("qwen2.5-0.5b").parameters());
  CHECK(!shape_of(with(qwen, "attention_bias", false)).qkv_bias);
}

TEST_CASE("Experts and latent attention are read as DeepSeek-V2 names them") {
  const json v2 = {{"model_type", "deepseek_v2"},
                   {"hidden_size", 5120},
                   {"num_hidden_layers", 60},
                   {"num_attention_heads", 128},
                   {"num_key_value_heads", 128},
                   {"intermediate_size", 12288},
                   {"vocab_size", 102400},
                   {"n_routed_experts", 160},
                   {"num_experts_per_tok", 6},
                   {"n_shared_experts", 2},
                   {"moe_intermediate_size", 1536},
                   {"first_k_dense_replace", 1},
                   {"q_lora_rank", 1536},
                   {"kv_lora_rank", 512},
                   {"qk_nope_head_dim", 128},
                   {"qk_rope_head_dim", 64},
                   {"v_head_dim", 128}};
  const ModelShape m = shape_of(v2);
  CHECK(m.parameters() == builtin_model("deepseek-v2").parameters());
  CHECK(m.head_dim == 192);
  CHECK(!m.is_moe_layer(0));
  CHECK(m.is_moe_layer(1));
  // Mixtral's names: no shared experts, experts as wide as the FFN, every layer sparse.
  const ModelShape mixtral = shape_of(with(with(kLlama2, "num_local_experts", 8), "num_experts_per_tok", 2));
  REQUIRE(mixtral.moe);
  CHECK(mixtral.moe->experts == 8);
  CHECK(mixtral.moe->expert_ffn == 11008);
  CHECK(mixtral.moe->shared == 0);
  CHECK(mixtral.is_moe_layer(0));
}

TEST_CASE("A bad config is refused in one line with file, key, what was found and what is allowed") {
  CHECK(refusal("").find("not JSON, near nothing") != std::string::npos);
  CHECK(refusal("[1, 2]") == "expected a JSON object (a Hugging Face config.json)");
  CHECK(refusal("{\"hidden_size\": 4096").find("not JSON, near") != std::string::npos);
  json missing = kLlama2;
  missing.erase("hidden_size");
  CHECK(refusal(missing.dump()) == "hidden_size: expected an integer in 1..2147483647, found nothing");
  const struct {
    const char* key;
    json value;
    const char* message;
  } cases[] = {
      {"num_hidden_layers", 0, "num_hidden_layers: expected an integer in 1..100000, found 0"},
      {"num_hidden_layers", -3, "num_hidden_layers: expected an integer in 1..100000, found -3"},
      {"num_hidden_layers", 2147483648,
       "num_hidden_layers: expected an integer in 1..100000, found 2147483648"},
      {"vocab_size", 1.5, "vocab_size: expected an integer in 1..2147483647, found 1.5"},
      {"vocab_size", 18446744073709551615U,
       "vocab_size: expected an integer in 1..2147483647, found 18446744073709551615"},
      {"intermediate_size", "big", "intermediate_size: expected an integer in 1..2147483647, found \"big\""},
      {"num_key_value_heads", 5, "num_key_value_heads: expected a divisor of 32, found 5"},
      {"num_attention_heads", 5000, "num_attention_heads: expected at most hidden_size heads, found 5000"},
      {"tie_word_embeddings", 1, "tie_word_embeddings: expected true or false, found 1"},
      {"model_type", 7, "model_type: expected a string, found 7"},
  };
  for (const auto& c : cases) CHECK(refusal(with(kLlama2, c.key, c.value).dump()) == c.message);
  CHECK(refusal(with(with(kLlama2, "num_local_experts", 8), "num_experts_per_tok", 9).dump()) ==
        "num_experts_per_tok: expected at most 8 (num_local_experts), found 9");
  CHECK(refusal(with(kLlama2, "num_local_experts", 8).dump()) ==
        "num_experts_per_tok: expected an integer in 1..2147483647, found nothing");
  CHECK_THROWS_WITH_AS((void)read_hf_config("/no/such/config.json"),
                       "/no/such/config.json: cannot be read: No such file or directory", UserError);
  CHECK_THROWS_WITH_AS((void)read_hf_config("/"), "/: cannot be read: found a folder, expected a file",
                       UserError);
}
