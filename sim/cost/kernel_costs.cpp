#include "sim/cost/kernel_costs.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "policies/base/index.h"

namespace equipoise {

// torch._scaled_mm is cuBLASLt's product with one scale per tensor, if the profile has separate times for it.
static std::string_view scaled_mm_of(const Profile& profile, const Layout& layout,
                                     const FrameworkOptions& framework) {
  const bool scaled = framework.linear_layers != LinearLayers::fused && layout.precision == Precision::fp8;
  return scaled && profile.table("gemm").contains("fp8-static-scale") ? "static-scale" : "";
}

KernelCosts::KernelCosts(const CostBasis& basis, NetworkRates network)
    : basis_(basis),
      gemm_(basis.profile, basis.layout.precision, scaled_mm_of(basis.profile, basis.layout, basis.framework),
            basis.framework.load),
      logits_gemm_(basis.profile, Precision::bf16, {}, basis.framework.load),
      elementwise_(basis.profile, basis.framework.own_kernels),
      collectives_(basis.profile, network) {}

Op KernelCosts::gemm(OpName name, std::int64_t m, std::int64_t n, std::int64_t k, RangeUse& use) const {
  const GemmRole role = name == OpName::input_gradient    ? GemmRole::input_gradient
                        : name == OpName::weight_gradient ? GemmRole::weight_gradient
                                                          : GemmRole::forward;
  Op op = grouped_gemm(name == OpName::logits_gemm ? logits_gemm_ : gemm_, name, role, 1, m, n, k, use);
  if (role == GemmRole::weight_gradient && basis_.framework.gradient_add_bytes > 0 &&
      !basis_.layout.reduces_each_micro_batch()) {
    const Op sum = moves(name, Elementwise::copy,
                         basis_.framework.gradient_add_bytes * as_double(m) * as_double(n), use);
    op.duration += sum.duration;
    op.bytes += sum.bytes;
  }
  return op;
}

Op KernelCosts::grouped_gemm(const GemmModel& model, OpName name, GemmRole role, std::int64_t groups,
                             std::int64_t m, std::int64_t n, std::int64_t k, RangeUse& use,
                             double output_bytes) const {
  Op op{name, Stream::compute};
  op.duration = to_picoseconds(model.seconds(m, n, k, use, role, groups, output_bytes) *
                               basis_.framework.gemm_slowdown);
  op.flops = 2.0 * as_double(groups) * as_double(m) * as_double(n) * as_double(k);
  op.bytes = basis_.element_bytes * as_double(groups) *
             (as_double(m) * as_double(k) + as_double(k) * as_double(n) + as_double(m) * as_double(n));
  return op;
}

Op KernelCosts::moves(OpName name, Elementwise kind, double bytes, RangeUse& use,
                      ElementwisePass pass) const {
  Op op{name, Stream::compute};
  op.duration =
      to_picoseconds(elementwise_.seconds(kind, bytes, use, pass) * basis_.framework.elementwise_slowdown);
  op.bytes = bytes;
  return op;
}

Op KernelCosts::tp_collective(OpName name, std::int64_t tokens, std::int64_t width, RangeUse& use) const {
  return in_order(tp_collective(name, tokens, width, basis_.tp_group, use), use);
}

Op KernelCosts::tp_collective(OpName name, std::int64_t tokens, std::int64_t width, GroupShape group,
                              RangeUse& use) const {
  const Collective kind = name == OpName::tp_all_gather ? Collective::all_gather : Collective::reduce_scatter;
  Op op{name, Stream::tp};
  op.bytes = basis_.element_bytes * as_double(tokens) * as_double(width);
  op.duration = to_picoseconds(collectives_.seconds(kind, op.bytes, group, use));
  return op;
}

Op KernelCosts::in_order(Op collective, RangeUse& use) const {
  if (basis_.torch_layers() && basis_.layout.tensor > 1)
    collective.duration += moves(collective.name, Elementwise::copy, 2 * collective.bytes, use).duration;
  return collective;
}

// While an exchange of time D runs, compute has 1 - q of its rate. Work that takes U alone is then done
// within D if U <= (1 - q) D, and otherwise after U + q D, because the rest runs on all SMs. So the rank goes
// on after max(D, U + q D), as if a kernel of q D ran there, too. With n of N SMs taken q is n / N where
// kernels are launched for the others; kernels of one block for each SM that are not need ceil(N / (N - n))
// waves instead of one.
Picoseconds KernelCosts::lost_under(Picoseconds exchange, int exchange_sms, bool told) const {
  const int sms = basis_.profile.device().sms;
  if (exchange_sms == 0 || sms <= 1) return 0;
  const int taken = std::min(exchange_sms, sms - 1);
  const int waves = (sms + sms - taken - 1) / (sms - taken);
  return told ? exchange * taken / sms : exchange * (waves - 1) / waves;
}

Op KernelCosts::taken_sms(Picoseconds exchange) const {
  Op op{OpName::taken_sms, Stream::ep};
  op.launches = 0;
  op.duration = lost_under(exchange, basis_.framework.exchange_sms, basis_.framework.exchange_sm_margin);
  return op;
}

Op KernelCosts::pipeline_send(std::int64_t tokens, int from_stage, int to_stage, RangeUse& use) const {
  Op op{OpName::pp_send, Stream::pp};
  op.bytes = as_double(tokens) * as_double(basis_.model.hidden) / basis_.layout.tensor * basis_.element_bytes;
  op.duration = to_picoseconds(collectives_.seconds(Collective::send_recv, op.bytes,
                                                    basis_.grid.hop_shape(from_stage, to_stage), use));
  return op;
}

}  // namespace equipoise
