#include "sim/validation/log_kinds.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

namespace equipoise {
namespace {

constexpr std::array<std::string_view, 7> kKinds = {"attention",  "gemm",      "all_gather", "reduce_scatter",
                                                    "all_reduce", "send_recv", "elementwise"};

struct Rule {
  std::string_view part;  // of the name in lower case
  std::string_view kind;
};
// The first that fits. An all-to-all is grouped sends to NCCL: SendRecv, unless it comes from elsewhere.
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
