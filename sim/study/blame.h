// What the steps of a policy are lost to, in a line.
#pragma once

#include <string>
#include <vector>

#include "sim/metrics/metrics.h"

namespace equipoise {

struct Loss {
  double share = 0;  // of a step
  const char* name = "";
};

// Largest first; ties in the order of the code. Each second of a GPU counts once, so that shares add up to 1
// or less: communication in what is recomputed is communication, a transfer that a stage waits for is no
// waiting. What is left is computation. (`bubble_ratio`, by contrast, is 1 - useful time over the pipeline's
// makespan: waiting and recompute in one.)
std::vector<Loss> losses_of(const Metrics& metrics, int stages);

// "waiting for other stages 30.1 %, TP communication 4.2 % of a step": the largest three.
std::string blame_text(const Metrics& metrics, int stages);

}  // namespace equipoise
