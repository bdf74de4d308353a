#include "sim/step/step_end.h"

#include <algorithm>

#include "policies/base/index.h"

namespace equipoise {
namespace {

// Bytes that the optimizer moves per parameter: the fp32 gradient and the states read, the states and the
// weight written.
double update_bytes(const LayerCosts& costs) {
  return 4 + 2 * costs.framework().optimizer_bytes + costs.profile().device().element_bytes;
}

}  // namespace

GradientSync::GradientSync(const LayerCosts& costs)
    : costs_(costs), replicas_(costs.layout().data * costs.layout().context) {
  const Layout& layout = costs.layout();
  const PartSizes sizes = part_sizes(costs.model(), layout);
  const std::vector<std::vector<ModelPart>> buckets_of = backward_parts(costs.model(), layout);
  parts_.resize(at(layout.pipeline));
  ready_.resize(buckets_of.size());
  std::vector<Held> held(parts_.size());
  for (std::size_t v = 0; v < buckets_of.size(); ++v) {
    StageParts& part = parts_[v % parts_.size()];
    Held& sum = held[v % parts_.size()];
    std::vector<Picoseconds> buckets;
    std::vector<double> bytes;
    for (const ModelPart of_model : buckets_of[v]) {
      const Held elements = held_by_rank(sizes[at(of_model)], layout);
      sum.dense += elements.dense;
      sum.experts += elements.experts;
      const Op op = reduce(elements);
      buckets.push_back(op.duration);
      bytes.push_back(op.bytes);
    }
    part.buckets.push_back(std::move(buckets));
    part.bucket_bytes.push_back(std::move(bytes));
  }
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    // Experts have fewer replicas to share their states with: those of their expert-parallel rank.
    const double shards = layout.zero >= 1 ? replicas_ : 1;
    const double expert_shards = layout.zero >= 1 ? static_cast<double>(layout.expert_replicas()) : 1;
    double updated = held[s].dense / shards + held[s].experts / expert_shards;
    const int stage = static_cast<int>(s);
    const bool gathers = layout.zero >= 1 && layout.zero < 3 && !costs.framework().overlap_param_gather;
    if (layout.bidirectional) {
      const Collective adds = layout.zero == 0 ? Collective::all_reduce : Collective::reduce_scatter;
      parts_[s].copies = between_copies(adds, updated * costs.framework().gradient_bytes, stage);
      if (gathers)
        parts_[s].gather =
            between_copies(Collective::all_gather, updated * costs.profile().device().element_bytes, stage);
      if (layout.zero >= 1) updated /= layout.copies();
    }
    parts_[s].optimizer = to_picoseconds(
        costs.elementwise().seconds(Elementwise::optimizer, updated * update_bytes(costs), use_));
    if (gathers) {
      const Op gathered = gather(held[s]);
      parts_[s].gather_bytes = gathered.bytes;
      parts_[s].gather += gathered.duration;
    }
  }
  price_parts(sizes);
}

// What is gathered and reduced with every micro-batch.
void GradientSync::price_parts(const PartSizes& sizes) {
  gather_.fill({OpName::dp_all_gather, Stream::dp});
  reduce_.fill({OpName::dp_reduce, Stream::dp});
  if (!reduces_each_micro_batch()) return;
  for (std::size_t p = 0; p < kModelParts; ++p) {
    if (sizes[p].dense == 0) continue;  // a kind of layers that the model does not have
    const Held held = held_by_rank(sizes[p], costs_.layout());
    reduce_[p] = reduce(held);
    if (shards_parameters()) gather_[p] = gather(held);
  }
}

GradientSync::Held GradientSync::held_by_rank(const PartParameters& size, const Layout& layout) {
  return {static_cast<double>(size.dense) / layout.tensor,
          static_cast<double>(size.routed) / layout.expert_tensor_size() / layout.expert};
}

Picoseconds GradientSync::between_copies(Collective kind, double bytes, int stage) {
  const GroupShape pair = costs_.grid().hop_shape(stage, costs_.layout().pipeline - 1 - stage);
  return to_picoseconds(costs_.collectives().seconds(kind, bytes, pair, use_));
}

GradientSync::End GradientSync::finish_sharded(Picoseconds pipeline_end) const {
  End end;
  end.use = use_;
  end.optimizer = parts_.front().optimizer;
  end.step = pipeline_end + end.optimizer;
  return end;
}

Op GradientSync::reduce(const Held& held) {
  return collective(OpName::dp_reduce,
                    costs_.layout().zero == 0 ? Collective::all_reduce : Collective::reduce_scatter, held,
                    costs_.framework().gradient_bytes);
}

Op GradientSync::gather(const Held& held) {
  return collective(OpName::dp_all_gather, Collective::all_gather, held,
                    costs_.profile().device().element_bytes);
}

Op GradientSync::collective(OpName name, Collective kind, const Held& held, double bytes_each) {
  Op op{name, Stream::dp};
  const auto add = [&](double elements, GroupShape group) {
    op.bytes += elements * bytes_each;
    op.duration += to_picoseconds(costs_.collectives().seconds(kind, elements * bytes_each, group, use_));
  };
  add(held.dense, costs_.grid().data_context_shape());
  if (held.experts > 0) add(held.experts, costs_.grid().expert_data_shape());
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
      clock = std::max(clock, ready) + duration;  // 0 where nobody else holds the same
    }
    clock = std::max(clock, last_backward) + parts_[s].copies + parts_[s].optimizer + parts_[s].gather;
    end.optimizer = std::max(end.optimizer, parts_[s].optimizer);
    end.step = std::max(end.step, clock);
  }
  end.step = std::max(end.step, pipeline_end);
  return end;
}

}  // namespace equipoise
