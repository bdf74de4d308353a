#include "sim/engine/stage/gradient_sync.h"

#include <algorithm>

namespace equipoise {
namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

// Bytes that Adam moves per parameter: gradient, master weight and two moments read (fp32), the last three
// and the bf16 weight written.
constexpr double kAdamBytes = 4 * 4 + 3 * 4 + 2;
constexpr double kParameterBytes = 2;

}  // namespace

GradientSync::GradientSync(const LayerCosts& costs)
    : costs_(costs), replicas_(costs.layout().data * costs.layout().context) {
  const ModelShape& model = costs.model();
  const Layout& layout = costs.layout();
  const std::vector<StageLayers> layers = stage_layers(model, layout);
  const GroupShape everyone = costs.placement().data_context_shape();
  const GroupShape expert_replicas = costs.placement().expert_data_shape();
  parts_.resize(at(layout.pipeline));
  ready_.resize(layers.size());
  const double tensor = layout.tensor;
  std::vector<double> elements(parts_.size(), 0);
  for (std::size_t v = 0; v < layers.size(); ++v) {
    StageParts& part = parts_[v % parts_.size()];
    double& held = elements[v % parts_.size()];
    std::vector<Picoseconds> buckets;
    std::vector<double> bytes;
    const auto bucket = [&](double dense, double experts) {
      held += dense + experts;
      Op op = reduce(dense, everyone, use_);
      if (experts > 0) {
        const Op more = reduce(experts, expert_replicas, use_);
        op.duration += more.duration;
        op.bytes += more.bytes;
      }
      buckets.push_back(op.duration);
      bytes.push_back(op.bytes);
    };
    if (v + 1 == layers.size()) {
      const bool shares_embedding = model.tied_embeddings && layout.pipeline == 1;
      const std::int64_t head = shares_embedding ? 0 : model.embedding_parameters();
      bucket(static_cast<double>(head + model.hidden) / tensor, 0);
    }
    for (std::size_t kind = kLayerKinds; kind-- > 0;)
      for (int i = 0; i < layers[v].count[kind]; ++i) {
        const int layer = kind == 1 ? model.layers - 1 : 0;
        const double all = static_cast<double>(model.layer_parameters(layer));
        const double experts = kind == 0
                                   ? 0
                                   : static_cast<double>(model.moe->experts) * (model.gated_ffn ? 3 : 2) *
                                         static_cast<double>(model.hidden * model.moe->expert_ffn);
        bucket((all - experts) / tensor, experts / tensor / layout.expert);
      }
    if (v == 0) bucket(static_cast<double>(model.embedding_parameters()) / tensor, 0);
    part.buckets.push_back(std::move(buckets));
    part.bucket_bytes.push_back(std::move(bytes));
  }
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    const double shards = layout.zero >= 1 ? replicas_ : 1;
    parts_[s].optimizer = to_picoseconds(
        costs.elementwise().seconds(Elementwise::optimizer, elements[s] / shards * kAdamBytes, use_));
    if (layout.zero >= 1 && layout.zero < 3 && replicas_ > 1 && !costs.framework().overlap_param_gather) {
      parts_[s].gather_bytes = elements[s] * kParameterBytes;
      parts_[s].gather = to_picoseconds(
          costs.collectives().seconds(Collective::all_gather, parts_[s].gather_bytes, everyone, use_));
    }
  }
  if (layout.zero == 3 && replicas_ > 1) {
    const double layer = static_cast<double>(model.layer_parameters(model.layers - 1)) / tensor;
    layer_gather_.bytes = layer * kParameterBytes;
    layer_gather_.duration = to_picoseconds(
        costs.collectives().seconds(Collective::all_gather, layer_gather_.bytes, everyone, use_));
    layer_reduce_ = reduce(layer, everyone, use_);
  }
}

GradientSync::End GradientSync::finish_sharded(Picoseconds pipeline_end) const {
  End end;
  end.use = use_;
  end.optimizer = parts_.front().optimizer;
  end.step = pipeline_end + end.optimizer;
  return end;
}

Op GradientSync::reduce(double elements, GroupShape group, RangeUse& use) const {
  Op op{OpName::dp_reduce, Stream::dp};
  op.bytes = elements * costs_.framework().gradient_bytes;
  const Collective kind = costs_.layout().zero == 0 ? Collective::all_reduce : Collective::reduce_scatter;
  op.duration = to_picoseconds(costs_.collectives().seconds(kind, op.bytes, group, use));
  return op;
}

void GradientSync::begin_step() {
  for (auto& stage : ready_) stage.clear();
}

void GradientSync::add_lane(const std::vector<std::vector<Picoseconds>>& ready) {
  for (std::size_t v = 0; v < ready.size(); ++v) {
    if (ready[v].size() > ready_[v].size()) ready_[v].resize(ready[v].size(), 0);
    for (std::size_t i = 0; i < ready[v].size(); ++i) ready_[v][i] = std::max(ready_[v][i], ready[v][i]);
  }
}

GradientSync::End GradientSync::finish(Picoseconds pipeline_end) {
  End end;
  end.use = use_;
  const std::size_t stages = parts_.size();
  for (std::size_t s = 0; s < stages; ++s) {
    Picoseconds clock = 0, last_backward = 0;
    order_.clear();
    for (std::size_t local = 0; local < parts_[s].buckets.size(); ++local) {
      const auto& ready = ready_[local * stages + s];
      for (std::size_t i = 0; i < ready.size(); ++i)
        order_.emplace_back(ready[i], parts_[s].buckets[local][i]);
    }
    std::sort(order_.begin(), order_.end());
    for (const auto& [ready, duration] : order_) {
      last_backward = std::max(last_backward, ready);
      clock = std::max(clock, ready) + (replicas_ > 1 ? duration : 0);
    }
    clock = std::max(clock, last_backward) + parts_[s].optimizer + parts_[s].gather;
    end.optimizer = std::max(end.optimizer, parts_[s].optimizer);
    end.step = std::max(end.step, clock);
  }
  end.step = std::max(end.step, pipeline_end);
  return end;
}

}  // namespace equipoise
