#include "sim/study/models.h"

#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "sim/cost/check_layout.h"
#include "traces/json_object.h"

namespace equipoise {

int gpus_per_node(const Cluster& cluster, const Profile& profile) {
  return cluster.gpus_per_node > 0 ? cluster.gpus_per_node : profile.device().gpus_per_node;
}

double nic_GBps(const Cluster& cluster, const Profile& profile) {
  return cluster.network.nic_GBps > 0 ? cluster.network.nic_GBps : profile.device().nic_GBps;
}

void check_communication(const Cluster& cluster, const FrameworkOptions& framework, const Layout& layout,
                         const Profile& profile) {
  const std::int64_t gpus = layout.gpus();
  if (gpus == 1) return;
  const std::string all = std::to_string(gpus);
  if (!profile.has_table("collective"))
    throw UserError("parallel: expected one GPU with profile " + profile.name() +
                    ", which has no collectives (" + profile.origin() + ": tables.collective), found " + all);
  const bool deepep = framework.expert_dispatcher == ExpertDispatcher::deepep;
  if (layout.expert > 1 && deepep &&
      !profile.table("collective").value("exchange", nlohmann::json::object()).contains("deepep"))
    throw UserError("framework.expert_dispatcher: expected alltoall with profile " + profile.name() +
                    ", which has no times of DeepEP (" + profile.origin() +
                    ": tables.collective.exchange.deepep), found deepep");
  const int in_node = gpus_per_node(cluster, profile);
  if (gpus <= in_node) return;
  if (!profile.table("collective").contains("networks"))
    throw UserError("parallel: expected at most " + std::to_string(in_node) +
                    " GPUs, a node's (cluster.gpus_per_node), with profile " + profile.name() +
                    ", which has no network between nodes (" + profile.origin() +
                    ": tables.collective.networks), found " + all);
  if (!(nic_GBps(cluster, profile) > 0))
    throw UserError("cluster.network.nic_GBps: expected a rate, since " + all + " GPUs lie over nodes of " +
                    std::to_string(in_node) + " and profile " + profile.name() +
                    " states none (device.nic_GBps), found nothing");
}

std::optional<Note> borrowed_network(const Cluster& cluster, std::int64_t gpus, const Profile& profile) {
  if (gpus <= gpus_per_node(cluster, profile)) return {};
  const nlohmann::json& table = profile.table("collective");
  const std::string& asked = cluster.network.name;
  const std::string name = asked.empty() ? table.value("default_network", std::string()) : asked;
  const nlohmann::json network =
      table.value("networks", nlohmann::json::object()).value(name, nlohmann::json::object());
  const std::string kind = network.value("provenance", nlohmann::json::object()).value("kind", std::string());
  const double own = profile.device().nic_GBps, nic = nic_GBps(cluster, profile);
  if (kind == "calibrated" && nic != own)
    return Note{
        "network_carried", "", {{"nic", nic}, {"network", name}, {"profile", profile.name()}, {"own", own}}};
  if (kind == "measured" || kind == "calibrated") return {};
  const std::string errors = unseen_fabric_errors(network);
  Note note{"network_unknown", "", {{"network", name}, {"profile", profile.name()}}};
  if (errors.empty()) return note;
  note.kind = "network_borrowed";
  note.numbers.emplace("errors", errors);
  return note;
}

std::optional<Note> unlikely_nic(const std::string& key, double nic_GBps) {
  constexpr double kFastestNic = 200;  // GB/s per GPU, four times today's fastest
  if (!(nic_GBps > kFastestNic)) return {};
  return Note{"unlikely_nic",
              "",
              {{"key", key}, {"GBps", nic_GBps}, {"Gbps", 8 * nic_GBps}, {"meant", nic_GBps / 8}}};
}

Notes unlikely_cluster(const Cluster& cluster, const Layout& layout, const Profile& profile) {
  Notes notes;
  const std::int64_t gpus = layout.gpus();
  const int in_node = gpus_per_node(cluster, profile);
  const int of_profile = profile.device().gpus_per_node;
  if (in_node > of_profile && gpus > of_profile)
    notes.push_back(
        {"larger_node", "", {{"in_node", in_node}, {"profile", profile.name()}, {"of_profile", of_profile}}});
  if (gpus <= in_node) return notes;
  if (in_node < of_profile)
    notes.push_back({"smaller_node",
                     "",
                     {{"in_node", in_node}, {"profile", profile.name()}, {"of_profile", of_profile}}});
  add(notes, unlikely_nic("cluster.network.nic_GBps", nic_GBps(cluster, profile)));
  const int tensor = layout.tensor;
  if (tensor > 1 && (tensor <= in_node ? in_node % tensor : tensor % in_node) != 0)
    notes.push_back({"tensor_over_nodes", "", {{"tensor", tensor}, {"in_node", in_node}}});
  if (gpus % in_node != 0)
    notes.push_back({"part_node", "", {{"gpus", gpus}, {"in_node", in_node}, {"last", gpus % in_node}}});
  return notes;
}

void check_links(const Cluster& cluster, std::int64_t gpus, const Profile& profile,
                 const std::string& where) {
  if (gpus == 1 || gpus_per_node(cluster, profile) == 1 || profile.device().nvlink_GBps > 0) return;
  throw UserError(where + ": " + profile.origin() +
                  ": device.nvlink_GBps: expected a rate > 0 for --contention between the GPUs of a node, "
                  "found 0");
}

// Equal ranks of all nodes hand over each other's keys, as in MagiAttention's mesh of nodes by ranks.
static void check_cast(const Layout& l, const RankGrid& grid) {
  if (!l.cast_once_per_node || !l.acting_facts().casts) return;
  const std::size_t in_node = at(grid.shape(Axis::context).ranks_per_node);
  for (int gpu = 0; gpu < grid.gpus(); ++gpu) {
    const std::vector<int> group = grid.group(Axis::context, gpu);
    for (std::size_t r = 0; r < group.size(); ++r)
      if (group.size() % in_node != 0 || grid.node(group[r]) != grid.node(group[r / in_node * in_node]))
        throw UserError(
            "parallel.cast_once_per_node: expected false, or as many CP ranks in each node, found ",
            l.context, " that lie unevenly over nodes of ", grid.gpus_per_node(),
            " GPUs (parallel.context, cluster.gpus_per_node)");
  }
}

RunModels::RunModels(const ModelShape& model, const Layout& l, const Cluster& c,
                     const FrameworkOptions& framework, const Profile& profile)
    : layout(l),
      cluster(c),
      grid(l.order, parallel_sizes(l), gpus_per_node(cluster, profile)),
      costs(model, layout, profile, grid, cluster.network, framework),
      memory(model, layout, profile, framework) {
  check_communication(cluster, framework, layout, profile);
  check_cast(layout, grid);
  if (cluster.memory_GB > 0) memory.set_capacity(cluster.memory_GB * 1e9);
  memory.set_headroom(cluster.memory_headroom);
}

RunModels::RunModels(const Study& study, const Layout& l, const Profile& profile)
    : RunModels(study.model, l, study.cluster, study.framework.on(profile, l.precision), profile) {}

RunModels::RunModels(const RunModels& other, const Layout& l)
    : RunModels(other.costs.model(), l, other.cluster, other.costs.framework(), other.costs.profile()) {}

}  // namespace equipoise
