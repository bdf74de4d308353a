// The price of what LoRA's adapters add to linear layers.
//
// The adapter of a frozen layer y = W x adds y += B (A x): two thin products in the forward, four in the
// backward, and the kernels that scale its output and add it, all in bf16. With tensor parallelism it is cut
// as Megatron Bridge's ParallelLinearAdapter:
// - for a column-parallel layer A's rows are shared out, so that A x is gathered, and B's rows are the
//   layer's. Its input is the layer's, gathered and kept whole, so that no backward gathers it again.
// - for a row-parallel layer A's columns are the layer's, so that A x is summed up, and B's rows are
//   shared out. Its output is gathered over them before a rank takes its tokens, and the same happens to its
//   gradient.
// The gradient of A x is summed up over the ranks either way.
#pragma once

#include <cstdint>

#include "sim/cost/kernel_costs.h"

namespace equipoise {

// A linear layer of this rank with an adapter: `experts` products of rows x out x in for `tokens` in all, cut
// over the `ranks` of `group` by its columns or its rows.
struct AdaptedLayer {
  std::int64_t tokens = 0, rows = 0, out = 0, in = 0;
  std::int64_t experts = 1;
  bool column = true;
  int ranks = 1;
  GroupShape group{};
  bool routed = false;  // an expert's output is summed up with its layer's
  [[nodiscard]] bool gathers_output() const { return ranks > 1 && !column && !routed; }
};

struct AdapterCosts {
  const CostBasis& basis;
  const KernelCosts& kernels;

  [[nodiscard]] bool adapts(OpName forward) const;
  // A dense layer whose product is m x n x k.
  [[nodiscard]] AdaptedLayer of_dense(std::int64_t m, std::int64_t n, std::int64_t k, bool column) const;
  void push(const AdaptedLayer& layer, OpName name, OpList& ops, RangeUse& use) const;
  void push_gradients(const AdaptedLayer& layer, OpList& ops, RangeUse& use) const;
  // Adds the adapter's ops after the layer's own product, if the layer has an adapter.
  void push_of(const Op& product, std::int64_t m, std::int64_t n, std::int64_t k, bool column, OpList& ops,
               RangeUse& use) const;

 private:
  [[nodiscard]] Op thin_product(OpName name, const AdaptedLayer& layer, std::int64_t m, std::int64_t n,
                                std::int64_t k, RangeUse& use) const;
  [[nodiscard]] Op thin_exchange(const AdaptedLayer& layer, Collective kind, std::int64_t width,
                                 RangeUse& use) const;
};

}  // namespace equipoise
