// Where the copies of a token go under uniform routing: what an exchange of expert parallelism carries.
//
// A token has `active` experts out of `experts`, which lie evenly on `ranks` ranks of N nodes. By symmetry
// every expert is as likely as any other, so a rank gets active / ranks of a token's copies. Less goes over
// the wires where a token is sent once to all its experts on a rank, or once to all its experts on a node;
// so what counts is how many distinct ranks and nodes a token goes to. With e experts a node, r a rank:
//   any nodes:       nodes = N (1 - C(E - e, k) / C(E, k)),  ranks = n (1 - C(E - r, k) / C(E, k))
//                    (E experts, k of them drawn without replacement: C(E - e, k) / C(E, k) is the chance
//                    that none of a node's is among them)
//   at most L nodes: routers choose the L nodes for the experts that score best there, and those are then
//                    among the k (DeepSeek-V3, arXiv 2412.19437 section 2.1.2). So one expert of each of L
//                    nodes, the other k - L out of the nodes' remaining L (e - 1):
//                    nodes = L,  ranks = L p (1 - (1 - 1/p) C(L (e - 1) - r, k - L) / C(L (e - 1), k - L))
//                    with p ranks a node. Drawing scores and choosing nodes by their best one, as DeepEP's
//                    own benchmark does, gives 3.98 nodes and 7.47 ranks for 8 of 256 experts on 8 nodes
//                    with L = 4; this gives 4 and 7.48. A limit of at least min(N, k) binds nothing.
#pragma once

#include "kernels/collective_kinds.h"

namespace equipoise {

struct ExpertRouting {
  int experts = 1;
  int active = 1;  // experts of a token
  GroupShape group;
  int most_nodes = 0;  // that a token's experts lie on; 0: any
};

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

}  // namespace equipoise
