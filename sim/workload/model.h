// The shape of a model: everything that decides the cost and the memory of a layer.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/index.h"
#include "policies/base/note.h"
#include "sim/workload/indexer.h"
#include "sim/workload/norm.h"
#include "sim/workload/recurrence.h"

namespace equipoise {

// How a layer mixes tokens: by attention to all keys up to a query's own, by attention to a window of them,
// by a linear recurrence, or by the first and the last of these side by side (Falcon-H1, arXiv 2507.22448).
// In a model with an indexer, layers of the first kind choose among all keys and those of the second attend
// to as many that are chosen already.
enum class Mixer : std::uint8_t { attention, window, recurrence, parallel };
inline constexpr int kMixers = 4;
constexpr bool attends(Mixer mixer) {
  return mixer != Mixer::recurrence;
}
constexpr bool recurs(Mixer mixer) {
  return mixer == Mixer::recurrence || mixer == Mixer::parallel;
}

// The properties that decide a layer's cost: its mixer and its FFN. A recurrence may have no FFN behind it.
enum class LayerKind : std::uint8_t {
  dense,
  moe,
  sliding_dense,
  sliding_moe,
  recurrent_dense,
  recurrent_moe,
  recurrent_alone,
  parallel_dense
};
inline constexpr int kLayerKinds = 8;
constexpr bool is_moe(LayerKind kind) {
  return kind == LayerKind::moe || kind == LayerKind::sliding_moe || kind == LayerKind::recurrent_moe;
}
constexpr bool has_ffn(LayerKind kind) {
  return kind != LayerKind::recurrent_alone;
}
constexpr Mixer mixer_of(LayerKind kind) {
  if (kind == LayerKind::parallel_dense) return Mixer::parallel;
  if (kind >= LayerKind::recurrent_dense) return Mixer::recurrence;
  return kind >= LayerKind::sliding_dense ? Mixer::window : Mixer::attention;
}
using LayerCounts = std::array<int, kLayerKinds>;

// Limit of modules for multi-token prediction.
inline constexpr int kMostPredictions = 16;

// Mixture of experts. The first `dense_layers` layers keep the dense FFN, or those that `sparse` names.
struct MoeShape {
  int experts = 0;  // routed
  int active = 0;   // routed experts for each token
  int shared = 0;   // experts every token visits
  std::int64_t expert_ffn = 0;
  int dense_layers = 0;
  std::int64_t shared_ffn = 0;  // of all shared experts together; 0 means shared x expert_ffn
  std::vector<bool> sparse{};   // by layer: whether it has experts; if empty, dense_layers decides
  int groups = 0;               // groups of consecutive experts in the router; 0 if it has none
  int groups_of_token = 0;      // number of groups that a token's experts come from
  bool bias = false;            // whether an expert's products add a bias

  [[nodiscard]] std::int64_t shared_width() const {
    return shared_ffn > 0 ? shared_ffn : shared * expert_ffn;
  }
};

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): K and V come from a compressed vector but are
// expanded to every head before attention, so that CP moves as much as with MHA.
struct MlaShape {
  std::int64_t q_lora = 0;  // 0 means that queries are projected directly
  std::int64_t kv_lora = 0;
  int nope_dim = 0;  // per head, without position
  int rope_dim = 0;  // per head, rotary (shared by all heads for K)
  int v_dim = 0;
};

// Weights that a step trains or freezes. Linear layers have Megatron Core's names. All projections of
// multi-head latent attention are linear_qkv, as are those of an indexer, of a recurrence's input and what it
// learns besides, and the FFN's two names also apply to experts.
enum class WeightKind : std::uint8_t { embedding, qkv, proj, fc1, fc2, router, norms, head };
inline constexpr std::string_view kWeightNames[] = {"embedding",  "linear_qkv", "linear_proj", "linear_fc1",
                                                    "linear_fc2", "router",     "norms",       "head"};
