// Hierarchical balance packing (HBP, arXiv 2503.07680): its options and their keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "policies/packing/hbp_groups.h"
#include "policies/parameter.h"
#include "policies/plan.h"
#include "policies/policy.h"

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

}  // namespace equipoise
