// The plan type that every packing policy returns and the engine executes.
//
// docs/explanation/architecture.md defines document, slice, micro-batch, chunk, lane and plan.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "policies/base/index.h"
#include "policies/base/note.h"

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

inline std::vector<std::int64_t> lengths_of(std::span<const Slice> slices) {
  return each_of(slices, &Slice::tokens);
}

// ChunkFlow: chunk `index` of the `count` dependent chunks cut from document `sequence`. count == 1 means a
// standalone chunk, which attends to nothing outside its micro-batch.
struct Chunk {
  std::int64_t sequence = -1;
  int index = 0;
  int count = 1;
  std::int64_t group_begin = 0;  // first token of the document in the group, up to which its chunks attend
  friend constexpr bool operator==(const Chunk&, const Chunk&) = default;
};

inline constexpr int kDistributed = -1;     // placement of a slice spread over the whole CP group
inline constexpr int kStudyRecompute = -1;  // recompute_layers: as the study's layout states

// The ordered slices that one pass through the pipeline processes.
struct MicroBatch {
  std::vector<Slice> slices;
  std::vector<int> placement;  // per slice: kDistributed or a CP rank; empty = all distributed
  Chunk chunk;
  int recompute_layers = kStudyRecompute;  // HBP: checkpointed layers of the whole model
  // InfiniPipe: checkpointed layers of each virtual stage, in model order; empty: recompute_layers applies.
  std::vector<std::int16_t> recompute_by_stage;
  std::int64_t pad_each_to =
      0;  // padded batches: every slice is computed with so many tokens; 0 = no padding
  std::int64_t pack_length =
      0;  // pack-length packers: the length against which `pr` counts padding; 0 = none

  [[nodiscard]] std::int64_t tokens() const { return sum_of(slices, &Slice::tokens); }
};

// One data-parallel replica in one step. Lanes of a step may differ in CP degree.
struct Lane {
  int context = 1;  // CP degree
  std::vector<MicroBatch> micro_batches;
  // Lanes of equal `barrier_group` start together; a group starts when the one before has ended (hybrid CP).
  // 0 for policies without barriers inside a step.
  int barrier_group = 0;
};

struct Step {
  std::vector<Lane> lanes;
  std::vector<Slice> carried;  // slices held at the end of the step, including queued ones
  // Whether the step was made after the end of the data to place held documents, or is a short last iteration
  // of a policy that sees the whole set. Its time and tokens count, but means over steps exclude it.
  bool tail = false;
  double pack_ms = 0;  // measured wall time of the policy for this step
};

// The state in which a policy's solver ended, printed with its result.
struct SolverReport {
  int step = 0;
  bool over_steps = false;  // whether the objective is the sum over steps of each step's largest bin; else it
                            // is the largest bin
  double incumbent = 0;     // objective of the plan used
  double bound = 0;         // proven lower bound
  double seconds = 0;       // measured
  bool optimal = false;

  [[nodiscard]] double gap() const { return incumbent > 0 ? (incumbent - bound) / incumbent : 0; }
};

struct Plan {
  std::string policy;
  std::vector<Step> steps;
  bool sees_whole_set = false;  // its token delay is undefined (null)
  // Whether each of its queues released documents before the data ended; empty: it has no queues.
  std::optional<bool> queue_emptied;
  std::vector<Slice> dropped;  // slices lost by --oversize drop or truncate, which are counted and printed
  std::vector<SolverReport> solver;
  Notes notes;           // decisions the user should see, e.g. HBP's selected groups
  std::string schedule;  // the schedule, where the row chose it; else empty
};

}  // namespace equipoise
