// Which of a cluster's rates a study states and which its profile does. Nothing is assumed where neither
// does: what needs the rate is refused, before anything runs.
#pragma once

#include <string>

#include "profiler/profile/profile.h"
#include "sim/study/read/study.h"

namespace equipoise {

// The study's, else the profile's.
int gpus_per_node(const Cluster& cluster, const Profile& profile);
double nic_GBps(const Cluster& cluster, const Profile& profile);

// Whether the profile, with what the study adds, prices the communication of a layout. Throws UserError.
void check_communication(const Study& study, const Layout& layout, const Profile& profile);

// That the network between nodes is another cluster's, and how far such a one has been off; empty where the
// layout stays in a node, and where the network was measured or mended.
std::string borrowed_network(const Study& study, const Layout& layout, const Profile& profile);

// What --contention asks beyond that: the rates of links. Throws UserError.
void check_links(const Study& study, const Layout& layout, const Profile& profile);

}  // namespace equipoise
