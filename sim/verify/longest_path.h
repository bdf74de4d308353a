// Runs a task graph without link contention: every task starts when the last of what it waits for has ended.
//
// Start times then do not depend on the order in which tasks are visited, so no event heap is needed. A stack
// of ready tasks visits each task and each edge once, O(tasks + edges), and the speed does not depend on how
// many durations differ. (With contention they do depend on it; see tests/oracle/event_loop.h.)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/verify/task_graph.h"

namespace equipoise {

struct EngineResult {
  std::vector<Picoseconds> start;  // by task
  std::vector<Picoseconds> end;
  Picoseconds makespan{};
};

// Throws EngineError if tasks never run (it names a cycle of waiting tasks) or a time overflows.
EngineResult run(const TaskGraph& graph);

// "A waits for B, which waits for C, which waits for A", over tasks that never ran (`pending` > 0).
std::string describe_stall(const TaskGraph& graph, std::span<const std::uint32_t> pending);

}  // namespace equipoise
