// Blocked attention over one piece, causal or full, forward and backward, in f32.
//
// The idea is FlashAttention's (arXiv 2205.14135, algorithms 1 and 4, with the loop order of arXiv
// 2307.08691): the score matrix exists one tile at a time, and a running maximum and denominator make the
// softmax exact. Tiles of kTile queries by kTile keys; tiles above the diagonal are skipped, those on it are
// computed whole and masked. Keys (and values in the backward pass) are transposed block by block so that the
// inner product runs over unit-stride rows; in the forward pass once per KV head, shared by the query heads
// of its group.
// Rows of one head lie heads * d apart. Where that is a large power of two, a tile's rows share a few sets of
// the first cache and evict each other, and what a pair costs depends on the number of heads. So whatever is
// read again and again is copied to rows that follow each other. In both passes these are the keys and values
// of a KV head. The forward pass adds a tile of queries, the backward pass the queries and output gradients
// of the group's heads, and it gathers the query gradient there too.
//
// Cost per head: 4 * d flops per computed pair forward, 10 * d backward, plus the copies: one of keys and
// values per KV head, one of queries (and gradients) per head. Workspace: 2 * keys * d floats forward,
// 3 * group * queries * d backward.
#include "kernels/cpu/isa.h"
#include "kernels/cpu/vector.h"

