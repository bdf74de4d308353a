// Writes an OpProgram out as a task graph: one task per kernel and rank, one per collective, one per
// transfer.
//
// For cross-checks (the graph's longest path must be the op engine's makespan), and for link contention,
// which needs a true event loop. Takes about 40 bytes a task, so it is for hundreds of GPUs, not thousands.
// Durations are those of the run: speed factors and jitter applied.
#pragma once

#include "sim/engine/op_engine.h"
#include "sim/engine/task_graph.h"

namespace equipoise {

// Where a task of the graph came from.
struct LoweredTask {
  OpName name{};
  Stream stream = Stream::compute;
  std::int32_t lane = -1;  // -1: a gradient bucket or the step's end
  std::int32_t stage = -1;
  std::int32_t cell = -1;
  std::int32_t rank = -1;  // in its lane (a collective: its first member)
  bool marker = false;     // takes no time: begin or end of a cell
  Meets meets = Meets::nobody;
  double bytes = 0;              // as in OpStep
  std::int32_t from_stage = -1;  // of a transfer; `stage` is the receiver
};

struct LoweredProgram {
  TaskGraph graph;
  std::vector<LoweredTask> origin;  // by task
};

LoweredProgram lower(const OpProgram& program, const OpOptions& options, const OpResult& result);

}  // namespace equipoise
