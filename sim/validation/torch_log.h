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

// The kind of a GPU kernel by its name, of NVIDIA's, AMD's and the usual libraries: flash, fmha and sdpa
// kernels are attention; gemm, cutlass, nvjet, cublas and Tensile's Cijk_ ones GEMMs; those of NCCL, RCCL,
// symmetric memory and Transformer Engine's userbuffers their collectives; what adds, copies, sorts or
// reduces is elementwise. Empty where the name says none of these. `collective`: what the trace calls a
// collective's kernel, which counts where its name says nothing (RCCL's ncclDevKernel_Generic).
std::string_view kind_of_kernel(std::string_view name, std::string_view collective = {});

// The kind of a simulated op; empty for what is no kernel (host stalls). `all_reduces`: gradients are
// all-reduced (ZeRO-0), not reduce-scattered.
std::string_view kind_of_op(OpName op, bool all_reduces);

}  // namespace equipoise
