#include "sim/workload/ops.h"

#include <cstdlib>

#include "policies/base/index.h"

namespace equipoise {

const char* name_of(OpName op) {
  switch (op) {
    case OpName::rms_norm:
      return "rms_norm";
    case OpName::tp_all_gather:
      return "tp_all_gather";
    case OpName::tp_reduce_scatter:
      return "tp_reduce_scatter";
    case OpName::qkv_gemm:
      return "qkv_gemm";
    case OpName::rope:
      return "rope";
    case OpName::cp_all_gather:
      return "cp_all_gather";
    case OpName::cp_reduce_scatter:
      return "cp_reduce_scatter";
    case OpName::cp_ring_step:
      return "cp_ring_step";
    case OpName::cp_all_to_all:
      return "cp_all_to_all";
    case OpName::attention:
      return "attention";
    case OpName::out_gemm:
      return "out_gemm";
    case OpName::residual:
      return "residual";
    case OpName::gate_up_gemm:
      return "gate_up_gemm";
    case OpName::activation:
      return "activation";
    case OpName::down_gemm:
      return "down_gemm";
    case OpName::router:
      return "router";
    case OpName::quantize:
      return "quantize";
    case OpName::permute:
      return "permute";
    case OpName::ep_all_to_all:
      return "ep_all_to_all";
    case OpName::taken_sms:
      return "taken_sms";
    case OpName::routing:
      return "routing";
    case OpName::expert_gemm:
      return "expert_gemm";
    case OpName::mla_projection:
      return "mla_projection";
    case OpName::input_gradient:
      return "input_gradient";
    case OpName::weight_gradient:
      return "weight_gradient";
    case OpName::host_stall:
      return "host_stall";
    case OpName::embedding:
      return "embedding";
    case OpName::logits_gemm:
      return "logits_gemm";
    case OpName::cross_entropy:
      return "cross_entropy";
    case OpName::pp_send:
      return "pp_send";
    case OpName::dp_reduce:
      return "dp_reduce";
    case OpName::dp_all_gather:
      return "dp_all_gather";
    case OpName::optimizer:
      return "optimizer";
  }
  std::abort();
}

const char* name_of(Stream stream) {
  switch (stream) {
    case Stream::compute:
      return "compute";
    case Stream::tp:
      return "tp";
    case Stream::cp:
      return "cp";
    case Stream::ep:
      return "ep";
    case Stream::pp:
      return "pp";
    case Stream::dp:
      return "dp";
  }
  std::abort();
}

RunTime run_time(std::span<const Op> ops) {
  RunTime sum;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    const auto stream = static_cast<std::size_t>(op.stream);
    sum.busy[stream] += op.duration;
    if (op.over > 0) {
      RunTime slot = run_time(ops.subspan(i + 1, op.over));
      slot.exposed[stream] += std::max<Picoseconds>(0, op.duration - slot.total);
      slot.total = std::max(slot.total, op.duration);
      sum += slot;
      i += op.over;
      continue;
    }
    if (!op.with_next) {
      sum.total += op.duration;
      if (op.stream != Stream::compute) sum.exposed[stream] += op.duration;
      continue;
    }
    const Op& other = ops[++i];
    sum.busy[at(other.stream)] += other.duration;
    sum.total += std::max(op.duration, other.duration);
    sum.exposed[stream] += std::max<Picoseconds>(0, op.duration - other.duration);
  }
  return sum;
}

}  // namespace equipoise
