// The checkers are only worth something if they reject what is wrong: each case breaks one op on purpose.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "kernels/checks.h"
#include "tests/kernels/ring_check.h"
#include "tests/kernels/wrapped_backend.h"

using namespace equipoise::kernels;

namespace {

bool fails(const std::vector<CheckResult>& results, const std::string& op) {
  return std::any_of(results.begin(), results.end(),
                     [&](const CheckResult& result) { return result.op == op && !result.passed(); });
}

// Aligns the causal mask top-left: query i sees keys 0..i although keys > queries.
class TopLeft : public WrappedBackend {
 public:
  std::unique_ptr<AttentionPlan> plan_attention(const AttentionShape& shape, std::span<const Piece> pieces,
                                                Pass pass, const AttentionRows& rows) override {
    std::vector<Piece> wrong(pieces.begin(), pieces.end());
    for (Piece& piece : wrong) piece.keys = std::min(piece.keys, piece.queries);
    return WrappedBackend::plan_attention(shape, wrong, pass, rows);
  }
};

// Forgets the last piece.
class Forgetful : public WrappedBackend {
 public:
  std::unique_ptr<AttentionPlan> plan_attention(const AttentionShape& shape, std::span<const Piece> pieces,
                                                Pass pass, const AttentionRows& rows) override {
    const auto fewer = pieces.size() > 1 ? pieces.first(pieces.size() - 1) : pieces;
    return WrappedBackend::plan_attention(shape, fewer, pass, rows);
  }
};

// Lets the second document see the first.
class Leaky : public WrappedBackend {
 public:
  std::unique_ptr<AttentionPlan> plan_attention(const AttentionShape& shape, std::span<const Piece> pieces,
                                                Pass pass, const AttentionRows& rows) override {
    std::vector<Piece> wrong(pieces.begin(), pieces.end());
    if (wrong.size() > 1 && wrong[1].key_begin > 0) {
      wrong[1].keys += 1;
      wrong[1].key_begin -= 1;
    }
    return WrappedBackend::plan_attention(shape, wrong, pass, rows);
  }
};

// Differentiates each part of a ring as if it were the whole: its own softmax, its own output.
class OwnSoftmax : public WrappedBackend {
 public:
  std::unique_ptr<AttentionPlan> plan_attention(const AttentionShape& shape, std::span<const Piece> pieces,
                                                Pass pass, const AttentionRows& rows) override {
    again_ = WrappedBackend::plan_attention(shape, pieces, Pass::forward, rows);
    rows_ = static_cast<std::size_t>(pieces.front().queries * shape.query_heads);
    head_dim_ = static_cast<std::size_t>(shape.head_dim);
    return WrappedBackend::plan_attention(shape, pieces, pass, rows);
  }
  void attention_backward(AttentionPlan& plan, const void* query, const void* key, const void* value,
                          const void*, const float*, const void* out_gradient,
                          const AttentionGradients& gradients) override {
    std::vector<float> out(rows_ * head_dim_);
    std::vector<float> log_sum(rows_);
    attention_forward(*again_, query, key, value, out.data(), log_sum.data());
    WrappedBackend::attention_backward(plan, query, key, value, out.data(), log_sum.data(), out_gradient,
                                       gradients);
  }

 private:
  std::unique_ptr<AttentionPlan> again_;
  std::size_t rows_ = 0;
  std::size_t head_dim_ = 0;
};

// Forgets that a piece has no mask.
class AlwaysCausal : public WrappedBackend {
 public:
  std::unique_ptr<AttentionPlan> plan_attention(const AttentionShape& shape, std::span<const Piece> pieces,
                                                Pass pass, const AttentionRows& rows) override {
    std::vector<Piece> wrong(pieces.begin(), pieces.end());
    for (Piece& piece : wrong) piece.full = piece.keys < piece.queries;
    return WrappedBackend::plan_attention(shape, wrong, pass, rows);
  }
};

class WrongTranspose : public WrappedBackend {
 public:
  void gemm(const GemmShape& shape, const void* a, const void* b, void* c) override {
    GemmShape wrong = shape;
    wrong.transpose_b = false;
    WrappedBackend::gemm(wrong, a, b, c);
  }
};

class DropsAccumulate : public WrappedBackend {
 public:
  void gemm(const GemmShape& shape, const void* a, const void* b, void* c) override {
    GemmShape wrong = shape;
    wrong.accumulate = false;
    WrappedBackend::gemm(wrong, a, b, c);
  }
};

class ShortRows : public WrappedBackend {
 public:
  void run(const RowCall& call) override {
    RowCall wrong = call;
    if (auto* swiglu = std::get_if<Swiglu>(&wrong)) swiglu->shape.rows -= 1;
    if (auto* rope = std::get_if<Rope>(&wrong)) rope->inverse = false;
    WrappedBackend::run(wrong);
  }
};

}  // namespace

TEST_CASE("relative error is a Frobenius norm ratio and never forgives a NaN") {
  // Expected (3, 4) has norm 5; (3, 4.5) is off by 0.5: 0.1.
  const std::vector<double> expected{3, 4};
  CHECK(relative_error(expected, std::vector<float>{3.0F, 4.5F}) == doctest::Approx(0.1));
  CHECK(relative_error(expected, std::vector<float>{3.0F, 4.0F}) == 0.0);
  CHECK(relative_error(expected, std::vector<float>{3.0F}) == std::numeric_limits<double>::infinity());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK_FALSE(CheckResult{"", "", "", relative_error(expected, std::vector<float>{3.0F, nan}), 1e9}.passed());
}

TEST_CASE("the attention checker rejects a wrong mask, a forgotten piece and a leak between documents") {
  TopLeft top_left;
  Forgetful forgetful;
  Leaky leaky;
  for (Backend* backend :
       {static_cast<Backend*>(&top_left), static_cast<Backend*>(&forgetful), static_cast<Backend*>(&leaky)}) {
    const auto results = check_attention(*backend, 7);
    CHECK(fails(results, "attention_forward"));
    CHECK(fails(results, "attention_backward"));
  }
}

TEST_CASE(
    "the ring checker rejects gradients of a part's own softmax, the attention checker a mask too many") {
  OwnSoftmax own;
  const auto results = check_ring_attention(own, 7);
  CHECK_FALSE(fails(results, "ring_attention_forward"));
  CHECK(fails(results, "ring_attention_backward"));
  AlwaysCausal causal;
  CHECK(fails(check_attention(causal, 7), "attention_forward"));
  CHECK(fails(check_attention(causal, 7), "attention_backward"));
}

TEST_CASE(
    "the GEMM and row checkers reject wrong transposition, lost accumulation, missing rows, wrong sign") {
  WrongTranspose transpose;
  DropsAccumulate accumulate;
  ShortRows rows;
  CHECK(fails(check_gemm(transpose, 7), "gemm"));
  CHECK(fails(check_gemm(accumulate, 7), "gemm"));
  const auto results = check_rows(rows, 7);
  CHECK(fails(results, "swiglu"));
  CHECK_FALSE(fails(results, "rope"));
  CHECK(fails(results, "rope_backward"));
}
