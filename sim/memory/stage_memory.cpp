#include "sim/memory/stage_memory.h"

#include "policies/base/index.h"
#include "sim/schedule/timing.h"

namespace equipoise {

StageMemory::StageMemory(const MemoryModel& model, const LaneLoad& load, int stage, bool splits_backward)
    : model_(model),
      load_(load),
      stage_(stage),
      splits_(splits_backward),
      ahead_(load.recompute_ahead && model.stages() == 1) {
  op_.after = model.fixed(stage);
}

// K and V (each chunk's gradients are as large) of the chunks before this one in its group.
double StageMemory::earlier_kv(const ScheduleOp& op, int virtual_stage) const {
  const auto j = static_cast<std::size_t>(op.micro_batch);
  double bytes = 0;
  for (std::size_t i = 1; i <= static_cast<std::size_t>(load_.micro_batches[j].chunk.index); ++i)
    bytes += model_.footprint(virtual_stage, load_, j - i).kv;
  return bytes;
}

// The k-th backward of a group finds the k-th R issued. Backwards and Rs go through a group in descending
// order, so k is the number of chunks from this one to the group's end.
void StageMemory::recompute_ahead(const ScheduleOp& op, int virtual_stage) {
  const Chunk& chunk = load_.micro_batches[at(op.micro_batch)].chunk;
  const int k = chunk.count - chunk.index;
  if (k > dropped_) return;
  const auto j = static_cast<std::size_t>(op.micro_batch - chunk.index + dropped_ - k);
  const Footprint next = model_.footprint(virtual_stage, load_, j);
  op_.after.activations += next.activations;
  op_.after.logits += next.softmax;
}

const OpMemory& StageMemory::next(const ScheduleOp& op) {
  const int v = op.virtual_stage * model_.stages() + stage_;
  const auto j = static_cast<std::size_t>(op.micro_batch);
  const Chunk& chunk = load_.micro_batches[j].chunk;
  const Footprint own = model_.footprint(v, load_, j);
  const bool grouped = chunk.count > 1;
  if (grouped && ahead_) {
    if (op.kind == OpKind::D) dropped_ = chunk.index + 1;
    if (op.kind == OpKind::F && chunk.index == 0) dropped_ = 0;
    if (op.kind == OpKind::B) recompute_ahead(op, v);
  }

  // What changes over the op, then what is there only while it runs.
  double grows = 0, shrinks = 0, kv_grows = 0, kv_shrinks = 0, gradients_grow = 0, gradients_shrink = 0;
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
  if (op.kind == OpKind::R && !keeps) before.logits -= own.softmax;  // it is in own.logits while the R runs

  op_.layers = model_.layers(v) > 0 ? model_.layers(v) : 1;
  const auto during = [&](int done) {  // layers that are through
    const double through = static_cast<double>(done) / op_.layers;
    const double begun = static_cast<double>(done + 1) / op_.layers;
    MemoryParts parts = before;
    parts.activations += grows * begun - shrinks * through;
    parts.kv_state += kv_grows * begun - kv_shrinks * through;
    parts.kv_gradients += gradients_grow * begun - gradients_shrink * through;
    parts.gathered_kv += own.gathered_kv;
    parts.logits += own.logits;
    parts.buffers += own.buffers;
    return parts;
  };
  op_.first = during(0);
  op_.last = during(op_.layers - 1);
  op_.after = before;
  op_.after.activations += grows - shrinks;
  op_.after.kv_state += kv_grows - kv_shrinks;
  op_.after.kv_gradients += gradients_grow - gradients_shrink;
  if (op.kind == OpKind::F || op.kind == OpKind::R) op_.after.logits += own.softmax;
  return op_;
}

}  // namespace equipoise