namespace equipoise::kernels::EQUIPOISE_ISA {
namespace {

constexpr int kTile = 64;
constexpr int kMaxHeadDim = 256;
constexpr float kMasked = -1e30F;  // the score of a key that a query does not see

int least(std::int64_t a, std::int64_t b) {
  return static_cast<int>(a < b ? a : b);
}

// target[c, j] = source[j, c] for j < keys; columns up to the next multiple of 16, the longest vector, are
// zero.
void transpose_block(const float* source, std::ptrdiff_t row, int keys, int head_dim, float* target) {
  constexpr int kSquare = 16;  // one cache line of each side
  for (int c0 = 0; c0 < head_dim; c0 += kSquare) {
    for (int j0 = 0; j0 < keys; j0 += kSquare) {
      for (int j = j0; j < j0 + kSquare; ++j) {
        if (j < keys)
          for (int c = c0; c < c0 + kSquare; ++c) target[c * kTile + j] = source[j * row + c];
        else
          for (int c = c0; c < c0 + kSquare; ++c) target[c * kTile + j] = 0;
      }
    }
  }
}

// Keys that the piece's first `queries` queries see together.
std::int64_t keys_seen_by(const Piece& piece, std::int64_t queries) {
  return piece.full ? piece.keys : piece.keys - piece.queries + queries;
}

// How many keys of the block [first_key, first_key + kTile) query `i` of the piece sees.
int visible_in_block(const Piece& piece, std::int64_t i, std::int64_t first_key) {
  const std::int64_t visible = keys_seen_by(piece, i + 1) - first_key;
  return visible < 0 ? 0 : least(visible, kTile);
}

struct alignas(64) ForwardTile {
  float query[kTile * kMaxHeadDim];  // multiplied by the softmax scale
  float scores[kTile * kTile];
  float out[kTile * kMaxHeadDim];
  float maximum[kTile];
  float denominator[kTile];
};

// target[i, c] = factor * source[i, c] for i < rows.
void pack_rows(const float* source, std::ptrdiff_t row, std::int64_t rows, int head_dim, float factor,
               float* target) {
  for (std::int64_t i = 0; i < rows; ++i)
    for (int c = 0; c < head_dim; c += kLanes)
      store(target + i * head_dim + c, load(source + i * row + c) * factor);
}

float softmax_scale(int head_dim) {
  return 1.0F / __builtin_sqrtf(static_cast<float>(head_dim));
}

// How many columns of a block are computed: its keys, rounded up to whole vectors.
int columns_for(int keys) {
  return (keys + kLanes - 1) / kLanes * kLanes;
}

// Turns the scores of one row into probabilities against the running maximum, and rescales the row's sums so
// far. Masked keys get a probability of at most 1e-38, which has no effect on a sum in f32.
void soften_row(ForwardTile& tile, int i, int columns, int visible, int head_dim) {
  float* score = tile.scores + i * kTile;
  Vector high = broadcast(tile.maximum[i]);
  for (int j = 0; j < columns; j += kLanes) {
    Vector seen = load(score + j);
    if (j + kLanes > visible) {
      seen = first_lanes(seen, visible - j, kMasked);
      store(score + j, seen);
    }
    high = larger(high, seen);
  }
  const float maximum = largest_of(high);
  Vector sum = broadcast(0.0F);
  for (int j = 0; j < columns; j += kLanes) {
    const Vector p = exp_of(load(score + j) - maximum);
    store(score + j, p);
    sum += p;
  }
  const Vector change = exp_of(broadcast(tile.maximum[i] - maximum));
  tile.denominator[i] = tile.denominator[i] * change[0] + sum_of(sum);
  if (tile.maximum[i] != maximum) {
    float* out = tile.out + i * head_dim;
    for (int c = 0; c < head_dim; c += kLanes) store(out + c, load(out + c) * change);
  }
  tile.maximum[i] = maximum;
}

void finish_tile(const ForwardTile& tile, int rows, int head_dim, int heads, float* out, float* log_sum) {
  for (int i = 0; i < rows; ++i) {
    const float inverse = 1.0F / tile.denominator[i];
    for (int c = 0; c < head_dim; c += kLanes) {
      store(out + static_cast<std::ptrdiff_t>(i) * heads * head_dim + c,
            load(tile.out + i * head_dim + c) * inverse);
    }
    log_sum[static_cast<std::ptrdiff_t>(i) * heads] = tile.maximum[i] + __builtin_logf(tile.denominator[i]);
  }
}

// One tile of queries of one head against all keys it sees. `values` are the packed ones of its KV head.
void forward_tile(const AttentionInputs& in, const Piece& piece, int head, std::int64_t first_query,
                  const float* transposed_keys, const float* values, ForwardTile& tile, float* out,
                  float* log_sum) {
  const int d = in.shape.head_dim;
  const int rows = least(piece.queries - first_query, kTile);
  const std::ptrdiff_t query_row = static_cast<std::ptrdiff_t>(in.shape.query_heads) * d;
  const std::ptrdiff_t at =
      (piece.query_begin + first_query) * query_row + static_cast<std::ptrdiff_t>(head) * d;
  pack_rows(in.query + at, query_row, rows, d, softmax_scale(d), tile.query);
  for (int i = 0; i < rows; ++i) {
    tile.maximum[i] = kMasked;
    tile.denominator[i] = 0;
    for (int c = 0; c < d; c += kLanes) store(tile.out + i * d + c, broadcast(0.0F));
  }
  const std::int64_t keys_seen = keys_seen_by(piece, first_query + rows);
  for (std::int64_t first_key = 0; first_key < keys_seen; first_key += kTile) {
    const int keys = least(keys_seen - first_key, kTile);
    const int columns = columns_for(keys);
    multiply(rows, columns, d, {tile.query, d, 1}, transposed_keys + first_key * d, kTile, tile.scores, kTile,
             false);
    for (int i = 0; i < rows; ++i)
      soften_row(tile, i, columns, visible_in_block(piece, first_query + i, first_key), d);
    multiply(rows, d, keys, {tile.scores, kTile, 1}, values + first_key * d, d, tile.out, d, true);
  }
  finish_tile(tile, rows, d, in.shape.query_heads, out + at,
              log_sum + (piece.query_begin + first_query) * in.shape.query_heads + head);
}

struct alignas(64) BackwardTile {
  float keys[kTile * kMaxHeadDim];               // packed
  float transposed_keys[kTile * kMaxHeadDim];    // and transposed
  float transposed_values[kTile * kMaxHeadDim];  // transposed
  float dk[kTile * kMaxHeadDim];
  float dv[kTile * kMaxHeadDim];
  float p[kTile * kTile];
  float ds[kTile * kTile];
};

// One head's rows of the piece, packed. `query` carries the softmax scale, `dq` still lacks it.
struct PackedHead {
  float* query;
  float* out_gradient;
  float* dq;
  float* dot;  // dot product of each row's output and output gradient
  float* log_sum;

  // `workspace` receives the head's rows.
  PackedHead(float* workspace, std::int64_t queries, int head_dim)
      : query(workspace),
        out_gradient(query + queries * head_dim),
        dq(out_gradient + queries * head_dim),
        dot(dq + queries * head_dim),
        log_sum(dot + padded(queries)) {}