using WeightSet = std::uint32_t;  // one bit per kind
constexpr WeightSet bit_of(WeightKind weights) {
  return WeightSet{1} << static_cast<unsigned>(weights);
}
inline constexpr WeightSet kAllWeights = (WeightSet{1} << std::size(kWeightNames)) - 1;
inline constexpr WeightSet kAdaptable =
    bit_of(WeightKind::qkv) | bit_of(WeightKind::proj) | bit_of(WeightKind::fc1) | bit_of(WeightKind::fc2);

// Which parts of a model a step trains. LoRA (arXiv 2106.09685) freezes a linear layer y = W x and trains two
// thin ones in addition: y = W x + B (A x), with A of dim x in and B of out x dim, once per expert.
struct Training {
  WeightSet frozen = 0;
  WeightSet adapted = 0;  // frozen linear layers that have adapters
  std::int64_t lora_dim = 0;
  int frozen_layers = 0;  // number of first layers that do not train; the embedding does not either, so that
                          // no backward reaches them

  [[nodiscard]] bool trains(WeightKind weights) const { return (frozen & bit_of(weights)) == 0; }
  [[nodiscard]] bool adapts(WeightKind weights) const { return (adapted & bit_of(weights)) != 0; }
  // Whether a backward needs the layer's input.
  [[nodiscard]] bool needs_input(WeightKind weights) const { return trains(weights) || adapts(weights); }
};

struct LinearLayer {
  WeightKind weights{};
  std::int64_t in = 0, out = 0;
  std::int64_t count = 1;
  bool routed = false;  // a routed expert's
};

// What a query of a sliding layer sees: its last `window` keys up to its own. If chunked (Llama 4), it sees
// the keys of its own chunk of so many tokens, counted from its document's beginning.
struct Reach {
  std::int64_t window = 0;  // 0: all
  bool chunked = false;
};

// What follows a model's layers: the last norm, the logits and the loss, once per token that a position
// predicts. Each module of multi-token prediction adds a pass through the head, a projection of two normed
// rows, and three norms. Parameter counts, FLOPs, cost and memory read this.
struct HeadShape {
  int modules = 0;               // modules of multi-token prediction
  std::int64_t projections = 0;  // parameters of the modules' projections
  std::int64_t norms = 0;        // parameters of the last norm and of the modules' norms
  // How many rows as wide as the hidden state a backward needs of the modules' inputs: the inputs and outputs
  // of each module's two norms.
  int kept_rows = 0;
  [[nodiscard]] int passes() const { return 1 + modules; }
};

struct ModelShape {
  std::string name;
  int layers = 0;
  std::int64_t hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;  // of Q and K, and of V unless the model has MLA
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  NormKind norm = NormKind::rms;
  bool gated_ffn = true;  // SwiGLU, GeGLU: gate and up; false: one up projection and GELU
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool parallel_ffn = false;     // whether a layer adds up what its attention and its FFN make of its input
  bool one_norm = false;         // of such layers: whether both read the output of one norm (GPT-J, Cohere)
  bool gated_attention = false;  // whether a gate, projected with the queries and as wide, scales the output
  std::optional<MoeShape> moe;
  std::optional<MlaShape> mla;
  std::optional<RecurrentShape> recurrence;
  std::optional<IndexerShape> indexer;  // of all layers; with MLA, and without a sliding window
  // How many keys up to and including its own a query of a sliding layer sees; 0 if no layer slides.
  std::int64_t sliding_window = 0;
  std::vector<bool> sliding_layers{};  // by layer; if empty all slide, provided there is a window
  bool chunked = false;                // whether the window is a chunk (Reach)
  Training training{};
  // Modules of multi-token prediction after the last layer (DeepSeek-V3, arXiv 2412.19437, section 2.2). Each
  // has two norms, a projection of both their outputs, a layer like the last one, a norm, and the model's own
  // embedding and head once more. Their layers continue the numbers.
  int mtp_layers = 0;

  [[nodiscard]] int all_layers() const { return layers + mtp_layers; }

