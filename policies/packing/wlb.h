// WLB-LLM's packing (Algorithm 1), with its options, its outlier thresholds and the search for them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "policies/parameter.h"
#include "policies/plan.h"
#include "policies/policy.h"

namespace equipoise {

// Options of wlb, and of varlen-solver, which starts from it.
struct WlbOptions {
  int queues = 0;
  std::vector<std::int64_t> thresholds;  // empty: from `queues`
  // Whether the thresholds are searched first (search_wlb_thresholds), and the bound on the mean delay.
  bool search = false;
  double delay_bound = 0.5;  // iterations
};
constexpr PackParameter thresholds_parameter() {
  PackParameter thresholds = parameter::integers<&WlbOptions::thresholds>(
      "thresholds", 1, kLongestSize, "first length of each queue, rising");
  thresholds.rising = true;
  return thresholds;
}
inline constexpr PackParameter kWlbQueues[] = {
    parameter::integer<&WlbOptions::queues>("queues", 0, 1000, "outlier queues; 0: no delay"),
    thresholds_parameter(), kMaxTokens};
constexpr PackParameter delay_bound_parameter() {
  PackParameter bound = parameter::number<&WlbOptions::delay_bound>(
      "delay_bound", 0, 1e9, "bound on the mean token delay of the search, in iterations");
  bound.acts_when = "with search";
  bound.acts = [](const PackOptions& o) { return o.of<WlbOptions>().search; };
  return bound;
}
inline constexpr PackParameter kWlbSearch[] = {
    parameter::flag<&WlbOptions::search>("search", "search the thresholds"), delay_bound_parameter()};

// L_max, and the L_max that a document needs.
std::int64_t max_tokens(const PackOptions& options);
std::int64_t given_max_tokens(const PackOptions& options);  // 0: not given
Room room_by_max_tokens(const PackOptions& options, std::int64_t tokens);

Plan plan_wlb(const PackingProblem& problem);

// The thresholds L_1 < L_2 < ... of the options: `thresholds` as given, else L_i = window * (n + i) / (2n), i
// = 0..n-1, for n = `queues`; none for n = 0. Throws UserError unless they are positive and rising.
std::vector<std::int64_t> wlb_thresholds(const PackOptions& options);

struct ThresholdSearch {
  std::vector<std::int64_t> thresholds;  // the best thresholds; empty: no delay is best
  double seconds = 0;                    // its predicted time
  double token_delay_mean = 0;
  int plans_tried = 0;
};

// Finds the thresholds with the smallest predicted time among those whose token_delay_mean is at most
// `delay_bound`. `predicted_seconds` prices a finished plan (the simulator; called a few dozen times). Starts
// from the best of 0..4 queues and of single thresholds, and moves one threshold at a time by window/8,
// window/16 and window/32 while that helps. `oversize` treats documents above L_max first.
ThresholdSearch search_wlb_thresholds(const PackingProblem& problem,
                                      const std::function<double(const Plan&)>& predicted_seconds,
                                      double delay_bound = 0.5);

// The search as a study runs it where the options ask for it (OptionSearch).
bool wlb_searches(const PackOptions& options);
Notes find_wlb_thresholds(const PackingProblem& problem, const PlanPrices& prices, PackOptions& found);

}  // namespace equipoise
