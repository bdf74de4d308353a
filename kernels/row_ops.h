// The row-wise and elementwise ops: their arguments, and the one table of them. The checkers, the points that
// the profiler measures and the keys of its samples and profiles follow from here (kernels/README.md: adding
// a row kernel). All are row-major, one pass over memory each. `void` stands for elements of the backend's
// type; statistics and state are f32.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "kernels/ops.h"

namespace equipoise::kernels {

// out = x / sqrt(mean(x^2) + epsilon) * weight; `inverse_rms` (rows) is kept for the backward pass.
struct RmsNorm {
  Rows shape;
  float epsilon = 1e-5F;
  const void* x = nullptr;
  const void* weight = nullptr;  // (columns)
  void* out = nullptr;
  float* inverse_rms = nullptr;
};

// Adds to `weight_gradient` (columns).
struct RmsNormBackward {
  Rows shape;
  const void* x = nullptr;
  const void* weight = nullptr;
  const float* inverse_rms = nullptr;
  const void* out_gradient = nullptr;
  void* x_gradient = nullptr;
  float* weight_gradient = nullptr;
};

struct ResidualAdd {
  std::int64_t elements = 0;
  const void* x = nullptr;
  const void* residual = nullptr;
  void* out = nullptr;
};

// Works in place. `table` holds (position, head_dim / 2, {cos, sin}), see fill_rope_table; `inverse` rotates
// back, for the backward pass.
struct Rope {
  RopeShape shape;
  bool inverse = false;
  const std::int32_t* positions = nullptr;  // (rows)
  const float* table = nullptr;
  void* x = nullptr;
};

// gate_up is (rows, 2 * columns), the gate first; out = gate * sigmoid(gate) * up.
struct Swiglu {
  Rows shape;
  const void* gate_up = nullptr;
  void* out = nullptr;
};

struct SwigluBackward {
  Rows shape;
  const void* gate_up = nullptr;
  const void* out_gradient = nullptr;
  void* gate_up_gradient = nullptr;
};

// Logits (rows, columns) hold the vocabulary's shard [first_token, first_token + columns). `log_sum` is the
// log of the shard's sum of exponentials, `target_logit` the target's logit or 0 if it lies in another shard,
// so a row's loss is (log of the sum over shards of exp(log_sum)) - (sum over shards of target_logit).
struct CrossEntropy {
  Rows shape;
  std::int64_t first_token = 0;
  const void* logits = nullptr;
  const std::int32_t* targets = nullptr;  // (rows)
  float* log_sum = nullptr;
  float* target_logit = nullptr;
};

// `log_sum` is over all shards; `row_weight` scales each row's gradient (the loss normalizer).
struct CrossEntropyBackward {
  Rows shape;
  std::int64_t first_token = 0;
  const void* logits = nullptr;
  const std::int32_t* targets = nullptr;
  const float* log_sum = nullptr;
  const float* row_weight = nullptr;
  void* logits_gradient = nullptr;
};

// One Adam step on f32 master weights; writes the weights in the backend's element type.
struct Adam {
  AdamStep step;
  const void* gradient = nullptr;
  float* master = nullptr;
  float* mean = nullptr;
  float* square = nullptr;
  void* weights = nullptr;
};

// Rows of an embedding table by token. The table is the vocabulary's shard [first_token, first_token +
// tokens_here); rows of tokens outside it become zero, so that the shards' results add up.
struct Embedding {
  Rows shape;
  std::int64_t first_token = 0;
  std::int64_t tokens_here = 0;
  const std::int32_t* tokens = nullptr;  // (rows)
  const void* table = nullptr;           // (tokens_here, columns)
  void* out = nullptr;
};

// Adds to `table_gradient` (tokens_here, columns), in the order of the rows, so that equal calls give equal
// bits. Rows of tokens outside the shard have no effect.
struct EmbeddingBackward {
  Rows shape;
  std::int64_t first_token = 0;
  std::int64_t tokens_here = 0;
  const std::int32_t* tokens = nullptr;  // (rows)
  const void* out_gradient = nullptr;
  void* table_gradient = nullptr;
};

// Joins two attentions of the same queries over disjoint keys, in place: afterwards `out` (rows, heads,
// head_dim) and `log_sum` (rows, heads) are those over the keys of both. A log_sum of -infinity means that a
// side saw no key: its rows of `out` or `part` are not read and may hold anything.
struct AttentionMerge {
  std::int64_t rows = 0;
  int heads = 0;
  int head_dim = 0;
  void* out = nullptr;
  float* log_sum = nullptr;
  const void* part = nullptr;
  const float* part_log_sum = nullptr;
};

// A call of any of these ops, as a backend runs it.
using RowCall =
    std::variant<RmsNorm, ResidualAdd, Rope, Swiglu, CrossEntropy, Adam, Embedding, AttentionMerge,
                 RmsNormBackward, SwigluBackward, CrossEntropyBackward, EmbeddingBackward>;

// What a profile has a table of times for: a row op with both of its passes, or a copy.
enum class Elementwise {
  rms_norm,
  residual_add,
  rope,
  swiglu,
  cross_entropy,
  copy,
  optimizer,
  embedding,
  attention_merge
};

struct ElementwiseKind {
  std::string_view name;         // the key of its table in a profile, and of its samples
  bool in_every_profile = true;  // whether the simulator needs it; if not, a profile may omit it
};
inline constexpr std::array<ElementwiseKind, 9> kElementwise{{{"rms_norm"},
                                                              {"residual_add"},
                                                              {"rope"},
                                                              {"swiglu"},
                                                              {"cross_entropy"},
                                                              {"copy"},
                                                              {"optimizer"},
                                                              {"embedding", false},
                                                              {"attention_merge", false}}};

inline constexpr auto kElementwiseNames = [] {
  std::array<std::string_view, kElementwise.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kElementwise[i].name;
  return names;
}();

constexpr std::string_view name_of(Elementwise kind) {
  return kElementwiseNames[static_cast<std::size_t>(kind)];
}

// A backward pass's table has its kind's name with this suffix; without one the kind's own table serves both.
inline constexpr std::string_view kBackwardSuffix = "_backward";

// The shapes on which an op is measured: rows of a model's width, rows of its vocabulary, or one long row.
enum class RowWidth { hidden, vocabulary, flat };

struct RowOp {
  std::size_t call = 0;   // place of its alternative in RowCall
  std::string_view name;  // as checks report it
  Elementwise kind = Elementwise::rms_norm;
  Pass pass = Pass::forward;
  // Moved per number of the shape (rows * columns), by the simulator's convention: each input is read once,
  // each output written once.
  int elements = 0;     // of the backend's type
  int state_bytes = 0;  // in f32
  RowWidth width = RowWidth::hidden;
};

template <class Call>
constexpr RowOp row(std::string_view name, Elementwise kind, Pass pass, int elements, int state_bytes = 0,
                    RowWidth width = RowWidth::hidden) {
  return {RowCall(Call{}).index(), name, kind, pass, elements, state_bytes, width};
}

// In the order of RowCall, which is also the order of the points.
inline constexpr std::array<RowOp, std::variant_size_v<RowCall>> kRowOps{{
    row<RmsNorm>("rms_norm", Elementwise::rms_norm, Pass::forward, 2),
    row<ResidualAdd>("residual_add", Elementwise::residual_add, Pass::forward, 3),
    row<Rope>("rope", Elementwise::rope, Pass::forward, 2),
    row<Swiglu>("swiglu", Elementwise::swiglu, Pass::forward, 3),
    row<CrossEntropy>("cross_entropy", Elementwise::cross_entropy, Pass::forward, 1, 0, RowWidth::vocabulary),
    // Besides gradient and weights: the master and two moments, read and written.
    row<Adam>("adam_step", Elementwise::optimizer, Pass::forward, 2, 24, RowWidth::flat),
    row<Embedding>("embedding", Elementwise::embedding, Pass::forward, 2),
    row<AttentionMerge>("attention_merge", Elementwise::attention_merge, Pass::forward, 3),
    row<RmsNormBackward>("rms_norm_backward", Elementwise::rms_norm, Pass::backward, 3),
    row<SwigluBackward>("swiglu_backward", Elementwise::swiglu, Pass::backward, 5),
    row<CrossEntropyBackward>("cross_entropy_backward", Elementwise::cross_entropy, Pass::backward, 2, 0,
                              RowWidth::vocabulary),
    row<EmbeddingBackward>("embedding_backward", Elementwise::embedding, Pass::backward, 3),
}};
static_assert([] {
  for (std::size_t i = 0; i < kRowOps.size(); ++i)
    if (kRowOps[i].call != i) return false;
  return true;
}());

// The key of the op's table in a profile, which also names its points.
inline std::string table_name(const RowOp& op) {
  return std::string(name_of(op.kind)).append(op.pass == Pass::backward ? kBackwardSuffix : "");
}

}  // namespace equipoise::kernels
