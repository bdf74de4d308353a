// What the timelines of both fidelities share besides the class.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "policies/base/index.h"

namespace equipoise {

// Kinds of track besides the streams.
inline constexpr int kRank = 100, kStage = 101, kLane = 102, kEnd = 103;
inline constexpr int kNone = -1;

inline bool selects(const std::vector<int>& list, int number) {
  return list.empty() || std::find(list.begin(), list.end(), number) != list.end();
}

}  // namespace equipoise
