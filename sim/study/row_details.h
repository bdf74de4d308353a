// A closer look at a row, for report.html: a few of its steps op by op, what every stage holds, how long
// tokens wait.
//
// Steps are those that say most about a row: the one of median time, the slowest, the fastest, the one that
// holds the most memory. What is kept is bounded, so that a page of many rows stays small: lanes of a step
// are taken from both ends (the last to end, the first to end) while there is room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "policies/plan.h"
#include "sim/step/step_result.h"

namespace equipoise {

struct PolicyResult;
struct Run;
struct ShardRule;

struct DrawnMicroBatch {
  std::int64_t tokens = 0;
  std::int64_t slices = 0;
  std::int64_t longest = 0;  // tokens of its longest slice
  std::string documents;     // the first of their ids
  Picoseconds forward = 0;   // through all stages, alone
};

struct DrawnLane {
  int lane = 0;
  int context = 1;
  std::vector<DrawnMicroBatch> micro_batches;
  std::vector<StageOp> ops;  // by stage, in time order
};

struct DrawnStep {
  int step = 0;
  std::string why;  // "median time", "slowest, most memory", ...
  Picoseconds makespan = 0, pipeline = 0;
  int lanes_of_step = 0;
  std::vector<DrawnLane> lanes;  // the last to end first; fewer than lanes_of_step where there is no room
};

struct RowDetails {
  int typical_step = -1;  // of median time among full steps; -1: no step ran
  std::vector<DrawnStep> steps;
  int memory_step = -1;
  std::vector<MemoryPeak> stage_peaks;        // by stage, in memory_step
  std::vector<std::int64_t> tokens_by_delay;  // plan_metrics.h
  std::string critical_path;                  // the JSON of critical_path/LABEL.json; empty at stage fidelity
};

// Simulates the chosen steps once more. `row` has its steps, its peak and its plan; `recorded`: steps that
// were recorded already, from step 0. Under contention, where a step is dear, only those are looked at. At
// most `most_ops` ops are kept, where a micro-batch counts as a few.
RowDetails look_closer(const Run& run, const PolicyResult& row, const ShardRule& rule,
                       const std::vector<StepResult>& recorded, std::size_t most_ops);

}  // namespace equipoise
