// The portable program holds several copies of its CPU kernels; those that this machine can run must agree.
#include <doctest/doctest.h>

#include "kernels/checks.h"
#include "kernels/cpu/isa.h"
#include "kernels/random_inputs.h"

using namespace equipoise;
using namespace equipoise::kernels;
using reference::Values;

namespace {

Values doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

struct Aligned {  // workspaces are aligned to cache lines
  Aligned(Backend& backend, std::size_t floats) : buffer(backend, floats * sizeof(float)) {}
  Buffer buffer;
};

}  // namespace

TEST_CASE("every instruction set's attention equals the reference") {
  const auto backend = make_cpu_backend();
  const AttentionShape shape{64, 4, 2};
  const std::vector<Piece> pieces{{0, 70, 0, 70}, {70, 20, 70, 200}, {90, 13, 5, 81, true}};
  SplitMix64 random(21);
  const auto q = random_values(103 * 4 * 64, 4.0F, random);
  const auto k = random_values(270 * 2 * 64, 1.0F, random);
  const auto v = random_values(270 * 2 * 64, 1.0F, random);
  const auto dout = random_values(103 * 4 * 64, 1.0F, random);
  const auto expected = reference::attention(shape, pieces, doubles(q), doubles(k), doubles(v));
  const auto gradient =
      reference::attention_gradient(shape, pieces, doubles(q), doubles(k), doubles(v), doubles(dout));
  const CpuKernelChoices choices = cpu_kernel_choices();
  REQUIRE(choices.count >= 1);
  for (int i = 0; i < choices.count; ++i) {
    const CpuKernels& kernels = *choices.tables[i];
    CAPTURE(kernels.isa);
    const Aligned workspace(*backend, kernels.attention_workspace(shape, 70, 200));
    std::vector<float> out(q.size(), 0.0F), log_sum(103 * 4), dq(q.size()), dk(k.size()), dv(v.size());
    const AttentionInputs in{shape, q.data(), k.data(), v.data()};
    for (const Piece& piece : pieces) {
      kernels.attention_forward(in, piece, workspace.buffer.floats(), out.data(), log_sum.data());
    }
    for (const Piece& piece : pieces) {
      kernels.attention_backward({in, out.data(), log_sum.data(), dout.data()}, piece,
                                 workspace.buffer.floats(), dq.data(), dk.data(), dv.data());
    }
    CHECK(relative_error(expected.out, out) < 1e-5);
    CHECK(relative_error(expected.log_sum, log_sum) < 1e-5);
    CHECK(relative_error(gradient.query, dq) < 1e-5);
    CHECK(relative_error(gradient.key, dk) < 1e-5);
    CHECK(relative_error(gradient.value, dv) < 1e-5);
  }
}

TEST_CASE("every instruction set's GEMM and row ops equal the reference") {
  const CpuKernelChoices choices = cpu_kernel_choices();
  for (int i = 0; i < choices.count; ++i) {
    const CpuKernels& kernels = *choices.tables[i];
    CAPTURE(kernels.isa);
    SplitMix64 random(22);
    for (int form = 0; form < 8; ++form) {
      const GemmShape shape{67, 130, 300, (form & 1) != 0, (form & 2) != 0, (form & 4) != 0};
      const auto a = random_values(shape.m * shape.k, 1.0F, random);
      const auto b = random_values(shape.k * shape.n, 1.0F, random);
      auto c = random_values(shape.m * shape.n, 1.0F, random);
      const Values expected = reference::gemm(shape, doubles(a), doubles(b), doubles(c));
      kernels.gemm(shape, a.data(), b.data(), c.data());
      CHECK(relative_error(expected, c) < 1e-5);
    }
    const Rows ragged[] = {{9, 77}};  // no multiple of any vector length
    for (const CheckResult& result : check_row_shapes(*make_cpu_backend(kernels), 22, ragged)) {
      CAPTURE(result.op);
      CAPTURE(result.tensor);
      CHECK(result.error <= result.limit);
    }
  }
}
