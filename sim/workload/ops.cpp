#include "sim/workload/ops.h"

namespace equipoise {
namespace {

// The order is that of the enums.
constexpr std::array<const char*, kOpNames> kOpTexts = {
    "rms_norm",       "tp_all_gather",     "tp_reduce_scatter", "qkv_gemm",        "rope",
    "cp_all_gather",  "cp_reduce_scatter", "cp_ring_step",      "cp_all_to_all",   "attention",
    "convolution",    "recurrence",        "out_gemm",          "residual",        "gate_up_gemm",
    "activation",     "down_gemm",         "expert_bias",       "router",          "routing",
    "permute",        "quantize",          "ep_all_to_all",     "taken_sms",       "expert_gemm",
    "mla_projection", "mtp_projection",    "input_gradient",    "weight_gradient", "host_stall",
    "nano_batch",     "embedding",         "logits_gemm",       "cross_entropy",   "pp_send",
    "dp_reduce",      "dp_all_gather",     "optimizer"};
constexpr std::array<const char*, kStreams> kStreamTexts = {"compute", "tp", "cp", "ep", "pp", "dp"};
static_assert(kOpTexts.back() != nullptr && kStreamTexts.back() != nullptr, "every op and stream has a name");

}  // namespace

const char* name_of(OpName op) {
  return kOpTexts[at(op)];
}
const char* name_of(Stream stream) {
  return kStreamTexts[at(stream)];
}

RunTime run_time(std::span<const Op> ops) {
  RunTime sum;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    const std::size_t stream = at(op.stream);
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
