// Pipeline schedules as data: for every stage, the ordered list of ops that it runs. A schedule has only the
// order; times come from the engine that executes it (sim/step). An op starts when its stage is free and its
// input has arrived. F, D and R get it from the previous stage, B from the next, the last stage's B from its
// own F or R, and W from its own B.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/index.h"

namespace equipoise {

// F: forward. B: full backward. D: forward whose activations are dropped (only KV is kept). R: recomputing
// forward. W: weight gradients, if a schedule splits B, which then makes only input gradients.
enum class OpKind : std::uint8_t { F, B, D, R, W };
constexpr std::string_view letter_of(OpKind kind) {
  return std::string_view("FBDRW").substr(at(kind), 1);
}

inline constexpr std::size_t kOpKinds = 5;

struct ScheduleOp {
  OpKind kind = OpKind::F;
  std::int32_t micro_batch = 0;    // place in the lane
  std::int32_t virtual_stage = 0;  // model chunk of this pipeline rank, 0 .. V-1
  // Whether the op is the first of a pair: an F that is issued together with the next op of its stage, the B
  // of another micro-batch. The pair starts when both have their input. Layers of one run next to layers of
  // the other, so that each hides the other's communication, and both end together.
  bool with_next = false;
  bool whole = false;  // a B that also makes the weight gradients, in a schedule that splits other Bs
  friend constexpr bool operator==(const ScheduleOp&, const ScheduleOp&) = default;
};

// The ordered micro-batches of a lane, as runs of dependent chunks: group g has sizes[g] consecutive
// micro-batches; a standalone micro-batch is a group of one.
struct ScheduleInput {
  int stages = 1;
  int virtual_stages = 1;
  std::span<const std::int32_t> group_sizes;
  int keep = 1;  // K, for state-aware 1F1B
  bool strict_keep = false;
  bool pairs = false;  // whether F and B of the steady state form pairs, if the schedule allows it
  // For seq1f1b: stages can all run forwards at one time and backwards at another. A tick is a stage's
  // forward number i - s, or its backward number i - (P-1-s).
  bool in_step = false;
};

struct Schedule {
  int stages = 1;
  int virtual_stages = 1;
  // Whether micro-batches enter at both ends (DualPipe). Layers are cut into P blocks, and rank s holds two
  // of them: block s as virtual stage 0, and as virtual stage 1 block P-1-s, a copy of what rank P-1-s has.
  // Micro-batches 0, 2, ... go through virtual stages 0 from the first rank to the last; 1, 3, ... go through
  // virtual stages 1 in the other direction.
  bool bidirectional = false;
  int micro_batches = 0;
  std::vector<std::vector<ScheduleOp>> ops;  // by stage, in issue order
  // Upper bound of the activations that each stage holds at once. An F or R holds one, for one micro-batch on
  // one virtual stage, until its B has ended (or its W, if the schedule splits B). A D holds none.
  std::vector<int> kept_bound;
};

// The virtual stage, 0 or 1, through which a micro-batch of a bidirectional schedule goes on every rank.
constexpr int direction_of(std::int32_t micro_batch) {
  return micro_batch % 2;
}

// Whether two ops do the same work, alone or in a pair.
constexpr bool same_work(const ScheduleOp& a, const ScheduleOp& b) {
  return a.kind == b.kind && a.micro_batch == b.micro_batch && a.virtual_stage == b.virtual_stage;
}

// "F of micro-batch 3" (from 0), with its virtual stage if there are several.
std::string describe_op(const ScheduleOp& op, int virtual_stages);

// The most activations that the order of each stage holds at once, whatever the times.
std::vector<int> peak_kept(const Schedule& schedule);

// Whether the schedule splits backwards. Then an activation is held until its W, or its whole B.
bool splits_backward(const Schedule& schedule);
// Whether the op frees what is held of its micro-batch on its virtual stage.
constexpr bool releases(const ScheduleOp& op, bool splits) {
  return op.kind == (splits ? OpKind::W : OpKind::B) || op.whole;
}

struct SchedulePolicy {
  std::string_view name;  // gpipe, 1f1b, interleaved-1f1b, seq1f1b, state-aware-1f1b ...
  std::string_view paper;
  std::string_view summary;
  Schedule (*make)(const ScheduleInput&);  // throws UserError if the input does not suit the schedule
  // Writes into the buffers of an earlier schedule; it allocates nothing once they have grown.
  void (*make_into)(const ScheduleInput&, Schedule& out);
  bool pairs = false;          // whether it forms pairs on request (ScheduleInput::pairs)
  bool bidirectional = false;  // whether its schedules are bidirectional, as their layouts must be
};

std::span<const SchedulePolicy> schedule_policies();
const SchedulePolicy& schedule_policy(std::string_view name);  // throws UserError with the nearest name
// For ranks that hold one copy of each layer: throws UserError for bidirectional schedules.
const SchedulePolicy& one_way_schedule(std::string_view name);

// ---- For those who make schedules ----
// A maker writes `out` whole, reusing its buffers, and throws UserError where the input does not suit it:
// O(ops) time, no memory beyond the ops.

// What a schedule can take apart from a plain list of micro-batches.
struct Takes {
  bool virtual_stages = false;
  bool groups = false;  // of dependent chunks
};

// Checks the input against what schedule `name` takes, shapes `out` with no ops yet, returns the number of
// micro-batches.
int begin_schedule(const ScheduleInput&, std::string_view name, Takes, Schedule& out);

}  // namespace equipoise
