#include "sim/validation/torch_log.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
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

// An event with a begin and a length, in microseconds.
struct Event {
  std::string_view name, category;
  double begin = 0, length = 0;
  [[nodiscard]] double end() const { return begin + length; }
};

// Where a step lies on the host and, if the trace has it, on the GPU, which runs behind.
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
      const Event event{found->name, found->category, *found->begin, *found->length};
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
    // On the GPU each stream has its own span; the step lasts from the first begin to the last end.
    if (side) {
      const double end = std::max(side->end(), event.end());
      side->begin = std::min(side->begin, event.begin);
      side->length = end - side->begin;
    } else {
      side = event;
    }
  }

  // The step that a kernel begins in; spans may overlap on the GPU, where the first one counts.
  [[nodiscard]] std::optional<std::int64_t> step_at(double begin) const {
    for (const auto& [number, span] : steps_)
      if (begin >= span.kernels().begin && begin < span.kernels().end()) return number;
    return std::nullopt;
  }

  void add_kernels(MeasuredLog& log) const {
    std::map<std::pair<std::int64_t, std::string_view>, double> sums;
    std::size_t outside = 0;
    for (const Event& kernel : kernels_)
      if (const std::optional<std::int64_t> step = step_at(kernel.begin))
        sums[{*step, kind_of_kernel(kernel.name)}] += kernel.length * kMicroseconds;
      else
        ++outside;
    for (const auto& [key, seconds] : sums)
      if (seconds > 0) log.ops.push_back({"", key.first, std::string(key.second), seconds});
    if (outside > 0) log.notes.push_back({"kernels_outside", printable(name_), {{"kernels", outside}}});
    if (kernels_.empty()) log.notes.push_back({"no_gpu_kernels", printable(name_), {}});
  }

  const std::string& name_;
  std::map<std::int64_t, StepSpan> steps_;
  std::vector<Event> kernels_;
};

constexpr std::array<std::string_view, 7> kKinds = {"attention",  "gemm",      "all_gather", "reduce_scatter",
                                                    "all_reduce", "send_recv", "elementwise"};

struct Rule {
  std::string_view part;  // of the name in lower case
  std::string_view kind;
};
// The first rule that fits counts. An all-to-all is grouped sends to NCCL: SendRecv, unless it comes from
// elsewhere.
constexpr Rule kNccl[] = {{"allgather", "all_gather"}, {"reducescatter", "reduce_scatter"},
                          {"allreduce", "all_reduce"}, {"alltoall", "send_recv"},
                          {"sendrecv", "send_recv"},   {"broadcast", "all_gather"}};
constexpr Rule kKernels[] = {{"flash", "attention"},     {"fmha", "attention"}, {"sdpa", "attention"},
                             {"attention", "attention"}, {"gemm", "gemm"},      {"cutlass", "gemm"},
                             {"nvjet", "gemm"},          {"cublas", "gemm"},    {"xmma", "gemm"}};

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

template <class Rules>
std::string_view kind_by(const Rules& rules, const std::string& name) {
  for (const Rule& rule : rules)
    if (name.find(rule.part) != std::string::npos) return rule.kind;
  return "elementwise";
}

}  // namespace

MeasuredLog read_torch_steps(std::string_view text, const std::string& name) {
  const json file = parse_json(text, name);
  return TraceReader(torch_events(file, name), name).log();
}

std::span<const std::string_view> log_kinds() {
  return kKinds;
}

std::string_view kind_of_kernel(std::string_view name) {
  const std::string known = lower(name);
  return known.find("nccl") != std::string::npos ? kind_by(kNccl, known) : kind_by(kKernels, known);
}

std::string_view kind_of_op(OpName op, bool all_reduces) {
  switch (op) {
    case OpName::attention:
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
    case OpName::residual:
    case OpName::activation:
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
