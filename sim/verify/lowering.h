// Writes an OpProgram out as a task graph: one task per kernel and rank, one per collective, one per
// transfer.
//
// The graph's longest path must equal the op engine's makespan. A task takes about 40 bytes, so this is for
// hundreds of GPUs, not thousands. Durations are those of the run, with speed factors and jitter applied.
#pragma once

#include "sim/step/op_run.h"
#include "sim/verify/task_graph.h"

namespace equipoise {

// The op that a task of the graph stands for.
struct LoweredTask {
  OpName name{};
  Stream stream = Stream::compute;
  std::int32_t lane = -1;  // -1 for a gradient bucket or the step's end
  std::int32_t stage = -1;
  std::int32_t scheduled = -1;
  std::int32_t rank = -1;  // in its lane; for a collective its first member
  bool marker = false;     // the begin or end of a scheduled op, which takes no time
  bool of_second = false;  // in a pair: whether it belongs to the later scheduled op
  SyncGroup sync = SyncGroup::none;
  double bytes = 0;              // as in OpStep
  std::int32_t from_stage = -1;  // for a transfer, whose `stage` is the receiver
};

struct LoweredProgram {
  TaskGraph graph;
  std::vector<LoweredTask> origin;  // by task

  // Finds the tasks of ops. A row is one op of a scheduled op on every rank of its stage, in the order of
  // replay_scheduled_op.
  struct Stage {
    std::vector<TaskId> begin, end;  // [scheduled op * ranks + rank]: the scheduled op's begin and end
    std::vector<TaskId> input;       // [scheduled op * ranks + rank]: its transfer, or kNoTask
    std::vector<std::size_t> first;  // [scheduled op]: its first row in op_tasks
  };
  std::vector<std::vector<Stage>> lanes;  // [lane][stage]
  std::vector<TaskId> op_tasks;           // [first + row * ranks + rank]
  struct End {
    std::vector<TaskId> buckets, steps;
    TaskId border = kNoTask;  // where the end's steps begin
  };
  std::vector<End> ends;  // [stage * tensor + TP coordinate]
};

// Numbers the rows of a scheduled op.
class RowNumber {
 public:
  RowNumber(const OpLane& lane, const ScheduledOp& scheduled);
  [[nodiscard]] std::size_t of(std::uint32_t run, std::uint32_t repetition, std::uint32_t step) const {
    return before_run_[run] + repetition * steps_[run] + step;
  }
  [[nodiscard]] std::size_t rows() const { return before_run_.back(); }

 private:
  std::vector<std::size_t> before_run_, steps_;
};

LoweredProgram lower(const OpProgram& program, const OpOptions& options, const OpResult& result);

}  // namespace equipoise
