// A step of full windows for benchmarks: documents of lognormal lengths (median e^7.5 tokens), cut at the
// window's end; the same documents for the same shape.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "policies/base/random.h"
#include "policies/plan.h"

namespace equipoise {

struct PackedStepShape {
  int lanes, context, micro_batches;
  std::int64_t window;  // tokens
};

inline MicroBatch packed_window(SplitMix64& random, std::int64_t window, std::int64_t& document) {
  const auto uniform = [&] { return (static_cast<double>(random.next() >> 11) + 0.5) * 0x1p-53; };
  MicroBatch micro_batch;
  for (std::int64_t left = window; left > 0;) {
    const double z = std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform());
    const auto length = std::clamp(static_cast<std::int64_t>(std::exp(7.5 + 1.5 * z)), std::int64_t{1}, left);
    micro_batch.slices.push_back({document++, 0, length});
    left -= length;
  }
  return micro_batch;
}

inline Step packed_step(const PackedStepShape& shape) {
  SplitMix64 random(1);
  std::int64_t document = 0;
  Step step;
  for (int l = 0; l < shape.lanes; ++l) {
    Lane& lane = step.lanes.emplace_back();
    lane.context = shape.context;
    for (int m = 0; m < shape.micro_batches; ++m)
      lane.micro_batches.push_back(packed_window(random, shape.window, document));
  }
  return step;
}

}  // namespace equipoise
