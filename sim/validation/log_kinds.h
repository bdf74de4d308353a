// Kinds of ops that both a profiler's kernel names and the simulator's ops can be sorted into.
#pragma once

#include <span>
#include <string_view>

#include "sim/workload/ops.h"

namespace equipoise {

// attention, gemm, all_gather, reduce_scatter, all_reduce, send_recv, elementwise.
std::span<const std::string_view> log_kinds();

// Of a CUDA kernel by its name: flash, fmha and sdpa kernels are attention, gemm, cutlass, nvjet and cublas
// ones GEMMs, NCCL's its collectives; everything else is elementwise.
std::string_view kind_of_kernel(std::string_view name);

// Of a simulated op; empty for what is no kernel (host stalls). `all_reduces`: gradients are all-reduced
// (ZeRO-0), not reduce-scattered.
std::string_view kind_of_op(OpName op, bool all_reduces);

}  // namespace equipoise
