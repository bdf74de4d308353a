// What a rank executes on any device: shapes of the ops that every backend implements. All matrices are
// row-major and contiguous; token rows come first, then heads, then the head dimension.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

// Types that placements and layouts choose and profiles have tables for. They are here, below both, so that
// neither depends on the other.
namespace equipoise {

// The arithmetic of a linear layer's GEMMs; attention and elementwise ops stay in bf16.
enum class Precision { bf16, fp8 };
// As a study spells them; also the keys of a profile's GEMM tables.
inline constexpr std::array<std::string_view, 2> kPrecisionNames{"bf16", "fp8"};

constexpr std::string_view name_of(Precision precision) {
  return kPrecisionNames[static_cast<std::size_t>(precision)];
}

enum class Collective { all_gather, reduce_scatter, all_reduce, all_to_all, send_recv };
// As samples spell them; also the keys of a profile's collective table.
inline constexpr std::array<std::string_view, 5> kCollectiveNames{"all_gather", "reduce_scatter",
                                                                  "all_reduce", "all_to_all", "send_recv"};

constexpr std::string_view name_of(Collective kind) {
  return kCollectiveNames[static_cast<std::size_t>(kind)];
}

// How a group lies over nodes: `ranks` members, `ranks_per_node` of them in each node they touch.
struct GroupShape {
  int ranks = 1;
  int ranks_per_node = 1;
};

}  // namespace equipoise

namespace equipoise::kernels {

// Element type of activations and weights on a backend. Row statistics are always f32.
enum class ElementType { f32, bf16 };

constexpr std::size_t bytes_of(ElementType type) {
  return type == ElementType::f32 ? 4 : 2;
}

enum class Pass { forward, backward };
inline constexpr std::array<std::string_view, 2> kPassNames{"forward", "backward"};

constexpr std::string_view name_of(Pass pass) {
  return kPassNames[static_cast<std::size_t>(pass)];
}

struct AttentionShape {
  int head_dim = 128;   // a multiple of 16, at most 256
  int query_heads = 1;  // a multiple of kv_heads (grouped-query attention)
  int kv_heads = 1;
};

// One piece of a packed variable-length attention call: rows of the packed query buffer with rows of the
// packed key/value buffer. A causal piece is aligned bottom-right: query i of it sees keys 0 .. keys -
// queries + i. A context-parallel chunk of a document has keys > queries. In a full piece, which has no mask,
// every query sees every key, as in the blocks of earlier keys of ring attention. Pieces may share key rows
// (two chunks of one document on one rank), never query rows.
struct Piece {
  std::int64_t query_begin = 0;  // row of the query buffer
  std::int64_t queries = 0;      // >= 1
  std::int64_t key_begin = 0;    // row of the key and value buffers
  std::int64_t keys = 0;         // >= queries, or >= 1 in a full piece
  bool full = false;
};

// Rows of an attention call's buffers, if they are more than its pieces reach.
struct AttentionRows {
  std::int64_t query = 0;
  std::int64_t key = 0;
};

// How many query-key pairs of a piece are visible.
constexpr std::int64_t pairs_of(const Piece& piece) {
  if (piece.full) return piece.queries * piece.keys;
  return piece.queries * (piece.keys - piece.queries) + piece.queries * (piece.queries + 1) / 2;
}

// C[m, n] = op(A)[m, k] * op(B)[k, n], plus the old C if `accumulate`. For a linear layer with weights [out,
// in] the forward transposes B, the input gradient nothing, and the weight gradient A.
struct GemmShape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;  // A is stored [k, m]
  bool transpose_b = false;  // B is stored [n, k]
  bool accumulate = false;
};

struct Rows {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

// Rotary embedding: pairs (i, i + head_dim / 2) of every head are rotated by the angle of the row's position.
struct RopeShape {
  std::int64_t rows = 0;
  int heads = 0;
  int head_dim = 0;
};

// Adam without weight decay, bias corrections folded into the two rates by the caller:
// mean = b1 * mean + (1 - b1) * g; square = b2 * square + (1 - b2) * g^2; w -= rate * mean / (sqrt(square) +
// e).
struct AdamStep {
  std::int64_t elements = 0;
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  float rate = 1e-4F;
};

// --- What every backend requires of an attention call, checked once when the plan is made.

// Throws std::invalid_argument with one line that names the piece and the rule it breaks.
void validate_attention(const AttentionShape& shape, std::span<const Piece> pieces);

// Rows of the query and of the key buffers that the pieces reach.
std::int64_t query_rows_of(std::span<const Piece> pieces);
std::int64_t key_rows_of(std::span<const Piece> pieces);

}  // namespace equipoise::kernels