  // rounded up to a cache line
  static std::int64_t padded(std::int64_t queries) { return (queries + 15) / 16 * 16; }
  static std::int64_t floats(std::int64_t queries, int head_dim) {
    return 3 * queries * head_dim + 2 * padded(queries);
  }
};

// Probabilities and score gradients (without the scale) of one row from scores (in p) and dP (in ds); masked
// ones are 0.
void differentiate_row(BackwardTile& tile, int i, int columns, int visible, float log_sum, float dot) {
  float* p = tile.p + i * kTile;
  float* ds = tile.ds + i * kTile;
  for (int j = 0; j < columns; j += kLanes) {
    Vector probability = exp_of(load(p + j) - log_sum);
    if (j + kLanes > visible) probability = first_lanes(probability, visible - j, 0.0F);
    store(p + j, probability);
    store(ds + j, probability * (load(ds + j) - dot));
  }
}

float dot_of(const float* a, const float* b, int count) {
  Vector sum = broadcast(0.0F);
  for (int c = 0; c < count; c += kLanes) sum += load(a + c) * load(b + c);
  return sum_of(sum);
}

void pack_head(const AttentionBackwardInputs& all, const Piece& piece, int head, const PackedHead& packed) {
  const int d = all.in.shape.head_dim;
  const int heads = all.in.shape.query_heads;
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(heads) * d;
  const std::ptrdiff_t at = piece.query_begin * row + static_cast<std::ptrdiff_t>(head) * d;
  pack_rows(all.in.query + at, row, piece.queries, d, softmax_scale(d), packed.query);
  pack_rows(all.out_gradient + at, row, piece.queries, d, 1, packed.out_gradient);
  for (std::int64_t i = 0; i < piece.queries; ++i) {
    packed.dot[i] = dot_of(all.out + at + i * row, packed.out_gradient + i * d, d);
    packed.log_sum[i] = all.log_sum[(piece.query_begin + i) * heads + head];
  }
  for (std::int64_t i = 0; i < piece.queries * d; i += kLanes) store(packed.dq + i, broadcast(0.0F));
}

void add_query_gradient(const PackedHead& packed, const Piece& piece, const AttentionShape& shape, int head,
                        float* dq) {
  const int d = shape.head_dim;
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(shape.query_heads) * d;
  float* target = dq + piece.query_begin * row + static_cast<std::ptrdiff_t>(head) * d;
  const float scale = softmax_scale(d);
  for (std::int64_t i = 0; i < piece.queries; ++i)
    for (int c = 0; c < d; c += kLanes)
      store(target + i * row + c, load(target + i * row + c) + load(packed.dq + i * d + c) * scale);
}

// One tile of queries of one head against the block of keys that `tile` holds.
void backward_tile(const PackedHead& packed, const Piece& piece, int d, std::int64_t first_query,
                   std::int64_t first_key, int keys, BackwardTile& tile) {
  const int rows = least(piece.queries - first_query, kTile);
  const int columns = columns_for(keys);
  const float* query = packed.query + first_query * d;
  const float* out_gradient = packed.out_gradient + first_query * d;
  multiply(rows, columns, d, {query, d, 1}, tile.transposed_keys, kTile, tile.p, kTile, false);
  multiply(rows, columns, d, {out_gradient, d, 1}, tile.transposed_values, kTile, tile.ds, kTile, false);
  for (int i = 0; i < rows; ++i) {
    differentiate_row(tile, i, columns, visible_in_block(piece, first_query + i, first_key),
                      packed.log_sum[first_query + i], packed.dot[first_query + i]);
  }
  multiply(keys, d, rows, {tile.p, 1, kTile}, out_gradient, d, tile.dv, d, true);
  multiply(keys, d, rows, {tile.ds, 1, kTile}, query, d, tile.dk, d, true);
  multiply(rows, d, keys, {tile.ds, kTile, 1}, tile.keys, d, packed.dq + first_query * d, d, true);
}

void add_block(const float* block, int keys, int head_dim, float* target, std::ptrdiff_t row) {
  for (int j = 0; j < keys; ++j)
    for (int c = 0; c < head_dim; c += kLanes)
      store(target + j * row + c, load(target + j * row + c) + load(block + j * head_dim + c));
}

std::int64_t blocks_of(std::int64_t keys) {
  return (keys + kTile - 1) / kTile;
}

}  // namespace

std::size_t attention_workspace(const AttentionShape& shape, std::int64_t queries, std::int64_t keys) {
  const std::int64_t group = shape.query_heads / shape.kv_heads;
  const std::size_t forward = sizeof(ForwardTile) / sizeof(float) +
                              static_cast<std::size_t>(2 * blocks_of(keys) * kTile * shape.head_dim);
  const std::size_t backward = sizeof(BackwardTile) / sizeof(float) +
                               static_cast<std::size_t>(group * PackedHead::floats(queries, shape.head_dim));
  return forward > backward ? forward : backward;
}

void attention_forward(const AttentionInputs& in, const Piece& piece, float* workspace, float* out,
                       float* log_sum) {
  const int d = in.shape.head_dim;
  const int group = in.shape.query_heads / in.shape.kv_heads;
  const std::ptrdiff_t key_row = static_cast<std::ptrdiff_t>(in.shape.kv_heads) * d;
  auto& tile = *reinterpret_cast<ForwardTile*>(workspace);
  float* transposed = workspace + sizeof(ForwardTile) / sizeof(float);
  float* values = transposed + blocks_of(piece.keys) * kTile * d;
  for (int kv_head = 0; kv_head < in.shape.kv_heads; ++kv_head) {
    const std::ptrdiff_t at = piece.key_begin * key_row + static_cast<std::ptrdiff_t>(kv_head) * d;
    for (std::int64_t first = 0; first < piece.keys; first += kTile) {
      transpose_block(in.key + at + first * key_row, key_row, least(piece.keys - first, kTile), d,
                      transposed + first * d);
    }
    pack_rows(in.value + at, key_row, piece.keys, d, 1, values);
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head)
      for (std::int64_t query = 0; query < piece.queries; query += kTile)
        forward_tile(in, piece, head, query, transposed, values, tile, out, log_sum);
  }
}

