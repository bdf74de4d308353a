#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>

#include "policies/base/error.h"
#include "sim/execution/parameters.h"
#include "tests/execution/tiny_model.h"

using namespace equipoise;
using namespace equipoise::execution;
using equipoise::testing::tiny_llama;

namespace {

std::vector<float> whole(std::uint64_t seed, const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  fill_initial(seed, tensor, 0, values);
  return values;
}

std::string refusal(const ModelShape& model) {
  try {
    check_runnable(model);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("the inventory has as many elements as the model has parameters") {
  for (const char* name : {"llama2-7b", "llama3.1-8b"}) {
    const ModelShape& model = builtin_model(name);
    std::int64_t elements = 0;
    for (const Tensor& tensor : inventory(model)) elements += tensor.elements();
    CHECK(elements == model.parameters());
  }
  std::int64_t tied = 0;
  for (const Tensor& tensor : inventory(tiny_llama(true))) tied += tensor.elements();
  // Embedding 17 x 12; two layers of q, o 2 x 24 x 12, k, v 2 x 12 x 12, FFN 3 x 10 x 12, norms 2 x 12;
  // norm 12.
  CHECK(tied == 204 + 2 * (576 + 288 + 360 + 24) + 12);
}

TEST_CASE("places in the inventory are those of the state dict's names") {
  const ModelShape model = tiny_llama();
  const std::vector<Tensor> tensors = inventory(model);
  CHECK(tensors[kEmbeddingIndex].name == "model.embed_tokens.weight");
  CHECK(tensors[layer_index(0, LayerTensor::input_norm)].name == "model.layers.0.input_layernorm.weight");
  CHECK(tensors[layer_index(1, LayerTensor::k)].name == "model.layers.1.self_attn.k_proj.weight");
  CHECK(tensors[layer_index(1, LayerTensor::post_norm)].name ==
        "model.layers.1.post_attention_layernorm.weight");
  CHECK(tensors[layer_index(1, LayerTensor::down)].name == "model.layers.1.mlp.down_proj.weight");
  CHECK(tensors[final_norm_index(model)].name == "model.norm.weight");
  CHECK(tensors[head_index(model)].name == "lm_head.weight");
  CHECK(tensors.size() == head_index(model) + 1);
  CHECK(head_index(tiny_llama(true)) == kEmbeddingIndex);
  const Tensor& o = tensors[layer_index(0, LayerTensor::o)];
  CHECK(o.rows == 12);
  CHECK(o.columns == 24);
}

TEST_CASE("a shard of a tensor has the values that the whole tensor has there") {
  const Tensor tensor = inventory(tiny_llama())[layer_index(1, LayerTensor::o)];
  const std::vector<float> all = whole(7, tensor);
  std::vector<float> piece(5);  // columns 3 .. 7 of row 4
  fill_initial(7, tensor, 4 * tensor.columns + 3, piece);
  for (std::size_t i = 0; i < piece.size(); ++i)
    CHECK(piece[i] == all[static_cast<std::size_t>(4 * tensor.columns + 3) + i]);
}

TEST_CASE("initial values are neither shared between tensors nor between seeds") {
  const ModelShape model = tiny_llama();
  std::set<float> firsts;
  for (const std::uint64_t seed : {1U, 2U})
    for (const Tensor& tensor : inventory(model)) firsts.insert(whole(seed, tensor)[0]);
  CHECK(firsts.size() == 2 * inventory(model).size());
}

TEST_CASE("matrices have mean 0 and variance 1 / columns, norms lie around 1") {
  // 65,536 uniform values: the standard error of the mean is std / 256, that of the variance
  // sqrt(4 / 5) variance / 256; limits are 5 of them.
  const Tensor matrix{"matrix", 256, 256};
  double sum = 0;
  double squares = 0;
  for (const float value : whole(3, matrix)) {
    sum += value;
    squares += double{value} * value;
  }
  CHECK(std::abs(sum / 65536) < 5.0 / 16 / 256);
  CHECK(std::abs(squares / 65536 * 256 - 1) < 5 * 0.9 / 256);
  double least = 2;
  double most = 0;
  for (const float value : whole(3, Tensor{"norm", 1, 1000, true})) {
    least = std::min(least, double{value});
    most = std::max(most, double{value});
  }
  CHECK(least >= 0.75);
  CHECK(least < 0.76);
  CHECK(most <= 1.25);
  CHECK(most > 1.24);
}

TEST_CASE("rounding to bf16 takes the nearest value, ties to even") {
  // bf16 has 7 bits of fraction: between 1 and 2 its step is 1/128.
  CHECK(rounded_to_bf16(1.0F + 1.0F / 256) == 1.0F);               // a tie, even below
  CHECK(rounded_to_bf16(1.0F + 3.0F / 256) == 1.0F + 2.0F / 128);  // a tie, even above
  CHECK(rounded_to_bf16(1.0F + 0.9F / 128) == 1.0F + 1.0F / 128);
  CHECK(rounded_to_bf16(-1.0F - 0.9F / 128) == -1.0F - 1.0F / 128);
}

TEST_CASE("what is no dense LLaMA is refused by name") {
  CHECK(refusal(tiny_llama()).empty());
  CHECK(refusal(builtin_model("llama3.1-8b")).empty());
  CHECK(refusal(builtin_model("qwen2.5-7b")).find("qkv_bias") != std::string::npos);
  CHECK(refusal(builtin_model("deepseek-v3")).find("moe") != std::string::npos);
  ModelShape model = tiny_llama();
  model.sliding_window = 64;
  CHECK(refusal(model) ==
        "model tiny: cannot be run: found a sliding_window of 64; expected a dense LLaMA-like model");
  model = tiny_llama();
  model.gated_ffn = false;
  CHECK(refusal(model).find("gated_ffn") != std::string::npos);
  model = tiny_llama();
  model.mla = MlaShape{};
  CHECK(refusal(model).find("mla") != std::string::npos);
}

TEST_CASE("tokens are 1 .. vocab - 1, and a target is the next token or the end of the document") {
  constexpr std::int64_t kVocab = 5;
  std::map<std::int64_t, int> counts;
  for (std::int64_t p = 0; p < 4000; ++p) {
    ++counts[token_at(9, 3, p, kVocab)];
    if (p + 1 < 4000) CHECK(target_at(9, 3, p, 4000, kVocab) == token_at(9, 3, p + 1, kVocab));
  }
  CHECK(target_at(9, 3, 3999, 4000, kVocab) == kEndOfDocument);
  CHECK(counts.size() == 4);
  for (std::int64_t token = 1; token < kVocab; ++token) CHECK(counts[token] > 800);  // about 1000 +- 27
  int equal = 0;
  for (std::int64_t p = 0; p < 4000; ++p) equal += token_at(9, 3, p, kVocab) == token_at(9, 4, p, kVocab);
  CHECK(equal < 1200);  // documents are unlike: about 1000 +- 27 by chance
}
