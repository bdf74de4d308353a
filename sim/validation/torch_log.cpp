#include "sim/validation/torch_log.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "profiler/fit/torch_trace.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr std::string_view kStep = "ProfilerStep#";
constexpr double kMicroseconds = 1e-6;

// An event with its beginning and length, in microseconds.
struct Event {
  std::string_view name, category;
  double begin = 0, length = 0;
  std::string_view collective = {};  // of a kernel, as its process group named it
  [[nodiscard]] double end() const { return begin + length; }
};

std::string_view collective_of(const TorchEvent& event) {
  if (event.arguments == nullptr) return {};
  const auto name = event.arguments->find("Collective name");
  if (name == event.arguments->end() || !name->is_string()) return {};
  return name->get_ref<const std::string&>();
}

// A step's span on the host and, if the trace has it, on the GPU, which runs behind.
struct StepSpan {
  std::optional<Event> host, gpu;
  [[nodiscard]] const Event& kernels() const { return gpu ? *gpu : *host; }
  [[nodiscard]] const Event& time() const { return host ? *host : *gpu; }
};

class TraceReader {
 public:
  TraceReader(const json& events, const std::string& name) : name_(name) {
    for (std::size_t i = 0; i < events.size(); ++i) {
      const std::optional<TorchEvent> found = torch_event(events[i]);
      if (!found) continue;
      if (!found->begin || !found->length || !(*found->length >= 0))
        throw UserError(name, ": traceEvents[", i, "]: expected ts and dur as numbers, dur >= 0, found ",
                        shown_json(events[i]));
      const Event event{found->name, found->category, *found->begin, *found->length, collective_of(*found)};
      if (event.name.starts_with(kStep))
        add_step(event);
      else if (found->kernel())
        kernels_.push_back(event);
    }
  }

  MeasuredLog log() const {
    if (steps_.empty())
      throw UserError(
          name_, ": expected ProfilerStep#N events (torch.profiler with a schedule and step()), found none");
    MeasuredLog log;
    log.form = "torch.profiler trace";
    for (const auto& [number, span] : steps_) {
      const double seconds = span.time().length * kMicroseconds;
      if (!is_step_time(seconds))
        throw UserError(name_, ": ", kStep, number, ": expected dur > 0, found ",
                        std::to_string(span.time().length));
      log.steps.push_back({"", number, 1, seconds, 0});
    }
    add_kernels(log);
    return log;
  }

 private:
  void add_step(const Event& event) {
    const std::string_view digits = event.name.substr(kStep.size());
    std::int64_t number = -1;
    const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc() || rest != digits.data() + digits.size() || number < 0) return;
    StepSpan& span = steps_[number];
    std::optional<Event>& side = event.category == "gpu_user_annotation" ? span.gpu : span.host;
    if (side && event.category != "gpu_user_annotation")
      throw UserError(name_, ": expected the trace of one rank, found ", kStep, number, " twice");
    // Each stream of a GPU has a span of its own; the step lasts from the first beginning to the last end.
    if (side) {
      const double end = std::max(side->end(), event.end());
      side->begin = std::min(side->begin, event.begin);
      side->length = end - side->begin;
    } else {
      side = event;
    }
  }

  // The step in which a kernel begins. Spans on the GPU may overlap; then the first counts.
  [[nodiscard]] std::optional<std::int64_t> step_at(double begin) const {
    for (const auto& [number, span] : steps_)
      if (begin >= span.kernels().begin && begin < span.kernels().end()) return number;
    return std::nullopt;
  }

  void add_kernels(MeasuredLog& log) const {
    std::map<std::pair<std::int64_t, std::string_view>, double> sums;
    std::map<std::string_view, double> unknown;  // seconds by name
    std::size_t outside = 0;
    double all = 0;
    for (const Event& kernel : kernels_) {
      const std::optional<std::int64_t> step = step_at(kernel.begin);
      if (!step) {
        ++outside;
        continue;
      }
      const double seconds = kernel.length * kMicroseconds;
      const std::string_view kind = kind_of_kernel(kernel.name, kernel.collective);
      all += seconds;
      if (kind.empty())
        unknown[kernel.name] += seconds;
      else
        sums[{*step, kind}] += seconds;
    }
    for (const auto& [key, seconds] : sums)
      if (seconds > 0) log.ops.push_back({"", key.first, std::string(key.second), seconds});
    if (outside > 0) log.notes.push_back({"kernels_outside", printable(name_), {{"kernels", outside}}});
    if (kernels_.empty()) log.notes.push_back({"no_gpu_kernels", printable(name_), {}});
    add_unknown(unknown, all, log.notes);
  }

  // Notes the longest kernels whose names show no kind.
  void add_unknown(const std::map<std::string_view, double>& unknown, double all, Notes& notes) const {
    constexpr std::size_t kListed = 5;
    std::vector<std::pair<double, std::string_view>> longest;
    double sum = 0;
    for (const auto& [kernel, seconds] : unknown) {
      longest.emplace_back(seconds, kernel);
      sum += seconds;
    }
    if (!(sum > 0)) return;
    std::ranges::stable_sort(longest, std::greater<>(), &std::pair<double, std::string_view>::first);
    Notes parts;
    for (const auto& [seconds, kernel] : std::span(longest).first(std::min(kListed, longest.size())))
      parts.push_back({"trace_kernel",
                       "",
                       {{"name", printable(kernel.substr(0, utf8_prefix(kernel.substr(0, 80))))},
                        {"share", seconds / all}}});
    notes.push_back({"trace_unknown",
                     printable(name_),
                     {{"share", sum / all}, {"names", unknown.size()}, {"longest", std::move(parts)}}});
  }

  const std::string& name_;
  std::map<std::int64_t, StepSpan> steps_;
  std::vector<Event> kernels_;
};

