// Runs an op program whose flows share the links of a network.
//
// Every rank interprets the program by itself, up to the next thing whose time the network decides: a
// collective or a transfer that shares links. Until then its times are known, so that it runs ahead of the
// clock; only starts and ends of flows are events. An event lets those go on that waited for it, which start
// nothing before now: times never run backwards. Kernels, collectives inside a node and all others that share
// no link are additions.
//
// Lanes that share neither links nor collectives are run apart, on several threads, up to the first moment at
// which a gradient bucket could start; from there on together. Neither can be seen in the result.
//
// Order of events: by time. At one time all ends and starts that are due, and what they lead to at that same
// time; then the rates of all flows. The result does not depend on the order within that.
//
// The result is that of the program's task graph in the event loop (tests/oracle/event_loop.h), to the
// picosecond.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "policies/base/clock.h"
#include "sim/step/flow_network.h"
#include "sim/step/network_routes.h"
#include "sim/step/op_run.h"

namespace equipoise {

// Communication that compute does not hide, summed over the program's ranks. It excludes collectives in the
// background and those that no network can slow.
struct ExposedTime {
  std::array<Picoseconds, kStreams> by_stream{};
  // TP, CP and EP, inside the ops of each lane: useful ones, and those that recompute (R).
  std::vector<Picoseconds> in_ops, in_recompute;
};

// A flow with the arguments that FlowNetwork::start got.
struct StartedFlow {
  Picoseconds at = 0;
  RouteId route = 0;
  double cap = 0, limit = 0;
  Picoseconds alone = 0;
};

struct ContendedTimes {
  OpResult result;  // with RecordedTimes
  ExposedTime exposed;
  FlowNetwork::Counts counts;
  std::vector<StartedFlow> flows;  // with keep_flows, in no order
};

struct ContendedOptions {
  bool share = true;  // If false, every op takes its own time, as if it had the network to itself.
  int threads = 1;
  bool keep_flows = false;
  std::function<void(double)> progress;  // called now and then with the share that is done
};

// `alone`: the program's run without contention, which gives the order of buckets and the durations of
// collectives over several lanes. Throws EngineError.
ContendedTimes run_contended(const OpProgram& program, const OpOptions& options, const OpResult& alone,
                             const NetworkRoutes& routes, const ContendedOptions& how);

}  // namespace equipoise
