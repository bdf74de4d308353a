#include <algorithm>
#include <cmath>

#include "kernels/checks.h"

namespace equipoise::kernels::reference {
namespace {

// One head of one query: the places of its rows in the buffers, and the softmax over the keys that it sees.
struct QueryRow {
  std::size_t query = 0;      // offset of the query row's head
  std::size_t first_key = 0;  // offset of the first key's head
  std::size_t key_stride = 0;
  std::vector<double> probability;  // one for each visible key
  double log_sum = 0;
};

double dot(const Values& a, std::size_t at_a, const Values& b, std::size_t at_b, std::size_t count) {
  double sum = 0;
  for (std::size_t c = 0; c < count; ++c) sum += a[at_a + c] * b[at_b + c];
  return sum;
}

QueryRow query_row(const AttentionShape& shape, const Piece& piece, std::int64_t i, int head,
                   const Values& query, const Values& key) {
  const auto d = static_cast<std::size_t>(shape.head_dim);
  const auto kv_heads = static_cast<std::size_t>(shape.kv_heads);
  const auto kv_head = static_cast<std::size_t>(head / (shape.query_heads / shape.kv_heads));
  QueryRow row;
  row.query = (static_cast<std::size_t>(piece.query_begin + i) * static_cast<std::size_t>(shape.query_heads) +
               static_cast<std::size_t>(head)) *
              d;
  row.first_key = (static_cast<std::size_t>(piece.key_begin) * kv_heads + kv_head) * d;
  row.key_stride = kv_heads * d;
  const auto visible = static_cast<std::size_t>(piece.full ? piece.keys : piece.keys - piece.queries + i + 1);
  row.probability.resize(visible);
  for (std::size_t j = 0; j < visible; ++j) {
    row.probability[j] =
        dot(query, row.query, key, row.first_key + j * row.key_stride, d) / std::sqrt(static_cast<double>(d));
  }
  const double highest = *std::max_element(row.probability.begin(), row.probability.end());
  double sum = 0;
  for (double& p : row.probability) sum += p = std::exp(p - highest);
  for (double& p : row.probability) p /= sum;
  row.log_sum = highest + std::log(sum);
  return row;
}

template <class Body>
void for_query_rows(const AttentionShape& shape, std::span<const Piece> pieces, const Values& query,
                    const Values& key, Body body) {
  for (const Piece& piece : pieces) {
    for (std::int64_t i = 0; i < piece.queries; ++i)
      for (int head = 0; head < shape.query_heads; ++head) body(query_row(shape, piece, i, head, query, key));
  }
}

}  // namespace

Attention attention(const AttentionShape& shape, std::span<const Piece> pieces, const Values& query,
                    const Values& key, const Values& value) {
  const auto d = static_cast<std::size_t>(shape.head_dim);
  Attention result{Values(query.size(), 0.0), Values(query.size() / d, 0.0)};
  for_query_rows(shape, pieces, query, key, [&](const QueryRow& row) {
    for (std::size_t j = 0; j < row.probability.size(); ++j) {
      const std::size_t at = row.first_key + j * row.key_stride;
      for (std::size_t c = 0; c < d; ++c) result.out[row.query + c] += row.probability[j] * value[at + c];
    }
    result.log_sum[row.query / d] = row.log_sum;
  });
  return result;
}

AttentionGradient attention_gradient(const AttentionShape& shape, std::span<const Piece> pieces,
                                     const Values& query, const Values& key, const Values& value,
                                     const Values& out_gradient) {
  const auto d = static_cast<std::size_t>(shape.head_dim);
  const double scale = 1.0 / std::sqrt(static_cast<double>(d));
  AttentionGradient gradient{Values(query.size(), 0.0), Values(key.size(), 0.0), Values(value.size(), 0.0)};
  std::vector<double> dp;
  for_query_rows(shape, pieces, query, key, [&](const QueryRow& row) {
    dp.resize(row.probability.size());
    double mean = 0;
    for (std::size_t j = 0; j < dp.size(); ++j) {
      dp[j] = dot(out_gradient, row.query, value, row.first_key + j * row.key_stride, d);
      mean += row.probability[j] * dp[j];
    }
    for (std::size_t j = 0; j < dp.size(); ++j) {
      const std::size_t at = row.first_key + j * row.key_stride;
      const double ds = row.probability[j] * (dp[j] - mean) * scale;
      for (std::size_t c = 0; c < d; ++c) {
        gradient.query[row.query + c] += ds * key[at + c];
        gradient.key[at + c] += ds * query[row.query + c];
        gradient.value[at + c] += row.probability[j] * out_gradient[row.query + c];
      }
    }
  });
  return gradient;
}

Values gemm(const GemmShape& shape, const Values& a, const Values& b, const Values& c_before) {
  Values c(static_cast<std::size_t>(shape.m * shape.n), 0.0);
  if (shape.accumulate) c = c_before;
  for (std::int64_t i = 0; i < shape.m; ++i) {
    for (std::int64_t k = 0; k < shape.k; ++k) {
      const double left = shape.transpose_a ? a[index(k, shape.m, i)] : a[index(i, shape.k, k)];
      for (std::int64_t j = 0; j < shape.n; ++j) {
        c[index(i, shape.n, j)] +=
            left * (shape.transpose_b ? b[index(j, shape.k, k)] : b[index(k, shape.n, j)]);
      }
    }
  }
  return c;
}

}  // namespace equipoise::kernels::reference
