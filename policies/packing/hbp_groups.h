// HBP's groups (arXiv 2503.07680), each with its pack length, CP degree and checkpointed layers: how they are
// written, and how they are chosen by the time of plans (Algorithm 1).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "policies/plan.h"
#include "policies/policy.h"
#include "policies/steps.h"

namespace equipoise {

// Parses pack lengths and degrees such as "16K:1,128K:8". Throws UserError.
std::vector<Group> parse_groups(const std::string& text);
// Writes groups as parse_groups reads them.
std::string groups_text(std::span<const Group> groups);

// Algorithm 1 selects groups from the fastest candidate (l_best) and the longest (l_max), shortest group
// first.
std::vector<Group> select_groups(std::span<const GroupCandidate> candidates);

// The groups of the options, shortest first: `groups` as given, else selected from `candidates`, else one of
// pack_length at the study's CP degree. Throws UserError for groups that cannot run.
std::vector<Group> hbp_groups(const PackOptions& options);
// The longest pack length, which limits the documents that hbp can place; and the option that makes room for
// a longer one.
std::int64_t hbp_hard_limit(const PackOptions& options);
// The shortest of the given groups; 0 where none are given.
std::int64_t shortest_group(const PackOptions& options);
Room room_by_groups(const PackOptions& options, std::int64_t tokens);

// The prices that the choice needs. The caller computes them by simulation or by a formula.
struct GroupCosts {
  // The fewest checkpointed layers with which packs of `length` tokens fit in memory on `degree` ranks.
  // Negative: they never fit, or the layout has no groups of that degree.
  std::function<int(std::int64_t length, int degree)> layers;
  // The seconds of all steps of a plan; infinite where a step does not fit in memory.
  std::function<double(const Plan& plan)> seconds;
};

struct GroupSearch {
  std::vector<Group> groups;               // the fastest groups, shortest first; empty: no length fits
  double seconds = 0;                      // seconds of the plan with these groups
  std::vector<GroupCandidate> candidates;  // the best strategy of each length that fits
  std::vector<std::int64_t> unused;        // lengths that fit but that no document needs
  int plans_tried = 0;
};

// The CP degrees that groups may have: powers of two up to the GPUs of the grid, and the study's degree.
std::vector<int> hbp_degrees(const PackOptions& options);

// Selects groups from `lengths`. Each length takes its fastest degree by a few steps of naively packed
// documents of the problem at equal tokens, and select_groups applies Algorithm 1. The result is compared
// with groups of the same rule with another best or longest length or degree, as far as the prices of the
// naive steps are promising, and with one group of the longest length. The groups of the fastest whole plan
// are returned, so none of these alternatives is faster. With selection `algorithm-1`, Algorithm 1's groups
// are returned unchanged.
GroupSearch search_hbp_groups(const PackingProblem& problem, std::span<const std::int64_t> lengths,
                              const GroupCosts& costs);

// The search as a study runs it (OptionSearch), among the candidate lengths of the options.
bool hbp_searches(const PackOptions& options);
std::optional<Note> no_hbp_group(const PackOptions& options, const PlanPrices& prices);
Notes find_hbp_groups(const PackingProblem& problem, const PlanPrices& prices, PackOptions& found);

}  // namespace equipoise
