#include "profiler/profile/collective.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "profiler/profile/cpu_forms.h"
#include "profiler/profile/form_parameters.h"
#include "profiler/profile/profile.h"
#include "traces/json_object.h"

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
    {"message_us", &NodeParameters::message_us, kOptional},
    {"message_KB", &NodeParameters::message_KB, kOptional},
    {"short_GBps", &NodeParameters::short_GBps, kOptional},
    {"short_pair_loss", &NodeParameters::short_pair_loss, kOptional},
    {"long_us", &NodeParameters::long_us, kOptional},
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

std::vector<double> positive_numbers(const nlohmann::json& node, const std::string& key,
                                     const std::string& where) {
  const auto found = node.find(key);
  const auto positive = [](const nlohmann::json& value) {
    return value.is_number() && value.get<double>() > 0 && std::isfinite(value.get<double>());
  };
  if (found == node.end() || !found->is_array() || !std::all_of(found->begin(), found->end(), positive))
    throw UserError(where, ".", key, ": expected a list of numbers > 0");
  return found->get<std::vector<double>>();
}

constexpr const char* kByRail = "rail-aligned";
constexpr const char* kDeepEp = "deepep";

// C(all - marked, drawn) / C(all, drawn), the probability that none of the marked ones is drawn.
double chance_of_none(double all, double marked, int drawn) {
  double chance = 1;
  for (int i = 0; i < drawn; ++i) chance *= std::max(0.0, all - marked - i) / std::max(1.0, all - i);
  return chance;
}

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

double least_network_seconds(const NetworkParameters& network, Collective kind, GroupShape group,
                             double nic_GBps) {
  const bool in_pairs = kind == Collective::send_recv || kind == Collective::all_to_all;
  const double nic = nic_GBps * (in_pairs ? network.pair_efficiency : network.efficiency);
  return nic_bytes(kind, 1, group) * 1e-9 / nic;
}

// Seconds of a byte, without latency and ramp.
double least_node_seconds(const NodeParameters& fit, Collective kind, int ranks) {
  return bus_factor(kind, ranks) * 1e-9 / bus_GBps(fit, kind, ranks);
}

// The time of two streams that wait for each other only at the start and the end.
double pipelined_seconds(double one, double other) {
  return std::pow(std::pow(one, 4) + std::pow(other, 4), 0.25);
}

}  // namespace

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

double node_seconds(const NodeParameters& fit, Collective kind, double bytes, int ranks) {
  const double x = bytes * bus_factor(kind, ranks);
  const double others = ranks - 1;
  const double bus_us = x * 1e-3 / bus_GBps(fit, kind, ranks);
  const double ramp_us = fit.ramp_us + fit.ramp_rank_us * others;
  double us = fit.launch_us + fit.rank_us * others;
  if (fit.short_GBps > 0) {
    const double short_us = x * 1e-3 / fit.short_GBps * (1 + fit.short_pair_loss / others);
    const double long_us = fit.long_us * x / (x + fit.ramp_MB * kBytesPerMB);
    us += fit.message_us * std::min(1.0, x / others / (fit.message_KB * 1e3)) +
          std::min(std::max(short_us, bus_us), ramp_us + long_us + bus_us);
  } else {
    us += ramp_us * ramped(x, fit.ramp_MB) + bus_us;
  }
  return 1e-6 * us;
}