constexpr std::array<std::string_view, 7> kKinds = {"attention",  "gemm",      "all_gather", "reduce_scatter",
                                                    "all_reduce", "send_recv", "elementwise"};

struct Rule {
  std::string_view part;  // part of the name in lower case
  std::string_view kind;
};
// The first matching rule decides. An all-to-all consists of grouped sends in NCCL (SendRecv), unless it
// comes from another library.
constexpr Rule kCollectives[] = {{"allgather", "all_gather"},
                                 {"reducescatter", "reduce_scatter"},
                                 {"allreduce", "all_reduce"},
                                 {"crossdevicereduce", "all_reduce"},
                                 {"quickreduce", "all_reduce"},
                                 {"alltoall", "send_recv"},
                                 {"sendrecv", "send_recv"},
                                 {"broadcast", "all_gather"},
                                 // Transformer Engine's userbuffers, by unicast (rr) or multicast (mc)
                                 {"rrag", "all_gather"},
                                 {"mcag", "all_gather"},
                                 {"rrrs", "reduce_scatter"},
                                 {"mcrs", "reduce_scatter"},
                                 {"gpurr", "all_reduce"},
                                 {"gpumc", "all_reduce"},
                                 {"push", "send_recv"},
                                 {"pull", "send_recv"},
                                 // DeepEP and MoE libraries
                                 {"dispatch", "send_recv"},
                                 {"combine", "send_recv"},
                                 {"put", "send_recv"},
                                 {"send", "send_recv"},
                                 {"recv", "send_recv"},
                                 {"reduce", "all_reduce"}};
// Libraries whose kernels are collectives.
constexpr std::string_view kCollectiveLibraries[] = {
    "nccl",        "rccl",      "multimem",     "symm_mem",     "userbuffers",     "deep_ep",
    "nvshmem",     "oneshot",   "one_shot_all", "two_shot_all", "twoshot",         "cross_device_reduce",
    "quickreduce", "allreduce", "all_reduce_",  "msccl",        "all_gather_into", "rocshmem",
    "hybrid_ep"};
constexpr Rule kKernels[] = {{"flash", "attention"},
                             {"fmha", "attention"},
                             {"sdpa", "attention"},
                             {"attention", "attention"},
                             {"attn", "attention"},
                             {"mha_", "attention"},
                             // linear recurrences, which are in the place of attention: FLA, mamba_ssm
                             {"chunk_cat", "elementwise"},  // FSDP's copy before a reduction
                             {"chunk_", "attention"},
                             {"delta_rule", "attention"},
                             {"recompute_w_u", "attention"},
                             {"wy_repr", "attention"},
                             {"solve_tril", "attention"},
                             {"_inverse_kernel", "attention"},
                             {"state_passing", "attention"},
                             {"selective_scan", "attention"},
                             {"fused_recurrent", "attention"},
                             {"gemm", "gemm"},
                             {"cutlass", "gemm"},
                             {"nvjet", "gemm"},
                             {"cublas", "gemm"},
                             {"xmma", "gemm"},
                             {"gemv", "gemm"},
                             {"splitkreduce", "gemm"},
                             // AMD: Tensile (rocBLAS, hipBLASLt), composable kernels, AITER
                             {"cijk_", "gemm"},
                             {"flatmm", "gemm"},
                             {"wvsplitk", "gemm"},
                             {"hipblas", "gemm"},
                             {"streamk", "gemm"},
                             // experts, and products that a compiler makes
                             {"fused_moe", "gemm"},
                             {"fmoe", "gemm"},
                             {"grouped_mm", "gemm"},
                             {"matmul", "gemm"},
                             {"triton_tem_", "gemm"},
                             {"scaled_mm", "gemm"}};
