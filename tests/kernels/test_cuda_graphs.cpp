// What can be tested of the CUDA backend without a GPU: that cuDNN accepts our attention graphs for Hopper,
// how pieces are dealt into calls, that calls which read and write where the graphs say give the definition's
// results, and that a machine without a device gets a reason and not a crash.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "kernels/backend.h"
#include "kernels/checks.h"
#include "kernels/cuda/attention.h"
#include "policies/base/random.h"
#include "sim/workload/model.h"

using namespace equipoise::kernels;
using namespace equipoise::kernels::cuda;

namespace {
constexpr int kHopper = 90;
// Whether the module was built without cuDNN or its frontend.
bool absent() {
  return cudnn_version() == "absent";
}
}  // namespace

TEST_CASE("pieces that share keys go to different backward calls, the others to the first") {
  // Document of keys [0, 200): chunks against [0, 50) and [0, 200). Document [200, 293): against [200, 224),
  // [200, 293).
  const std::vector<Piece> pieces{{0, 50, 0, 50}, {50, 50, 0, 200}, {100, 24, 200, 24}, {124, 23, 200, 93}};
  const auto rounds = ascending_rounds(pieces);
  REQUIRE(rounds.size() == 2);
  CHECK(rounds[0].size() == 2);
  CHECK(rounds[0][1].key_begin == 200);
  CHECK(rounds[0][1].keys == 24);
  CHECK(rounds[1].size() == 2);
  CHECK(rounds[1][0].keys == 200);
  CHECK(ascending_rounds(std::vector<Piece>{{0, 5, 0, 5}, {5, 7, 5, 7}}).size() == 1);
}

TEST_CASE("a backward call goes through queries and keys in one direction") {
  // The second document's queries come first: its keys [100, 140) are then before the first's [0, 30),
  // which needs a call of its own.
  const std::vector<Piece> pieces{{40, 30, 0, 30}, {0, 40, 100, 40}, {70, 10, 140, 20}};
  const auto rounds = ascending_rounds(pieces);
  REQUIRE(rounds.size() == 2);
  CHECK(rounds[0].size() == 2);  // keys [100, 140) and [140, 160)
  CHECK(rounds[0][0].query_begin == 0);
  CHECK(rounds[0][1].query_begin == 70);
  CHECK(rounds[1][0].key_begin == 0);
  for (const std::vector<Piece>& round : rounds) {
    const CallRows rows = call_rows(round, 4);
    CHECK(std::is_sorted(rows.query_begins.begin(), rows.query_begins.end()));
    CHECK(std::is_sorted(rows.key_begins.begin(), rows.key_begins.end()));
    for (std::size_t i = 0; i < 4; ++i) {  // each piece ends where the next begins, or before
      CHECK(rows.query_begins[i] + rows.query_lengths[i] <= rows.query_begins[i + 1]);
      CHECK(rows.key_begins[i] + rows.key_lengths[i] <= rows.key_begins[i + 1]);
    }
  }
}

TEST_CASE("causal and full pieces never share a call") {
  const std::vector<Piece> pieces{{10, 5, 0, 9, true}, {0, 5, 20, 5}, {5, 5, 30, 5, true}, {15, 2, 40, 2}};
  const auto forward = by_mask(pieces);
  REQUIRE(forward.size() == 2);
  CHECK(forward[0].size() == 2);  // causal, queries from 0 and from 15
  CHECK(forward[0][1].query_begin == 15);
  CHECK(forward[1].size() == 2);  // full, queries from 5 and from 10
  CHECK(forward[1][0].query_begin == 5);
  CHECK(forward[1][1].query_begin == 10);
  // Backward, the full ones come with descending keys: 30 for the queries from 5, 0 for those from 10.
  const auto rounds = ascending_rounds(pieces);
  REQUIRE(rounds.size() == 3);
  for (const std::vector<Piece>& round : rounds)
    for (const Piece& piece : round) CHECK(piece.full == round.front().full);
  CHECK(by_mask({}).empty());
  CHECK(ascending_rounds({}).empty());
}

