// The measured and the simulated timeline of one run in one Perfetto trace, one above the other.
#pragma once

#include <span>
#include <string>

#include "sim/validation/real_run.h"
#include "sim/validation/step_ops.h"

namespace equipoise {

// One op of a rank.
struct TimelineSlice {
  std::string track;  // the rank's; its slices follow each other
  std::string name;
  double begin_seconds = 0;
  double end_seconds = 0;
  int micro_batch = -1;  // shown unless negative
};

// Writes the groups "measured" and "simulated", each from its own first slice, so that both begin at 0.
// Tracks are in the order of their first appearance in either list, the same in both. A slice that ends
// before it begins has no length. Throws UserError if the file cannot be written.
void write_two_timelines(const std::string& path, std::span<const TimelineSlice> measured,
                         std::span<const TimelineSlice> simulated);

// Writes the first timed step of a row, measured and simulated, with one track per rank.
void write_real_timeline(const std::string& path, const RealRow& row, const RealResult& result,
                         const InStepTimes* times);

}  // namespace equipoise
