// Where the copies of a token go under uniform routing: what an exchange of expert parallelism carries.
//
// A token has `active` experts out of `experts`, which lie evenly on `ranks` ranks of N nodes. By symmetry
// every expert is as likely as any other, so a rank gets active / ranks of a token's copies. Less goes over
// the wires where a token is sent once to all its experts on a rank, or once to all its experts on a node;
// so what counts is how many distinct ranks and nodes a token goes to. With e experts a node, r a rank:
//   any experts: nodes = N (1 - C(E - e, k) / C(E, k)),  ranks = n (1 - C(E - r, k) / C(E, k))
//                (E experts, k of them drawn without replacement: C(E - e, k) / C(E, k) is the chance that
//                none of a node's is among them)
//   L of g groups of G = E / g experts each: routers choose the groups for the experts that score best there,
//                and those are then among the k (DeepSeek-V3, arXiv 2412.19437 section 2.1.2). So one expert
//                of each chosen group, the other k - L out of the L (G - 1) that remain. Of a node or rank
//                with m experts the chance to be reached is
//                  m < G:  L / g (1 - (1 - m / G) C(L (G - 1) - m, k - L) / C(L (G - 1), k - L))
//                  else:   1 - C(g - m / G, L) / C(g, L)
//                Groups that are nodes limit a token to L nodes. Drawing scores and choosing nodes by their
//                best one, as DeepEP's own benchmark does, gives 3.98 nodes and 7.47 ranks for 8 of 256
//                experts on 4 of 8 nodes; this gives 4 and 7.48. With L >= min(g, k) nothing is bound.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kernels/ops.h"

namespace equipoise {

struct ExpertRouting {
  int experts = 1;
  int active = 1;  // experts of a token
  GroupShape ranks;
  int groups = 0;  // of experts, one after the other, as many in each; 0: none
  int chosen = 0;  // groups that a token's experts are taken from
};

double nodes_of(GroupShape ranks);

// Expected numbers of one token, its own rank and node included. Each rank has the same share, and so has
// each node: 1 / ranks of `copies` and `ranks` stay on the token's own rank, 1 / nodes of `nodes` on its own
// node.
struct RoutedToken {
  double copies = 0;  // one for each expert
  double ranks = 0;   // distinct ones
  double nodes = 0;   // distinct ones
};

RoutedToken routed_token(const ExpertRouting& routing);

// What one GPU's links carry in an exchange, in the busier direction.
struct ExchangeLoad {
  double node_bytes = 0;     // over NVLink
  double network_bytes = 0;  // over its NIC
  int messages = 0;          // that leave the node, where every peer gets one of its own
};

// Every copy on its own way, from the sender's NIC to the receiver's. `bytes`: of all tokens of a rank,
// each counted once.
ExchangeLoad direct_load(const RoutedToken& token, GroupShape group, double bytes);

// A token goes once to each node, to the GPU of the sender's rail, and from there over NVLink once to each of
// its ranks (DeepEP's normal kernels; its combine is the same way back, summed up inside the node first).
ExchangeLoad forwarded_load(const RoutedToken& token, GroupShape group, double bytes);

// How long an exchange of tokens between experts takes, by what carries it.
//
// Two forms, over what one GPU's links carry: x bytes of NVLink, y bytes of its
// NIC, m messages to peers on other nodes.
//   messages-nic   NCCL's all-to-all: every pair of ranks its own message. Between nodes
//                    latency + m * message_us + p4(x / bus, y / (network_efficiency * NIC))
//                  with the network's latency and the links' bus bandwidth of the profile's other collectives
//                  (profile/collective.h). Two ways there: `rail-aligned`, where a message goes over
//                  NVLink to the GPU on the receiver's rail and leaves from there (NCCL's PXN), and
//                  `cross-rail`, where all NICs send to all NICs and disturb each other.
//   forwarding     DeepEP: launch_us + p4(x / (nvlink_efficiency * NVLink), y / (network_efficiency * NIC))
//                  NVLink forwards what the network still carries, so the longer of the two counts; p4 is
//                  the 4-norm, which rounds the corner between them as it does for a GEMM.
// Efficiencies are shares of the line rate of one direction, so that a fit on one board carries over to
// another with links of its own rate.

inline constexpr const char* kMessagesNic = "messages-nic";
inline constexpr const char* kForwarding = "forwarding";

struct MessageParameters {
  double message_us = 0;  // of each message, beside its bytes
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

// The time of two streams of which one waits for the other only at its start and end.
double pipelined_seconds(double one, double other);

// The part of an all-to-all that hangs on messages and links; `bus_GBps`: what NVLink gives collectives.
double messages_seconds(const MessageParameters& fit, const ExchangeLoad& load, double bus_GBps,
                        double nic_GBps);
double forwarding_seconds(const ForwardingParameters& fit, const ExchangeLoad& load, const LinkRates& links);

MessageParameters message_parameters(const nlohmann::json& table, const std::string& where);
ForwardingParameters forwarding_parameters(const nlohmann::json& table, const std::string& where);
nlohmann::json to_json(const MessageParameters& fit);
nlohmann::json to_json(const ForwardingParameters& fit);

}  // namespace equipoise