constexpr std::string_view kElementwise[] = {
    "elementwise", "vectorized", "reduce",       "norm",       "copy",    "catarray",      "softmax",
    "triton_",     "adam",       "multi_tensor", "foreach",    "rope",    "rotary",        "index",
    "scatter",     "gather",     "embedding",    "fill",       "memset",  "memcpy",        "transpose",
    "permute",     "cast",       "quant",        "sort",       "scan",    "topk",          "silu",
    "gelu",        "swiglu",     "act_and_mul",  "activation", "dropout", "cross_entropy", "nll_loss",
    "loss",        "bias",       "add",          "mul",        "arange",  "distribution",  "random",
    "where",       "mask",       "pad",          "histogram",  "cub::",   "thrust",        "conv1d",
    "optimizer",   "sgd",        "amax",         "unpermute",  "router",  "sum",           "compute_"};

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

bool has_any(std::span<const std::string_view> parts, const std::string& name) {
  return std::ranges::any_of(parts,
                             [&](std::string_view part) { return name.find(part) != std::string::npos; });
}

template <class Rules>
std::string_view kind_by(const Rules& rules, const std::string& name) {
  for (const Rule& rule : rules)
    if (name.find(rule.part) != std::string::npos) return rule.kind;
  return {};
}

// Process groups and kernels write all_gather, AllGather and _allgather_base.
std::string_view kind_of_collective(std::string name) {
  std::erase(name, '_');
  return kind_by(kCollectives, name);
}

}  // namespace

MeasuredLog read_torch_steps(std::string_view text, const std::string& name) {
  const json file = parse_python_json(text, name);
  MeasuredLog log = TraceReader(torch_events(file, name), name).log();
  log.run.gpu = printable(torch_gpu(file));
  log.run.gpus = torch_world_size(file);
  return log;
}

std::span<const std::string_view> log_kinds() {
  return kKinds;
}

std::string_view kind_of_kernel(std::string_view name, std::string_view collective) {
  const std::string known = lower(name);
  // Inductor names a fused kernel after the ops next to it, with its own kind in front.
  for (const std::string_view fused : {"triton_poi_", "triton_red_", "triton_per_"})
    if (known.starts_with(fused)) return "elementwise";
  if (has_any(kCollectiveLibraries, known)) {
    const std::string_view kind = kind_of_collective(known);
    return kind.empty() ? kind_of_collective(lower(collective)) : kind;
  }
  if (const std::string_view kind = kind_by(kKernels, known); !kind.empty()) return kind;
  return has_any(kElementwise, known) ? "elementwise" : "";
}

std::string_view kind_of_op(OpName op, bool all_reduces) {
  switch (op) {
    case OpName::attention:
    case OpName::recurrence:  // in the place of attention
      return "attention";
    case OpName::qkv_gemm:
    case OpName::out_gemm:
    case OpName::gate_up_gemm:
    case OpName::down_gemm:
    case OpName::expert_gemm:
    case OpName::router:
    case OpName::mla_projection:
    case OpName::mtp_projection:
    case OpName::input_gradient:
    case OpName::weight_gradient:
    case OpName::logits_gemm:
      return "gemm";
    case OpName::tp_all_gather:
    case OpName::cp_all_gather:
    case OpName::dp_all_gather:
      return "all_gather";
    case OpName::tp_reduce_scatter:
    case OpName::cp_reduce_scatter:
      return "reduce_scatter";
    case OpName::dp_reduce:
      return all_reduces ? "all_reduce" : "reduce_scatter";
    case OpName::cp_ring_step:
    case OpName::pp_send:
    case OpName::cp_all_to_all:
    case OpName::ep_all_to_all:
      return "send_recv";
    case OpName::host_stall:
    case OpName::nano_batch:
    case OpName::taken_sms:
      return "";
    case OpName::rms_norm:
    case OpName::rope:
    case OpName::convolution:
    case OpName::residual:
    case OpName::activation:
    case OpName::expert_bias:
    case OpName::permute:
    case OpName::routing:
    case OpName::quantize:
    case OpName::embedding:
    case OpName::cross_entropy:
    case OpName::optimizer:
      break;
  }
  return "elementwise";
}

}  // namespace equipoise