TEST_CASE("slots beyond the pieces are empty and begin where the last piece ends") {
  const std::vector<Piece> pieces{{0, 5, 0, 9}, {5, 2, 9, 2}};
  const CallRows rows = call_rows(pieces, 4);
  CHECK(rows.query_lengths == std::vector<std::int32_t>{5, 2, 0, 0});
  CHECK(rows.key_lengths == std::vector<std::int32_t>{9, 2, 0, 0});
  CHECK(rows.query_begins == std::vector<std::int64_t>{0, 5, 7, 7, 7});
  CHECK(rows.key_begins == std::vector<std::int64_t>{0, 9, 11, 11, 11});
  CHECK(cover_queries(pieces, 7));
  CHECK(cover_keys(pieces, 11));
  CHECK_FALSE(cover_keys(pieces, 12));
}

TEST_CASE("declared sizes are rounded up, so that similar calls share a plan, but by an eighth at most") {
  // 300, 1000, 1500 and 5000 rows are 3, 8, 12 and 40 tiles of 128; 40 is five eighths above 32, in steps
  // of 4.
  const DeclaredAttention declared =
      declared_for({128, 8, 2}, Pass::forward, false, 1300, 300, 1000, 1500, 5000);
  CHECK(declared.pieces == 1408);  // 1024 + 3 * 128
  CHECK(declared.most_queries == 3 * 128);
  CHECK(declared.most_keys == 8 * 128);
  CHECK(declared.total_queries == 12 * 128);
  CHECK(declared.total_keys == 40 * 128);
  CHECK(declared_for({64, 1, 1}, Pass::forward, false, 1, 1, 1, 1, 1).most_queries == 128);
  for (std::int64_t rows = 1; rows < 300000; rows += 997) {
    const std::int64_t made =
        declared_for({64, 1, 1}, Pass::forward, false, rows, rows, rows, rows, rows).pieces;
    CHECK(made >= rows);
    CHECK(8 * made <= 9 * rows + 8);
  }
}

TEST_CASE("cuDNN accepts our packed attention, causal and full, on Hopper, forward and backward" *
          doctest::skip(absent())) {
  for (const AttentionShape& shape :
       {AttentionShape{64, 1, 1}, AttentionShape{64, 14, 2}, AttentionShape{128, 8, 1},
        AttentionShape{128, 32, 32}, AttentionShape{128, 32, 8}}) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      for (const std::int64_t keys : {128, 4096, 262144}) {
        for (const bool full : {false, true}) {
          CAPTURE(shape.head_dim);
          CAPTURE(shape.query_heads);
          CAPTURE(keys);
          CAPTURE(full);
          AttentionGraph graph(declared_for(shape, pass, full, 7, 100, keys, 700, 7 * keys), kHopper);
          CHECK(graph.validate() == "");
        }
        DeclaredAttention square = declared_for(shape, pass, false, 7, keys, keys, 7 * keys, 7 * keys);
        square.square = true;
        CHECK(AttentionGraph(square, kHopper).validate() == "");
      }
    }
  }
}

TEST_CASE("cuDNN accepts the attention of every model that a study can name, at every TP degree" *
          doctest::skip(absent())) {
  int accepted = 0;
  for (const equipoise::ModelShape& model : equipoise::builtin_models()) {
    if (model.mla) continue;  // whose V is of another width than Q and K: refused by `execute`
    for (int tensor = 1; tensor <= 8 && model.heads % tensor == 0; tensor *= 2) {
      CAPTURE(model.name);
      CAPTURE(tensor);
      const AttentionShape shape{model.head_dim, model.heads / tensor, std::max(1, model.kv_heads / tensor)};
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        AttentionGraph graph(declared_for(shape, pass, false, 7, 100, 4096, 700, 7 * 4096), kHopper);
        CHECK(graph.validate() == "");
      }
      ++accepted;
    }
  }
  CHECK(accepted > 40);
}

