// GEMMs and attention calls of a torch.profiler trace (export_chrome_trace, record_shapes=True), as samples.
//
// A host op with its shapes ("cat": "cpu_op", "Input Dims") and the GPU's kernels that it launched carry one
// "External id" (a kernel without one has the "correlation" of the runtime call that has it). The kernels'
// times add up to the op's. Many calls of one shape are one sample, their median. Read are
//   aten::mm, addmm, bmm, baddbmm, _scaled_mm (FP8)        [m, k] x [k, n], batches as groups of one launch
//   scaled_dot_product_attention's flash and cuDNN kernels and flash_attn's own ops, forward and backward,
//   dense
// A call over packed documents (cu_seqlens) has lengths that no trace records: it is counted, not read. So is
// what has no kernel, no shapes, an operand type that the simulator has no table of, or a mask tensor.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "profiler/fit/foreign_files.h"
#include "profiler/fit/samples.h"

namespace equipoise {

// A complete event (phase "X": others have no length) with what of it the file has, in microseconds.
struct TorchEvent {
  std::string_view name, category;
  std::optional<double> begin, length;
  const nlohmann::json* arguments = nullptr;
  [[nodiscard]] bool kernel() const { return category == "kernel" || category == "Kernel"; }
};
std::optional<TorchEvent> torch_event(const nlohmann::json& node);

// The list of a trace's events, complete or not. Throws UserError where the file has none.
const nlohmann::json& torch_events(const nlohmann::json& file, const std::string& name);

bool looks_like_torch_trace(const nlohmann::json& file);

// Labels: dtype (bf16, fp16, fp8), kernel (of attention), gpu, source = `name`. Throws UserError where the
// file is no trace or has nothing that can be used, with what it lacks.
ForeignFile add_torch_trace(const nlohmann::json& file, const std::string& name, SampleSet& set);

}  // namespace equipoise
