#include "profiler/profile/collective_form.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "profiler/profile/cpu_forms.h"
#include "profiler/profile/json_fields.h"
#include "profiler/profile/size_table.h"

namespace equipoise {
namespace {

constexpr double kBytesPerMB = 1e6;

double ramped(double bytes, double half_MB) {
  return std::sqrt(bytes / (bytes + half_MB * kBytesPerMB));
}

constexpr FormParameter<NodeParameters> kNodeParameters[] = {
    {"launch_us", &NodeParameters::launch_us},
    {"rank_us", &NodeParameters::rank_us},
    {"ramp_us", &NodeParameters::ramp_us},
    {"ramp_rank_us", &NodeParameters::ramp_rank_us},
    {"ramp_MB", &NodeParameters::ramp_MB, kPositive},
    {"pair_loss", &NodeParameters::pair_loss},
    {"bus_GBps", &NodeParameters::bus_GBps, kPositive},
    {"switch_bus_GBps", &NodeParameters::switch_bus_GBps},
    {"switch_from_ranks", &NodeParameters::switch_from_ranks},
};

constexpr FormParameter<NetworkParameters> kNetworkParameters[] = {
    {"launch_us", &NetworkParameters::launch_us},
    {"step_us", &NetworkParameters::step_us},
    {"pair_launch_us", &NetworkParameters::pair_launch_us},
    {"ramp_us", &NetworkParameters::ramp_us},
    {"reduce_ramp_us", &NetworkParameters::reduce_ramp_us},
    {"ramp_MB", &NetworkParameters::ramp_MB, kPositive},
    {"efficiency", &NetworkParameters::efficiency, kPositive},
    {"pair_efficiency", &NetworkParameters::pair_efficiency, kPositive},
};

}  // namespace

double bus_GBps(const NodeParameters& fit, Collective kind, double ranks) {
  const bool by_switch =
      kind == Collective::all_reduce && fit.switch_bus_GBps > 0 && ranks >= fit.switch_from_ranks;
  return by_switch ? fit.switch_bus_GBps : fit.bus_GBps / (1 + fit.pair_loss / std::max(1.0, ranks - 1));
}

double bus_factor(Collective kind, double ranks) {
  switch (kind) {
    case Collective::all_reduce:
      return 2 * (ranks - 1) / ranks;
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_to_all:
      return (ranks - 1) / ranks;
    case Collective::send_recv:
      break;
  }
  return 1;
}

double nic_bytes(Collective kind, double bytes, GroupShape group) {
  const double ranks = group.ranks;
  const double in_node = group.ranks_per_node;
  const double nodes = std::ceil(ranks / in_node);
  switch (kind) {
    case Collective::all_reduce:
      return bytes * 2 * (nodes - 1) / nodes / in_node;
    case Collective::all_gather:
    case Collective::reduce_scatter:
      return bytes * (ranks - 1) / ranks / in_node;
    case Collective::all_to_all:
      return bytes * (ranks - in_node) / ranks;
    case Collective::send_recv:
      break;
  }
  return bytes;
}

double node_seconds(const NodeParameters& fit, Collective kind, double bytes, int ranks) {
  const double x = bytes * bus_factor(kind, ranks);
  const double others = ranks - 1;
  const double latency_us = fit.launch_us + fit.rank_us * others +
                            (fit.ramp_us + fit.ramp_rank_us * others) * ramped(x, fit.ramp_MB);
  return 1e-6 * latency_us + x * 1e-9 / bus_GBps(fit, kind, ranks);
}

double network_seconds(const NetworkParameters& network, const NodeParameters& node, Collective kind,
                       double bytes, GroupShape group, double nic_GBps) {
  const double nodes = std::ceil(static_cast<double>(group.ranks) / group.ranks_per_node);
  const double y = nic_bytes(kind, bytes, group);
  const bool in_pairs = kind == Collective::send_recv || kind == Collective::all_to_all;
  const double nic = nic_GBps * (in_pairs ? network.pair_efficiency : network.efficiency);
  const double across_seconds = y * 1e-9 / nic;
  // Inside the node: nothing of a send/recv, all of it of the others.
  const double inside_bytes = kind == Collective::send_recv || group.ranks_per_node == 1 ? 0
                              : kind == Collective::all_to_all
                                  ? bytes * (group.ranks_per_node - 1) / group.ranks
                                  : bytes * bus_factor(kind, group.ranks);
  const double inside_seconds = inside_bytes * 1e-9 / bus_GBps(node, kind, group.ranks_per_node);
  const double ramp_us = kind == Collective::all_reduce ? network.reduce_ramp_us : network.ramp_us;
  const double latency_us =
      kind == Collective::send_recv
          ? network.pair_launch_us
          : network.launch_us + network.step_us * std::log2(nodes) + ramp_us * ramped(y, network.ramp_MB);
  return 1e-6 * latency_us + std::max(across_seconds, inside_seconds);
}

double least_node_seconds(const NodeParameters& fit, Collective kind, int ranks) {
  return bus_factor(kind, ranks) * 1e-9 / bus_GBps(fit, kind, ranks);
}

double least_network_seconds(const NetworkParameters& network, Collective kind, GroupShape group,
                             double nic_GBps) {
  const bool in_pairs = kind == Collective::send_recv || kind == Collective::all_to_all;
  const double nic = nic_GBps * (in_pairs ? network.pair_efficiency : network.efficiency);
  return nic_bytes(kind, 1, group) * 1e-9 / nic;
}

NodeParameters node_parameters(const nlohmann::json& table, const std::string& where) {
  if (has_form(table, kSizeTable)) {  // of which networks need the links' bandwidth
    NodeParameters links;
    links.bus_GBps = bus_GBps(size_table(table, where));
    return links;
  }
  return parameters_of(kNodeParameters, table, where);
}

NetworkParameters network_parameters(const nlohmann::json& table, const std::string& where) {
  return parameters_of(kNetworkParameters, table, where);
}

nlohmann::json to_json(const NodeParameters& fit) {
  return parameters_json(kNodeParameters, fit);
}

nlohmann::json to_json(const NetworkParameters& fit) {
  return parameters_json(kNetworkParameters, fit);
}

}  // namespace equipoise
