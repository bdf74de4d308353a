#include "sim/study/row/bound.h"

#include <algorithm>
#include <limits>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "sim/cost/context_exchange/context_form.h"
#include "sim/workload/stage_layers.h"

namespace equipoise {

// Sums here and in the simulator are rounded differently; no bound is so tight that this matters.
constexpr double kRoundedDown = 1 - 1e-9;

static void add(const LeastCosts::Layer& layer, double times, LeastCosts::Layer& sum) {
  sum.forward_token += times * layer.forward_token;
  sum.backward_token += times * layer.backward_token;
  sum.again_token += times * layer.again_token;
  sum.forward_arrived += times * layer.forward_arrived;
  sum.backward_arrived += times * layer.backward_arrived;
}

StepBound::StepBound(const RunModels& models, const PolicyRun& row, bool splits_backward,
                     const LeastCosts& least)
    : least_(least),
      costs_(models.costs),
      splits_backward_(splits_backward),
      recomputes_(!row.recompute_chosen),
      replicas_(models.layout.data * models.layout.context) {
  const Layout& layout = models.layout;
  // Skrull's whole documents travel nowhere.
  exchanges_ = !row.rule().places_documents && !row.policy().places_documents;
  const auto stages = static_cast<std::size_t>(layout.pipeline);
  layers_.resize(stages, 0);
  attending_.resize(stages, 0);
  all_attend_ = costs_.basis.mixers[at(Mixer::recurrence)] > 0 ? 0 : 1;
  layers_before_.resize(stages, 0);
  recomputed_.resize(stages, 0);
  frozen_.resize(stages, 0);
  frozen_before_.resize(stages, 0);
  const RecomputedLayers recomputed(costs_.model(), layout);
  const std::vector<int> of_virtual = layers_of_stages(costs_.model(), layout);
  std::vector<int> frozen = of_virtual;
  const std::vector<int> through = backward_layers(costs_.model(), layout);
  for (std::size_t v = 0; v < of_virtual.size(); ++v) {
    frozen[v] -= through[v];
    layers_[v % stages] += of_virtual[v];
    frozen_[v % stages] += frozen[v];
    recomputed_[v % stages] += recomputed.of_stage(static_cast<int>(v), kStudyRecompute);
  }
  // From both ends each micro-batch goes through one of a rank's two blocks; the smaller one is the bound.
  for (std::size_t s = 0; s < stages && layout.bidirectional; ++s) {
    const auto of_block = [&](std::size_t v) {
      return recomputed.of_stage(static_cast<int>(v), kStudyRecompute);
    };
    layers_[s] = std::min(of_virtual[s], of_virtual[s + stages]);
    frozen_[s] = std::max(frozen[s], frozen[s + stages]);
    recomputed_[s] = std::min(of_block(s), of_block(s + stages));
  }
  const std::vector<StageLayers> kinds = stage_layers(costs_.model(), layout);
  of_stage_.resize(stages);
  const auto attend = [&](std::size_t v) {
    double sum = 0;
    for (std::size_t k = 0; k < kLayerKinds; ++k)
      if (attends(mixer_of(static_cast<LayerKind>(k)))) sum += kinds[v].count[k];
    return sum;
  };
  for (std::size_t v = 0; v < of_virtual.size() && !layout.bidirectional; ++v)
    attending_[v % stages] += attend(v);
  for (std::size_t s = 0; s < stages && layout.bidirectional; ++s)
    attending_[s] = std::min(attend(s), attend(s + stages));
  for (std::size_t v = 0; v < of_virtual.size(); ++v) {
    const std::size_t s = v % stages;
    if (layout.bidirectional || frozen_[s] > 0)
      add(least_.layer, v == s ? layers_[s] : 0, of_stage_[s]);
    else
      for (std::size_t k = 0; k < kLayerKinds; ++k) add(least_.layers[k], kinds[v].count[k], of_stage_[s]);
  }
  for (std::size_t s = 1; s < stages && !layout.bidirectional; ++s) {
    layers_before_[s] = layers_before_[s - 1] + of_virtual[s - 1];
    frozen_before_[s] = frozen_before_[s - 1] + frozen[s - 1];
  }
}

StepBound::Work StepBound::work_of(const MicroBatch& micro_batch, int context) const {
  Work work;
  const double ranks = context;
  std::int64_t tokens = 0;
  for (const Slice& slice : micro_batch.slices) {
    tokens += slice.tokens();
    if (!costs_.layout().evens_out_stages())
      work.pairs += visible_pairs(slice, micro_batch.chunk, costs_.model().reach());
  }
  // A rank's queries on another rank's block are priced as a causal call with as many pairs, rounded.
  if (context > 1 && costs_.layout().acting_facts().by_blocks)
    work.pairs = std::max(0.0, work.pairs - static_cast<double>(tokens) * ranks);
  work.tokens = static_cast<double>(tokens) / ranks;
  work.pairs /= ranks;
  if (exchanges_ && micro_batch.placement.empty())
    work.exchange = static_cast<double>(tokens) * least_exchange_seconds(costs_, context);
  return work;
}

double StepBound::stage_seconds(std::size_t stage, const Work& sum, double fill_forward, double fill_backward,
                                bool recomputes) const {
  const auto tokens_of = [&](const LeastCosts::Layer& layer) {
    return (layer.forward_token + layer.backward_token) * sum.tokens +
           (layer.forward_arrived + layer.backward_arrived) * sum.arrived;
  };
  const auto again_of = [&](const LeastCosts::Layer& layer) {
    return layer.again_token * sum.tokens + layer.forward_arrived * sum.arrived;
  };
  const int forwards = costs_.layout().repeats(RecomputeModule::core_attn) ? 2 : 1;  // of attention
  const double pairs = (forwards * least_.forward_pair + least_.backward_pair) * sum.pairs;
  // Attention by blocks runs under the exchanges, and otherwise behind or before them.
  const double attended =
      costs_.layout().acting_facts().by_blocks ? std::max(pairs, sum.exchange) : pairs + sum.exchange;
  double seconds = tokens_of(of_stage_[stage]) + attending_[stage] * attended +
                   layers_before_[stage] * (fill_forward + fill_backward);
  // Layers that no backward reaches count only a forward, without its exchanges.
  const double forward_pairs = least_.forward_pair * sum.pairs;
  if (frozen_[stage] + frozen_before_[stage] > 0) {
    const double backward = tokens_of(least_.layer) + attended - again_of(least_.layer) - forward_pairs;
    seconds -= frozen_[stage] * std::max(0.0, backward) + frozen_before_[stage] * fill_backward;
  }
  if (recomputes && recomputed_[stage] >= layers_[stage])
    seconds += again_of(of_stage_[stage]) + attending_[stage] * forward_pairs;
  else if (recomputes)
    seconds += recomputed_[stage] * (again_of(least_.layer) + all_attend_ * forward_pairs);
  if (stage + 1 == layers_.size() && !costs_.layout().bidirectional)
    seconds += least_.head_token * sum.tokens;
  return seconds;
}

double StepBound::lane_seconds(const Lane& lane) const {
  Work sum;
  double fill_forward = std::numeric_limits<double>::infinity(), fill_backward = fill_forward;
  bool recomputes = true;
  for (const MicroBatch& micro_batch : lane.micro_batches) {
    const Work work = work_of(micro_batch, lane.context);
    sum.tokens += work.tokens;
    sum.pairs += work.pairs;
    sum.exchange += work.exchange;
    // A split backward passes on its input's gradient before half of its products are done.
    const double share = splits_backward_ ? 0 : 1, pairs = all_attend_ * work.pairs;
    fill_forward =
        std::min(fill_forward, least_.layer.forward_token * work.tokens + least_.forward_pair * pairs);
    fill_backward = std::min(
        fill_backward, share * (least_.layer.backward_token * work.tokens + least_.backward_pair * pairs));
    recomputes = recomputes && micro_batch.recompute_layers == kStudyRecompute;
  }
  if (lane.micro_batches.empty()) return 0;
  double most = 0;
  for (std::size_t s = 0; s < layers_.size(); ++s)
    most = std::max(most, stage_seconds(s, sum, fill_forward, fill_backward, recomputes));
  return most;
}

// The mean over all replicas of the work of a group's lanes.
double StepBound::mean_seconds(const Step& step, int barrier_group) const {
  Work sum;
  bool recomputes = true;
  for (const Lane& lane : step.lanes) {
    if (lane.barrier_group != barrier_group) continue;
    for (const MicroBatch& micro_batch : lane.micro_batches) {
      const Work work = work_of(micro_batch, lane.context);
      sum.tokens += work.tokens * lane.context / replicas_;
      sum.pairs += work.pairs * lane.context / replicas_;
      recomputes = recomputes && micro_batch.recompute_layers == kStudyRecompute;
    }
  }
  sum.arrived = sum.tokens;
  double most = 0;
  for (std::size_t s = 0; s < layers_.size(); ++s)
    most = std::max(most, stage_seconds(s, sum, 0, 0, recomputes));
  return most;
}

double StepBound::seconds(const Step& step) const {
  int last = 0;
  for (const Lane& lane : step.lanes) last = std::max(last, lane.barrier_group);
  std::vector<double> of_group(static_cast<std::size_t>(last) + 1, 0);
  for (const Lane& lane : step.lanes) {
    double& slowest = of_group[at(lane.barrier_group)];
    slowest = std::max(slowest, lane_seconds(lane));
  }
  if (std::any_of(of_stage_.begin(), of_stage_.end(), [](const auto& s) { return s.forward_arrived > 0; }))
    for (int group = 0; group <= last; ++group) {
      double& slowest = of_group[at(group)];
      slowest = std::max(slowest, mean_seconds(step, group));
    }
  const double sum = sum_of(of_group);
  return sum * kRoundedDown;
}

double StepBound::even_seconds(double tokens, double pairs, bool recomputes, bool exchanges) const {
  const Layout& layout = costs_.layout();
  if (layout.evens_out_stages()) pairs = 0;  // because no stage has to compute its own attention
  if (costs_.layout().acting_facts().by_blocks) pairs = std::max(0.0, pairs - tokens * replicas_);
  Work sum{tokens / replicas_, pairs / replicas_, tokens / replicas_, 0};
  if (exchanges) sum.exchange = tokens / layout.data * least_exchange_seconds(costs_, layout.context);
  double most = 0;
  for (std::size_t s = 0; s < layers_.size(); ++s)
    most = std::max(most, stage_seconds(s, sum, 0, 0, recomputes));
  return most * kRoundedDown;
}

double StepBound::run_seconds(const DocumentSet& documents) const {
  const Reach reach = costs_.model().reach();
  double layers = 0, longest = 0, tokens = 0;
  for (std::size_t s = 0; s < layers_.size(); ++s) layers += layers_[s] - frozen_[s];
  for (const GlobalBatch& batch : documents.batches)
    for (const Slice& slice : batch.slices) {
      const auto own = static_cast<double>(slice.tokens());
      tokens += own;
      double pairs = costs_.layout().evens_out_stages() ? 0 : visible_pairs(slice, Chunk{}, reach);
      if (costs_.layout().acting_facts().by_blocks)
        pairs = std::max(0.0, pairs - own * costs_.layout().context);
      longest = std::max(longest, (least_.layer.forward_token + least_.layer.backward_token) * own +
                                      (least_.forward_pair + least_.backward_pair) * all_attend_ * pairs);
    }
  const double alone =
      costs_.layout().bidirectional || splits_backward_ ? 0 : layers * longest / replicas_ * kRoundedDown;
  return std::max(alone, even_seconds(tokens, visible_pairs(documents, reach), recomputes_, false));
}

StepBound::Beyond StepBound::beyond_least(double rank_tokens) const {
  const auto tokens = std::max<std::int64_t>(1, static_cast<std::int64_t>(rank_tokens));
  RangeUse unused;
  OpList before, after;
  double forward = 0, backward = 0, layers = 0;
  LeastCosts::Layer least;
  const auto seconds = [&] { return to_seconds(run_time(before.ops()).total + run_time(after.ops()).total); };
  try {
    for (int k = 0; k < kLayerKinds; ++k) {
      const double count = costs_.layer_counts()[at(k)];
      if (count == 0) continue;
      layers += count;
      add(least_.layers[at(k)], count, least);
      costs_.layers.forward(static_cast<LayerKind>(k), tokens, before, after, unused);
      forward += count * seconds();
      costs_.layers.backward(static_cast<LayerKind>(k), tokens, before, after, unused);
      backward += count * seconds();
    }
  } catch (const UserError&) {
    return {};  // for a profile that does not reach so far
  }
  const auto n = static_cast<double>(tokens);
  return {std::max(0.0, forward - n * (least.forward_token + least.forward_arrived)) / layers,
          std::max(0.0, backward - n * (least.backward_token + least.backward_arrived)) / layers};
}

double StepBound::even_estimate(double tokens, double pairs, double micro_batches, double steps) const {
  const Layout& layout = costs_.layout();
  const double chunks = std::max(1.0, micro_batches) * layout.virtual_pipeline;
  double seconds = even_seconds(tokens, pairs, true, true);
  if (costs_.model().moe) {
    const double all = std::max(1.0, micro_batches) * steps;  // of a lane
    const Beyond beyond = beyond_least(tokens / replicas_ / all);
    double most = 0;
    for (std::size_t s = 0; s < layers_.size(); ++s)
      most = std::max(most, layers_[s] * (beyond.forward + beyond.backward) +
                                recomputed_[s] * beyond.forward - frozen_[s] * beyond.backward);
    seconds += all * most;
  }
  return seconds * (1 + (layout.pipeline - 1) / chunks);
}

double visible_pairs(const Slice& slice, const Chunk& chunk, Reach reach) {
  const auto queries = static_cast<double>(slice.tokens());
  const double before = chunk.count > 1 ? static_cast<double>(slice.begin - chunk.group_begin) : 0;
  return causal_pairs(queries, before, reach);
}

double visible_pairs(const DocumentSet& documents, Reach reach) {
  double pairs = 0;
  for (const GlobalBatch& batch : documents.batches)
    for (const Slice& slice : batch.slices) pairs += visible_pairs(slice, Chunk{}, reach);
  return pairs;
}

}  // namespace equipoise
