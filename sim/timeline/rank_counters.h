// What a rank of a simulated step holds over time, as counters of a Perfetto trace.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "policies/base/clock.h"
#include "policies/plan.h"
#include "sim/memory/memory_model.h"
#include "sim/timeline/perfetto.h"

namespace equipoise {

struct CounterSelection {
  bool memory = true;
  bool tokens = true;
};

// What a rank holds of the micro-batches of one step. Without a memory model it has only tokens.
struct RankLoad {
  const MemoryModel* memory = nullptr;
  std::span<const MicroBatch> micro_batches;
  std::vector<std::int64_t> rank_tokens;          // by micro-batch
  std::span<const std::int64_t> gathered_tokens;  // by micro-batch
  int context = 1;
  int stage = 0;
  bool recompute_ahead = false;
  bool splits_backward = false;
};

// Counters of one rank: what it holds, in all and by category, and its tokens in flight. The bytes are those
// of the memory model (StageMemory), put at the times of the simulated ops: the largest value
// that any rank's `memory` shows is the peak that a study reports, where CP ranks hold equally much. Given
// when each layer of an op begins, they change from layer to layer; else an op's most is shown from its
// start. A category has a counter if it is ever used, and a new value where it changes.
class RankCounters {
 public:
  RankCounters(PerfettoWriter& writer, TrackId parent, CounterSelection selection);
  RankCounters(const RankCounters&) = delete;  // because memory_ refers to load_
  RankCounters& operator=(const RankCounters&) = delete;

  void begin_step(RankLoad load, Picoseconds now);
  // Adds the rank's next op, in the order of the schedule.
  void op(const ScheduleOp& op, Picoseconds start, Picoseconds end,
          std::span<const Picoseconds> layer_starts = {});

 private:
  struct Counter {
    TrackId track = 0;
    std::int64_t shown = 0;
  };
  void show(Counter& counter, const char* name, const char* unit, std::int64_t value, Picoseconds when);
  void show(const MemoryParts& parts, Picoseconds when);

  PerfettoWriter& writer_;
  TrackId parent_;
  CounterSelection selection_;
  RankLoad load_;
  std::optional<StageMemory> memory_;
  std::array<Counter, std::size(kMemoryParts)> parts_;
  Counter total_, tokens_;
  std::int64_t in_flight_ = 0;
};

}  // namespace equipoise
