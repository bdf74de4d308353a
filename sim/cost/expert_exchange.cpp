#include "sim/cost/expert_exchange.h"

#include "profiler/profile/exchange.h"

namespace equipoise {
namespace {

// The all-to-all buffer of which as much leaves the node, or, within one, the rank.
double equivalent_buffer(const ExchangeLoad& load, GroupShape group) {
  const double ranks = group.ranks;
  if (load.network_bytes > 0) return load.network_bytes * ranks / (ranks - group.ranks_per_node);
  return load.node_bytes * ranks / (ranks - 1);
}

}  // namespace

Op ExpertExchange::op(double tokens, double load, ExchangeWay way, RangeUse& use) const {
  Op op{OpName::ep_all_to_all, Stream::ep};
  const MoeShape& moe = *model_.moe;
  const bool narrow = way == ExchangeWay::to_experts && framework_.dispatch_bytes > 0;
  const double element_bytes = narrow ? framework_.dispatch_bytes : element_bytes_;
  const double bytes = element_bytes * tokens * static_cast<double>(model_.hidden) * load;
  if (framework_.expert_dispatcher == ExpertDispatcher::all_to_all) {
    op.bytes = bytes * moe.active;
    op.duration = to_picoseconds(collectives_.seconds(Collective::all_to_all, op.bytes, group_, use));
    return op;
  }
  // Groups of experts are the router's, or, where a study says so, the nodes.
  ExpertRouting routing{moe.experts, moe.active, group_, moe.groups, moe.groups_of_token};
  if (framework_.expert_nodes > 0) {
    routing.groups = static_cast<int>(nodes_of(group_));
    routing.chosen = framework_.expert_nodes;
  }
  const RoutedToken token = routed_token(routing);
  const ExchangeLoad traffic = forwarded_load(token, group_, bytes);
  op.bytes = equivalent_buffer(traffic, group_);
  op.duration = to_picoseconds(collectives_.forwarded_seconds(traffic, group_, use));
  return op;
}

}  // namespace equipoise
