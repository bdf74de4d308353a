#include "sim/cost/expert_costs.h"

#include <algorithm>
#include <cmath>

#include "policies/base/index.h"
#include "sim/cost/expert_exchange.h"
#include "sim/cost/expert_load.h"

namespace equipoise {

namespace {

// Elements that are moved to sort tokens by expert and to bring them back, per copy and per token.
struct Moved {
  double of_copy, of_token;
};
// One kernel reads tokens and writes copies, or the reverse.
constexpr Moved kFusedPermute{1, 1};
// A kernel for each step, as Megatron Core's permute and unpermute do without moe_permute_fusion
// (megatron/core/transformer/moe/moe_utils.py). Forward: index_select reads and writes every copy; back comes
// the product with the probabilities (read, written) and scatter_add into zeros (read, and what it adds to
// read and written). Backward: the gradient of scatter_add is gathered, that of the product is another
// product, that of the probabilities a product and its sum; then index_add, as scatter_add above.
constexpr Moved kSort{2, 0}, kBring{5, 1}, kBringGradient{2 + 2 + 4, 0}, kSortGradient{3, 1};

// Adding the bias of an expert's second product where PyTorch does it for one expert after the other, in fp32
// (TEGroupedMLP._apply_bias of Megatron Core): bytes per element of the output, kernels for each expert, and
// kernels for all together. Forward: the product with the probability, the sum; a concatenation, a cast.
// Backward: a cast of the whole; the sum's cast, and for the probability a product and its sum; the outputs
// are joined. A bias that trains has such a product and sum, too, and DistributedDataParallel adds its
// gradient and that of the first product's bias to what micro-batches have summed up.
struct BiasKernels {
  double bytes = 0;
  std::int64_t of_expert = 0, of_all = 0;
};
constexpr BiasKernels kAddBias{4 + 10 + 8 + 6, 2, 2};

BiasKernels bias_gradient(const Training& training) {
  BiasKernels kernels{6 + 6 + 12 + 4, 4, 2};
  if (training.trains(WeightKind::fc2)) kernels.bytes += 12, kernels.of_expert += 2 + 1;
  if (training.trains(WeightKind::fc1)) kernels.of_expert += 1;
  return kernels;
}

// Clamping gate and up before GPT-OSS's activation, in kernels of PyTorch (weighted_bias_quick_geglu_impl of
// Megatron Core): bytes per element of both, and kernels. Forward: a clamp of each, a concatenation, a scalar
// that is copied to the GPU. Backward: a clamp's gradient compares and chooses; gate has one bound and up
// two, whose comparisons are joined; a concatenation.
struct ClampKernels {
  double bytes;
  std::uint32_t kernels;
};
constexpr ClampKernels kClamp{4 + 4, 2 + 1 + 1},
    kClampGradient{((3 + 5) + (3 + 3 + 3 + 5)) / 2.0 + 4, 2 + 4 + 1};

// Launches in a library's own loop over experts that take the host as long as one of the framework's, which
// goes through Python and autograd. The number is assumed: no published step shows it by itself.
constexpr std::int64_t kLoopedLaunches = 10;

}  // namespace

ExpertCosts::ExpertCosts(const CostBasis& basis, const KernelCosts& kernels, const RowOpCosts& rows,
                         const CastCosts& casts, const AdapterCosts& adapters, const FfnCosts& ffn)
    : basis_(basis), kernels_(kernels), rows_(rows), casts_(casts), adapters_(adapters), ffn_(ffn) {
  if (!basis.model.moe) return;
  const FrameworkOptions& framework = basis.framework;
  if (!framework.expert_kernel.empty())
    expert_gemm_.emplace(basis.profile, basis.layout.precision, framework.expert_kernel, framework.load);
  if (framework.expert_capacity_factor == 0)
    router_load_ = router_load(router_spread(framework.expert_router), framework.expert_seed,
                               basis.layout.expert, basis.model.moe->experts / basis.layout.expert);
}

// One product of every expert that this rank holds. Weight gradients are added to those of earlier
// micro-batches, and with few rows per expert the reads and writes of these sums set the time. (A dense
// layer's do so, too, but under its many rows; the fitted slowdowns contain what remains.)
Op ExpertCosts::expert_products(OpName name, GemmRole role, std::int64_t m, std::int64_t n, std::int64_t k,
                                RangeUse& use) const {
  const std::int64_t local = basis_.model.moe->experts / basis_.layout.expert;
  const double output_bytes =
      role == GemmRole::weight_gradient ? 2 * basis_.framework.gradient_bytes : basis_.element_bytes;
  Op op = kernels_.grouped_gemm(expert_gemm_ ? *expert_gemm_ : kernels_.gemm_model(), name, role, local, m, n,
                                k, use, output_bytes);
  const std::int64_t together =
      expert_gemm_ ? 0 : std::min<std::int64_t>(local, basis_.framework.expert_streams);
  if (together > 0) {
    const auto of = [&](std::int64_t groups) {
      return groups > 0
                 ? kernels_
                       .grouped_gemm(kernels_.gemm_model(), name, role, groups, m, n, k, use, output_bytes)
                       .duration
                 : 0;
    };
    op.duration = local / together * of(together) + of(local % together);
    op.launches = static_cast<std::uint32_t>(1 + (local - 1) / kLoopedLaunches);
  }
  // A grouped kernel is a single launch, without the framework's time per product.
  const double each = expert_gemm_ ? 0 : basis_.framework.product_seconds();
  op.duration = to_picoseconds(to_seconds(op.duration) * basis_.framework.expert_gemm_slowdown +
                               as_double(local) * each);
  return op;
}

// Only a library's own loop over experts leaves their bias and clamp to the framework. Models whose experts
// have biases are GPT-OSS, which clamps.
bool ExpertCosts::leaves_to_framework() const {
  return basis_.model.moe->bias && !expert_gemm_ && basis_.framework.expert_streams > 0;
}

void ExpertCosts::push_bias(std::int64_t routed, bool backward, OpList& ops, RangeUse& use) const {
  const MoeShape& moe = *basis_.model.moe;
  if (!leaves_to_framework()) return;
  const BiasKernels kernels = backward ? bias_gradient(basis_.model.training) : kAddBias;
  const double elements = as_double(routed) * as_double(basis_.model.hidden);
  Op op = kernels_.moves(OpName::expert_bias, Elementwise::copy, kernels.bytes * elements, use);
  op.kernels =
      static_cast<std::uint32_t>(kernels.of_expert * (moe.experts / basis_.layout.expert) + kernels.of_all);
  ops.push(op);
}

void ExpertCosts::push_clamp(std::int64_t routed, std::int64_t width, bool backward, OpList& ops,
                             RangeUse& use) const {
  if (!leaves_to_framework() || basis_.framework.fused_expert_activation) return;
  const ClampKernels& clamp = backward ? kClampGradient : kClamp;
  Op op = kernels_.moves(OpName::activation, Elementwise::copy,
                         clamp.bytes * as_double(routed) * as_double(width), use);
  op.kernels = clamp.kernels;
  ops.push(op);
}

// The products of the experts on the busiest rank, for the `routed` token copies that arrive there: a group
// per expert, each with its own weights and tiles.
void ExpertCosts::push_experts(std::int64_t routed, bool backward, OpList& ops, RangeUse& use) const {
  const MoeShape& moe = *basis_.model.moe;
  const std::int64_t local = moe.experts / basis_.layout.expert;
  const std::int64_t rows = (routed + local - 1) / local;  // per expert
  const std::int64_t f = moe.expert_ffn / basis_.layout.expert_tensor_size();
  const std::int64_t up = (basis_.model.gated_ffn ? 2 : 1) * f;
  const std::int64_t h = basis_.model.hidden;
  const auto product = [&](OpName name, GemmRole role, std::int64_t m, std::int64_t n, std::int64_t k) {
    ops.push(expert_products(name, role, m, n, k, use));
  };
  const auto adapter = [&](std::int64_t out, std::int64_t in, bool column) {
    return AdaptedLayer{routed,
                        rows,
                        out,
                        in,
                        local,
                        column,
                        basis_.layout.expert_tensor_size(),
                        basis_.grid.expert_tensor_shape(),
                        true};
  };
  const auto adapt = [&](WeightKind weights, std::int64_t out, std::int64_t in, bool column) {
    if (basis_.model.training.adapts(weights))
      adapters_.push(adapter(out, in, column), OpName::expert_gemm, ops, use);
  };
  const auto activate = [&](ElementwisePass pass) { ops.push(rows_.activation(routed, f, pass, use)); };
  if (!backward) {
    casts_.push_quantize(WeightKind::fc1, routed, h, ops, use);
    product(OpName::expert_gemm, GemmRole::forward, rows, up, h);
    adapt(WeightKind::fc1, up, h, true);
    push_clamp(routed, up, false, ops, use);
    activate(ElementwisePass::forward);
    casts_.push_quantize(WeightKind::fc2, routed, f, ops, use);
    product(OpName::expert_gemm, GemmRole::forward, rows, h, f);
    adapt(WeightKind::fc2, h, f, false);
    push_bias(routed, false, ops, use);
    return;
  }
  const auto gradients = [&](WeightKind weights, std::int64_t out, std::int64_t in) {
    if (basis_.model.training.adapts(weights))
      adapters_.push_gradients(adapter(out, in, weights == WeightKind::fc1), ops, use);
    casts_.push_quantize(weights, routed, out, ops, use);
    product(OpName::expert_gemm, GemmRole::input_gradient, rows, in, out);
    if (basis_.model.training.trains(weights))
      product(OpName::weight_gradient, GemmRole::weight_gradient, in, out, rows);
  };
  if (basis_.layout.repeats(RecomputeModule::moe_act) && !basis_.layout.repeats(RecomputeModule::moe)) {
    const std::size_t first = ops.size();
    push_clamp(routed, up, false, ops, use);
    activate(ElementwisePass::forward);
    ops.mark_again(first);
  }
  push_bias(routed, true, ops, use);
  gradients(WeightKind::fc2, h, f);
  activate(ElementwisePass::backward);
  push_clamp(routed, up, true, ops, use);
  gradients(WeightKind::fc1, up, h);
}

// Moves copies of rows of h elements into or out of the order of experts: so many rows read or written.
void ExpertCosts::push_permute(double rows_moved, OpList& ops, RangeUse& use) const {
  ops.push(kernels_.moves(OpName::permute, Elementwise::copy,
                          rows_moved * as_double(basis_.model.hidden) * basis_.element_bytes, use));
}

// Its operands, a number per token and expert, fit the caches, so the launches are its cost.
Op ExpertCosts::routing() const {
  Op op{OpName::routing};
  op.launches = static_cast<std::uint32_t>(basis_.framework.routing_kernels);
  op.duration = to_picoseconds(basis_.framework.routing_kernels * basis_.profile.device().launch_seconds *
                               basis_.framework.elementwise_slowdown);
  return op;
}

ExpertArrivals ExpertCosts::sent_to_experts(std::int64_t n) const {
  const std::int64_t t = basis_.layout.tensor, e = basis_.layout.expert_tensor_size();
  const std::int64_t rows = (n + t - 1) / t;
  return {as_double(e == t ? n : rows * e), as_double(rows)};
}

double ExpertCosts::load(std::span<const MicroBatch* const> together) const {
  if (!basis_.model.moe || basis_.framework.expert_capacity_factor > 0) return 1;
  return router_load_ * expert_load(together, {basis_.framework.expert_skew, basis_.framework.expert_seed},
                                    basis_.layout.expert, basis_.model.moe->experts / basis_.layout.expert);
}

double ExpertCosts::load(const MicroBatch& micro_batch) const {
  if (!basis_.model.moe || basis_.framework.expert_skew == 0) return router_load_;
  const int group = basis_.layout.expert * basis_.layout.expert_tensor_size(),
            lane = basis_.layout.tensor * basis_.layout.context;
  const int lanes = (group + lane - 1) / lane;  // number of micro-batches that share the exchange
  return router_load_ * expert_load(micro_batch, {basis_.framework.expert_skew, basis_.framework.expert_seed},
                                    basis_.layout.expert,
                                    basis_.model.moe->experts / basis_.layout.expert * lanes);
}

Op ExpertCosts::expert_collective(OpName name, std::int64_t token_copies, RangeUse& use) const {
  return kernels_.tp_collective(name, token_copies, basis_.model.hidden, basis_.grid.expert_tensor_shape(),
                                use);
}

// Router, expert-parallel all-to-all there and back, grouped GEMMs, shared experts. Tokens travel
// sequence-parallel and are gathered over the expert's tensor-parallel ranks where they arrive: over TP, or
// over fewer (arXiv 2504.14960), or over none.
// A backward sends the output's gradients to the experts and their inputs' gradients back; the router's
// gradients follow.
//
// Where the shared experts run (framework.expert_overlap):
// - none, deepep: behind the exchanges, as they hide nothing.
// - shared-expert: the first product and its activation under the exchange there, the second under the one
//   back (Megatron-LM's moe_shared_expert_overlap: linear_fc1 behind token_dispatch, linear_fc2 behind
//   token_combine); backward the second's gradients under the first exchange, the first's under the second.
// - dualpipe: with the routed ones, since the exchanges run under another micro-batch.
void ExpertCosts::push(std::int64_t n, bool backward, const ExpertArrivals& from_all, OpList& ops,
                       RangeUse& use) const {
  const MoeShape& moe = *basis_.model.moe;
  const std::int64_t t = basis_.layout.tensor;
  const std::int64_t rows = (n + t - 1) / t;
  const std::int64_t h = basis_.model.hidden;
  const std::int64_t e = basis_.layout.expert_tensor_size();
  const double capacity = basis_.framework.expert_capacity_factor;
  const double padded = capacity > 0 ? capacity : 1;  // copies that a rank sends
  const double load = capacity > 0 ? capacity : from_all.load * basis_.framework.expert_imbalance;
  // Copies at the busiest rank; few tokens of a large group make at least one copy.
  const double mean = from_all.tokens * as_double(moe.active);
  const std::int64_t arriving = mean > 0 ? std::max<std::int64_t>(1, std::llround(mean * load)) : 0;
  const bool gets_most = from_all.rows * load >= as_double(rows) * padded;  // of what it sends and receives
  const bool exchanges = basis_.layout.expert > 1;
  const bool shared = moe.shared_width() > 0;
  const ExpertOverlap overlap = basis_.framework.expert_overlap;
  const ExpertGroup group{basis_.model, basis_.framework, basis_.grid.shape(Axis::expert),
                          basis_.element_bytes, kernels_.collectives()};
  const auto exchange_over_shared = [&](ExchangeWay way, bool up) {
    const std::size_t first = ops.size();
    if (!exchanges) return;
    const Op exchange = gets_most ? expert_exchange(group, from_all.rows, load, way, use)
                                  : expert_exchange(group, as_double(rows), padded, way, use);
    ops.push(exchange);
    ops.mark_arrived(first);
    const bool over_shared = shared && overlap == ExpertOverlap::shared_expert;
    if (!over_shared && overlap != ExpertOverlap::dualpipe) return;  // because nothing runs under it
    if (const Op taken = kernels_.taken_sms(exchange.duration); taken.duration > 0) ops.push(taken);
    ops.mark_arrived(first);
    if (over_shared && up) ffn_.push_up(n, moe.shared_width(), backward, ops, use);
    if (over_shared && !up) ffn_.push_down(n, moe.shared_width(), backward, ops, use);
    ops.put_under(first);
  };
  // Before NCCL's all-to-all a token's copies are written out by destination, and after it they are summed
  // up. On arrival they are sorted by expert, and back. DeepEP's kernels send and sum up in place.
  const bool in_place = exchanges && basis_.framework.expert_dispatcher == ExpertDispatcher::deepep;
  const Moved out = basis_.framework.permute_fusion ? kFusedPermute : backward ? kBringGradient : kSort;
  const Moved in = basis_.framework.permute_fusion ? kFusedPermute : backward ? kSortGradient : kBring;
  const auto permute = [&](Moved moved) {
    if (in_place) return;
    push_permute(as_double(rows) * (moved.of_copy * as_double(moe.active) * padded + moved.of_token), ops,
                 use);
  };
  const auto sort = [&](Moved moved) {
    if (!exchanges || moe.experts == basis_.layout.expert || arriving == 0) return;
    const bool unfused = in_place && !basis_.framework.permute_fusion;
    push_permute((unfused ? moved.of_copy : 2) * as_double(arriving), ops, use);
  };
  if (!backward) ops.push(kernels_.gemm(OpName::router, rows, moe.experts, h, use));
  if (basis_.framework.routing_kernels > 0) ops.push(routing());
  permute(out);
  exchange_over_shared(ExchangeWay::to_experts, !backward);
  const std::size_t first_arrived = ops.size();
  if (e > 1 && arriving > 0) ops.push(expert_collective(OpName::tp_all_gather, arriving, use));
  sort(out);
  if (arriving > 0) push_experts(arriving, backward, ops, use);
  sort(in);
  if (e > 1 && arriving > 0) ops.push(expert_collective(OpName::tp_reduce_scatter, arriving, use));
  ops.mark_arrived(first_arrived);
  const bool under_routed = exchanges && overlap == ExpertOverlap::dualpipe;
  if (shared && under_routed) ffn_.push(n, moe.shared_width(), backward, ops, use);
  exchange_over_shared(ExchangeWay::back, backward);
  const bool behind = !exchanges || overlap == ExpertOverlap::none || overlap == ExpertOverlap::deepep;
  permute(in);
  if (shared && behind) ffn_.push(n, moe.shared_width(), backward, ops, use);
  if (backward) {
    ops.push(kernels_.gemm(OpName::router, rows, h, moe.experts, use));
    if (basis_.model.training.trains(WeightKind::router))
      ops.push(kernels_.gemm(OpName::router, h, moe.experts, rows, use));
  }
}

}  // namespace equipoise
