#include "sim/schedule/schedule.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/schedule/chunkflow.h"
#include "sim/schedule/dualpipe.h"
#include "sim/schedule/one_way.h"

namespace equipoise {

namespace {

template <void (*MakeInto)(const ScheduleInput&, Schedule&)>
Schedule make(const ScheduleInput& input) {
  Schedule out;
  MakeInto(input, out);
  return out;
}

template <void (*MakeInto)(const ScheduleInput&, Schedule&)>
constexpr SchedulePolicy row(std::string_view name, std::string_view paper, std::string_view summary,
                             bool pairs = false, bool bidirectional = false) {
  return {name, paper, summary, make<MakeInto>, MakeInto, pairs, bidirectional};
}
constexpr bool kPairs = true, kBidirectional = true;

// The only table of schedules, in help order.
constexpr std::array kSchedules = {
    row<make_gpipe>("gpipe", "arXiv 1811.06965", "All forwards, then all backwards in reverse order"),
    row<make_1f1b>("1f1b", "arXiv 2006.09503",
                   "P-1-s forwards on stage s, then one forward and one backward in turn", kPairs),
    row<make_interleaved_1f1b>("interleaved-1f1b", "arXiv 2104.04473",
                               "1F1B over V model chunks a rank, as in Megatron-LM: the bubble shrinks by V",
                               kPairs),
    row<make_seq1f1b>("seq1f1b", "arXiv 2406.03488",
                      "1F1B over slices of sequences, all kept; interleaved with virtual stages (SlimPipe)"),
    row<make_state_aware_1f1b>("state-aware-1f1b", "arXiv 2503.02356",
                               "ChunkFlow: 1F1B over dependent chunks, of which K keep activations"),
    row<make_zb_h1>("zb-h1", "arXiv 2401.10241",
                    "Zero bubble H1: weight gradients fill bubbles within 1F1B's peak memory"),
    row<make_dualpipe>("dualpipe", "arXiv 2412.19437",
                       "DeepSeek's DualPipe: from both ends, a forward and a backward issued together", false,
                       kBidirectional),
};

void require_at_least_one(std::string_view option, int value) {
  if (value >= 1) return;
  throw UserError(option, ": expected an integer >= 1, found ", value);
}

// Counts the micro-batches in all groups, and refuses groups that the schedule cannot order.
int count_micro_batches(const ScheduleInput& input, std::string_view name, bool groups_allowed) {
  std::int64_t total = 0;
  for (const std::int32_t size : input.group_sizes) {
    if (size < 1)
      throw UserError("schedule ", name, ": a group holds ", size, " chunks, expected at least 1");
    if (size > 1 && !groups_allowed)
      throw UserError("schedule ", name, ": found a group of ", size,
                      " dependent chunks, whose backwards must run in descending order; expected standalone "
                      "micro-batches (seq1f1b, state-aware-1f1b and gpipe take groups)");
    total += size;
  }
  // A stage lists up to four ops per micro-batch (D, R, B or F, B, W), and positions must fit into int.
  if (total * input.virtual_stages > std::numeric_limits<int>::max() / 4)
    throw UserError("schedule ", name, ": ", total, " micro-batches are too many");
  return static_cast<int>(total);
}

}  // namespace

std::span<const SchedulePolicy> schedule_policies() {
  return kSchedules;
}

const SchedulePolicy& schedule_policy(std::string_view name) {
  return find_named(kSchedules, name, "schedule");
}

const SchedulePolicy& one_way_schedule(std::string_view name) {
  const SchedulePolicy& policy = schedule_policy(name);
  if (policy.bidirectional)
    throw UserError(
        "schedule ", name,
        ": runs in studies and is drawn; here ranks hold one copy of each layer, and it needs two");
  return policy;
}

int begin_schedule(const ScheduleInput& input, std::string_view name, Takes takes, Schedule& out) {
  require_at_least_one("--stages", input.stages);
  require_at_least_one("--virtual-stages", input.virtual_stages);
  require_at_least_one("--keep", input.keep);
  if (input.virtual_stages > 1 && !takes.virtual_stages)
    throw UserError("--virtual-stages (parallel.virtual_pipeline in a study): schedule ", name,
                    " takes 1, found ", input.virtual_stages, " (interleaved-1f1b and seq1f1b take more)");
  out.micro_batches = count_micro_batches(input, name, takes.groups);
  out.stages = input.stages;
  out.virtual_stages = input.virtual_stages;
  out.bidirectional = false;
  out.ops.resize(at(input.stages));
  out.kept_bound.assign(at(input.stages), 0);
  for (std::vector<ScheduleOp>& ops : out.ops) ops.clear();
  return out.micro_batches;
}

bool splits_backward(const Schedule& schedule) {
  for (const std::vector<ScheduleOp>& ops : schedule.ops)
    for (const ScheduleOp& op : ops)
      if (op.kind == OpKind::W) return true;
  return false;
}

std::vector<int> peak_kept(const Schedule& schedule) {
  const bool splits = splits_backward(schedule);
  std::vector<int> peaks;
  for (const std::vector<ScheduleOp>& ops : schedule.ops) {
    int kept = 0;
    int peak = 0;
    for (const ScheduleOp& op : ops) {
      if (op.kind == OpKind::F || op.kind == OpKind::R) peak = std::max(peak, ++kept);
      if (releases(op, splits)) --kept;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

std::string describe_op(const ScheduleOp& op, int virtual_stages) {
  std::string text(letter_of(op.kind));
  text += " of micro-batch " + std::to_string(op.micro_batch);
  if (virtual_stages > 1) text += ", virtual stage " + std::to_string(op.virtual_stage);
  return text;
}

}  // namespace equipoise
