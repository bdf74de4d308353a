#include "sim/execution/make_step.h"

#include <algorithm>
#include <string>

#include "policies/base/error.h"
#include "sim/execution/parameters.h"
#include "sim/execution/stage_parameters.h"

namespace equipoise::execution {

void check_layout_runs(const ModelShape& model, const Layout& layout) {
  check_runnable(model);
  if (layout.zero > 1)
    throw UserError("execute: parallel.zero is " + std::to_string(layout.zero) + "; ranks run 0 and 1");
  if (layout.bidirectional)
    throw UserError("execute: schedule dualpipe needs two copies of each layer; ranks hold one");
  if (layout.expert > 1)
    throw UserError("execute: parallel.expert is " + std::to_string(layout.expert) + "; allowed: 1");
  if (layout.recompute == Recompute::modules &&
      layout.recompute_modules != module_bit(RecomputeModule::core_attn))
    throw UserError("execute: parallel.recompute.modules is " + names_of(layout.recompute_modules) +
                    "; allowed: core_attn");
  if (local_vocabulary(model, layout.tensor, layout.tensor - 1).count < 1)
    throw UserError("execute: a vocabulary of " + std::to_string(model.vocab) + " leaves TP rank " +
                    std::to_string(layout.tensor - 1) + " of " + std::to_string(layout.tensor) +
                    " without tokens");
  if (model.head_dim % 16 != 0 || model.head_dim > 256)
    throw UserError("execute: a head dim of " + std::to_string(model.head_dim) +
                    "; kernels take multiples of 16 up to 256");
}

ExecutableStep make_step(const LayerCosts& costs, const ShardRule& rule, const StepOptions& options,
                         const Step& step, const DocumentLengths& documents, LossNormalizer normalizer,
                         bool fold_tp) {
  check_layout_runs(costs.model(), costs.layout());
  ExecutableStep out;
  out.step = step;
  out.documents = documents;
  out.repeats_attention = costs.layout().repeats(RecomputeModule::core_attn);
  out.program = sequential(StepExpander(costs, rule, options, fold_tp).expand(step));
  MicroBatchCoster coster(costs, rule);
  MicroBatchCost cost;
  for (const Lane& lane : step.lanes) {
    auto& of_lane = out.sharding.emplace_back();
    for (const MicroBatch& micro_batch : lane.micro_batches) {
      coster.cost(micro_batch, lane.context, cost);
      of_lane.push_back(cost.sharding);
    }
  }
  out.weights = loss_weights(step, normalizer);
  return out;
}

std::int64_t longest_attended(const ExecutableStep& step) {
  std::int64_t longest = 1;
  for (const auto& lane : step.sharding)
    for (const Sharding& sharding : lane)
      for (const Segment& segment : sharding.segments) longest = std::max(longest, segment.keys());
  return longest;
}

}  // namespace equipoise::execution
