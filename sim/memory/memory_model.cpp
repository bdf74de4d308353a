#include "sim/memory/memory_model.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "sim/cost/context_exchange/context_form.h"
#include "sim/cost/cost_basis.h"
#include "sim/cost/kept_bytes.h"
#include "sim/schedule/schedule.h"

namespace equipoise {

// The mean over a model's layers, because stages have layers of each kind.
static double mean_kept_bytes(const ModelShape& model, const Layout& layout,
                              const FrameworkOptions& framework) {
  const LayerCounts counts = model.layer_counts();
  double sum = 0;
  for (int k = 0; k < kLayerKinds; ++k)
    if (counts[at(k)] > 0)
      sum += counts[at(k)] * kept_bytes(model, layout, framework, static_cast<LayerKind>(k));
  return sum / model.all_layers();
}

MemoryModel::MemoryModel(const ModelShape& model, const Layout& layout, const Profile& profile,
                         const FrameworkOptions& framework)
    : model_(model),
      layout_(layout),
      capacity_(profile.device().memory_bytes),
      reserve_(profile.device().reserve_bytes),
      gradient_bytes_(framework.gradient_bytes + framework.gradient_copy_bytes),
      optimizer_bytes_(framework.optimizer_bytes),
      loss_(framework.loss),
      logit_bytes_(loss_ == LossKind::chunked ? kBf16Bytes : framework.logit_bytes),
      softmax_bytes_(loss_ == LossKind::chunked ? 0 : kFp32Bytes),
      slack_(1 + framework.allocator_slack),
      records_streams_(framework.records_streams),
      keeps_gathered_kv_(framework.keep_gathered_kv && layout.acting_facts().keeps_brought),
      weight_bytes_(kBf16Bytes + (layout.precision == Precision::fp8 ? framework.fp8_weight_bytes : 0)),
      frozen_weight_bytes_(layout.precision == Precision::fp8 ? framework.fp8_frozen_weight_bytes
                                                              : kBf16Bytes),
      input_per_token_(kBf16Bytes * as_double(model.hidden) / layout.tensor),
      layers_(layers_of_stages(model, layout)),
      keeping_(backward_layers(model, layout)),
      parts_(backward_parts(model, layout)),
      trained_parts_(backward_parts(model, layout, model.training.frozen_layers)),
      part_sizes_(part_sizes(model, layout)),
      trained_sizes_(trained_sizes(model, layout)),
      recomputed_(model, layout) {
  kv_bytes_per_token_ = kBf16Bytes * as_double(model.kv_width_of_rank(layout.tensor));
  if (runs_torch_ring(model, layout, framework))
    repeated_heads_ = model.heads / std::max(layout.tensor, model.kv_heads);
  const double kept = mean_kept_bytes(model, layout, framework);
  offloaded_per_token_ = layout.activation_offload * kept;
  kept_per_token_ = kept - offloaded_per_token_;
  Layout keeps_all = layout;
  keeps_all.recompute = Recompute::none;
  whole_per_token_ = mean_kept_bytes(model, keeps_all, framework);
  std::map<std::array<int, 5>, std::size_t> kinds;
  for (int v = 0; v < layout.virtual_stages(); ++v) {
    const VirtualStages order = layout.stage_order();
    const std::array<int, 5> what{layers_[at(v)], keeping_[at(v)], recomputed_.of_stage(v, kStudyRecompute),
                                  order.is_first(v) ? 1 : 0, order.is_last(v) ? 1 : 0};
    kind_.push_back(kinds.try_emplace(what, kinds.size()).first->second);
  }
  kinds_ = kinds.size();
}

MemoryParts MemoryModel::fixed(int stage) const {
  PartParameters layers, trained, frozen, ends;  // `ends` are parameters outside linear layers in FP8
  const auto add = [](PartParameters& sum, const PartParameters& part, int sign = 1) {
    sum.dense += sign * part.dense;
    sum.routed += sign * part.routed;
  };
  for (int v = stage; v < layout_.virtual_stages(); v += layout_.pipeline) {
    for (const ModelPart part : parts_[at(v)]) {
      add(is_layer(part) ? layers : ends, part_sizes_[at(part)]);
      if (is_layer(part)) add(frozen, part_sizes_[at(part)]);
    }
    for (const ModelPart part : trained_parts_[at(v)]) {
      add(trained, trained_sizes_[at(part)]);
      if (is_layer(part)) add(frozen, trained_sizes_[at(part)], -1);
    }
  }
  // Replicas of the same part, which are on two stages if each block of layers has a copy.
  const double replicas = as_double(layout_.data) * layout_.context * layout_.copies();
  const double expert_replicas = as_double(layout_.expert_replicas()) * layout_.copies();
  const auto on_rank = [&](const PartParameters& of, bool sharded) {
    return as_double(of.dense) / layout_.tensor / (sharded ? replicas : 1) +
           as_double(of.routed) / layout_.expert_tensor_size() / layout_.expert /
               (sharded ? expert_replicas : 1);
  };
  MemoryParts parts;
  parts.parameters = kBf16Bytes * on_rank(ends, layout_.zero >= 3) +
                     weight_bytes_ * on_rank(layers, layout_.zero >= 3) +
                     (frozen_weight_bytes_ - weight_bytes_) * on_rank(frozen, layout_.zero >= 3);
  parts.gradients = gradient_bytes_ * on_rank(trained, layout_.zero >= 2);
  parts.optimizer = (1 - layout_.optimizer_offload) * optimizer_bytes_ * on_rank(trained, layout_.zero >= 1);
  if (layout_.zero >= 3) parts.buffers += kBf16Bytes * most_gathered();
  parts.reserve = reserve_;
  return parts;
}

// Parameters of the part of the model at work and of the next one, being gathered: the largest such pair.
// Each layer with the rank's own experts; the ends of the model are parts, too.
double MemoryModel::most_gathered() const {
  double most = 0, before = 0;
  const auto gather = [&](ModelPart part) {
    const PartParameters& size = part_sizes_[at(part)];
    const double held = as_double(size.dense) / layout_.tensor +
                        as_double(size.routed) / layout_.expert_tensor_size() / layout_.expert;
    most = std::max(most, before + held);
    before = held;
  };
  gather(ModelPart::embedding);
  for (int layer = 0; layer < model_.all_layers(); ++layer) gather(part_of(model_.kind(layer)));
  gather(ModelPart::head);
  return most;
}

double MemoryModel::activation_bytes(int v, std::int64_t rank_tokens, int recomputed) const {
  const double n = as_double(rank_tokens);
  double bytes = n * ((keeping_[at(v)] - recomputed) * kept_per_token_ + recomputed * input_per_token_);
  if (layout_.stage_order().is_first(v) && (keeping_[at(v)] > 0 || layers_[at(v)] == 0))
    bytes += n * input_per_token_;
  // Multi-token prediction keeps what its two norms read, and what they wrote side by side.
  if (layout_.stage_order().is_last(v)) bytes += n * model_.head().kept_rows * input_per_token_;
  return bytes;
}

// What lives only while an op runs: gathered K and V (and their gradients), logits; the layer being
// recomputed, or all of one where a stage keeps none; what arrives and what is sent. The allocator holds all
// of it for as long as the op runs.
Footprint MemoryModel::transient(bool makes_logits, std::int64_t rank_tokens, std::int64_t gathered,
                                 bool recomputes) const {
  const double n = as_double(rank_tokens);
  Footprint out;
  out.gathered_kv = 2 * as_double(gathered) * kv_bytes_per_token_;
  // With multi-token prediction the softmax of one pass through the head is kept while the next has its
  // logits.
  if (makes_logits) {
    const std::int64_t vocab = (model_.vocab + layout_.tensor - 1) / layout_.tensor;
    out.logits = as_double(tokens_with_logits(loss_, rank_tokens, vocab, model_.hidden)) *
                 as_double(model_.vocab) / layout_.tensor *
                 (logit_bytes_ + model_.head().modules * softmax_bytes_);
  }
  out.buffers = 2 * n * input_per_token_;
  // The layer at work is held whole: all of it, or what its named parts repeat.
  out.buffers += n * (recomputes ? whole_per_token_ : whole_per_token_ - kept_per_token_);
  out.buffers += n * offloaded_per_token_;  // for the layer whose copy is under way
  return out;
}

std::int64_t MemoryModel::gathered_tokens(int context, std::int64_t rank_tokens,
                                          std::int64_t group_tokens) const {
  // PyTorch's ring: those of all, a rank's to be sent, and three of a rank's gradients in fp32, half of it of
  // K and V.
  if (repeated_heads_ > 0 && context > 1) return repeated_heads_ * (group_tokens + 7 * rank_tokens) / 2;
  // Q and the output for as many queries as a rank has tokens, in units of K and V.
  const bool away = context > 1 ? layout_.acting_facts().plans_tasks : layout_.evens_out_stages();
  const std::int64_t queries = away && !model_.mla ? rank_tokens * model_.heads / model_.kv_heads : 0;
  return context_form(layout_).held_tokens(rank_tokens, group_tokens, layout_.inner_ranks(context)) *
             copies_of_heads(context) +
         queries;
}

// How often the ranks that share the heads hold each KV head.
int MemoryModel::copies_of_heads(int context) const {
  const int heads =
      model_.mla ? model_.heads / layout_.tensor : std::max(1, model_.kv_heads / layout_.tensor);
  return std::max(1, context_form(layout_).head_shares(layout_, context) / heads);
}

Footprint MemoryModel::footprint(int v, const LaneLoad& load, std::size_t index) const {
  const MicroBatch& micro_batch = load.micro_batches[index];
  const std::int64_t tokens = load.rank_tokens[index];
  const int recomputed = recomputed_.of_stage(v, micro_batch);
  const bool makes_logits = layout_.stage_order().is_last(v);
  const bool gathers = load.context > 1 || layout_.evens_out_stages();
  Footprint out = transient(makes_logits, tokens, gathers ? load.gathered_tokens[index] : 0,
                            recomputed > 0 || keeping_[at(v)] < std::min(1, layers_[at(v)]));
  // A layer with both mixers has one exchange after the other. Gradients need as much again, as those of K
  // and V do.
  if (load.context > 1 && model_.recurrence) {
    const RecurrentShape shared = model_.recurrence->of_rank(layout_.tensor).shared_out(load.context);
    const double held = as_double(kRecurrenceForm.held_tokens(tokens, tokens * load.context, 1));
    out.gathered_kv = std::max(out.gathered_kv, 2 * held * kBf16Bytes * as_double(shared.projected_width()));
  }
  out.activations = activation_bytes(v, tokens, recomputed);
  // The rank's own K and V are counted already, so only the rest of the gathered or copied ones is added.
  const std::int64_t copied = tokens * (load.context > 1 ? copies_of_heads(load.context) : 1);
  const std::int64_t kept = keeps_gathered_kv_ && load.context > 1 ? load.gathered_tokens[index] : copied;
  out.activations += as_double(kept - tokens) * kv_bytes_per_token_ * (keeping_[at(v)] - recomputed);
  if (micro_batch.chunk.count > 1) out.kv = as_double(copied) * kv_bytes_per_token_ * layers_[at(v)];
  if (makes_logits)
    out.softmax = as_double(tokens) * as_double(model_.vocab) / layout_.tensor * softmax_bytes_ *
                  model_.head().passes();
  if (records_streams_ && layout_.tensor > 1)  // for attention's output product and the FFN's
    out.buffers += as_double(tokens) * 2 * kBf16Bytes * as_double(model_.hidden) * layers_[at(v)];
  for (double* bytes : {&out.activations, &out.softmax, &out.logits, &out.buffers}) *bytes *= slack_;
  return out;
}

MemoryPeak MemoryModel::peak_of(std::span<const ScheduleOp> ops, const LaneLoad& load, int stage,
                                bool splits_backward) const {
  MemoryPeak peak;
  double worst = -1;
  StageMemory memory(*this, load, stage, splits_backward);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const OpMemory& held = memory.next(ops[i]);
    const double first = held.first.total(), last = held.last.total();
    if (std::max(first, last) <= worst) continue;
    worst = std::max(first, last);
    peak.at_end = last > first;
    peak.parts = peak.at_end ? held.last : held.first;
    peak.stage = stage;
    peak.micro_batch = ops[i].micro_batch;
    peak.op = ops[i].kind;
    peak.virtual_stage = ops[i].virtual_stage;
    peak.op_index = static_cast<int>(i);
  }
  return peak;
}

