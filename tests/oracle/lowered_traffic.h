// Which links of the network each op of a step loads, task by task: what sim/step/network_routes.h does
// the fast way.
//
// Collectives move like rings: each member sends (n - 1) / n of the collective's bytes to the next one, an
// all-to-all as much in all. A pipeline transfer takes the route between its two GPUs. Kernels load no link.
// Groups lie on GPUs as the rank grid says; gradient buckets and the parameter gather at the end go round all
// replicas of a stage.
#pragma once

#include "sim/topology/fabric.h"
#include "sim/topology/rank_grid.h"
#include "sim/verify/lowering.h"
#include "tests/oracle/event_loop.h"

namespace equipoise {

LinkTraffic traffic_of(const LoweredProgram& lowered, const OpProgram& program, const RankGrid& grid,
                       const Fabric& fabric);

}  // namespace equipoise
