#include "sim/timeline/rank_counters.h"

#include <cmath>
#include <string>

#include "policies/base/index.h"

namespace equipoise {

// Memory during layer `i` of an op, interpolated in equal steps from its first to its last layer.
static MemoryParts during(const OpMemory& op, int i) {
  if (op.layers < 2) return op.first;
  const double share = static_cast<double>(i) / (op.layers - 1);
  MemoryParts parts;
  for (const MemoryPartName& part : kMemoryParts)
    parts.*part.bytes = op.first.*part.bytes + share * (op.last.*part.bytes - op.first.*part.bytes);
  return parts;
}

RankCounters::RankCounters(PerfettoWriter& writer, TrackId parent, CounterSelection selection)
    : writer_(writer), parent_(parent), selection_(selection) {}

void RankCounters::show(Counter& counter, const char* name, const char* unit, std::int64_t value,
                        Picoseconds when) {
  if (value == counter.shown) return;
  if (counter.track == 0) counter.track = writer_.add_counter(name, unit, parent_);
  writer_.count(counter.track, when, counter.shown = value);
}

void RankCounters::show(const MemoryParts& parts, Picoseconds when) {
  show(total_, "memory", "bytes", std::llround(parts.total()), when);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const std::string name = std::string("memory: ") + kMemoryParts[i].key;
    show(parts_[i], name.c_str(), "bytes", std::llround(parts.*kMemoryParts[i].bytes), when);
  }
}

void RankCounters::begin_step(RankLoad load, Picoseconds now) {
  load_ = std::move(load);
  in_flight_ = 0;
  memory_.reset();
  if (load_.memory == nullptr || !selection_.memory) return;
  memory_.emplace(*load_.memory,
                  LaneLoad{load_.micro_batches, load_.rank_tokens, load_.gathered_tokens, load_.context,
                           load_.recompute_ahead},
                  load_.stage, load_.splits_backward);
  show(load_.memory->fixed(load_.stage), now);
}

void RankCounters::op(const ScheduleOp& op, Picoseconds start, Picoseconds end,
                      std::span<const Picoseconds> layer_starts) {
  const auto j = static_cast<std::size_t>(op.micro_batch);
  if (j >= load_.micro_batches.size()) return;  // the op only keeps the lane in step with others
  if (selection_.tokens) {
    const bool frees = op.kind == (load_.splits_backward ? OpKind::W : OpKind::B);
    if (op.kind == OpKind::F || op.kind == OpKind::R) in_flight_ += load_.rank_tokens[j];
    show(tokens_, "tokens in flight", "tokens", in_flight_, start);
    if (frees) in_flight_ -= load_.rank_tokens[j];
    show(tokens_, "tokens in flight", "tokens", in_flight_, end);
  }
  if (!memory_) return;
  const OpMemory& held = memory_->next(op);
  if (layer_starts.size() == static_cast<std::size_t>(held.layers))
    for (int i = 0; i < held.layers; ++i) show(during(held, i), i == 0 ? start : layer_starts[at(i)]);
  else
    show(held.last.total() > held.first.total() ? held.last : held.first, start);
  show(held.after, end);
}

}  // namespace equipoise
