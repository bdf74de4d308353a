// The end of a step on one stage, the same at every resolution: its gradient buckets, then what follows them.
//
// A bucket is one layer's gradients (or the embedding's, the head's), which all replicas' ranks reduce
// together. It starts when the last of them has those gradients and the bucket before it is through, so that
// most buckets hide under the backward of earlier layers. Their SMs are missing there, so that the last
// bucket is full later than its rank alone would fill it (StageEnd::lost). After the last bucket and the last
// rank's backward come the optimizer and the gather of the parameters that it has updated.
//
// Example: buckets of 3 and 2 s, full at 10 and 11 s, the last backward ends at 11 s, an optimizer of 1 s.
// The buckets run from 10 to 13 and from 13 to 15, the optimizer from 15 to 16.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/step/op_run.h"
#include "sim/step/stage_loop.h"

namespace equipoise {

// How far the ranks of one TP coordinate have come in the end of a step on one stage.
struct StageEndRun {
  std::vector<std::uint32_t> order;    // buckets in the order in which they are full; at a tie the lower
                                       // index comes first
  std::vector<std::uint32_t> missing;  // by bucket: ranks that have yet to fill it
  std::uint32_t running_ranks = 0;     // ranks that have yet to end their last op
  Picoseconds done = 0;                // when the last of the other ranks ended
  std::size_t next_bucket = 0, next_step = 0;
  Picoseconds begins = kUnknown;  // when buckets and backward are done and the steps begin
  Picoseconds busy = 0;           // when the bucket or step before ends
  bool running = false;           // whether a bucket or step runs whose end the network decides

  // Begins when all ranks have filled their buckets and ended.
  void begin(std::span<const OpResult::Bucket> buckets) {
    order.resize(buckets.size());
    for (std::uint32_t k = 0; k < order.size(); ++k) order[k] = k;
    std::ranges::stable_sort(order, {}, [&](std::uint32_t i) { return buckets[i].filled; });
    missing.assign(buckets.size(), 0);
    running_ranks = 0;
    done = busy = 0;
    next_bucket = next_step = 0;
    begins = kUnknown;
    running = false;
  }
};

// Starts what can start, and all that this lets start. launch.bucket(number, start) and launch.step(number,
// start) say when a bucket or step that starts then will have ended, or kUnknown; finish_bucket or
// finish_step tells later.
template <class Launch>
void run_stage_end(const StageEnd& end, StageEndRun& run, std::span<OpResult::Bucket> buckets,
                   const Launch& launch) {
  for (; !run.running && run.next_bucket < run.order.size(); ++run.next_bucket) {
    const std::size_t k = run.order[run.next_bucket];
    if (run.missing[k] > 0) return;
    const bool is_last = run.next_bucket + 1 == run.order.size() && buckets[k].last_lane >= 0;
    const Picoseconds lost = is_last ? end.lost : 0;
    buckets[k].start = std::max(run.busy, buckets[k].filled + lost);
    buckets[k].end = launch.bucket(k, buckets[k].start);
    run.running = buckets[k].end == kUnknown;
    if (run.running) return;
    run.busy = buckets[k].end;
  }
  if (run.running || run.running_ranks > 0) return;
  if (run.begins == kUnknown) run.begins = run.busy = std::max(run.busy, run.done);
  for (; run.next_step < end.steps.size(); ++run.next_step) {
    const Picoseconds ended = launch.step(run.next_step, run.busy);
    run.running = ended == kUnknown;
    if (run.running) return;
    run.busy = ended;
  }
}

// The end without a network that decides: durations are those of the program. A bucket that no rank fills has
// nothing to reduce.
struct StageEndAlone {
  const StageEnd& end;
  std::span<const OpResult::Bucket> buckets;
  [[nodiscard]] Picoseconds bucket(std::size_t k, Picoseconds start) const {
    return start + (buckets[k].last_lane < 0 ? 0 : end.buckets[k]);
  }
  [[nodiscard]] Picoseconds step(std::size_t i, Picoseconds start) const { return start + end.durations[i]; }
};

}  // namespace equipoise
