#include "sim/cost/expert_exchange.h"

#include "profiler/profile/collective.h"

namespace equipoise {

// The size of the all-to-all buffer of which as much leaves the node, or, within one node, the rank.
static double equivalent_buffer(const ExchangeLoad& load, GroupShape group) {
  const double ranks = group.ranks;
  if (load.network_bytes > 0) return load.network_bytes * ranks / (ranks - group.ranks_per_node);
  return load.node_bytes * ranks / (ranks - 1);
}

Op expert_exchange(const ExpertGroup& group, double tokens, double load, ExchangeWay way, RangeUse& use) {
  Op op{OpName::ep_all_to_all, Stream::ep};
  const MoeShape& moe = *group.model.moe;
  const bool narrow = way == ExchangeWay::to_experts && group.framework.dispatch_bytes > 0;
  const double element_bytes = narrow ? group.framework.dispatch_bytes : group.element_bytes;
  const double bytes = element_bytes * tokens * as_double(group.model.hidden) * load;
  if (group.framework.expert_dispatcher == ExpertDispatcher::all_to_all) {
    op.bytes = bytes * moe.active;
    op.duration =
        to_picoseconds(group.collectives.seconds(Collective::all_to_all, op.bytes, group.ranks, use));
    return op;
  }
  // Groups of experts are the router's, or, if a study says so, the nodes.
  ExpertRouting routing{moe.experts, moe.active, group.ranks, moe.groups, moe.groups_of_token};
  if (group.framework.expert_nodes > 0) {
    routing.groups = static_cast<int>(nodes_of(group.ranks));
    routing.chosen = group.framework.expert_nodes;
  }
  const RoutedToken token = routed_token(routing);
  const ExchangeLoad traffic = forwarded_load(token, group.ranks, bytes);
  op.bytes = equivalent_buffer(traffic, group.ranks);
  op.duration = to_picoseconds(group.collectives.forwarded_seconds(traffic, group.ranks, use));
  return op;
}

}  // namespace equipoise