namespace {

using Values = reference::Values;

// What cuDNN does with a graph, by the definition of attention: it finds every element by the graph's sizes
// and strides and the call's offsets, sees of a piece what its lengths and mask leave, and sums gradients of
// keys over query heads for all rows up to where the next piece begins.
class EmulatedCall {
 public:
  EmulatedCall(const AttentionShape& shape, const std::vector<Piece>& pieces, Pass pass,
               std::map<std::string, Values*> buffers)
      : shape_(shape), full_(pieces.front().full), buffers_(std::move(buffers)) {
    DeclaredAttention declared =
        declared_for(shape, pass, full_, static_cast<std::int64_t>(pieces.size()), 1, 1, 1, 1);
    for (const Piece& piece : pieces) {
      declared.most_queries = std::max(declared.most_queries, (piece.queries + 127) / 128 * 128);
      declared.most_keys = std::max(declared.most_keys, (piece.keys + 127) / 128 * 128);
    }
    AttentionGraph graph(declared, kHopper);
    REQUIRE(graph.validate() == "");
    tensors_ = graph.tensors();
    REQUIRE(tensors_.size() == (pass == Pass::forward ? 5 : 9));
    rows_ = call_rows(pieces, declared.pieces);
    offsets_ = call_offsets(shape, rows_);
  }

  void forward() {
    each_query([&](std::int64_t p, std::int64_t head, std::int64_t row) {
      const Values weights = probabilities(p, head, row, true);
      for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
        double sum = 0;
        for (std::size_t k = 0; k < weights.size(); ++k)
          sum += weights[k] * at("value", p, kv(head), static_cast<std::int64_t>(k), d);
        at("out", p, head, row, d) = sum;
      }
    });
  }

  void backward() {
    const std::int64_t columns = shape_.head_dim;
    // Gradients of every query head, zero where nothing is added.
    std::map<std::array<std::int64_t, 3>, std::array<Values, 2>> of_head;  // (piece, head, key row): dk, dv
    each_query([&](std::int64_t p, std::int64_t head, std::int64_t row) {
      const Values weights = probabilities(p, head, row, false);
      double own = 0;
      for (std::int64_t d = 0; d < columns; ++d)
        own += at("out", p, head, row, d) * at("out_gradient", p, head, row, d);
      Values dq(static_cast<std::size_t>(columns), 0.0);
      for (std::int64_t k = 0; k < static_cast<std::int64_t>(weights.size()); ++k) {
        const double weight = weights[static_cast<std::size_t>(k)];
        double product = 0;
        for (std::int64_t d = 0; d < columns; ++d)
          product += at("out_gradient", p, head, row, d) * at("value", p, kv(head), k, d);
        const double score = weight * (product - own) * scale();
        auto& [dk, dv] = of_head[{p, head, k}];
        dk.resize(static_cast<std::size_t>(columns), 0.0);
        dv.resize(static_cast<std::size_t>(columns), 0.0);
        for (std::int64_t d = 0; d < columns; ++d) {
          const auto i = static_cast<std::size_t>(d);
          dq[i] += score * at("key", p, kv(head), k, d);
          dk[i] += score * at("query", p, head, row, d);
          dv[i] += weight * at("out_gradient", p, head, row, d);
        }
      }
      for (std::int64_t d = 0; d < columns; ++d)
        at("query_gradient", p, head, row, d) = dq[static_cast<std::size_t>(d)];
    });
    const std::int64_t of_row = std::int64_t{shape_.kv_heads} * columns;
    for (std::int64_t p = 0; p < pieces(); ++p) {
      const auto i = static_cast<std::size_t>(p);
      const std::int64_t rows =
          std::min(tensors_.at("key_gradient").sizes[2], (offsets_.key[i + 1] - offsets_.key[i]) / of_row);
      REQUIRE(rows >= rows_.key_lengths[i]);
      for (std::int64_t k = 0; k < rows; ++k)
        for (std::int64_t head = 0; head < shape_.kv_heads; ++head)
          for (std::int64_t d = 0; d < columns; ++d) {
            double dk = 0, dv = 0;
            for (std::int64_t h = 0; h < shape_.query_heads; ++h) {
              const auto found = of_head.find({p, h, k});
              if (kv(h) != head || found == of_head.end()) continue;
              dk += found->second[0][static_cast<std::size_t>(d)];
              dv += found->second[1][static_cast<std::size_t>(d)];
            }
            at("key_gradient", p, head, k, d) = dk;
            at("value_gradient", p, head, k, d) = dv;
          }
    }
  }