double network_seconds(const NetworkParameters& network, const NodeParameters& node, Collective kind,
                       double bytes, GroupShape group, double nic_GBps) {
  const double nodes = std::ceil(static_cast<double>(group.ranks) / group.ranks_per_node);
  const double y = nic_bytes(kind, bytes, group);
  const bool in_pairs = kind == Collective::send_recv || kind == Collective::all_to_all;
  const double nic = nic_GBps * (in_pairs ? network.pair_efficiency : network.efficiency);
  const double across_seconds = y * 1e-9 / nic;
  // A send/recv between nodes moves nothing inside a node; other kinds move all bytes there.
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

NodeParameters node_parameters(const nlohmann::json& table, const std::string& where) {
  if (has_form(table, kSizeTable)) {  // networks need only the links' bandwidth
    NodeParameters links;
    links.bus_GBps = bus_GBps(size_table(table, where));
    return links;
  }
  const NodeParameters fit = parameters_of(kNodeParameters, table, where);
  if (fit.message_KB > 0 && fit.short_GBps == 0)
    throw UserError(
        where, ".parameters.short_GBps: expected above 0 with message_KB, found 0; fit the profile anew");
  return fit;
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

double table_us(const SizeTable& table, double link_bytes) {
  if (link_bytes <= table.bytes.front()) return table.us.front();
  if (link_bytes >= table.bytes.back()) return table.us.back() * (link_bytes / table.bytes.back());
  const auto above = static_cast<std::size_t>(
      std::upper_bound(table.bytes.begin(), table.bytes.end(), link_bytes) - table.bytes.begin());
  const double share =
      std::log(link_bytes / table.bytes[above - 1]) / std::log(table.bytes[above] / table.bytes[above - 1]);
  return table.us[above - 1] * std::pow(table.us[above] / table.us[above - 1], share);
}

double table_seconds(const SizeTable& table, Collective kind, double bytes, int ranks) {
  return 1e-6 * (table_us(table, bytes * bus_factor(kind, ranks)) + table.rank_us * std::max(0, ranks - 2));
}

double bus_GBps(const SizeTable& table) {
  return 1e-3 * table.bytes.back() / table.us.back();
}

SizeTable size_table(const nlohmann::json& table, const std::string& where) {
  const nlohmann::json& node = object_field(table, "parameters", where);
  const std::string here = where + ".parameters";
  SizeTable made{positive_numbers(node, "bytes", here), positive_numbers(node, "us", here),
                 non_negative_field(node, "rank_us", here)};
  if (made.bytes.empty() || made.bytes.size() != made.us.size())
    throw UserError(here, ".us: expected one time a size in bytes, found ", made.us.size(), " of ",
                    made.bytes.size());
  if (std::adjacent_find(made.bytes.begin(), made.bytes.end(), std::greater_equal<>()) != made.bytes.end())
    throw UserError(here, ".bytes: expected sizes that grow");
  if (!std::is_sorted(made.us.begin(), made.us.end()))
    throw UserError(here, ".us: expected times that do not fall with size");
  return made;
}

nlohmann::json to_json(const SizeTable& table) {
  return {{"bytes", table.bytes}, {"us", table.us}, {"rank_us", table.rank_us}};
}

struct CollectiveModel::Fit {
  std::string profile;
  std::string missing;  // the file, if it has no table of collectives; else empty
  double nic_GBps = 0;
  bool one_node = false;  // no networks: the profile was measured on one machine
  std::array<NodeParameters, kCollectiveNames.size()> node;
  std::array<SizeTable, kCollectiveNames.size()> by_size;  // used instead of `node` for kinds that have one

  [[nodiscard]] double inside_node(Collective kind, double bytes, int ranks) const {
    const auto index = static_cast<std::size_t>(kind);
    const SizeTable& table = by_size[index];
    return table.bytes.empty() ? node_seconds(node[index], kind, bytes, ranks)
                               : table_seconds(table, kind, bytes, ranks);
  }
  std::array<Validity, kCollectiveNames.size()> node_bytes;
  NetworkParameters network;
  Validity network_bytes;
  Validity nodes;
  // Exchanges between experts use NCCL's messages on this network, or DeepEP.
  struct Messages {
    MessageParameters fit;
    bool by_rail = false;  // a message first goes over NVLink to the GPU on the receiver's rail
    Validity bytes;        // validity for bytes of a message
    Validity nodes;
  };
  struct Forwarding {
    ForwardingParameters fit;
    Validity bytes;  // bytes that a rank sends over NVLink and the network
    Validity nodes;
  };
  std::optional<Messages> messages;
  std::optional<Forwarding> forwarding;
  double nvlink_GBps = 0;

  void read_messages(const nlohmann::json& table, const std::string& name, const std::string& where);
  void read_forwarding(const nlohmann::json& table, const std::string& where);
  [[nodiscard]] double rate_of_nic() const {
    if (!(nic_GBps > 0))
      throw UserError("profile ", profile, " has no NIC rate; give the network's nic_GBps");
    return nic_GBps;
  }
  [[nodiscard]] double by_messages(double bytes, GroupShape group, RangeUse& use) const;
};

// A network names the table of `exchange` that prices its all-to-all.
void CollectiveModel::Fit::read_messages(const nlohmann::json& table, const std::string& name,
                                         const std::string& where) {
  const nlohmann::json& wire = table["networks"][name];
  if (!wire.contains("all_to_all")) return;
  const std::string of_network = where + ".networks." + name;
  const std::string way = text_field(wire, "all_to_all", of_network);
  const nlohmann::json& ways = object_field(table, "exchange", where);
  if (!ways.contains(way) || !has_form(ways[way], kMessagesNic)) {
    std::vector<std::string> known;
    for (const auto& item : ways.items())
      if (has_form(item.value(), kMessagesNic)) known.push_back(item.key());
    throw UserError(of_network, ".all_to_all: expected one of the profile's (", joined(known), "), found \"",
                    way, "\"");
  }
  const std::string here = where + ".exchange." + way;
  messages = Messages{message_parameters(ways[way], here), way == kByRail,
                      validity_of(ways[way], "bytes", here), validity_of(ways[way], "nodes", here)};
}

void CollectiveModel::Fit::read_forwarding(const nlohmann::json& table, const std::string& where) {
  if (!table.contains("exchange") || !table["exchange"].contains(kDeepEp)) return;
  const nlohmann::json& row = table["exchange"][kDeepEp];
  const std::string here = where + ".exchange." + kDeepEp;
  forwarding = Forwarding{forwarding_parameters(row, here), validity_of(row, "bytes", here),
                          validity_of(row, "nodes", here)};
}

CollectiveModel::CollectiveModel(const Profile& profile, const NetworkRates& network) {
  const auto read = [&] {
    auto fit = std::make_shared<Fit>();
    fit->profile = profile.name();
    if (!profile.has_table("collective")) {
      fit->missing = profile.origin();
      return fit;
    }
    const std::string where = profile.origin() + ": tables.collective";
    const nlohmann::json& table = profile.table("collective");
    const nlohmann::json& kinds = object_field(table, "node", where);
    for (std::size_t kind = 0; kind < kCollectiveNames.size(); ++kind) {
      const std::string name(kCollectiveNames[kind]);
      const nlohmann::json& row = object_field(kinds, name, where + ".node");
      fit->node[kind] = node_parameters(row, where + ".node." + name);
      if (has_form(row, kSizeTable)) fit->by_size[kind] = size_table(row, where + ".node." + name);
      fit->node_bytes[kind] = validity_of(row, "bytes", where + ".node." + name);
    }
    fit->nvlink_GBps = profile.device().nvlink_GBps;
    fit->read_forwarding(table, where);
    fit->one_node = network.name.empty() && !table.contains("networks");
    if (fit->one_node) return fit;
    const nlohmann::json& networks = object_field(table, "networks", where);
    const std::string wanted =
        network.name.empty() ? text_field(table, "default_network", where) : network.name;
    if (!networks.contains(wanted)) {
      const std::vector<std::string> known = keys_of(networks);
      throw UserError("profile ", profile.name(), " has no network \"", wanted, "\"",
                      did_you_mean(wanted, known), " (it has: ", joined(known), ")");
    }
    const std::string here = where + ".networks." + wanted;
    fit->network = network_parameters(networks.at(wanted), here);
    fit->network_bytes = validity_of(networks.at(wanted), "bytes", here);
    fit->nodes = validity_of(networks.at(wanted), "nodes", here);
    fit->read_messages(table, wanted, where);
    fit->nic_GBps = network.nic_GBps > 0 ? network.nic_GBps : profile.device().nic_GBps;
    return fit;
  };
  fit_ = std::static_pointer_cast<const Fit>(profile.kept(
      concatenated("collective ", std::bit_cast<std::uint64_t>(network.nic_GBps), " ", network.name), read));
}

double CollectiveModel::seconds(Collective kind, double bytes, GroupShape group, RangeUse& use) const {
  if (group.ranks <= 1 || !(bytes > 0)) return 0;
  if (!fit_->missing.empty())
    throw UserError(fit_->missing, ": tables.collective: expected a table, since ", group.ranks,
                    " GPUs communicate (one needs none), found nothing");
  const auto index = static_cast<std::size_t>(kind);
  const bool one_node = group.ranks_per_node >= group.ranks;
  if (!one_node && fit_->one_node)
    throw UserError("profile ", fit_->profile, " has no network: its groups stay within a node, of ",
                    group.ranks_per_node, " of these ", group.ranks,
                    " ranks; a larger gpus_per_node or another profile would do");
  const Validity& sizes = one_node ? fit_->node_bytes[index] : fit_->network_bytes;
  const std::string_view name = name_of(kind);
  if (bytes > sizes.allowed.high)
    refuse_out_of_range(fit_->profile, std::string(name), "bytes", bytes, sizes.allowed);
  if (!one_node && kind == Collective::all_to_all && fit_->messages)
    return fit_->by_messages(bytes, group, use);
  // A collective between nodes also takes the links inside them from the table of its kind.
  const bool derived = fit_->node_bytes[index].derived || sizes.derived;
  bool beyond = derived || !sizes.samples.holds(bytes);
  double seconds = 0;
  if (one_node) {
    seconds = fit_->inside_node(kind, bytes, group.ranks);
  } else {
    const double nic = fit_->rate_of_nic();
    const double nodes = static_cast<double>(group.ranks) / group.ranks_per_node;
    if (nodes > fit_->nodes.allowed.high)
      refuse_out_of_range(fit_->profile, std::string(name), "nodes", nodes, fit_->nodes.allowed);
    beyond = beyond || !fit_->nodes.samples.holds(nodes);
    seconds = network_seconds(fit_->network, fit_->node[index], kind, bytes, group, nic);
  }
  return use.note(beyond, derived, seconds);
}

// `bytes`: a rank's whole buffer, of which every rank of the group gets an equal part.
double CollectiveModel::Fit::by_messages(double bytes, GroupShape group, RangeUse& use) const {
  const auto index = static_cast<std::size_t>(Collective::all_to_all);
  const double node_count = nodes_of(group);
  if (node_count > messages->nodes.allowed.high)
    refuse_out_of_range(profile, "all_to_all", "nodes", node_count, messages->nodes.allowed);
  ExchangeLoad load = direct_load({1, 1, 1}, group, bytes);
  const double in_node = group.ranks_per_node;
  if (messages->by_rail) load.node_bytes += load.network_bytes * (in_node - 1) / in_node;
  const bool derived = messages->bytes.derived;
  const bool seen =
      messages->bytes.samples.holds(bytes / group.ranks) && messages->nodes.samples.holds(node_count);
  const double latency_us = network.launch_us + network.step_us * std::log2(node_count);
  const double bus = bus_GBps(node[index], Collective::all_to_all, group.ranks_per_node);
  return use.note(derived || !seen, derived,
                  1e-6 * latency_us + messages_seconds(messages->fit, load, bus, rate_of_nic()));
}

double CollectiveModel::forwarded_seconds(const ExchangeLoad& load, GroupShape group, RangeUse& use) const {
  const double bytes = load.node_bytes + load.network_bytes;
  if (group.ranks <= 1 || !(bytes > 0)) return 0;
  const std::optional<Fit::Forwarding>& forwarding = fit_->forwarding;
  if (!forwarding)
    throw UserError("profile ", fit_->profile, " has no times of DeepEP (tables.collective.exchange.",
                    kDeepEp, "); framework.expert_dispatcher=alltoall or another profile would do");
  const double nodes = nodes_of(group);
  if (nodes > forwarding->nodes.allowed.high)
    refuse_out_of_range(fit_->profile, kDeepEp, "nodes", nodes, forwarding->nodes.allowed);
  if (bytes > forwarding->bytes.allowed.high)
    refuse_out_of_range(fit_->profile, kDeepEp, "bytes", bytes, forwarding->bytes.allowed);
  if (load.node_bytes > 0 && !(fit_->nvlink_GBps > 0))
    throw UserError("profile ", fit_->profile,
                    ": device.nvlink_GBps: expected a rate > 0, since DeepEP's "
                    "exchange lies within a node, found 0");
  const bool derived = forwarding->bytes.derived;
  const bool seen = forwarding->bytes.samples.holds(bytes) && forwarding->nodes.samples.holds(nodes);
  return use.note(derived || !seen, derived,
                  forwarding_seconds(forwarding->fit, load,
                                     {fit_->nvlink_GBps, load.network_bytes > 0 ? fit_->rate_of_nic() : 0}));
}

double CollectiveModel::least_seconds_per_byte(Collective kind, GroupShape group) const {
  const auto index = static_cast<std::size_t>(kind);
  if (group.ranks <= 1 || !fit_->missing.empty() || !fit_->by_size[index].bytes.empty()) return 0;
  if (group.ranks_per_node >= group.ranks) return least_node_seconds(fit_->node[index], kind, group.ranks);
  if (fit_->one_node || !(fit_->nic_GBps > 0)) return 0;
  if (kind == Collective::all_to_all && fit_->messages) return 0;  // the size-table has no such bound
  return least_network_seconds(fit_->network, kind, group, fit_->nic_GBps);
}

double nodes_of(GroupShape ranks) {
  return std::ceil(static_cast<double>(ranks.ranks) / ranks.ranks_per_node);
}

RoutedToken routed_token(const ExpertRouting& routing) {
  const double experts = routing.experts;
  const int active = std::min(routing.active, routing.experts);
  const bool limited = routing.chosen > 0 && routing.chosen < routing.groups && routing.chosen < active;
  // The probability that some of a token's experts are among the `held` experts of a rank or a node.
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
  // A rank receives one part in `in_node` of its data at its own NIC or is its own.
  return {bytes * token.ranks * (in_node - 1) / in_node, bytes * token.nodes * (nodes - 1) / nodes, 0};
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
