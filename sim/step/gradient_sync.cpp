#include "sim/step/gradient_sync.h"

#include <numeric>

namespace equipoise {

// Bytes that the optimizer moves per parameter: the fp32 gradient and the states read, the states and the
// weight written.
static double update_bytes(const LayerCosts& costs) {
  return 4 + 2 * costs.framework().optimizer_bytes + costs.profile().device().element_bytes;
}

// The time in which the host updates so many parameters whose optimizer states lie in its memory. Gradients
// go to the host, states are read and written there, and weights come back, in pieces that overlap: the
// slowest of the three sets the time (ZeRO-Offload, arXiv 2101.06840, section 4; Megatron-LM's
// --overlap-cpu-optimizer-d2h-h2d).
static double host_update_seconds(const LayerCosts& costs, double parameters) {
  const Layout& layout = costs.layout();
  const double link_bytes =
      std::max(double(costs.framework().gradient_bytes), costs.profile().device().element_bytes);
  return parameters * std::max(link_bytes / (layout.host_link_GBps * 1e9),
                               update_bytes(costs) / (layout.host_memory_GBps * 1e9));
}

// Whether compute is slower while gradients are reduced and parameters gathered under it, since the kernels
// of these collectives hold SMs. A pipeline reduces and gathers while it drains and fills, when its stages
// wait for each other anyway, so that it loses nothing.
static bool loses_sms(const LayerCosts& costs) {
  return costs.layout().pipeline == 1 && costs.framework().exchange_sms > 0;
}

// GPU and host update at the same time, after a pass over `before` bytes.
static Picoseconds update_time(const LayerCosts& costs, double parameters, double before, RangeUse& use) {
  const double on_host = costs.layout().optimizer_offload * parameters;
  const double on_gpu = costs.kernels.elementwise().seconds(
      Elementwise::optimizer, (parameters - on_host) * update_bytes(costs), use);
  const double first =
      before > 0 ? costs.kernels.elementwise().seconds(Elementwise::optimizer, before, use) : 0;
  return to_picoseconds(first + std::max(on_gpu, host_update_seconds(costs, on_host)));
}

GradientSync::GradientSync(const LayerCosts& costs)
    : costs_(costs), replicas_(costs.layout().data * costs.layout().context) {
  const PartSizes trained = trained_sizes(costs.model(), costs.layout());
  const std::vector<std::vector<ModelPart>> parts =
      backward_parts(costs.model(), costs.layout(), costs.model().training.frozen_layers);
  stages_.resize(at(costs.layout().pipeline));
  std::vector<Held> held(stages_.size());
  for (std::size_t v = 0; v < parts.size(); ++v) {
    const Held of_stage = add_buckets(parts[v], trained, stages_[v % stages_.size()]);
    held[v % stages_.size()].dense += of_stage.dense;
    held[v % stages_.size()].experts += of_stage.experts;
  }
  for (std::size_t s = 0; s < stages_.size(); ++s) price_end(held[s], static_cast<int>(s));
  price_parts(part_sizes(costs.model(), costs.layout()), trained);
  make_ends();
}

GradientSync::Held GradientSync::add_buckets(const std::vector<ModelPart>& parts, const PartSizes& trained,
                                             StageCosts& stage) {
  Held sum;
  stage.buckets.emplace_back();
  stage.bucket_bytes.emplace_back();
  for (const ModelPart part : parts) {
    const Held elements = held_by_rank(trained[at(part)], costs_.layout());
    sum.dense += elements.dense;
    sum.experts += elements.experts;
    const Op op = reduce(elements);
    stage.buckets.back().push_back(op.duration);
    stage.bucket_bytes.back().push_back(op.bytes);
  }
  return sum;
}

void GradientSync::price_end(const Held& held, int stage_index) {
  const Layout& layout = costs_.layout();
  const FrameworkOptions& framework = costs_.framework();
  StageCosts& stage = stages_[at(stage_index)];
  if (reduces_at_end() && has_replicas()) {
    const Op all = reduce(held);
    stage.reduce = all.duration;
    stage.reduce_bytes = scatters() ? all.bytes : 2 * all.bytes;
  }
  // Experts share their states among fewer replicas: those of equal expert coordinate.
  const Held shards = {static_cast<double>(replicas_), static_cast<double>(layout.expert_replicas())};
  const auto sharded = [&](bool shares) {
    return shares ? held.dense / shards.dense + held.experts / shards.experts : held.dense + held.experts;
  };
  double updated = sharded(layout.zero >= 1);
  const bool updates_shards = layout.zero >= 1 && layout.zero < 3 && framework.optimizer_step;
  const bool gathers = updates_shards && !framework.overlap_param_gather;
  if (layout.bidirectional) {
    const Collective adds = layout.zero == 0 ? Collective::all_reduce : Collective::reduce_scatter;
    if (framework.reduce_gradients)
      stage.copies = between_copies(adds, updated * framework.gradient_bytes, stage_index);
    if (gathers)
      stage.gather = between_copies(Collective::all_gather, updated * costs_.profile().device().element_bytes,
                                    stage_index);
    if (layout.zero >= 1) updated /= layout.copies();
  }
  if (framework.optimizer_step)
    stage.optimizer =
        update_time(costs_, updated, framework.step_end_bytes * sharded(layout.zero >= 2), use_);
  if (gathers) {
    const Op gathered = gather(held);
    stage.gather_bytes = gathered.bytes;
    stage.gather += gathered.duration;
  } else if (updates_shards && loses_sms(costs_)) {
    stage.lost_to_gather = costs_.kernels.taken_sms(gather(held).duration).duration;
  }
}

void GradientSync::make_ends() {
  const Layout& layout = costs_.layout();
  for (std::size_t v = 0; v < stages_.size() * stages_.front().buckets.size(); ++v) {
    std::size_t before = 0;
    for (std::size_t local = 0; local < v / stages_.size(); ++local)
      before += stages_[v % stages_.size()].buckets[local].size();
    first_bucket_.push_back(before);
  }
  for (const StageCosts& stage : stages_) {
    StageEnd& end = ends_.emplace_back();
    for (std::size_t local = 0; local < stage.buckets.size(); ++local) {
      if (!fills_buckets(static_cast<int>(local) * layout.pipeline)) continue;
      const bool overlaps = has_replicas() && !reduces_at_end();
      for (const Picoseconds t : stage.buckets[local]) end.buckets.push_back(overlaps ? t : 0);
      // An all-reduce moves everything twice: reduced, then gathered.
      for (const double b : stage.bucket_bytes[local])
        end.bucket_bytes.push_back(reduces_at_end() ? 0 : layout.zero == 0 ? 2 * b : b);
    }
    if (loses_sms(costs_) && end.buckets.size() > 1) {  // the last bucket has nothing to run under
      const Picoseconds hidden = std::accumulate(end.buckets.begin(), end.buckets.end() - 1, Picoseconds{0});
      end.lost = costs_.kernels.taken_sms(hidden).duration;
    }
    if (stage.reduce > 0) {
      end.steps.push_back({OpName::dp_reduce, Stream::dp});
      end.steps.back().bytes = stage.reduce_bytes;
      end.durations.push_back(stage.reduce);
    }
    if (stage.copies > 0) {
      end.steps.push_back({OpName::dp_reduce, Stream::dp});  // between two ranks, not a flow over all
                                                             // replicas
      end.durations.push_back(stage.copies);
    }
    end.steps.insert(end.steps.end(), {{OpName::optimizer}, {OpName::dp_all_gather, Stream::dp}});
    end.steps.back().bytes = stage.gather_bytes;
    end.durations.insert(end.durations.end(), {stage.optimizer, stage.gather});
    if (stage.lost_to_gather > 0) {
      end.steps.push_back({OpName::taken_sms, Stream::dp});
      end.durations.push_back(stage.lost_to_gather);
    }
  }
  buckets_.resize(ends_.size());
}

// Prices what is gathered and reduced with every micro-batch.
void GradientSync::price_parts(const PartSizes& sizes, const PartSizes& trained) {
  gather_.fill({OpName::dp_all_gather, Stream::dp});
  reduce_.fill({OpName::dp_reduce, Stream::dp});
  if (!reduces_each_micro_batch()) return;
  for (std::size_t p = 0; p < kModelParts; ++p) {
    if (sizes[p].dense == 0) continue;  // a kind of layers that the model does not have
    reduce_[p] = reduce(held_by_rank(trained[p], costs_.layout()));
    const bool in_fp8 = costs_.basis.gathers_fp8_parameters() && is_layer(static_cast<ModelPart>(p));
    if (shards_parameters()) gather_[p] = gather(held_by_rank(sizes[p], costs_.layout()), in_fp8);
  }
}

GradientSync::Held GradientSync::held_by_rank(const PartParameters& size, const Layout& layout) {
  return {static_cast<double>(size.dense) / layout.tensor,
          static_cast<double>(size.routed) / layout.expert_tensor_size() / layout.expert};
}

Picoseconds GradientSync::between_copies(Collective kind, double bytes, int stage) {
  const GroupShape pair = costs_.grid().hop_shape(stage, costs_.layout().pipeline - 1 - stage);
  return to_picoseconds(costs_.kernels.collectives().seconds(kind, bytes, pair, use_));
}

Op GradientSync::reduce(const Held& held) {
  if (!costs_.framework().reduce_gradients) return {OpName::dp_reduce, Stream::dp};
  return collective(OpName::dp_reduce, scatters() ? Collective::reduce_scatter : Collective::all_reduce, held,
                    costs_.framework().gradient_bytes);
}

Op GradientSync::gather(const Held& held, bool in_fp8) {
  const double element = costs_.profile().device().element_bytes;
  return collective(OpName::dp_all_gather, Collective::all_gather, held, in_fp8 ? 1 : element);
}

Op GradientSync::collective(OpName name, Collective kind, const Held& held, double bytes_each) {
  Op op{name, Stream::dp};
  // A bucket has a target size; a layer smaller than that shares one with its neighbours.
  const double bucket =
      name == OpName::dp_reduce && !reduces_at_end()
          ? costs_.framework().gradient_bucket_MB * 1024 * 1024 / costs_.profile().device().element_bytes
          : 0;
  const auto add = [&](double elements, GroupShape group) {
    const double at_once = bucket > 0 ? bucket : elements;
    op.bytes += elements * bytes_each;
    if (elements > 0) {
      RangeUse of_bucket;
      op.duration +=
          to_picoseconds(elements / at_once *
                         costs_.kernels.collectives().seconds(kind, at_once * bytes_each, group, of_bucket));
      use_.add(of_bucket, elements / at_once);
    }
  };
  if (held.dense > 0) add(held.dense, costs_.grid().data_context_shape());
  if (held.experts > 0) add(held.experts, costs_.grid().expert_data_shape());
  return op;
}

void GradientSync::begin_step() {
  for (std::size_t s = 0; s < buckets_.size(); ++s) buckets_[s].assign(ends_[s].buckets.size(), {});
  stage_ends_.assign(ends_.size(), 0);
}

void GradientSync::add_lane(const std::vector<std::vector<Picoseconds>>& ready,
                            const std::vector<Picoseconds>& stage_ends) {
  for (std::size_t s = 0; s < stage_ends_.size(); ++s)
    stage_ends_[s] = std::max(stage_ends_[s], stage_ends[s]);
  for (std::size_t v = 0; v < ready.size(); ++v)
    for (std::size_t i = 0; i < ready[v].size() && fills_buckets(static_cast<int>(v)); ++i) {
      OpResult::Bucket& bucket = buckets_[v % buckets_.size()][first_bucket_[v] + i];
      bucket.filled = std::max(bucket.filled, ready[v][i]);
      bucket.last_lane = 0;  // any lane number: it only says that there is one
    }
}

GradientSync::End GradientSync::finish(Picoseconds pipeline_end) {
  End end;
  end.use = use_;
  end.step = pipeline_end;
  for (std::size_t s = 0; s < ends_.size(); ++s) {
    run_.begin(buckets_[s]);
    run_.done = stage_ends_[s];
    run_stage_end(ends_[s], run_, buckets_[s], StageEndAlone{ends_[s], buckets_[s]});
    end.optimizer = std::max(end.optimizer, stages_[s].optimizer);
    end.step = std::max(end.step, run_.busy);
  }
  return end;
}

}  // namespace equipoise
