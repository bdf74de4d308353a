// HBP's groups, chosen by the time that plans take (Algorithm 1).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "policies/packing/hbp.h"
#include "policies/plan.h"
#include "policies/policy.h"

namespace equipoise {

// What the choice must know of the machine; the caller prices it, by simulation or by a formula.
struct GroupCosts {
  // Fewest layers to checkpoint with which packs of `length` tokens on `degree` ranks fit; negative: they
  // never do, or the layout has no groups of that degree.
  std::function<int(std::int64_t length, int degree)> layers;
  // Seconds of all steps of a plan; infinite where a step does not fit.
  std::function<double(const Plan& plan)> seconds;
};

struct GroupSearch {
  std::vector<Group> groups;               // the best found, shortest first; empty: no length fits
  double seconds = 0;                      // of the plan with them
  std::vector<GroupCandidate> candidates;  // the best strategy of each length that fits
  std::vector<std::int64_t> unused;        // lengths that fit and that no document asks for
  int plans_tried = 0;
};

// CP degrees that groups may have: powers of two up to the GPUs of the grid, and the study's own.
std::vector<int> hbp_degrees(const PackOptions& options);

// Groups from `lengths`: for each the fastest degree, by a few steps of naively packed documents of the
// problem at equal tokens; of these Algorithm 1's groups (select_groups). They are held against the groups of
// the same rule with another length or degree in the place of the best and of the longest, as far as the
// prices of the naive steps promise as much, and against one group of the longest length; the fastest whole
// plan is returned, so none of those is faster.
GroupSearch search_hbp_groups(const PackingProblem& problem, std::span<const std::int64_t> lengths,
                              const GroupCosts& costs);

// The search as a study runs it, among the candidate lengths of the options (OptionSearch).
bool hbp_searches(const PackOptions& options);
std::string no_hbp_group(const PackOptions& options, const PlanPrices& prices);
std::vector<std::string> find_hbp_groups(const PackingProblem& problem, const PlanPrices& prices,
                                         PackOptions& found);

}  // namespace equipoise
