#include "sim/schedule/generators.h"

#include <limits>
#include <string>

#include "policies/base/error.h"

namespace equipoise {
namespace {

void require_at_least_one(std::string_view option, int value) {
  if (value >= 1) return;
  throw UserError(std::string(option) + ": expected an integer >= 1, found " + std::to_string(value));
}

// Micro-batches in all groups; refuses groups that the schedule cannot order.
int count_micro_batches(const ScheduleInput& input, std::string_view name, bool groups_allowed) {
  std::int64_t total = 0;
  for (const std::int32_t size : input.group_sizes) {
    if (size < 1)
      throw UserError("schedule " + std::string(name) + ": a group holds " + std::to_string(size) +
                      " chunks, expected at least 1");
    if (size > 1 && !groups_allowed)
      throw UserError("schedule " + std::string(name) + ": found a group of " + std::to_string(size) +
                      " dependent chunks, whose backwards must run in descending order; expected standalone "
                      "micro-batches (state-aware-1f1b and gpipe take groups)");
    total += size;
  }
  // A stage lists up to four ops for a micro-batch (D, R, B or F, B, W): positions stay within int.
  if (total * input.virtual_stages > std::numeric_limits<int>::max() / 4)
    throw UserError("schedule " + std::string(name) + ": " + std::to_string(total) +
                    " micro-batches are too many");
  return static_cast<int>(total);
}

}  // namespace

int begin_schedule(const ScheduleInput& input, std::string_view name, Takes takes, Schedule& out) {
  require_at_least_one("--stages", input.stages);
  require_at_least_one("--virtual-stages", input.virtual_stages);
  require_at_least_one("--keep", input.keep);
  if (input.virtual_stages > 1 && !takes.virtual_stages)
    throw UserError("--virtual-stages: schedule " + std::string(name) + " takes 1, found " +
                    std::to_string(input.virtual_stages) + " (interleaved-1f1b takes more)");
  out.micro_batches = count_micro_batches(input, name, takes.groups);
  out.stages = input.stages;
  out.virtual_stages = input.virtual_stages;
  out.bidirectional = false;
  out.ops.resize(static_cast<std::size_t>(input.stages));
  out.kept_bound.assign(static_cast<std::size_t>(input.stages), 0);
  for (std::vector<ScheduleOp>& ops : out.ops) ops.clear();
  return out.micro_batches;
}

}  // namespace equipoise