MemoryPeak MemoryModel::stage_peak(const Schedule& schedule, const LaneLoad& load, int stage) const {
  return peak_of(schedule.ops[at(stage)], load, stage, splits_backward(schedule));
}

MemoryPeak MemoryModel::lane_peak(const Schedule& schedule, const LaneLoad& load) const {
  MemoryPeak peak;
  const bool splits = splits_backward(schedule);
  for (int s = 0; s < schedule.stages; ++s) {
    const MemoryPeak of_stage = peak_of(schedule.ops[at(s)], load, s, splits);
    if (of_stage.op_index < 0) continue;
    if (peak.op_index < 0 || of_stage.parts.total() > peak.parts.total()) peak = of_stage;
  }
  return peak;
}

StageMemory::StageMemory(const MemoryModel& model, const LaneLoad& load, int stage, bool splits_backward)
    : model_(model),
      load_(load),
      stage_(stage),
      splits_(splits_backward),
      ahead_(load.recompute_ahead && model.stages() == 1),
      known_(model.kinds() * load.micro_batches.size(), {.activations = -1}) {
  op_.after = model.fixed(stage);
}

const Footprint& StageMemory::footprint(int v, std::size_t index) {
  const MicroBatch& micro_batch = load_.micro_batches[index];
  const bool by_layout =
      micro_batch.recompute_layers == kStudyRecompute && micro_batch.recompute_by_stage.empty();
  Footprint& known = known_[model_.kind(v) * load_.micro_batches.size() + index];
  if (!by_layout || known.activations < 0) known = model_.footprint(v, load_, index);
  return known;
}