  [[nodiscard]] bool is_moe_layer(int layer) const {
    if (!moe) return false;
    const int like = std::min(layer, layers - 1);  // modules of multi-token prediction have the last layer's
    return moe->sparse.empty() ? like >= moe->dense_layers : moe->sparse[at(like)];
  }
  [[nodiscard]] bool is_sliding_layer(int layer) const {
    return sliding_window > 0 && (sliding_layers.empty() || sliding_layers[at(std::min(layer, layers - 1))]);
  }
  [[nodiscard]] Reach reach() const {
    return indexer ? Reach{indexer->top_keys} : Reach{sliding_window, chunked};
  }
  // Whether the layer attends to keys that a layer before it chose.
  [[nodiscard]] bool reuses_keys(int layer) const {
    return indexer && !indexer->reuses.empty() && indexer->reuses[at(std::min(layer, layers - 1))];
  }
  [[nodiscard]] bool has_indexer(int layer) const { return indexer && !reuses_keys(layer); }
  // Whether indexers are trained. Frozen ones score, and have no loss.
  [[nodiscard]] bool indexer_learns() const { return indexer && training.trains(WeightKind::qkv); }
  [[nodiscard]] bool is_recurrent_layer(int layer) const {
    return recurrence && recurrence->layers[at(std::min(layer, layers - 1))];
  }
  [[nodiscard]] bool has_ffn(int layer) const { return equipoise::has_ffn(kind(layer)); }
  [[nodiscard]] LayerKind kind(int layer) const {
    if (is_recurrent_layer(layer)) {
      if (recurrence->next_to_attention) return LayerKind::parallel_dense;
      const auto& alone = recurrence->without_ffn;
      if (!alone.empty() && alone[at(std::min(layer, layers - 1))]) return LayerKind::recurrent_alone;
      return is_moe_layer(layer) ? LayerKind::recurrent_moe : LayerKind::recurrent_dense;
    }
    if (is_sliding_layer(layer) || reuses_keys(layer))
      return is_moe_layer(layer) ? LayerKind::sliding_moe : LayerKind::sliding_dense;
    return is_moe_layer(layer) ? LayerKind::moe : LayerKind::dense;
  }
  // The first layer of a kind that the model has. All layers of a kind are alike.
  [[nodiscard]] int first_of(LayerKind of) const {
    int layer = 0;
    while (layer < layers - 1 && kind(layer) != of) ++layer;
    return layer;
  }
  // How many of layers [begin, end) are of each kind.
  [[nodiscard]] LayerCounts layer_counts(int begin, int end) const;
  [[nodiscard]] LayerCounts layer_counts() const { return layer_counts(0, all_layers()); }
  // Layers by kind that a backward goes through.
  [[nodiscard]] LayerCounts backward_counts() const {
    return layer_counts(training.frozen_layers, all_layers());
  }
  // How many layers mix by each mixer, with those of multi-token prediction.
  [[nodiscard]] int layers_of(Mixer mixer) const;
  [[nodiscard]] std::int64_t query_width() const { return std::int64_t{heads} * head_dim; }
  // Elements of K plus V that one token adds to the attention of a layer.
  [[nodiscard]] std::int64_t kv_width() const;
  // On one of `tensor` TP ranks, which replicate KV heads if there are fewer heads than ranks.
  [[nodiscard]] std::int64_t kv_width_of_rank(int tensor) const;
  [[nodiscard]] int value_dim() const { return mla ? mla->v_dim : head_dim; }

