// One step whose flows share links: the op program's task graph run by the event loop, and what that says in
// the terms of the op engine, so that tables, critical paths and timelines are all of the same run.
#pragma once

#include <array>
#include <vector>

#include "sim/engine/graph/event_loop.h"
#include "sim/engine/op/critical_path.h"
#include "sim/engine/op/op_lowering.h"
#include "sim/topology/fabric.h"
#include "sim/topology/rank_grid.h"

namespace equipoise {

// Communication that compute does not hide, summed over ranks.
struct ExposedTime {
  std::array<Picoseconds, kStreams> by_stream{};
  // TP, CP and EP, inside the ops of each lane: useful ones, and those that recompute (R).
  std::vector<Picoseconds> in_ops, in_recompute;
};

class ContendedStep {
 public:
  // `alone`: the program's run without contention. Throws EngineError.
  ContendedStep(const OpProgram& program, const OpOptions& options, const OpResult& alone,
                const RankGrid& grid, const Fabric& fabric);

  // With RecordedTimes. Buckets keep their order of the run alone.
  [[nodiscard]] const OpResult& result() const { return result_; }
  // As critical_path(): from the task that ends last back to the begin, without gaps. Ties take the rank's
  // own compute before what it waited for, then the lowest task.
  [[nodiscard]] std::vector<PathSegment> critical_path() const;
  // What contention adds to exposed communication.
  [[nodiscard]] const ExposedTime& added() const { return added_; }

 private:
  [[nodiscard]] ExposedTime exposed(const EngineResult& times) const;
  void count_added();
  void make_result(const OpResult& alone);

  const OpProgram& program_;
  LoweredProgram lowered_;
  EngineResult shared_;
  ExposedTime added_;
  OpResult result_;
};

}  // namespace equipoise
