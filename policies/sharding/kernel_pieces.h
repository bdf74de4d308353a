// What an attention kernel is called with for a rank's segments: queries and keys, bottom-right causal.
//
// A segment is one piece. Only striped sharding (Sharding::strided) gives a rank every c-th token of a
// document: those queries lie next to each other in the rank's memory and go through the kernel as one block
// with a strided mask, not as one tile each. There a run of single tokens of a slice at an even distance is
// one piece; its keys are such that queries and causal pairs stay what they are, up to a half key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "policies/sharding/sharding.h"

namespace equipoise {

// add(queries, keys) for every piece, in order. O(segments).
template <class Add>
void for_each_kernel_piece(std::span<const Segment> segments, bool strided, const Add& add) {
  if (!strided) {
    for (const Segment& s : segments) add(s.queries(), s.keys());
    return;
  }
  for (std::size_t i = 0; i < segments.size();) {
    const Segment& first = segments[i];
    std::size_t end = i + 1;
    const auto follows = [&](const Segment& s, std::int64_t distance) {
      return s.slice == first.slice && s.queries() == 1 && s.q_begin - segments[end - 1].q_begin == distance;
    };
    if (first.queries() == 1 && end < segments.size()) {
      const std::int64_t distance = segments[end].q_begin - first.q_begin;
      while (distance > 1 && end < segments.size() && follows(segments[end], distance)) ++end;
    }
    const auto queries = static_cast<std::int64_t>(end - i);
    if (queries == 1) {
      add(first.queries(), first.keys());
    } else {
      // Keys seen go from those of the first to those of the last; a block that ends at K keys sees
      // K - (queries - 1) / 2 on average.
      const std::int64_t mean_twice = first.keys() + segments[end - 1].keys();
      add(queries, (mean_twice + queries - 1) / 2);
    }
    i = end;
  }
}

}  // namespace equipoise
