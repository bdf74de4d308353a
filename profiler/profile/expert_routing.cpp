#include "profiler/profile/expert_routing.h"

#include <algorithm>
#include <cmath>

namespace equipoise {
namespace {

// C(all - marked, drawn) / C(all, drawn): the chance that none of the marked ones is drawn.
double chance_of_none(double all, double marked, int drawn) {
  double chance = 1;
  for (int i = 0; i < drawn; ++i) chance *= std::max(0.0, all - marked - i) / std::max(1.0, all - i);
  return chance;
}

}  // namespace

double nodes_of(GroupShape ranks) {
  return std::ceil(static_cast<double>(ranks.ranks) / ranks.ranks_per_node);
}

RoutedToken routed_token(const ExpertRouting& routing) {
  const double experts = routing.experts;
  const int active = std::min(routing.active, routing.experts);
  const bool limited = routing.chosen > 0 && routing.chosen < routing.groups && routing.chosen < active;
  // Chance that some of a token's experts are among `held`, those of a rank or a node.
  const auto reached = [&](double held) {
    if (!limited) return 1 - chance_of_none(experts, held, active);
    const double of_group = experts / routing.groups;
    if (held >= of_group) return 1 - chance_of_none(routing.groups, held / of_group, routing.chosen);
    const double others = chance_of_none(routing.chosen * (of_group - 1), held, active - routing.chosen);
    return (1 - (1 - held / of_group) * others) * routing.chosen / routing.groups;
  };
  const double ranks = routing.ranks.ranks;
  const double nodes = nodes_of(routing.ranks);
  return {static_cast<double>(active), ranks * reached(experts / ranks), nodes * reached(experts / nodes)};
}

ExchangeLoad direct_load(const RoutedToken& token, GroupShape group, double bytes) {
  const double ranks = group.ranks;
  const double in_node = std::min(group.ranks_per_node, group.ranks);
  return {bytes * token.copies * (in_node - 1) / ranks, bytes * token.copies * (ranks - in_node) / ranks,
          group.ranks - static_cast<int>(in_node)};
}

ExchangeLoad forwarded_load(const RoutedToken& token, GroupShape group, double bytes) {
  const double ranks = group.ranks;
  const double nodes = nodes_of(group);
  const double in_node = ranks / nodes;
  // Of what a rank gets, one part in `in_node` comes in at its own NIC or is its own.
  return {bytes * token.ranks * (in_node - 1) / in_node, bytes * token.nodes * (nodes - 1) / nodes, 0};
}

}  // namespace equipoise