void attention_backward(const AttentionBackwardInputs& all, const Piece& piece, float* workspace, float* dq,
                        float* dk, float* dv) {
  const AttentionInputs& in = all.in;
  const int d = in.shape.head_dim;
  const int group = in.shape.query_heads / in.shape.kv_heads;
  const std::ptrdiff_t key_row = static_cast<std::ptrdiff_t>(in.shape.kv_heads) * d;
  auto& tile = *reinterpret_cast<BackwardTile*>(workspace);
  float* heads = workspace + sizeof(BackwardTile) / sizeof(float);
  const auto packed_head = [&](int i) {
    return PackedHead(heads + i * PackedHead::floats(piece.queries, d), piece.queries, d);
  };
  for (int kv_head = 0; kv_head < in.shape.kv_heads; ++kv_head) {
    for (int i = 0; i < group; ++i) pack_head(all, piece, kv_head * group + i, packed_head(i));
    for (std::int64_t first_key = 0; first_key < piece.keys; first_key += kTile) {
      const int keys = least(piece.keys - first_key, kTile);
      const std::ptrdiff_t at =
          (piece.key_begin + first_key) * key_row + static_cast<std::ptrdiff_t>(kv_head) * d;
      pack_rows(in.key + at, key_row, keys, d, 1, tile.keys);
      transpose_block(in.key + at, key_row, keys, d, tile.transposed_keys);
      transpose_block(in.value + at, key_row, keys, d, tile.transposed_values);
      for (int c = 0; c < kTile * d; ++c) tile.dk[c] = tile.dv[c] = 0;
      // The first query that sees first_key, moved down to its tile's first row.
      const std::int64_t unseeing = piece.full ? 0 : first_key - (piece.keys - piece.queries);
      const std::int64_t first_query = unseeing > 0 ? unseeing / kTile * kTile : 0;
      for (int i = 0; i < group; ++i)
        for (std::int64_t query = first_query; query < piece.queries; query += kTile)
          backward_tile(packed_head(i), piece, d, query, first_key, keys, tile);
      add_block(tile.dk, keys, d, dk + at, key_row);
      add_block(tile.dv, keys, d, dv + at, key_row);
    }
    for (int i = 0; i < group; ++i)
      add_query_gradient(packed_head(i), piece, in.shape, kv_head * group + i, dq);
  }
}

}  // namespace equipoise::kernels::EQUIPOISE_ISA
