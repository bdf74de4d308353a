// The shape of a model: everything that decides what a layer costs and holds.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace equipoise {

// Mixture of experts: the first `dense_layers` layers keep the dense FFN.
struct MoeShape {
  int experts = 0;  // routed
  int active = 0;   // routed experts a token visits
  int shared = 0;   // experts every token visits
  std::int64_t expert_ffn = 0;
  int dense_layers = 0;
};

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): K and V come from a compressed vector, but are
// expanded to every head before attention, so that CP moves as much as with MHA.
struct MlaShape {
  std::int64_t q_lora = 0;  // 0: queries are projected directly
  std::int64_t kv_lora = 0;
  int nope_dim = 0;  // per head, without position
  int rope_dim = 0;  // per head, rotary (shared by all heads for K)
  int v_dim = 0;
};

struct ModelShape {
  std::string name;
  int layers = 0;
  std::int64_t hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;  // of Q and K; V's too unless MLA
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  bool gated_ffn = true;  // SwiGLU: gate and up; false: one up projection and GELU
  bool tied_embeddings = false;
  bool qkv_bias = false;
  std::optional<MoeShape> moe;
  std::optional<MlaShape> mla;

  [[nodiscard]] bool is_moe_layer(int layer) const { return moe && layer >= moe->dense_layers; }
  [[nodiscard]] std::int64_t query_width() const { return std::int64_t{heads} * head_dim; }
  // Elements of K plus V that one token adds to the attention of a layer.
  [[nodiscard]] std::int64_t kv_width() const;
  [[nodiscard]] int value_dim() const { return mla ? mla->v_dim : head_dim; }

  // Parameters of one layer's attention, FFN (all experts) and norms; of the embedding; of everything.
  [[nodiscard]] std::int64_t attention_parameters() const;
  [[nodiscard]] std::int64_t ffn_parameters(int layer) const;
  [[nodiscard]] std::int64_t layer_parameters(int layer) const;
  // Those of a layer's routed experts, which expert parallelism deals out.
  [[nodiscard]] std::int64_t routed_parameters(int layer) const;
  [[nodiscard]] std::int64_t embedding_parameters() const { return vocab * hidden; }
  [[nodiscard]] std::int64_t parameters() const;
  // Parameters that a token's forward multiplies with (no embedding lookup; logits and active experts count).
  [[nodiscard]] std::int64_t active_matmul_parameters() const;

  // FLOPs of one optimizer step, forward and backward, without recompute or padding: 6 per active matmul
  // parameter and token, and 3 x 2 (d_qk + d_v) per head, layer and causal query-key pair.
  [[nodiscard]] double training_flops(double tokens, double causal_pairs) const;
};

// The built-in shapes, in help order. Sources: the models' published configurations; wlb-550m, wlb-30b and
// wlb-70b are our shapes of those sizes, since WLB-LLM prints none ("layers and width in proportion").
std::span<const ModelShape> builtin_models();
const ModelShape& builtin_model(std::string_view name);  // throws UserError with the nearest name

// Reads a Hugging Face config.json. Throws UserError naming file and key.
ModelShape read_hf_config(const std::string& path);

}  // namespace equipoise
