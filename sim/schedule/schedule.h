// Pipeline schedules as data: for every stage, the ordered list of ops it runs. A schedule says only the
// order; times come from the engine that executes it (sim/step).
// An op starts when its stage is free and its input has arrived: F, D and R from the previous stage, B from
// the next, the last stage's B from its own F or R, W from its own B.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/index.h"

namespace equipoise {

// F forward, B backward (full), D forward whose activations are dropped (only KV is kept), R recomputing
// forward, W weight-gradient half where a schedule splits B (then B is the input-gradient half).
enum class OpKind : std::uint8_t { F, B, D, R, W };
constexpr std::string_view letter_of(OpKind kind) {
  return std::string_view("FBDRW").substr(at(kind), 1);
}

inline constexpr std::size_t kOpKinds = 5;

struct ScheduleOp {
  OpKind kind = OpKind::F;
  std::int32_t micro_batch = 0;    // position in the lane
  std::int32_t virtual_stage = 0;  // model chunk of this pipeline rank, 0 .. V-1
  // The first of a pair: an F that is issued together with the next op of its stage, the B of another
  // micro-batch. The pair starts when the inputs of both are there, runs layer by layer of one next to a
  // layer of the other, so that each hides what the other communicates, and both end with it.
  bool with_next = false;
  bool whole = false;  // a B that makes the weight gradients, too, in a schedule that splits others
  friend constexpr bool operator==(const ScheduleOp&, const ScheduleOp&) = default;
};

// The ordered micro-batches of a lane, as runs of dependent chunks: group g has sizes[g] consecutive
// micro-batches; a standalone micro-batch is a group of one.
struct ScheduleInput {
  int stages = 1;
  int virtual_stages = 1;
  std::span<const std::int32_t> group_sizes;
  int keep = 1;  // K of state-aware 1F1B
  bool strict_keep = false;
  bool pairs = false;  // F and B of the steady state as pairs, where the schedule has such
  // seq1f1b: stages can all run forwards at one time and backwards at another. A tick is a stage's forward
  // number i - s, or its backward number i - (P-1-s).
  bool in_step = false;
};

struct Schedule {
  int stages = 1;
  int virtual_stages = 1;
  // Micro-batches enter at both ends (DualPipe). Layers are cut into P blocks, and rank s holds two of them:
  // block s as virtual stage 0, and block P-1-s as virtual stage 1, a copy of what rank P-1-s has.
  // Micro-batches 0, 2, ... go through virtual stages 0 from the first rank to the last, 1, 3, ... through
  // virtual stages 1 the other way.
  bool bidirectional = false;
  int micro_batches = 0;
  std::vector<std::vector<ScheduleOp>> ops;  // by stage, in issue order
  // The most activations that each stage promises to hold at once. An F or R holds one, that of one
  // micro-batch on one virtual stage, until its B has ended (its W where the schedule splits B); a D holds
  // none.
  std::vector<int> kept_bound;
};

// The virtual stage, 0 or 1, through which a micro-batch of a bidirectional schedule goes on every rank.
constexpr int direction_of(std::int32_t micro_batch) {
  return micro_batch % 2;
}

// The same op, whether issued alone or in a pair.
constexpr bool same_work(const ScheduleOp& a, const ScheduleOp& b) {
  return a.kind == b.kind && a.micro_batch == b.micro_batch && a.virtual_stage == b.virtual_stage;
}

// "F of micro-batch 3" (from 0), with its virtual stage where there are several.
std::string describe_op(const ScheduleOp& op, int virtual_stages);

// The most activations that the order of each stage holds at once, whatever the times.
std::vector<int> peak_kept(const Schedule& schedule);

// Whether the schedule splits backwards: then an activation is held until its W, not its B (but for whole
// Bs).
bool splits_backward(const Schedule& schedule);
// Whether the op ends what is held of its micro-batch on its virtual stage.
constexpr bool releases(const ScheduleOp& op, bool splits) {
  return op.kind == (splits ? OpKind::W : OpKind::B) || op.whole;
}

struct SchedulePolicy {
  std::string_view name;  // gpipe, 1f1b, interleaved-1f1b, seq1f1b, state-aware-1f1b ...
  std::string_view paper;
  std::string_view summary;
  Schedule (*make)(const ScheduleInput&);  // throws UserError where the input does not suit the schedule
  // The same into the buffers of an earlier schedule: allocates nothing once they have grown.
  void (*make_into)(const ScheduleInput&, Schedule& out);
  bool pairs = false;          // makes pairs of its steady state if asked to (ScheduleInput::pairs)
  bool bidirectional = false;  // makes bidirectional schedules: for layouts that are so, too
};

std::span<const SchedulePolicy> schedule_policies();
const SchedulePolicy& schedule_policy(std::string_view name);  // throws UserError with the nearest name
// The same for ranks that hold one copy of each layer: throws UserError for bidirectional schedules.
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