 private:
  [[nodiscard]] std::int64_t pieces() const { return static_cast<std::int64_t>(rows_.query_lengths.size()); }
  [[nodiscard]] std::int64_t kv(std::int64_t head) const {
    return head / (shape_.query_heads / shape_.kv_heads);
  }
  [[nodiscard]] double scale() const { return 1 / std::sqrt(static_cast<double>(shape_.head_dim)); }

  double& at(const char* name, std::int64_t piece, std::int64_t head, std::int64_t row, std::int64_t column) {
    const PackedTensor& tensor = tensors_.at(name);
    const std::array place{piece, head, row, column};
    for (std::size_t i = 0; i < 4; ++i) REQUIRE(place[i] < tensor.sizes[i]);
    Values& buffer = *buffers_.at(name);
    const std::int64_t index = (offsets_.*tensor.offsets)[static_cast<std::size_t>(piece)] +
                               head * tensor.strides[1] + row * tensor.strides[2] +
                               column * tensor.strides[3];
    REQUIRE(index < static_cast<std::int64_t>(buffer.size()));
    return buffer[static_cast<std::size_t>(index)];
  }

  template <class Visit>
  void each_query(Visit visit) {
    for (std::int64_t p = 0; p < pieces(); ++p)
      for (std::int64_t head = 0; head < shape_.query_heads; ++head)
        for (std::int64_t row = 0; row < rows_.query_lengths[static_cast<std::size_t>(p)]; ++row)
          visit(p, head, row);
  }

  // The probabilities of the keys that a query sees. `first`: its log of the sum is written, else read.
  Values probabilities(std::int64_t p, std::int64_t head, std::int64_t row, bool first) {
    const auto i = static_cast<std::size_t>(p);
    const std::int64_t seen =
        full_ ? rows_.key_lengths[i] : rows_.key_lengths[i] - rows_.query_lengths[i] + row + 1;
    Values weights;
    double sum = 0;
    for (std::int64_t k = 0; k < seen; ++k) {
      double score = 0;
      for (std::int64_t d = 0; d < shape_.head_dim; ++d)
        score += at("query", p, head, row, d) * at("key", p, kv(head), k, d);
      weights.push_back(std::exp(score * scale()));
      sum += weights.back();
    }
    double& log_sum = at("log_sum", p, head, row, 0);
    if (first) log_sum = std::log(sum);
    for (double& weight : weights) weight /= std::exp(log_sum);
    return weights;
  }

  AttentionShape shape_;
  bool full_;
  std::map<std::string, Values*> buffers_;
  std::map<std::string, PackedTensor> tensors_;
  CallRows rows_;
  CallOffsets offsets_;
};

Values random_rows(std::int64_t count, equipoise::SplitMix64& random) {
  Values values(static_cast<std::size_t>(count));
  for (double& value : values) value = static_cast<double>(random.next() % 2001) / 1000 - 1;
  return values;
}

