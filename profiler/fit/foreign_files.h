// Measurements that other tools wrote: what a file gave, and what of it could not be used.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "profiler/fit/samples.h"

namespace equipoise {

struct ForeignFile {
  std::string tool;                             // "nccl-tests", "torch.profiler"
  std::string what;                             // of what: "all_reduce over 16 GPUs on 2 nodes"
  std::string gpu;                              // as the tool names it; empty where it does not
  std::size_t used = 0;                         // samples
  std::map<std::string, std::size_t> left_out;  // rows or calls, by the reason

  void leave_out(const std::string& reason, std::size_t count = 1) { left_out[reason] += count; }
};

// One line for the user: "nccl-tests: 12 samples of all_reduce ...; left out: 1 of size 0".
inline std::string shown(const ForeignFile& file) {
  std::string text = file.tool + ": " + std::to_string(file.used) + " samples";
  if (!file.what.empty()) text += " of " + file.what;
  if (!file.gpu.empty()) text += ", " + file.gpu;
  std::string separator = "; left out: ";
  for (const auto& [reason, count] : file.left_out) {
    text += separator + std::to_string(count) + " " + reason;
    separator = ", ";
  }
  return text;
}

// --- nccl-tests.
//
// What it prints (all_reduce_perf and its kin), as samples of collectives.
//
// Ranks, nodes and the GPU follow from the lines "# Rank 0 Group 0 Pid 7 on host device 0 [0x10] NVIDIA
// H100"; the columns from the header line, which old versions write without `root` and with `error` for
// `#wrong`. Which collective ran stands in new versions' "# Collective test starting: all_reduce_perf", else
// in a line or a file name that has the program's name, else in the rows: busbw / algbw is the collective's
// bus factor, sums have a redop, and alltoall's in-place results are not checked. Where two are possible the
// file is refused and asks for its name.
//
// Times are those out of place (in place where only they are there). Sizes are nccl-tests' own: the buffer of
// an all_reduce, the total over ranks of all_gather, reduce_scatter and alltoall. sendrecv's ring of ranks is
// a pair of neighbours, of two nodes where there are several. Several runs may follow each other in one file.
// Prefixes of mpirun (--tag-output) and srun (-l) are skipped.

bool looks_like_nccl_tests(std::string_view text);
bool looks_like_nccl_tests(const nlohmann::json& file);  // as -J writes it

// Labels of the samples: op, gpu, inter_node_network = `network`, software, source = `name`. Throws UserError
// with file and line.
ForeignFile add_nccl_tests(std::string_view text, const std::string& name, const std::string& network,
                           SampleSet& set);
ForeignFile add_nccl_tests(const nlohmann::json& file, const std::string& name, const std::string& network,
                           SampleSet& set);

// --- torch.profiler.

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

bool looks_like_torch_trace(const nlohmann::json& file);

// Labels: dtype (bf16, fp16, fp8), kernel (of attention), gpu, source = `name`. Throws UserError where the
// file is no trace or has nothing that can be used, with what it lacks.
ForeignFile add_torch_trace(const nlohmann::json& file, const std::string& name, SampleSet& set);

}  // namespace equipoise
