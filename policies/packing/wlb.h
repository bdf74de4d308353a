// WLB-LLM's outlier thresholds, and the search for them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "policies/options.h"
#include "policies/plan.h"
#include "policies/policy.h"

namespace equipoise {

// The thresholds L_1 < L_2 < ... that the options ask for: `thresholds` as given, else
// L_i = window * (n + i) / (2n), i = 0..n-1, for n = `queues`; none for n = 0.
// Throws UserError unless they are positive and rising.
std::vector<std::int64_t> wlb_thresholds(const PackOptions& options);

struct ThresholdSearch {
  std::vector<std::int64_t> thresholds;  // the best found; empty: no delay is best
  double seconds = 0;                    // its predicted time
  double token_delay_mean = 0;
  int plans_tried = 0;
};

// Thresholds with the smallest predicted time among those whose token_delay_mean is at most `delay_bound`.
// `predicted_seconds` prices a finished plan (the simulator; called a few dozen times). Starts from the best
// of 0..4 queues and of single thresholds, and moves one threshold at a time by window/8, window/16 and
// window/32 while that helps.
ThresholdSearch search_wlb_thresholds(const PackingProblem& problem,
                                      const std::function<double(const Plan&)>& predicted_seconds,
                                      double delay_bound = 0.5);

}  // namespace equipoise
