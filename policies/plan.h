// The one plan type: what every packing policy makes and what the engine executes.
//
// Vocabulary (document, slice, micro-batch, chunk, lane, plan): see policies/README.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "policies/base/index.h"

namespace equipoise {

// A half-open token range [begin, end) of one document. A slice attends only to itself, from its own
// begin (a document cut at a window border continues as a new document); chunks are the exception.
struct Slice {
  std::int64_t document = 0;  // index in the trace
  std::int64_t begin = 0;     // first token
  std::int64_t end = 0;       // one past the last token

  [[nodiscard]] constexpr std::int64_t tokens() const { return end - begin; }
  friend constexpr bool operator==(const Slice&, const Slice&) = default;
};

// The tokens of each.
inline std::vector<std::int64_t> lengths_of(std::span<const Slice> slices) {
  return each_of(slices, &Slice::tokens);
}

// ChunkFlow: chunk `index` of the `count` dependent chunks cut from document `sequence`.
// count == 1 means standalone: nothing outside the micro-batch is attended to.
struct Chunk {
  std::int64_t sequence = -1;
  int index = 0;
  int count = 1;
  std::int64_t group_begin = 0;  // first token of the document that the group holds: how far back it attends
  friend constexpr bool operator==(const Chunk&, const Chunk&) = default;
};

inline constexpr int kDistributed = -1;     // placement of a slice spread over the whole CP group
inline constexpr int kStudyRecompute = -1;  // recompute_layers: what the study's layout says

// What one pipeline pass processes: an ordered list of slices.
struct MicroBatch {
  std::vector<Slice> slices;
  std::vector<int> placement;  // per slice: kDistributed or a CP rank; empty = all distributed
  Chunk chunk;
  int recompute_layers = kStudyRecompute;  // HBP: checkpointed layers of the whole model
  // InfiniPipe: those of each virtual stage, in model order; empty: as recompute_layers says.
  std::vector<std::int16_t> recompute_by_stage;
  std::int64_t pad_each_to = 0;  // padded batches: every slice is computed as this many tokens; 0 = no
  std::int64_t pack_length = 0;  // pack-length packers: the length `pr` counts padding against; 0 = none

  [[nodiscard]] std::int64_t tokens() const {
    return sum_of(slices, &Slice::tokens);
  }
};

// One data-parallel replica in one step. Lanes of a step may differ in CP degree.
struct Lane {
  int context = 1;  // CP degree
  std::vector<MicroBatch> micro_batches;
  // Lanes of equal `barrier_group` start together; a group starts when the one before has ended
  // (hybrid CP). All 0 for every policy that has no barrier inside a step.
  int barrier_group = 0;
};

struct Step {
  std::vector<Lane> lanes;
  std::vector<Slice> carried;  // held at the end of the step, queued ones included
  // Made after the end of the data to empty what was held, or a short last iteration of a policy that sees
  // the whole set: counts in time and tokens, not in means over steps.
  bool tail = false;
  double pack_ms = 0;  // measured wall time of the policy for this step
};

// Where a policy that uses a solver ended: printed beside its result.
struct SolverReport {
  int step = 0;
  bool over_steps = false;  // the sum over steps of each step's largest bin; else the largest bin
  double incumbent = 0;     // objective of the plan used
  double bound = 0;         // proven lower bound
  double seconds = 0;       // measured
  bool optimal = false;

  [[nodiscard]] double gap() const { return incumbent > 0 ? (incumbent - bound) / incumbent : 0; }
};

struct Plan {
  std::string policy;
  std::vector<Step> steps;
  bool sees_whole_set = false;  // token delay makes no sense for it (null)
  // Whether each of its queues gave up documents before the data ended; none: it has no queues.
  std::optional<bool> queue_emptied;
  std::vector<Slice> dropped;  // by --oversize drop or truncate: counted and printed, never silent
  std::vector<SolverReport> solver;
  std::vector<std::string> notes;  // decisions the user should see, e.g. HBP's selected groups
  std::string schedule;            // the one it runs with, where its row chose it; else empty
};

}  // namespace equipoise