// K and V (each chunk's gradients are as large) of the chunks before this one in its group.
double StageMemory::earlier_kv(const ScheduleOp& op, int virtual_stage) {
  const auto j = at(op.micro_batch);
  double bytes = 0;
  for (std::size_t i = 1; i <= at(load_.micro_batches[j].chunk.index); ++i)
    bytes += footprint(virtual_stage, j - i).kv;
  return bytes;
}

// The k-th backward of a group finds the k-th R issued. Backwards and Rs go through a group in descending
// order, so k is the number of chunks from this one to the group's end.
void StageMemory::recompute_ahead(const ScheduleOp& op, int virtual_stage) {
  const Chunk& chunk = load_.micro_batches[at(op.micro_batch)].chunk;
  const int k = chunk.count - chunk.index;
  if (k > dropped_) return;
  const auto j = at(op.micro_batch - chunk.index + dropped_ - k);
  const Footprint& next = footprint(virtual_stage, j);
  op_.after.activations += next.activations;
  op_.after.logits += next.softmax;
}

const OpMemory& StageMemory::next(const ScheduleOp& op) {
  const int v = op.virtual_stage * model_.stages() + stage_;
  const auto j = at(op.micro_batch);
  const Chunk& chunk = load_.micro_batches[j].chunk;
  const Footprint& own = footprint(v, j);
  const bool grouped = chunk.count > 1;
  if (grouped && ahead_) {
    if (op.kind == OpKind::D) dropped_ = chunk.index + 1;
    if (op.kind == OpKind::F && chunk.index == 0) dropped_ = 0;
    if (op.kind == OpKind::B) recompute_ahead(op, v);
  }

  // The forward of a pair runs with its backward, which comes next.
  const Footprint forward = std::exchange(forward_, op.with_next ? own : Footprint{});
  if (op.with_next) {
    op_.first = op_.last = op_.after;
    op_.layers = 1;
    return op_;
  }

  // First what changes over the op, then what exists only while it runs.
  double grows = forward.activations, kv_grows = forward.kv;
  double shrinks = 0, kv_shrinks = 0, gradients_grow = 0, gradients_shrink = 0;
  const bool keeps = op.kind == OpKind::F || (op.kind == OpKind::R && !(ahead_ && grouped));
  if (keeps) grows = own.activations;
  if (releases(op, splits_)) shrinks = own.activations;
  if (op.kind == OpKind::F || op.kind == OpKind::D) kv_grows = own.kv;
  if (op.kind == OpKind::B && grouped) {
    kv_shrinks = own.kv;
    if (chunk.index + 1 < chunk.count)
      gradients_shrink = own.kv;
    else
      gradients_grow = earlier_kv(op, v);
  }
  MemoryParts before = op_.after;
  if (op.kind == OpKind::B) before.logits -= own.softmax;
  if (op.kind == OpKind::R && !keeps) before.logits -= own.softmax;  // part of own.logits while the R runs

  op_.layers = model_.layers(v) > 0 ? model_.layers(v) : 1;
  const auto during = [&](int done) {  // after `done` layers
    const double through = as_double(done) / op_.layers;
    const double begun = as_double(done + 1) / op_.layers;
    MemoryParts parts = before;
    parts.activations += grows * begun - shrinks * through;
    parts.kv_state += kv_grows * begun - kv_shrinks * through;
    parts.kv_gradients += gradients_grow * begun - gradients_shrink * through;
    parts.gathered_kv += own.gathered_kv + forward.gathered_kv;
    parts.logits += std::max(own.logits, forward.logits);  // a backward begins with them, a forward ends so
    parts.buffers += own.buffers + forward.buffers;
    return parts;
  };
  op_.first = during(0);
  op_.last = during(op_.layers - 1);
  op_.after = before;
  op_.after.activations += grows - shrinks;
  op_.after.kv_state += kv_grows - kv_shrinks;
  op_.after.kv_gradients += gradients_grow - gradients_shrink;
  op_.after.logits += op.kind == OpKind::F || op.kind == OpKind::R ? own.softmax : forward.softmax;
  return op_;
}

}  // namespace equipoise
