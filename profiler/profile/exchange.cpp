#include "profiler/profile/collective.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "profiler/profile/json_fields.h"

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

namespace {

constexpr FormParameter<MessageParameters> kMessageParameters[] = {
    {"message_us", &MessageParameters::message_us},
    {"network_efficiency", &MessageParameters::network_efficiency, kPositive},
};

constexpr FormParameter<ForwardingParameters> kForwardingParameters[] = {
    {"launch_us", &ForwardingParameters::launch_us},
    {"nvlink_efficiency", &ForwardingParameters::nvlink_efficiency, kPositive},
    {"network_efficiency", &ForwardingParameters::network_efficiency, kPositive},
};

double seconds_at(double bytes, double GBps) {
  return bytes > 0 ? bytes * 1e-9 / GBps : 0;
}

}  // namespace

double pipelined_seconds(double one, double other) {
  return std::pow(std::pow(one, 4) + std::pow(other, 4), 0.25);
}

double messages_seconds(const MessageParameters& fit, const ExchangeLoad& load, double bus_GBps,
                        double nic_GBps) {
  return 1e-6 * fit.message_us * load.messages +
         pipelined_seconds(seconds_at(load.node_bytes, bus_GBps),
                           seconds_at(load.network_bytes, fit.network_efficiency * nic_GBps));
}

double forwarding_seconds(const ForwardingParameters& fit, const ExchangeLoad& load, const LinkRates& links) {
  return 1e-6 * fit.launch_us +
         pipelined_seconds(seconds_at(load.node_bytes, fit.nvlink_efficiency * links.nvlink),
                           seconds_at(load.network_bytes, fit.network_efficiency * links.nic));
}

MessageParameters message_parameters(const nlohmann::json& table, const std::string& where) {
  return parameters_of(kMessageParameters, table, where);
}

ForwardingParameters forwarding_parameters(const nlohmann::json& table, const std::string& where) {
  return parameters_of(kForwardingParameters, table, where);
}

nlohmann::json to_json(const MessageParameters& fit) {
  return parameters_json(kMessageParameters, fit);
}

nlohmann::json to_json(const ForwardingParameters& fit) {
  return parameters_json(kForwardingParameters, fit);
}

}  // namespace equipoise
