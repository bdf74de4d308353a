#include "sim/tune/bound.h"

#include <algorithm>
#include <limits>

namespace equipoise {
namespace {

// Sums here and in the simulator are rounded differently; no bound is so tight that this matters.
constexpr double kRoundedDown = 1 - 1e-9;

}  // namespace

StepBound::StepBound(const RunModels& models, const PolicyRun& row, bool splits_backward)
    : least_(models.costs.least()),
      costs_(models.costs),
      splits_backward_(splits_backward),
      replicas_(models.layout.data * models.layout.context) {
  const Layout& layout = models.layout;
  full_recompute_ = layout.recompute == Recompute::full;
  // Skrull's whole documents travel nowhere.
  exchanges_ = !row.rule().places_documents && !row.policy().places_documents;
  const auto stages = static_cast<std::size_t>(layout.pipeline);
  layers_.resize(stages, 0);
  layers_before_.resize(stages, 0);
  const std::vector<int> of_virtual = layers_of_stages(costs_.model(), layout);
  for (std::size_t v = 0; v < of_virtual.size(); ++v) layers_[v % stages] += of_virtual[v];
  for (std::size_t s = 1; s < stages; ++s) layers_before_[s] = layers_before_[s - 1] + of_virtual[s - 1];
}

StepBound::Work StepBound::work_of(const MicroBatch& micro_batch, int context) const {
  Work work;
  const double ranks = context;
  std::int64_t tokens = 0;
  for (const Slice& slice : micro_batch.slices) {
    tokens += slice.tokens();
    work.pairs += visible_pairs(slice, micro_batch.chunk, costs_.model().sliding_window);
  }
  // A ring prices a rank's queries against another's block as a causal call of as many pairs, rounded.
  if (context > 1 && costs_.layout().context_comm == ContextComm::ring)
    work.pairs = std::max(0.0, work.pairs - static_cast<double>(tokens) * ranks);
  work.tokens = static_cast<double>(tokens) / ranks;
  work.pairs /= ranks;
  if (exchanges_ && micro_batch.placement.empty())
    work.exchange = static_cast<double>(tokens) * costs_.least_exchange_seconds(context);
  return work;
}

double StepBound::stage_seconds(std::size_t stage, const Work& sum, double fill_forward,
                                double fill_backward) const {
  const double forward = least_.forward_token * sum.tokens + least_.forward_pair * sum.pairs;
  const double backward = least_.backward_token * sum.tokens + least_.backward_pair * sum.pairs;
  const double layer = (full_recompute_ ? 2 : 1) * forward + backward + sum.exchange;
  double seconds = layers_[stage] * layer + layers_before_[stage] * (fill_forward + fill_backward);
  if (stage + 1 == layers_.size()) seconds += least_.head_token * sum.tokens;
  return seconds;
}

double StepBound::lane_seconds(const Lane& lane) const {
  Work sum;
  double fill_forward = std::numeric_limits<double>::infinity(), fill_backward = fill_forward;
  bool recomputes = full_recompute_;
  for (const MicroBatch& micro_batch : lane.micro_batches) {
    const Work work = work_of(micro_batch, lane.context);
    sum.tokens += work.tokens;
    sum.pairs += work.pairs;
    sum.exchange += work.exchange;
    // A split backward hands on its input's gradient before half of the products are made.
    const double share = splits_backward_ ? 0 : 1;
    fill_forward =
        std::min(fill_forward, least_.forward_token * work.tokens + least_.forward_pair * work.pairs);
    fill_backward = std::min(
        fill_backward, share * (least_.backward_token * work.tokens + least_.backward_pair * work.pairs));
    recomputes = recomputes && micro_batch.recompute_layers == kStudyRecompute;
  }
  if (lane.micro_batches.empty()) return 0;
  double most = 0;
  for (std::size_t s = 0; s < layers_.size(); ++s) {
    double seconds = stage_seconds(s, sum, fill_forward, fill_backward);
    if (full_recompute_ && !recomputes)
      seconds -= layers_[s] * (least_.forward_token * sum.tokens + least_.forward_pair * sum.pairs);
    most = std::max(most, seconds);
  }
  return most;
}

double StepBound::seconds(const Step& step) const {
  int last = 0;
  for (const Lane& lane : step.lanes) last = std::max(last, lane.barrier_group);
  std::vector<double> of_group(static_cast<std::size_t>(last) + 1, 0);
  for (const Lane& lane : step.lanes) {
    double& slowest = of_group[static_cast<std::size_t>(lane.barrier_group)];
    slowest = std::max(slowest, lane_seconds(lane));
  }
  double sum = 0;
  for (const double group : of_group) sum += group;
  return sum * kRoundedDown;
}

double StepBound::even_seconds(double tokens, double pairs) const {
  if (costs_.layout().context_comm == ContextComm::ring) pairs = std::max(0.0, pairs - tokens * replicas_);
  const Work sum{tokens / replicas_, pairs / replicas_, 0};
  double most = 0;
  for (std::size_t s = 0; s < layers_.size(); ++s) most = std::max(most, stage_seconds(s, sum, 0, 0));
  return most * kRoundedDown;
}

double visible_pairs(const Slice& slice, const Chunk& chunk, std::int64_t window) {
  const auto queries = static_cast<double>(slice.tokens());
  const double before = chunk.count > 1 ? static_cast<double>(slice.begin - chunk.group_begin) : 0;
  return causal_pairs(queries, before, static_cast<double>(window));
}

double visible_pairs(const DocumentSet& documents, std::int64_t window) {
  double pairs = 0;
  for (const GlobalBatch& batch : documents.batches)
    for (const Slice& slice : batch.slices) pairs += visible_pairs(slice, Chunk{}, window);
  return pairs;
}

}  // namespace equipoise
