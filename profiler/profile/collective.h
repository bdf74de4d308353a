// How long a collective takes: latency by hops, a ramp, and bytes over the slowest link they cross.
//
// In a node, with x = the bytes that one GPU's link carries (size times nccl-tests' bus factor):
//   launch + rank_us * (ranks - 1) + (ramp_us + ramp_rank_us * (ranks - 1)) * sqrt(x / (x + ramp_bytes))
//   + x / bus,  bus = bus_GBps / (1 + pair_loss / (ranks - 1))
// The square root is the ramp from short messages, sent by low-latency protocols, to long ones, cut into
// steps that fill the links but take time to start and drain. Few ranks keep fewer links busy (pair_loss).
// All-reduce over enough ranks is done by the switch (NVLS), whose bus bandwidth is its own.
//
// Between nodes every GPU has its own NIC (rails), and a network adds
//   launch + step_us * log2(nodes) + ramp * sqrt(y / (y + ramp_bytes)) + max(y / (efficiency * NIC), x / bus)
// with y = the bytes that one NIC carries, S the nccl-tests size, n ranks, N nodes, p ranks a node:
//   all_reduce 2 S (N-1)/N / p (trees: the node reduces first) · all_gather, reduce_scatter S (n-1)/n / p
//   (rings cross each node border once) · all_to_all S (n-p)/n · send_recv S, one NIC with its own
//   efficiency.
// An all-to-all between nodes is priced so only where the network says nothing of its own about it
// (profile/exchange.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "profiler/profile/cost_models.h"

namespace equipoise {

struct NodeParameters {  // of one kind, inside a node
  double launch_us = 0;
  double rank_us = 0;
  double ramp_us = 0;
  double ramp_rank_us = 0;
  double ramp_MB = 1;
  double pair_loss = 0;
  double bus_GBps = 1;
  double switch_bus_GBps = 0;    // of reductions done by the switch; 0: none
  double switch_from_ranks = 0;  // ranks at which the library uses it
};

struct NetworkParameters {  // of all kinds, between nodes
  double launch_us = 0;
  double step_us = 0;
  double pair_launch_us = 0;  // of send_recv: one hop, no steps, no ramp
  double ramp_us = 0;
  double reduce_ramp_us = 0;  // of all_reduce: two phases in steps that wait for each other
  double ramp_MB = 1;
  double efficiency = 1;       // of the NIC's rate, rings and trees
  double pair_efficiency = 1;  // of the NIC's rate, send_recv and all_to_all
};

// size times this = bytes on the busiest link of a node: nccl-tests' bus factor.
double bus_factor(Collective kind, double ranks);

// Bytes that one NIC carries.
double nic_bytes(Collective kind, double bytes, GroupShape group);

// Of the links inside a node, over so many ranks.
double bus_GBps(const NodeParameters& fit, Collective kind, double ranks);

double node_seconds(const NodeParameters& fit, Collective kind, double bytes, int ranks);
double network_seconds(const NetworkParameters& network, const NodeParameters& node, Collective kind,
                       double bytes, GroupShape group, double nic_GBps);

// Of a byte, without latency and ramp.
double least_node_seconds(const NodeParameters& fit, Collective kind, int ranks);
double least_network_seconds(const NetworkParameters& network, Collective kind, GroupShape group,
                             double nic_GBps);

// Of a table of either form: a size-table has no parameters but its bandwidth.
NodeParameters node_parameters(const nlohmann::json& table, const std::string& where);
NetworkParameters network_parameters(const nlohmann::json& table, const std::string& where);
nlohmann::json to_json(const NodeParameters& fit);
nlohmann::json to_json(const NetworkParameters& fit);

// "size-table": a collective between processes of one machine, as times at sizes. No formula of a few
// parameters has its shape: the library sends short messages with their envelope, longer ones in pieces, yet
// longer ones by letting the receiver copy from the sender's memory, and costs jump by six where one way
// ends; beyond, the caches that hold the buffers end one after the other.
//
// With x = the bytes that the busiest link carries (size times nccl-tests' bus factor): a straight line
// between neighbouring sizes in log x and log time, the first time below the first size, in proportion to x
// beyond the last. Times never fall with size. Every rank beyond the second adds `rank_us`.
// Cost: O(log sizes).

inline constexpr const char* kSizeTable = "size-table";

struct SizeTable {
  std::vector<double> bytes;  // on the busiest link, ascending; empty: no table
  std::vector<double> us;
  double rank_us = 0;
};

double table_seconds(const SizeTable& table, Collective kind, double bytes, int ranks);
// At a size on the busiest link, between two ranks.
double table_us(const SizeTable& table, double link_bytes);

// The bandwidth at the last size.
double bus_GBps(const SizeTable& table);

SizeTable size_table(const nlohmann::json& table, const std::string& where);
nlohmann::json to_json(const SizeTable& table);

}  // namespace equipoise
