#include "sim/execution/parameters.h"

#include <bit>
#include <cmath>
#include <string_view>

#include "policies/base/error.h"

namespace equipoise::execution {

constexpr float kNormSpread = 0.25F;

static void append_layer(std::vector<Tensor>& tensors, const ModelShape& model, int layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const std::int64_t hidden = model.hidden;
  const std::int64_t query_width = model.query_width();
  const std::int64_t kv_width = std::int64_t{model.kv_heads} * model.head_dim;
  tensors.push_back({prefix + "input_layernorm.weight", 1, hidden, true});
  tensors.push_back({prefix + "self_attn.q_proj.weight", query_width, hidden});
  tensors.push_back({prefix + "self_attn.k_proj.weight", kv_width, hidden});
  tensors.push_back({prefix + "self_attn.v_proj.weight", kv_width, hidden});
  tensors.push_back({prefix + "self_attn.o_proj.weight", hidden, query_width});
  tensors.push_back({prefix + "post_attention_layernorm.weight", 1, hidden, true});
  tensors.push_back({prefix + "mlp.gate_proj.weight", model.ffn, hidden});
  tensors.push_back({prefix + "mlp.up_proj.weight", model.ffn, hidden});
  tensors.push_back({prefix + "mlp.down_proj.weight", hidden, model.ffn});
}

static std::uint64_t hash_of(std::string_view name) {  // FNV-1a
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

std::vector<Tensor> inventory(const ModelShape& model) {
  std::vector<Tensor> tensors{{"model.embed_tokens.weight", model.vocab, model.hidden}};
  for (int layer = 0; layer < model.layers; ++layer) append_layer(tensors, model, layer);
  tensors.push_back({"model.norm.weight", 1, model.hidden, true});
  if (!model.tied_embeddings) tensors.push_back({"lm_head.weight", model.vocab, model.hidden});
  return tensors;
}

std::size_t layer_index(int layer, LayerTensor tensor) {
  return 1 + static_cast<std::size_t>(layer) * kLayerTensors + static_cast<std::size_t>(tensor);
}

std::size_t final_norm_index(const ModelShape& model) {
  return layer_index(model.layers, LayerTensor::input_norm);
}

std::size_t head_index(const ModelShape& model) {
  return model.tied_embeddings ? kEmbeddingIndex : final_norm_index(model) + 1;
}

void check_runnable(const ModelShape& model) {
  const auto refuse = [&](const std::string& found) {
    throw UserError("model ", model.name, ": cannot be run: found ", found,
                    "; expected a dense LLaMA-like model");
  };
  if (model.moe) refuse("experts (moe)");
  if (model.mla) refuse("multi-head latent attention (mla)");
  if (model.sliding_window > 0) refuse("a sliding_window of " + std::to_string(model.sliding_window));
  if (model.recurrence) refuse("linear recurrences (" + std::string(model.recurrence->facts().name) + ")");
  if (model.parallel_ffn) refuse("layers whose attention and FFN are side by side");
  if (model.gated_attention) refuse("attention whose output passes a gate");
  if (model.qkv_bias) refuse("biases of Q, K and V (qkv_bias)");
  if (!model.gated_ffn) refuse("a plain FFN (gated_ffn false)");
  if (model.head_dim <= 0 || model.head_dim % 2 != 0)
    refuse("a head_dim of " + std::to_string(model.head_dim) + " (RoPE needs an even one)");
  if (model.kv_heads <= 0 || model.heads % model.kv_heads != 0)
    refuse(std::to_string(model.heads) + " heads on " + std::to_string(model.kv_heads) + " kv_heads");
  if (model.vocab < 2) refuse("a vocab of " + std::to_string(model.vocab));
}

void fill_initial(std::uint64_t seed, const Tensor& tensor, std::int64_t first, std::span<float> out) {
  const std::uint64_t key = counter_hash(seed, hash_of(tensor.name));
  const float center = tensor.norm ? 1.0F : 0.0F;
  // A uniform distribution over +- w has variance w^2 / 3.
  const float spread =
      tensor.norm ? kNormSpread : static_cast<float>(std::sqrt(3.0 / static_cast<double>(tensor.columns)));
  constexpr int kDrop = 64 - 24;  // a float holds exactly 24 bits
  constexpr float kUnit = 1.0F / (1 << 23);
  auto at = static_cast<std::uint64_t>(first);
  for (float& value : out) {
    const auto bits = static_cast<std::int32_t>(counter_hash(key, at++) >> kDrop) - (1 << 23);
    value = center + spread * (static_cast<float>(bits) * kUnit);
  }
}

float rounded_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t to_even = (bits >> 16) & 1U;
  return std::bit_cast<float>((bits + 0x7fffU + to_even) & 0xffff0000U);
}

}  // namespace equipoise::execution
