// Reads GEMMs and attention calls of a torch.profiler trace (export_chrome_trace, record_shapes=True) as
// samples.
//
// A host op with its shapes ("cat": "cpu_op", "Input Dims") and the GPU kernels that it launched carry one
// "External id"; a kernel without one has the "correlation" of the runtime call that has it. The kernels'
// times add up to the op's. Calls of equal shape become one sample, their median. The reader knows
//   aten::mm, addmm, bmm, baddbmm, _scaled_mm (FP8)        [m, k] x [k, n], batches as groups of one launch
//   the dense flash and cuDNN kernels of scaled_dot_product_attention, and the ops of flash_attn, in both
//   passes
// It skips and counts calls over packed documents (cu_seqlens), whose lengths no trace records, and calls
// without a kernel or shapes, with an operand type that no table covers, or with a mask tensor. Ops that it
// does not know (Transformer Engine's, compiled ones) are named with their kernels' time.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "profiler/fit/foreign_file.h"
#include "profiler/fit/samples.h"

namespace equipoise {

// A complete event (phase "X"; events of other phases have no length). Times are in microseconds.
struct TorchEvent {
  std::string_view name, category;
  std::optional<double> begin, length;
  const nlohmann::json* arguments = nullptr;
  [[nodiscard]] bool kernel() const { return category == "kernel" || category == "Kernel"; }
};
std::optional<TorchEvent> torch_event(const nlohmann::json& node);

// The list of a trace's events, complete or not. Throws UserError where the file has none.
const nlohmann::json& torch_events(const nlohmann::json& file, const std::string& name);

// The GPU that a trace was taken on; empty if the trace does not say.
std::string torch_gpu(const nlohmann::json& file);

// How many ranks its job had; nothing if the trace does not say.
std::optional<std::int64_t> torch_world_size(const nlohmann::json& file);

bool looks_like_torch_trace(const nlohmann::json& file);

// The samples get the labels dtype (bf16, fp16, fp8), kernel (for attention), gpu, and source = `name`.
// Throws UserError, which says what is missing, if the file is no trace or has nothing usable.
ForeignFile add_torch_trace(const nlohmann::json& file, const std::string& name, SampleSet& set);

}  // namespace equipoise