  // Parameters of one layer's mixer, FFN (all experts) and norms; of the embedding; of everything.
  [[nodiscard]] std::int64_t mixer_parameters(int layer) const;
  [[nodiscard]] std::int64_t ffn_parameters(int layer) const;
  [[nodiscard]] std::int64_t layer_parameters(int layer) const;
  // Parameters of a layer's routed experts, which expert parallelism distributes.
  [[nodiscard]] std::int64_t routed_parameters(int layer) const;
  [[nodiscard]] std::int64_t embedding_parameters() const { return vocab * hidden; }
  // Norms before a layer's mixer and its FFN, and their parameters.
  [[nodiscard]] int layer_norms(LayerKind of) const { return equipoise::has_ffn(of) && !one_norm ? 2 : 1; }
  [[nodiscard]] std::int64_t layer_norm_parameters(int layer) const {
    return layer_norms(kind(layer)) * norm_parameters();
  }
  [[nodiscard]] std::int64_t norm_parameters() const { return norm_of(norm).parameters * hidden; }
  [[nodiscard]] HeadShape head() const {
    return {mtp_layers, mtp_layers * 2 * hidden * hidden, (1 + 3 * mtp_layers) * norm_parameters(),
            4 * mtp_layers};
  }
  // The linear layers of a transformer layer, from which its parameters, FLOPs and adapters follow.
  [[nodiscard]] std::vector<LinearLayer> linear_layers(int layer) const;
  // Parameters of a layer's adapters, and those that a step trains in a layer including adapters: in its
  // routed experts, or in all else.
  [[nodiscard]] std::int64_t adapter_parameters(int layer, bool routed) const;
  [[nodiscard]] std::int64_t trained_parameters(int layer, bool routed) const;
  [[nodiscard]] std::int64_t trained_parameters() const;  // of everything
  [[nodiscard]] std::int64_t parameters() const;
  // Parameters by which a token's forward multiplies, with logits and active experts, without the embedding.
  [[nodiscard]] std::int64_t active_matmul_parameters() const;
  // The frozen ones among them, counted twice if no backward reaches them, and those of adapters.
  struct FrozenAndAdapters {
    std::int64_t frozen = 0, adapters = 0;
  };
  [[nodiscard]] FrozenAndAdapters active_frozen_parameters() const;

  // FLOPs of one optimizer step, forward and backward, without recompute or padding: 6 per active matmul
  // parameter and token, and 3 x 2 (d_qk + d_v) per head, layer and causal query-key pair. In sliding layers
  // only pairs inside the window count; a recurrence counts 3 x its state's FLOPs per token. A frozen
  // parameter has no gradient of its own, so it counts 4 instead of 6. Layers that no backward reaches count
  // only their forward. An indexer counts its scores of all causal pairs, and twice those of chosen ones.
  [[nodiscard]] double training_flops(double tokens, double causal_pairs, double window_pairs = 0) const;
};

// Pairs of `queries` queries that have `before` visible positions before them, where a query sees at most the
// last `window` keys up to its own (0: all).
inline double causal_pairs(double queries, double before, double window = 0) {
  if (window <= 0) return queries * before + queries * (queries + 1) / 2;
  const double growing = std::clamp(window - before, 0.0, queries);  // queries whose window does not bind yet
  return growing * before + growing * (growing + 1) / 2 + (queries - growing) * window;
}

// By reach. All tokens before query n of a document see (n / W) full chunks of W (W + 1) / 2 pairs, and r (r
// + 1) / 2 with the rest r.
inline double causal_pairs(double queries, double before, Reach reach) {
  const auto window = static_cast<double>(reach.window);
  if (!reach.chunked || reach.window <= 0) return causal_pairs(queries, before, window);
  const auto up_to = [window](double position) {
    const double chunks = std::floor(position / window), rest = position - chunks * window;
    return chunks * window * (window + 1) / 2 + rest * (rest + 1) / 2;
  };
  return up_to(before + queries) - up_to(before);
}

// The built-in shapes, in help order. Sources: the models' published configurations; wlb-550m, wlb-30b and
// wlb-70b are our shapes of those sizes, since WLB-LLM prints none ("layers and width in proportion").
std::span<const ModelShape> builtin_models();
const ModelShape& builtin_model(std::string_view name);  // throws UserError with the nearest name

// Throws UserError, which names `where`, for shapes so far above any model that their exact parameter counts
// would not fit an integer.
void check_model_size(const ModelShape& model, const std::string& where);

}  // namespace equipoise
