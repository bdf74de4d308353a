// Hierarchical balance packing (HBP, arXiv 2503.07680): its options, and its selection of groups with their
// pack lengths, CP degrees and checkpointed layers.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policies/parameter.h"
#include "policies/plan.h"
#include "policies/policy.h"
#include "policies/steps.h"

namespace equipoise {

enum class GroupSelection { simulated, algorithm_1 };
inline constexpr std::string_view kGroupSelectionNames[] = {"simulated", "algorithm-1"};

struct HbpOptions {
  std::vector<std::int64_t>
      candidate_lengths;  // candidate lengths, which the caller prices; empty: 8K .. the window
  std::int64_t curriculum_steps = 0;
  bool balance_batching = true;  // false: packs keep creation order ("+ hierarchical" of its table)
  GroupSelection selection = GroupSelection::simulated;
};

// Parses pack lengths and degrees such as "16K:1,128K:8". Throws UserError.
std::vector<Group> parse_groups(const std::string& text);
// Writes groups as parsed_groups reads them.
std::string groups_text(std::span<const Group> groups);

constexpr PackParameter groups_parameter() {
  PackParameter groups;
  groups.key = "groups";
  groups.help = "length:degree pairs, e.g. 16K:1,128K:8";
  groups.kind = ParameterKind::text;
  groups.pattern = "^[0-9]+[KkMm]?:[0-9]+(,[0-9]+[KkMm]?:[0-9]+)*$";
  groups.get = [](const PackOptions& o) { return ParameterValue(groups_text(o.groups)); };
  groups.set = [](PackOptions& o, const ParameterValue& value) {
    o.groups = parse_groups(std::get<std::string>(value));
  };
  return groups;
}
constexpr PackParameter balance_parameter() {
  PackParameter balance = parameter::flag<&HbpOptions::balance_batching>(
      "balance_batching", "false leaves packs in the order in which they were made");
  balance.flag = "--no-balance";
  return balance;
}
constexpr PackParameter candidates_parameter() {
  PackParameter lengths = parameter::integers<&HbpOptions::candidate_lengths>(
      "candidates", 1, kLongestSize, "pack lengths to choose groups from");
  lengths.acts_when = "without groups";
  lengths.acts = [](const PackOptions& o) { return o.groups.empty(); };
  return lengths;
}
inline constexpr PackParameter kHbp[] = {
    groups_parameter(), candidates_parameter(),
    parameter::integer<&HbpOptions::curriculum_steps>("curriculum_steps", 0, 1 << 30,
                                                      "first iterations, from the shortest group"),
    balance_parameter(),
    parameter::choice<&HbpOptions::selection>(
        "selection", kGroupSelectionNames,
        "of groups; simulated: by the time of whole plans; algorithm-1: by the paper's Algorithm 1 alone")};

Plan plan_hbp(const PackingProblem& problem);

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

// HBP's groups, chosen by the time of plans (Algorithm 1).

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
