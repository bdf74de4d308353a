// What prices a row: the costs and the memory of its layout on the study's cluster.
//
// A study states some of a cluster's rates, its profile the others. Nothing is assumed where neither does:
// what needs the rate is refused, before anything runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiler/profile/profile.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/memory/memory_model.h"
#include "sim/study/read/policy_run.h"
#include "sim/study/read/study.h"

namespace equipoise {

// The study's, else the profile's.
int gpus_per_node(const Cluster& cluster, const Profile& profile);
double nic_GBps(const Cluster& cluster, const Profile& profile);

// Whether the profile, with what the study adds, prices the communication of a layout. Throws UserError.
void check_communication(const Cluster& cluster, const FrameworkOptions& framework, const Layout& layout,
                         const Profile& profile);

// That the network between nodes is another cluster's, and how far such a one has been off; empty where the
// layout stays in a node, and where the network was measured or calibrated.
std::optional<Note> borrowed_network(const Cluster& cluster, std::int64_t gpus, const Profile& profile);

// That a NIC's rate, of one GPU, looks like Gbit/s; empty where it does not. `key`: who states it.
std::optional<Note> unlikely_nic(const std::string& key, double nic_GBps);

// What no cluster is likely to have: a NIC's rate that looks like Gbit/s, TP groups that lie over nodes
// unevenly, a last node that is not full, nodes larger than those of the profile. A note each.
Notes unlikely_cluster(const Cluster& cluster, const Layout& layout, const Profile& profile);

// What --contention asks beyond that: the rates of links. `where` names the study's file. Throws UserError.
void check_links(const Cluster& cluster, std::int64_t gpus, const Profile& profile, const std::string& where);

// Everything that prices a run of one layout; shared by all its policies and threads.
struct RunModels {
  RunModels(const Study& study, const Layout& layout, const Profile& profile);
  // The same cluster with another layout.
  RunModels(const RunModels& other, const Layout& layout);

  Layout layout;
  Cluster cluster;
  RankGrid grid;
  LayerCosts costs;
  MemoryModel memory;

 private:
  RunModels(const ModelShape& model, const Layout& layout, const Cluster& cluster,
            const FrameworkOptions& framework, const Profile& profile);
};

}  // namespace equipoise
