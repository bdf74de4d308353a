// Traces of torch.profiler, and the kinds into which both a profiler's kernel names and the simulator's ops
// are sorted.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "sim/validation/measured_log.h"
#include "sim/workload/ops.h"

namespace equipoise {

// A torch.profiler trace, decompressed; `name` is the file's, for errors.
MeasuredLog read_torch_steps(std::string_view text, const std::string& name);

// attention, gemm, all_gather, reduce_scatter, all_reduce, send_recv, elementwise.
std::span<const std::string_view> log_kinds();

// The kind of a CUDA kernel by its name: flash, fmha and sdpa kernels are attention, gemm, cutlass, nvjet and
// cublas ones GEMMs, NCCL's its collectives; everything else is elementwise.
std::string_view kind_of_kernel(std::string_view name);

// The kind of a simulated op; empty for what is no kernel (host stalls). `all_reduces`: gradients are
// all-reduced (ZeRO-0), not reduce-scattered.
std::string_view kind_of_op(OpName op, bool all_reduces);

}  // namespace equipoise
