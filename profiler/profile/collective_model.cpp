#include <array>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "policies/base/names.h"
#include "profiler/profile/collective_form.h"
#include "profiler/profile/cost_models.h"
#include "profiler/profile/cpu_forms.h"
#include "profiler/profile/json_fields.h"
#include "profiler/profile/profile.h"
#include "profiler/profile/size_table.h"
#include "profiler/profile/validity.h"

namespace equipoise {

struct CollectiveModel::Fit {
  std::string profile;
  std::string missing;  // the file that has no table of collectives; empty: it has one
  double nic_GBps = 0;
  bool one_node = false;  // no networks: measured on one machine, e.g. two processes on a CPU
  std::array<NodeParameters, kCollectiveNames.size()> node;
  std::array<SizeTable, kCollectiveNames.size()> by_size;  // of kinds that have one, instead of `node`

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
};

CollectiveModel::CollectiveModel(const Profile& profile, const NetworkRates& network)
    : fit_(std::make_unique<Fit>()) {
  fit_->profile = profile.name();
  if (!profile.has_table("collective")) {
    fit_->missing = profile.origin();
    return;
  }
  const std::string where = profile.origin() + ": tables.collective";
  const nlohmann::json& table = profile.table("collective");
  const nlohmann::json& kinds = object_field(table, "node", where);
  for (std::size_t kind = 0; kind < kCollectiveNames.size(); ++kind) {
    const std::string name(kCollectiveNames[kind]);
    const nlohmann::json& row = object_field(kinds, name, where + ".node");
    fit_->node[kind] = node_parameters(row, where + ".node." + name);
    if (has_form(row, kSizeTable)) fit_->by_size[kind] = size_table(row, where + ".node." + name);
    fit_->node_bytes[kind] = validity_of(row, "bytes", where + ".node." + name);
  }
  fit_->one_node = network.name.empty() && !table.contains("networks");
  if (fit_->one_node) return;
  const nlohmann::json& networks = object_field(table, "networks", where);
  const std::string wanted =
      network.name.empty() ? text_field(table, "default_network", where) : network.name;
  if (!networks.contains(wanted)) {
    std::vector<std::string> known;
    for (const auto& item : networks.items()) known.push_back(item.key());
    throw UserError("profile " + profile.name() + " has no network \"" + wanted + "\"" +
                    did_you_mean(wanted, known) + " (it has: " + joined(known) + ")");
  }
  const std::string here = where + ".networks." + wanted;
  fit_->network = network_parameters(networks.at(wanted), here);
  fit_->network_bytes = validity_of(networks.at(wanted), "bytes", here);
  fit_->nodes = validity_of(networks.at(wanted), "nodes", here);
  fit_->nic_GBps = network.nic_GBps > 0 ? network.nic_GBps : profile.device().nic_GBps;
}

CollectiveModel::~CollectiveModel() = default;
CollectiveModel::CollectiveModel(CollectiveModel&&) noexcept = default;
CollectiveModel& CollectiveModel::operator=(CollectiveModel&&) noexcept = default;

double CollectiveModel::seconds(Collective kind, double bytes, GroupShape group, RangeUse& use) const {
  if (group.ranks <= 1 || !(bytes > 0)) return 0;
  if (!fit_->missing.empty())
    throw UserError(fit_->missing + ": tables.collective: expected a table, since " +
                    std::to_string(group.ranks) + " GPUs communicate (one needs none), found nothing");
  const auto index = static_cast<std::size_t>(kind);
  const bool one_node = group.ranks_per_node >= group.ranks;
  if (!one_node && fit_->one_node)
    throw UserError("profile " + fit_->profile + " has no network: its groups stay within a node, of " +
                    std::to_string(group.ranks_per_node) + " of these " + std::to_string(group.ranks) +
                    " ranks; a larger gpus_per_node or another profile would do");
  const Validity& sizes = one_node ? fit_->node_bytes[index] : fit_->network_bytes;
  const std::string_view name = name_of(kind);
  if (bytes > sizes.allowed.high)
    refuse_out_of_range(fit_->profile, std::string(name), "bytes", bytes, sizes.allowed);
  use.calls += 1;
  // Between nodes, too, the links inside them are those of the kind's own table.
  const bool derived = fit_->node_bytes[index].derived || sizes.derived;
  bool beyond = derived || !sizes.samples.holds(bytes);
  double seconds = 0;
  if (one_node) {
    seconds = fit_->inside_node(kind, bytes, group.ranks);
  } else {
    if (!(fit_->nic_GBps > 0))
      throw UserError("profile " + fit_->profile + " has no NIC rate; give the network's nic_GBps");
    const double nodes = static_cast<double>(group.ranks) / group.ranks_per_node;
    if (nodes > fit_->nodes.allowed.high)
      refuse_out_of_range(fit_->profile, std::string(name), "nodes", nodes, fit_->nodes.allowed);
    beyond = beyond || !fit_->nodes.samples.holds(nodes);
    seconds = network_seconds(fit_->network, fit_->node[index], kind, bytes, group, fit_->nic_GBps);
  }
  use.beyond_samples += beyond ? 1 : 0;
  use.derived += derived ? 1 : 0;
  return seconds;
}

}  // namespace equipoise
