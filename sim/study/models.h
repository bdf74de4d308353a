// The models that price a row: the costs and the memory of its layout on the study's cluster.
//
// A study states some of a cluster's rates, its profile the others. If neither does, nothing is assumed: what
// needs the rate is refused before anything runs.
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

// Throws UserError unless the profile, with what the study adds, can price the communication of a layout.
void check_communication(const Cluster& cluster, const FrameworkOptions& framework, const Layout& layout,
                         const Profile& profile);

// A note that the network between nodes is another cluster's, and how large the error of such a network has
// been. Empty if the layout fits into a node, or the network was measured or calibrated.
std::optional<Note> borrowed_network(const Cluster& cluster, std::int64_t gpus, const Profile& profile);

// A note that a NIC's rate per GPU looks like Gbit/s; else empty. `key` states the rate.
std::optional<Note> unlikely_nic(const std::string& key, double nic_GBps);

// A note for each property that no real cluster is likely to have: a NIC's rate that looks like Gbit/s, TP
// groups spread unevenly over nodes, a last node that is not full, nodes larger than the profile's.
Notes unlikely_cluster(const Cluster& cluster, const Layout& layout, const Profile& profile);

// Checks that the rates of links are known, which --contention needs in addition. `where` names the study's
// file. Throws UserError.
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
