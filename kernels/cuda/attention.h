// Attention on a GPU: which pieces go into one cuDNN call, and the call as a compiled graph.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/ops.h"

namespace equipoise::kernels::cuda {

// --- Pieces and calls.
// A call has one mask, so causal and full pieces go
// to different ones. Of either kind the forward pass takes all at once. The backward pass writes gradients of
// keys, and two pieces of one call that share keys would overwrite each other's, so pieces are dealt into
// rounds within which no key row occurs twice; gradients of later rounds are added.
//
// Offsets of queries and of keys must ascend inside a backward call. With grouped-query attention cuDNN first
// writes gradients of keys by query head and then sums them head by head. That sum knows ragged offsets but
// no lengths, so a piece must end where the next one starts.

std::vector<Piece> by_query_row(std::span<const Piece> pieces);

// The lists of pieces for forward calls, none empty: all causal pieces, then all full ones, by query row.
std::vector<std::vector<Piece>> by_mask(std::span<const Piece> pieces);

// The lists of pieces for backward calls. A round has its pieces in the order of both their query rows and
// their key rows. A piece goes to the first round of its kind in which no piece's keys reach its own. O(p^2).
std::vector<std::vector<Piece>> ascending_rounds(std::span<const Piece> pieces);

// One entry per slot, and the end of the last piece, where slots without a piece begin and end.
struct CallRows {
  std::vector<std::int32_t> query_lengths;  // of each slot
  std::vector<std::int32_t> key_lengths;
  std::vector<std::int64_t> query_begins;  // slots + 1
  std::vector<std::int64_t> key_begins;
};
CallRows call_rows(std::span<const Piece> pieces, std::int64_t slots);

// The same rows in elements of the buffers: (query rows, query heads, head dim), (key rows, KV heads, head
// dim) and (query rows, query heads), with slots + 1 entries each.
struct CallOffsets {
  std::vector<std::int64_t> query, key, log_sum;
};
CallOffsets call_offsets(const AttentionShape& shape, const CallRows& rows);

bool cover_queries(std::span<const Piece> pieces, std::int64_t rows);
bool cover_keys(std::span<const Piece> pieces, std::int64_t rows);

// --- cuDNN's fused attention as a compiled graph, behind a class that shows none of cuDNN's frontend (its
// headers take half a minute to compile).
//
// A graph is made for declared sizes: a number of pieces and a greatest number of queries and keys. A call
// may have fewer and shorter pieces, so declared sizes are rounded up and calls of similar size share a
// graph; but little, because cuDNN launches blocks for the declared sizes and clears workspace for them.
// Packed buffers are described by ragged offsets, one for each piece's first row, with the lengths in tensors
// of their own: pieces may start anywhere and share rows.

struct DeclaredAttention {
  AttentionShape shape;
  Pass pass = Pass::forward;
  bool full = false;  // whether pieces are full or causal; a graph has one mask
  // All pieces have as many keys as queries, so that the diagonal can be stated to start at the first of
  // both. Only for such a mask does cuDNN 9.19 skip the masked blocks of its backward pass (measured on an
  // H200: half the time).
  bool square = false;
  std::int64_t pieces = 1;
  std::int64_t most_queries = 1;  // of a piece
  std::int64_t most_keys = 1;
  std::int64_t total_queries = 1;  // number of rows, for the backward pass's workspace
  std::int64_t total_keys = 1;

  [[nodiscard]] auto order() const {
    return std::tuple(shape.head_dim, shape.query_heads, shape.kv_heads, pass, full, square, pieces,
                      most_queries, most_keys, total_queries, total_keys);
  }
  friend bool operator<(const DeclaredAttention& a, const DeclaredAttention& b) {
    return a.order() < b.order();
  }
};

// Rounds sizes up to an eighth of the next lower power of two (at most 12.5 % more), and lengths to tiles of
// 128. `square` is false in the result.
DeclaredAttention declared_for(const AttentionShape& shape, Pass pass, bool full, std::int64_t pieces,
                               std::int64_t most_queries, std::int64_t most_keys, std::int64_t total_queries,
                               std::int64_t total_keys);

// Device memory of one call. Offsets have pieces + 1 entries, in elements; lengths have `pieces` entries.
struct AttentionPointers {
  void* query = nullptr;
  void* key = nullptr;
  void* value = nullptr;
  void* out = nullptr;
  void* log_sum = nullptr;
  void* out_gradient = nullptr;
  void* query_gradient = nullptr;
  void* key_gradient = nullptr;
  void* value_gradient = nullptr;
  void* query_lengths = nullptr;    // int32
  void* key_lengths = nullptr;      // int32
  void* query_offsets = nullptr;    // int64
  void* key_offsets = nullptr;      // int64
  void* log_sum_offsets = nullptr;  // int64
};

// How a graph finds element (piece, head, row, column) of a buffer: at offsets[piece], and the strides'
// products with the other three.
struct PackedTensor {
  std::array<std::int64_t, 4> sizes{}, strides{};
  std::vector<std::int64_t> CallOffsets::*offsets = nullptr;
};

class AttentionGraph {
 public:
  // `sm_version` is the architecture, 90 for Hopper. Needs no GPU.
  AttentionGraph(const DeclaredAttention& declared, int sm_version);
  ~AttentionGraph();
  AttentionGraph(const AttentionGraph&) = delete;
  AttentionGraph& operator=(const AttentionGraph&) = delete;

  // Whether cuDNN supports the graph: "" or the reason. Needs no GPU.
  [[nodiscard]] std::string validate();
  // The tensors as cuDNN has them once validated, by the names of AttentionPointers. Needs no GPU.
  [[nodiscard]] std::map<std::string, PackedTensor> tensors() const;

  // Picks an engine on the present GPU. Throws std::runtime_error with cuDNN's reason.
  void build(void* cudnn_handle);
  [[nodiscard]] std::size_t workspace_bytes() const;
  void execute(void* cudnn_handle, const AttentionPointers& pointers, void* workspace) const;

 private:
  struct Graph;
  std::unique_ptr<Graph> graph_;
};

// Wrap cudnnCreate and cudnnDestroy, and return cuDNN's version ("9.19.0").
void* make_cudnn_handle();
void destroy_cudnn_handle(void* handle) noexcept;
std::string cudnn_version();

}  // namespace equipoise::kernels::cuda
