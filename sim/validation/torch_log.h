// Reads traces of torch.profiler, and sorts their kernels and the simulator's ops into the same kinds.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "sim/validation/measured_log.h"
#include "sim/workload/ops.h"

namespace equipoise {

// Reads a decompressed torch.profiler trace; `name` is the file's, for errors.
MeasuredLog read_torch_steps(std::string_view text, const std::string& name);

// attention, gemm, all_gather, reduce_scatter, all_reduce, send_recv, elementwise.
std::span<const std::string_view> log_kinds();

// The kind of a GPU kernel by its name, for NVIDIA's, AMD's and the usual libraries. flash, fmha and sdpa
// kernels are attention; gemm, cutlass, nvjet, cublas and Tensile's Cijk_ are GEMMs. Kernels of NCCL, RCCL,
// symmetric memory and Transformer Engine's userbuffers are their collectives. Kernels that add, copy, sort
// or reduce are elementwise. Empty if the name shows none of these. `collective` is what the trace calls a
// collective's kernel, which decides if its name does not (RCCL's ncclDevKernel_Generic).
std::string_view kind_of_kernel(std::string_view name, std::string_view collective = {});

// The kind of a simulated op; empty if it is no kernel (host stalls). `all_reduces` means that gradients are
// all-reduced (ZeRO-0), not reduce-scattered.
std::string_view kind_of_op(OpName op, bool all_reduces);

}  // namespace equipoise
