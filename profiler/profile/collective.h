// The time of a collective: latency by hops, a ramp, and bytes over the slowest link that they cross.
//
// In a node, with x = the bytes that one GPU's link carries (size times nccl-tests' bus factor) and
// y = x / (ranks - 1) = the bytes to each peer:
//   launch + rank_us * (ranks - 1) + message_us * min(1, y / message_bytes) + min(s, l)
//   s = max(x / short, x / bus)
//   l = ramp_us + ramp_rank_us * (ranks - 1) + long_us * x / (x + ramp_bytes) + x / bus
//   short = short_GBps / (1 + short_pair_loss / (ranks - 1))
//   bus = bus_GBps / (1 + pair_loss / (ranks - 1))
// Short messages use a low-latency protocol, whose packets carry flags and lower the links' rate. Long
// messages use another one, cut into steps that fill the links but take time to start and drain. Few ranks
// keep fewer links busy. The switch (NVLS) does all-reduces over enough ranks, with a bus bandwidth of its
// own. Send_recv has one protocol in this form (short_GBps 0):
//   launch + rank_us * (ranks - 1) + (ramp_us + ramp_rank_us * (ranks - 1)) * sqrt(x / (x + ramp_bytes))
//   + x / bus
//
// Between nodes every GPU has its own NIC (rails), and a network adds
//   launch + step_us * log2(nodes) + ramp * sqrt(y / (y + ramp_bytes)) + max(y / (efficiency * NIC), x / bus)
// with y = the bytes that one NIC carries, S the nccl-tests size, n ranks, N nodes, p ranks per node:
//   all_reduce 2 S (N-1)/N / p (trees: the node reduces first) · all_gather, reduce_scatter S (n-1)/n / p
//   (rings cross each node border once) · all_to_all S (n-p)/n · send_recv S, one NIC with its own
//   efficiency.
// This prices an all-to-all between nodes only where the network's table names no exchange for it (below).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "profiler/profile/cost_models.h"

