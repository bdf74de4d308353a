// What sets a step's time: the chain of ops from the step's begin to its end in which each starts the moment
// the one before it ends.
//
// The chain is walked backwards from the rank that ends last. A collective began when the last rank arrived,
// so the path goes on at that rank; a scheduled op began when its stage was free or when its input arrived.
// The result has no gaps: its segments add up to the makespan exactly. At a tie the rank's own earlier work
// comes before what it waited for, and the lowest rank among those that arrived last.
//
// Only the scheduled ops on the path are run again: O(scheduled ops on the path x their ops).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "policies/plan.h"
#include "sim/step/op_run.h"

namespace equipoise {

struct PathSegment {
  Picoseconds start = 0;
  Picoseconds end = 0;
  OpName name{};
  Stream stream = Stream::compute;
  std::int32_t lane = -1;         // -1 for gradient buckets and what follows them
  std::int32_t stage = -1;        // the receiver of a transfer
  std::int32_t micro_batch = -1;  // in its lane
  std::int32_t rank = -1;         // in its lane's stage
  OpKind kind = OpKind::F;        // of the schedule op, where there is a lane
};

// The path in order of time, from the step's begin to its end.
std::vector<PathSegment> critical_path(const OpProgram& program, const OpOptions& options,
                                       const OpResult& result);

// Where the time of a path goes. Entries add up to the makespan; documents' to the time of micro-batches.
struct PathShares {
  std::array<Picoseconds, kStreams> by_stream{};
  std::vector<Picoseconds> by_stage;                     // gradient buckets and optimizer included
  std::vector<std::vector<Picoseconds>> by_micro_batch;  // [lane][micro-batch]
  Picoseconds after_pipeline = 0;                        // gradient buckets, optimizer, parameter gather
};
PathShares share_path(const OpProgram& program, const std::vector<PathSegment>& path);

// The path's time by document: attention by causal pairs, the rest by tokens, within each micro-batch.
struct DocumentShare {
  std::int64_t document = 0;
  double seconds = 0;
};
std::vector<DocumentShare> share_by_document(const Step& step,
                                             const std::vector<PathSegment>& path);  // longest first

// Which work is free when asking what the step would take without it.
struct Free {
  bool streams[kStreams] = {};    // all ops of these streams; pp: transfers, dp: buckets, parameter gather
  std::int32_t stage = -1;        // all ops of this stage
  std::int32_t lane = -1;         // with micro_batch
  std::int32_t micro_batch = -1;  // all ops of this micro-batch
};
Picoseconds makespan_without(const OpProgram& program, const OpOptions& options, const Free& free);

// --- The simulators.

}  // namespace equipoise