// Chunks of documents as context-parallel ranks have them: pieces against a whole prefix of keys, two chunks
// of one document now and then, and blocks from before the queries.
std::vector<Piece> random_pieces(equipoise::SplitMix64& random) {
  std::vector<Piece> pieces;
  std::int64_t query = 0, key = 0;
  const auto documents = 1 + random.next() % 4;
  for (std::uint64_t d = 0; d < documents; ++d) {
    const auto begin = static_cast<std::int64_t>(random.next() % 3);  // rows that no piece has
    const auto tokens = static_cast<std::int64_t>(2 + random.next() % 9);
    const auto first = 1 + static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(tokens - 1));
    key += begin;
    if (random.next() % 4 == 0) {
      pieces.push_back({query, 3, key, tokens, true});
      query += 3;
    } else {
      pieces.push_back({query, std::min<std::int64_t>(2, first), key, first});
      query += pieces.back().queries;
      if (random.next() % 2 == 0) {
        pieces.push_back({query, tokens - first, key, tokens});
        query += pieces.back().queries;
      }
    }
    query += begin;
    key += tokens;
  }
  return pieces;
}

double farthest(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::isnan(a[i]) ? 1e9 : std::abs(a[i] - b[i]));
  return most;
}

}  // namespace

TEST_CASE("calls that read and write where the graphs say give the definition's attention and gradients" *
          doctest::skip(absent())) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    equipoise::SplitMix64 random(seed);
    const AttentionShape shape{16, 4, seed % 3 == 0 ? 4 : 2};
    const std::vector<Piece> pieces = random_pieces(random);
    const std::int64_t queries = query_rows_of(pieces), keys = key_rows_of(pieces);
    const std::int64_t query_row = shape.query_heads * shape.head_dim,
                       key_row = shape.kv_heads * shape.head_dim;
    Values query = random_rows(queries * query_row, random), key = random_rows(keys * key_row, random);
    Values value = random_rows(keys * key_row, random),
           out_gradient = random_rows(queries * query_row, random);
    Values out(query.size(), 0.0), log_sum(static_cast<std::size_t>(queries * shape.query_heads), 0.0);
    for (const std::vector<Piece>& group : by_mask(pieces))
      EmulatedCall(
          shape, group, Pass::forward,
          {{"query", &query}, {"key", &key}, {"value", &value}, {"out", &out}, {"log_sum", &log_sum}})
          .forward();
    const reference::Attention expected = reference::attention(shape, pieces, query, key, value);
    CHECK(farthest(out, expected.out) < 1e-12);
    CHECK(farthest(log_sum, expected.log_sum) < 1e-12);

    // As the backend's backward pass: what no call covers is cleared, later rounds are added.
    const double nothing = std::numeric_limits<double>::quiet_NaN();
    Values dq(query.size(), cover_queries(pieces, queries) ? nothing : 0.0), dk, dv;
    for (const std::vector<Piece>& round : ascending_rounds(pieces)) {
      Values more_dk(key.size(), cover_keys(round, keys) ? nothing : 0.0), more_dv = more_dk;
      EmulatedCall(shape, round, Pass::backward,
                   {{"query", &query},
                    {"key", &key},
                    {"value", &value},
                    {"out", &out},
                    {"log_sum", &log_sum},
                    {"out_gradient", &out_gradient},
                    {"query_gradient", &dq},
                    {"key_gradient", &more_dk},
                    {"value_gradient", &more_dv}})
          .backward();
      dk.resize(key.size(), 0.0);
      dv.resize(key.size(), 0.0);
      for (std::size_t i = 0; i < dk.size(); ++i) {
        dk[i] += more_dk[i];
        dv[i] += more_dv[i];
      }
    }
    const reference::AttentionGradient gradient =
        reference::attention_gradient(shape, pieces, query, key, value, out_gradient);
    CHECK(farthest(dq, gradient.query) < 1e-12);
    CHECK(farthest(dk, gradient.key) < 1e-12);
    CHECK(farthest(dv, gradient.value) < 1e-12);
  }
}

TEST_CASE("cuDNN's validation is a test that can fail: query heads must be a multiple of KV heads" *
          doctest::skip(absent())) {
  AttentionGraph graph(declared_for({128, 8, 3}, Pass::forward, false, 1, 128, 128, 128, 128), kHopper);
  CHECK(graph.validate() != "");
}

TEST_CASE("without a device the CUDA backend is absent and says why") {
  std::string reason;
  if (make_cuda_backend(reason) == nullptr) CHECK_FALSE(reason.empty());
}
