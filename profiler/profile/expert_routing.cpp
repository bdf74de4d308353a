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

double nodes_of(GroupShape group) {
  return std::ceil(static_cast<double>(group.ranks) / group.ranks_per_node);
}

}  // namespace

RoutedToken routed_token(const ExpertRouting& routing) {
  const double ranks = routing.group.ranks;
  const double nodes = nodes_of(routing.group);
  const double experts = routing.experts;
  const int active = std::min(routing.active, routing.experts);
  const double of_rank = experts / ranks;
  const double of_node = experts / nodes;
  const bool limited = routing.most_nodes > 0 && routing.most_nodes < nodes && routing.most_nodes < active;
  RoutedToken token{static_cast<double>(active), 0, 0};
  if (!limited) {
    token.nodes = nodes * (1 - chance_of_none(experts, of_node, active));
    token.ranks = ranks * (1 - chance_of_none(experts, of_rank, active));
    return token;
  }
  const double chosen = routing.most_nodes;
  const double in_node = ranks / nodes;
  const double missed =
      (1 - 1 / in_node) * chance_of_none(chosen * (of_node - 1), of_rank, active - routing.most_nodes);
  token.nodes = chosen;
  token.ranks = chosen * in_node * (1 - missed);
  return token;
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
