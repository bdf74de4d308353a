#include "sim/cost/layer_timeline.h"

#include <algorithm>

namespace equipoise {

void LayerTimeline::reset(int rank_count) {
  ranks = rank_count;
  local.assign(static_cast<std::size_t>(rank_count), 0);
  overlap.clear();
  comm.clear();
}

void LayerTimeline::add_sync(Picoseconds duration) {
  comm.push_back(duration);
  overlap.resize(overlap.size() + static_cast<std::size_t>(ranks), 0);
  local.resize(local.size() + static_cast<std::size_t>(ranks), 0);
}

void LayerTimeline::append(const LayerTimeline& next) {
  const auto c = static_cast<std::size_t>(ranks);
  for (std::size_t r = 0; r < c; ++r) local[comm.size() * c + r] += next.local[r];
  local.insert(local.end(), next.local.begin() + static_cast<std::ptrdiff_t>(c), next.local.end());
  overlap.insert(overlap.end(), next.overlap.begin(), next.overlap.end());
  comm.insert(comm.end(), next.comm.begin(), next.comm.end());
}

namespace {

void advance_once(const LayerTimeline& layer, std::span<Picoseconds> clock) {
  const auto c = static_cast<std::size_t>(layer.ranks);
  const Picoseconds* local = layer.local.data();
  const Picoseconds* overlap = layer.overlap.data();
  for (std::size_t r = 0; r < c; ++r) clock[r] += local[r];
  for (std::size_t p = 0; p < layer.syncs(); ++p) {
    const Picoseconds done = *std::max_element(clock.begin(), clock.end()) + layer.comm[p];
    local += c;
    for (std::size_t r = 0; r < c; ++r) clock[r] = std::max(done, clock[r] + overlap[r]) + local[r];
    overlap += c;
  }
}

}  // namespace

void advance(const LayerTimeline& layer, int layers, std::span<Picoseconds> clock) {
  if (layers == 0) return;
  const auto c = static_cast<std::size_t>(layer.ranks);
  if (layer.syncs() == 0) {
    for (std::size_t r = 0; r < c; ++r) clock[r] += layers * layer.local[r];
    return;
  }
  advance_once(layer, clock);
  const bool overlaps =
      std::any_of(layer.overlap.begin(), layer.overlap.end(), [](Picoseconds t) { return t != 0; });
  if (overlaps) {
    for (int i = 1; i < layers; ++i) advance_once(layer, clock);
    return;
  }
  // Without overlap every synchronisation wipes out the ranks' differences, so each further layer takes the
  // same time for all: its slowest way from the first synchronisation to the next layer's.
  Picoseconds period = 0;
  const std::size_t syncs = layer.syncs();
  for (std::size_t p = 0; p < syncs; ++p) {
    Picoseconds slowest = 0;
    for (std::size_t r = 0; r < c; ++r) {
      const Picoseconds wrap = p + 1 == syncs ? layer.local[r] : 0;  // last run joins the next layer's first
      slowest = std::max(slowest, layer.local[(p + 1) * c + r] + wrap);
    }
    period += layer.comm[p] + slowest;
  }
  for (std::size_t r = 0; r < c; ++r) clock[r] += (layers - 1) * period;
}

}  // namespace equipoise
