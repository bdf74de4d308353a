// The price of linear layers over tensor parallelism: products, their gradients, and the collectives around
// them.
//
// A frozen layer y = W x still passes gradients on (dx = W^T dy); the product for W's own gradient vanishes,
// and with it the need for x.
//
// PyTorch (LinearLayers::torch): Q, K, V, gate and up are a product each. With tensor parallelism (DTensor)
// the gathered input of a product is kept. framework.tp_overlap means asynchronous TP there, which fuses a
// gather with the products behind it and a reduce-scatter with the one product before it
// (torch/_inductor/fx_passes/micro_pipeline_tp.py): not that of an input's gradient, which is the sum of two
// or three, nor what is not compiled, embedding and head. Each rank's rows are then a product of their own,
// while the next are copied (torch/distributed/_symmetric_memory). Sequences are cut along their second
// dimension, so that what NCCL gathers or scatters is copied into order
// (torch.distributed._functional_collectives). What is gathered over TP is cast before and travels in one
// byte.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "sim/cost/adapter_costs.h"
#include "sim/cost/kernel_costs.h"

namespace equipoise {

struct LinearCosts {
  const CostBasis& basis;
  const KernelCosts& kernels;
  const AdapterCosts& adapters;

  // The product of m rows of k with adjacent weights of these widths, or its gradient by `name`. It is one
  // product, or one per weight if a framework separates them, in one op.
  [[nodiscard]] Op products(OpName name, std::int64_t m, std::initializer_list<std::int64_t> widths,
                            std::int64_t k, RangeUse& use) const;
  // Products under which a TP collective runs, which PyTorch cuts into one per TP rank's rows.
  [[nodiscard]] Op fused_products(OpName name, std::int64_t m, std::initializer_list<std::int64_t> widths,
                                  std::int64_t k, RangeUse& use) const;
  void push_column(OpName name, std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                   RangeUse& use) const;
  void push_gathered(const Op& product, std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                     RangeUse& use) const;
  void push_row(OpName name, std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops,
                RangeUse& use) const;
  void push_replicated(std::int64_t m, std::int64_t n, std::int64_t k, OpList& ops, RangeUse& use) const;
  // The gradients of a product of m x n x k; the second form with both products priced.
  void push_gradients(WeightKind weights, std::int64_t m, std::int64_t n, std::int64_t k, bool column,
                      OpList& ops, RangeUse& use) const;
  void push_gradients(WeightKind weights, Op input, Op weight, std::int64_t m, std::int64_t n, std::int64_t k,
                      bool column, OpList& ops, RangeUse& use) const;
  void push_replicated_gradients(WeightKind weights, std::int64_t m, std::int64_t n, std::int64_t k,
                                 OpList& ops, RangeUse& use) const;

 private:
  // Whether TP's collectives run under the products of a layer, or of the head. PyTorch compiles only layers.
  [[nodiscard]] bool overlaps_tp(bool of_layer) const {
    return basis.framework.tp_overlap_forward && (of_layer || !basis.torch_layers());
  }
  // Puts a collective, which is pushed next, under its product, with what that costs.
  void fuse(Op& collective, const Op& product, OpList& ops, RangeUse& use) const;
  // An all-gather over TP of a linear layer's input: one byte per element if it was cast to FP8 before.
  [[nodiscard]] Op gather_cast(std::int64_t tokens, std::int64_t width, bool is_cast, RangeUse& use) const;
};

}  // namespace equipoise
