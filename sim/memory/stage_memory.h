// What a stage of one rank holds, op by op: when activations, K and V, their gradients, and what lives only
// while an op runs come and go.
//
// - Activations of a micro-batch grow layer by layer in its F or R and go layer by layer in its B (in its W
//   where the schedule splits backwards). A D leaves none. The softmax of the logits, which the loss needs
//   again, is kept from the end of an F or R to the B.
// - K and V of a dependent chunk grow in its D or F (they outlive a D, and R finds them) and go layer by
// layer
//   in its B: the chunks before it never read them, and those after it are through.
// - Their gradients: the first backward of a group, that of its last chunk, reaches all earlier keys of the
//   document, so that layer by layer it adds gradients as large as the K and V of all chunks before it. Each
//   chunk's own go, layer by layer, in its B. Hence a backward exchanges activations for gradients, and the
//   most it holds is in its first or in its last layer: both are given.
//   Example, 3 chunks, K = 1: D1 D2 F3 B3 R2 B2 R1 B1 holds K and V of 1, 2, 3, 3, 2, 2, 1, 1 chunks at the
//   begin of each op (at the end of the forwards), and gradients of 0, 0, 0, 0, 2, 2, 1, 1.
// - Gathered K and V, logits and buffers are reserved for the whole op.
//
// recompute_ahead. Without a pipeline ChunkFlow's order is B of the kept chunks, then R and B of each dropped
// one, and holds K chunks at most. The order that the paper draws for a pipeline issues the k-th R of a group
// before its k-th B, so that the last stage holds K + 1. The peaks that the paper measured on one stage
// (Table 5) rise with the chunk size twice as fast as one chunk's activations, so its implementation
// evidently issues the R ahead there too: with recompute_ahead the k-th R's activations live from the start
// of the group's k-th B. Times do not change: nothing overlaps on one stage.
//
// Cost: O(1) an op, and O(n) once for a group of n chunks.
#pragma once

#include <cstddef>

#include "sim/memory/memory_model.h"

namespace equipoise {

// Bytes around one op, fixed parts included. Between the first and the last layer they change in equal steps.
struct OpMemory {
  MemoryParts first;  // while the op's first layer is at work
  MemoryParts last;   // while its last one is
  MemoryParts after;  // when it has ended
  int layers = 1;
};

class StageMemory {
 public:
  // `load` must outlive the walk, or what its spans refer to.
  StageMemory(const MemoryModel& model, const LaneLoad& load, int stage, bool splits_backward);

  // What the stage holds around its next op; ops must come in the schedule's order.
  const OpMemory& next(const ScheduleOp& op);

 private:
  [[nodiscard]] double earlier_kv(const ScheduleOp& op, int virtual_stage) const;
  void recompute_ahead(const ScheduleOp& op, int virtual_stage);

  const MemoryModel& model_;
  LaneLoad load_;
  int stage_;
  bool splits_;  // backwards, so that W frees activations, or a whole B
  bool ahead_;
  int dropped_ = 0;  // chunks of the group at hand, with recompute_ahead
  OpMemory op_;      // op_.after is the state from which the next op starts
};

}  // namespace equipoise
