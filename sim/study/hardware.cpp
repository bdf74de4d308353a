#include "sim/study/hardware.h"

#include <nlohmann/json.hpp>

#include "policies/base/error.h"

namespace equipoise {

int gpus_per_node(const Cluster& cluster, const Profile& profile) {
  return cluster.gpus_per_node > 0 ? cluster.gpus_per_node : profile.device().gpus_per_node;
}

double nic_GBps(const Cluster& cluster, const Profile& profile) {
  return cluster.network.nic_GBps > 0 ? cluster.network.nic_GBps : profile.device().nic_GBps;
}

void check_communication(const Study& study, const Layout& layout, const Profile& profile) {
  const std::int64_t gpus = layout.gpus();
  if (gpus == 1) return;
  const std::string all = std::to_string(gpus);
  if (!profile.has_table("collective"))
    throw UserError("parallel: expected one GPU with profile " + profile.name() +
                    ", which has no collectives (" + profile.origin() + ": tables.collective), found " + all);
  const bool deepep = study.framework.on(profile).expert_dispatcher == ExpertDispatcher::deepep;
  if (layout.expert > 1 && deepep &&
      !profile.table("collective").value("exchange", nlohmann::json::object()).contains("deepep"))
    throw UserError("framework.expert_dispatcher: expected alltoall with profile " + profile.name() +
                    ", which has no times of DeepEP (" + profile.origin() +
                    ": tables.collective.exchange.deepep), found deepep");
  const int in_node = gpus_per_node(study.cluster, profile);
  if (gpus <= in_node) return;
  if (!profile.table("collective").contains("networks"))
    throw UserError("parallel: expected at most " + std::to_string(in_node) +
                    " GPUs, a node's (cluster.gpus_per_node), with profile " + profile.name() +
                    ", which has no network between nodes (" + profile.origin() +
                    ": tables.collective.networks), found " + all);
  if (!(nic_GBps(study.cluster, profile) > 0))
    throw UserError("cluster.network.nic_GBps: expected a rate, since " + all + " GPUs lie over nodes of " +
                    std::to_string(in_node) + " and profile " + profile.name() +
                    " states none (device.nic_GBps), found nothing");
}

std::string borrowed_network(const Study& study, const Layout& layout, const Profile& profile) {
  if (layout.gpus() <= gpus_per_node(study.cluster, profile)) return {};
  const nlohmann::json& table = profile.table("collective");
  const std::string& asked = study.cluster.network.name;
  const std::string name = asked.empty() ? table.value("default_network", std::string()) : asked;
  const nlohmann::json network =
      table.value("networks", nlohmann::json::object()).value(name, nlohmann::json::object());
  const std::string kind = network.value("provenance", nlohmann::json::object()).value("kind", std::string());
  if (kind == "measured" || kind == "mended") return {};
  std::string note =
      "network " + name + " of profile " + profile.name() + " is borrowed from other clusters; on this one ";
  if (const std::string errors = unseen_fabric_errors(network); !errors.empty())
    note += "collectives between nodes may be off as on fabrics left out of such a fit, " + errors +
            "; a few points of "
            "nccl-tests mend it (equipoise fit --base " +
            profile.name() + ")";
  else
    note += "its error is unknown; a few points of nccl-tests mend it (equipoise fit --base " +
            profile.name() + ")";
  return note;
}

void check_links(const Study& study, const Layout& layout, const Profile& profile) {
  const bool shares_nodes = layout.gpus() > 1 && gpus_per_node(study.cluster, profile) > 1;
  if (shares_nodes && !(profile.device().nvlink_GBps > 0))
    throw UserError(profile.origin() +
                    ": device.nvlink_GBps: expected a rate > 0 for --contention between the GPUs of a node, "
                    "found 0");
}

}  // namespace equipoise