namespace equipoise {

struct NodeParameters {  // parameters of one kind inside a node
  double launch_us = 0;
  double rank_us = 0;
  double ramp_us = 0;
  double ramp_rank_us = 0;
  double ramp_MB = 1;
  double pair_loss = 0;
  double bus_GBps = 1;
  double switch_bus_GBps = 0;    // for reductions that the switch does; 0: it does none
  double switch_from_ranks = 0;  // ranks at which the library uses it
  double message_us = 0;         // latency of messages of message_KB and more
  double message_KB = 0;
  double short_GBps = 0;  // for the short-message protocol; 0 if one protocol serves all
  double short_pair_loss = 0;
  double long_us = 0;  // time of long messages in addition to their bytes and ramp_us
};

struct NetworkParameters {  // parameters of all kinds between nodes
  double launch_us = 0;
  double step_us = 0;
  double pair_launch_us = 0;  // for send_recv, which has one hop, no steps and no ramp
  double ramp_us = 0;
  double reduce_ramp_us = 0;  // for all_reduce, which has two phases in steps that wait for each other
  double ramp_MB = 1;
  double efficiency = 1;       // share of the NIC's rate that rings and trees reach
  double pair_efficiency = 1;  // share of the NIC's rate that send_recv and all_to_all reach
};

// The bus factor of nccl-tests: bytes on the busiest link of a node over the collective's size.
double bus_factor(Collective kind, double ranks);

double nic_bytes(Collective kind, double bytes, GroupShape group);

// The bus bandwidth of the links inside a node for a collective over `ranks` ranks.
double bus_GBps(const NodeParameters& fit, Collective kind, double ranks);

double node_seconds(const NodeParameters& fit, Collective kind, double bytes, int ranks);
double network_seconds(const NetworkParameters& network, const NodeParameters& node, Collective kind,
                       double bytes, GroupShape group, double nic_GBps);

// The parameters of a table of either form. A size-table gives only its bandwidth.
NodeParameters node_parameters(const nlohmann::json& table, const std::string& where);
NetworkParameters network_parameters(const nlohmann::json& table, const std::string& where);
nlohmann::json to_json(const NodeParameters& fit);
nlohmann::json to_json(const NetworkParameters& fit);

// "size-table" gives the time of a collective between processes of one machine at a list of sizes. No formula
// with few parameters has its shape: the library sends short messages with their envelope, longer ones in
// pieces, and the longest by letting the receiver copy from the sender's memory. The cost jumps by a factor
// of six between two of these ways, and grows again at larger sizes where the buffers exceed one cache after
// the other.
//
// With x = the bytes that the busiest link carries (size times nccl-tests' bus factor): the time
// is a straight line between neighbouring sizes in log x and log time, the first time below the first size,
// and proportional to x above the last. Times never fall with size. Every rank after the second adds
// `rank_us`. Cost: O(log sizes).

inline constexpr const char* kSizeTable = "size-table";

struct SizeTable {
  std::vector<double> bytes;  // on the busiest link, ascending; empty: no table
  std::vector<double> us;
  double rank_us = 0;
};

double table_seconds(const SizeTable& table, Collective kind, double bytes, int ranks);
// The time between two ranks of so many bytes on the busiest link.
double table_us(const SizeTable& table, double link_bytes);

// The bandwidth at the last size.
double bus_GBps(const SizeTable& table);

SizeTable size_table(const nlohmann::json& table, const std::string& where);
nlohmann::json to_json(const SizeTable& table);

// --- The destinations of a token's copies under uniform routing, which decide what an exchange carries.
//
// A token has `active` experts out of `experts`, which are spread evenly over `ranks` ranks of N nodes. By
// symmetry all experts are equally likely, so a rank gets active / ranks of a token's copies. Libraries send
// less where a token goes only once to all its experts on a rank or on a node, so the numbers of distinct
// ranks and nodes of a token matter. With e experts per node and r per rank:
//   any experts: nodes = N (1 - C(E - e, k) / C(E, k)),  ranks = n (1 - C(E - r, k) / C(E, k))
//                (E experts, k of them drawn without replacement: C(E - e, k) / C(E, k) is the probability
//                that no expert of a node is among them)
//   L of g groups of G = E / g experts each: routers choose the groups for the experts that score best there,
//                and those are then among the k (DeepSeek-V3, arXiv 2412.19437 section 2.1.2). So there is
//                one expert of each chosen group, and the other k - L come out of the L (G - 1) that remain.
//                A node or rank with m experts is reached with probability
//                  m < G:  L / g (1 - (1 - m / G) C(L (G - 1) - m, k - L) / C(L (G - 1), k - L))
//                  else:   1 - C(g - m / G, L) / C(g, L)
//                Groups that are nodes limit a token to L nodes. Drawing scores and choosing nodes by their
//                best one, as DeepEP's own benchmark does, gives 3.98 nodes and 7.47 ranks for 8 of 256
//                experts on 4 of 8 nodes; this gives 4 and 7.48. With L >= min(g, k) the groups do not limit
//                a token.

struct ExpertRouting {
  int experts = 1;
  int active = 1;  // experts of a token
  GroupShape ranks;
  int groups = 0;  // of consecutive experts, equally many in each; 0: none
  int chosen = 0;  // groups from which a token's experts are taken
};

double nodes_of(GroupShape ranks);

// Expected numbers for one token, including its own rank and node. All ranks have equal shares, and so have
// all nodes: 1 / ranks of `copies` and `ranks` stay on the token's own rank, 1 / nodes of `nodes` on its own
// node.
struct RoutedToken {
  double copies = 0;  // one for each expert
  double ranks = 0;   // distinct ones
  double nodes = 0;   // distinct ones
};

RoutedToken routed_token(const ExpertRouting& routing);

// The load of one GPU's links in an exchange, in the busier direction.
struct ExchangeLoad {
  double node_bytes = 0;     // over NVLink
  double network_bytes = 0;  // over its NIC
  int messages = 0;          // messages that leave the node, one for each peer there
};

// Sends every copy separately from the sender's NIC to the receiver's. `bytes`: of all tokens of a rank, each
// counted once.
ExchangeLoad direct_load(const RoutedToken& token, GroupShape group, double bytes);

// Sends a token once to each node, to the GPU on the sender's rail, and from there over NVLink once to each
// of its ranks there (DeepEP's normal kernels; their combine takes the same way back and sums inside the node
// first).
ExchangeLoad forwarded_load(const RoutedToken& token, GroupShape group, double bytes);

// The time of an exchange of tokens between experts.
//
// Two forms use the load of one GPU's links: x bytes on NVLink, y bytes on its NIC, m messages to peers on
// other nodes.
//   messages-nic   NCCL's all-to-all, with one message for every pair of ranks. Between nodes
//                    latency + m * message_us + p4(x / bus, y / (network_efficiency * NIC))
//                  with the network's latency and the links' bus bandwidth of the profile's other collectives
//                  (profile/collective.h). Profiles have two tables of it: `rail-aligned`, where a message
//                first goes over NVLink to the GPU on the receiver's rail (NCCL's PXN), and `cross-rail`,
//                where all NICs send to all NICs and disturb each other.
//   forwarding     DeepEP: launch_us + p4(x / (nvlink_efficiency * NVLink), y / (network_efficiency * NIC))
//                  NVLink forwards while the network still carries, so the longer of the two counts; p4 is
//                the 4-norm, which rounds the corner between them as it does for a GEMM.
// Efficiencies are shares of the line rate in one direction, so that a fit on one board applies to another
// with links of another rate.

inline constexpr const char* kMessagesNic = "messages-nic";
inline constexpr const char* kForwarding = "forwarding";

struct MessageParameters {
  double message_us = 0;  // per message, in addition to its bytes
  double network_efficiency = 1;
};

struct ForwardingParameters {
  double launch_us = 0;
  double nvlink_efficiency = 1;
  double network_efficiency = 1;
};

struct LinkRates {  // one direction, GB/s
  double nvlink = 0;
  double nic = 0;
};

// The part of an all-to-all that depends on messages and links. `bus_GBps`: NVLink's rate for collectives.
double messages_seconds(const MessageParameters& fit, const ExchangeLoad& load, double bus_GBps,
                        double nic_GBps);
double forwarding_seconds(const ForwardingParameters& fit, const ExchangeLoad& load, const LinkRates& links);

MessageParameters message_parameters(const nlohmann::json& table, const std::string& where);
ForwardingParameters forwarding_parameters(const nlohmann::json& table, const std::string& where);
nlohmann::json to_json(const MessageParameters& fit);
nlohmann::json to_json(const ForwardingParameters& fit);

}  // namespace equipoise
