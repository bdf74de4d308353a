#include "sim/step/op_program.h"

#include <algorithm>
#include <string>

namespace equipoise {
namespace {

[[noreturn]] void broken(std::size_t lane, const auto&... what) {
  throw EngineError("lane ", lane, ": ", what...);
}

// Whether the steps under exchange `first` are inside the block and wait for no other lane.
bool can_run_under(const OpBlock& block, std::size_t first) {
  const OpStep& exchange = block.steps[first];
  const std::size_t end = first + 1 + exchange.over;
  if (exchange.sync != SyncGroup::expert || exchange.with_next || end > block.steps.size()) return false;
  for (std::size_t s = first + 1; s < end; ++s)
    if (spans_lanes(block.steps[s].sync) || block.steps[s].waits) return false;
  return !block.steps[end - 1].with_next;
}

void check_blocks(std::size_t number, const OpLane& lane) {
  const auto context = static_cast<std::size_t>(lane.context);
  for (const OpBlock& block : lane.blocks) {
    if (block.durations.size() != block.steps.size() * context)
      broken(number, "a block of ", block.steps.size(), " ops holds ", block.durations.size(),
             " durations for ", context, " ranks");
    for (const Picoseconds duration : block.durations)
      if (duration < 0) broken(number, "an op's duration is negative");
    for (std::size_t s = 0; s < block.steps.size(); ++s) {
      if (spans_lanes(block.steps[s].sync) && lane.lockstep == kNoLockstep)
        broken(number, "an op waits for other lanes, but the lane is in no lockstep group");
      if (block.steps[s].background && block.steps[s].sync != SyncGroup::replicas)
        broken(number, "a background op must span all replicas");
      if (block.steps[s].over > 0 && !can_run_under(block, s))
        broken(number, "only local ops of its block can run under an exchange of experts");
      if (block.steps[s].with_next && (s + 1 == block.steps.size() || block.steps[s + 1].with_next ||
                                       block.steps[s + 1].sync != SyncGroup::none))
        broken(number, "an op that runs alongside the next one needs a kernel there");
      if (block.steps[s].sync != SyncGroup::context) continue;
      const auto* row = block.durations.data() + s * context;
      if (std::any_of(row, row + context, [&](Picoseconds t) { return t != row[0]; }))
        broken(number, "size mismatch: the members of a collective disagree about its duration");
    }
  }
}

// All of the lane's work in a row must fit the clock; then no sum in the engine can overflow.
void check_clock(std::size_t number, const OpLane& lane) {
  std::vector<double> longest(lane.blocks.size());
  for (std::size_t b = 0; b < lane.blocks.size(); ++b)
    for (const Picoseconds duration : lane.blocks[b].durations) longest[b] += static_cast<double>(duration);
  double sum = 0;
  for (const auto& stage : lane.stages)
    for (const ScheduledOp& scheduled : stage)
      for (std::uint32_t r = 0; r < scheduled.run_count; ++r) {
        const BlockRun& run = lane.runs[scheduled.first_run + r];
        sum += run.repeat * longest[run.block];
      }
  if (!(sum < kLongestSeconds * kPicosecondsPerSecond))
    refuse_time("lane " + std::to_string(number), sum / kPicosecondsPerSecond);
}

void check_transfer(std::size_t number, const OpLane& lane, std::int64_t first) {
  if (first < 0 || static_cast<std::size_t>(first + lane.context) > lane.transfers.size())
    broken(number, "a transfer has no durations");
}

// Counts how often each bucket is filled.
std::vector<int> check_scheduled_ops(std::size_t number, const OpLane& lane, std::size_t stage,
                                     std::size_t buckets) {
  std::vector<int> filled(buckets, 0);
  const std::vector<ScheduledOp>& ops = lane.stages[stage];
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (ops[i].op.with_next && (i + 1 == ops.size() || ops[i + 1].op.with_next || ops[i + 1].run_count > 0))
      broken(number, "the first op of a pair needs a second behind it that runs nothing of its own");
  for (const ScheduledOp& scheduled : lane.stages[stage]) {
    if (std::size_t{scheduled.first_run} + scheduled.run_count > lane.runs.size())
      broken(number, "a scheduled op runs blocks that do not exist");
    for (std::uint32_t r = 0; r < scheduled.run_count; ++r) {
      const BlockRun& run = lane.runs[scheduled.first_run + r];
      if (run.block >= lane.blocks.size()) broken(number, "a scheduled op runs a block that does not exist");
      if (run.bucket == kNoBucket) continue;
      if (run.bucket < 0 || static_cast<std::size_t>(run.bucket) + run.repeat > buckets)
        broken(number, "stage ", stage, " fills a gradient bucket that is not reduced");
      for (std::uint32_t i = 0; i < run.repeat; ++i) ++filled[at(run.bucket) + i];
    }
    if (scheduled.input_stage == kNoInput) continue;
    const auto from = static_cast<std::size_t>(scheduled.input_stage);
    if (scheduled.input_stage < 0 || from >= lane.stages.size() || scheduled.input_op < 0 ||
        static_cast<std::size_t>(scheduled.input_op) >= lane.stages[from].size())
      broken(number, "receive without its send: stage ", stage, " awaits a scheduled op that does not exist");
    if (from != stage) check_transfer(number, lane, scheduled.transfer);
    if (scheduled.blocking_send != kNoTransfer) check_transfer(number, lane, scheduled.blocking_send);
  }
  return filled;
}

void check_lockstep_groups(const OpProgram& program) {
  std::vector<const OpLane*> first(static_cast<std::size_t>(program.lockstep_groups), nullptr);
  for (std::size_t l = 0; l < program.lanes.size(); ++l) {
    const OpLane& lane = program.lanes[l];
    if (lane.lockstep == kNoLockstep) continue;
    if (lane.lockstep < 0 || lane.lockstep >= program.lockstep_groups)
      broken(l, "its lockstep group does not exist");
    if (lane.expert_group.size() != static_cast<std::size_t>(lane.context))
      broken(l, "it names expert groups for ", lane.expert_group.size(), " of ", lane.context, " ranks");
    const OpLane*& other = first[at(lane.lockstep)];
    if (other == nullptr) other = &lane;
    if (lane.barrier_group != other->barrier_group)
      broken(l, "its lockstep group is in another barrier group");
    for (std::size_t s = 0; s < lane.stages.size(); ++s)
      if (lane.stages[s].size() != other->stages[s].size())
        broken(l, "stage ", s, " has ", lane.stages[s].size(), " ops where its lockstep group has ",
               other->stages[s].size());
  }
}

std::int64_t kernels_of(const OpBlock& block) {
  return std::ranges::count(block.steps, false, &OpStep::waits);
}

}  // namespace

std::int64_t OpProgram::tasks() const {
  std::int64_t sum = 0;
  for (const OpLane& lane : lanes) {
    const std::int64_t ranks_of_stage = std::int64_t{lane.context} * tensor;
    // how many ops each block runs
    const std::vector<std::int64_t> of_block = each_of(lane.blocks, kernels_of);
    for (std::size_t s = 0; s < lane.stages.size(); ++s)
      for (const ScheduledOp& scheduled : lane.stages[s]) {
        std::int64_t ops =
            scheduled.input_stage != kNoInput && scheduled.input_stage != static_cast<std::int32_t>(s) ? 1
                                                                                                       : 0;
        for (std::uint32_t r = 0; r < scheduled.run_count; ++r) {
          const BlockRun& run = lane.runs[scheduled.first_run + r];
          ops += std::int64_t{run.repeat} * of_block[run.block];
        }
        sum += ops * ranks_of_stage;
      }
    for (const StageEnd& end : ends)
      sum += ranks_of_stage * static_cast<std::int64_t>(end.buckets.size() + end.steps.size());
  }
  return sum;
}

void check_program(const OpProgram& program) {
  int last_group = 0;
  for (const OpLane& lane : program.lanes) last_group = std::max(last_group, lane.barrier_group);
  if (!program.ends.empty() && program.ends.size() != static_cast<std::size_t>(program.stages))
    throw EngineError("the step's end is given for ", program.ends.size(), " of ", program.stages, " stages");
  for (std::size_t l = 0; l < program.lanes.size(); ++l) {
    const OpLane& lane = program.lanes[l];
    if (lane.stages.size() != static_cast<std::size_t>(program.stages))
      broken(l, "it has ops for ", lane.stages.size(), " of ", program.stages, " stages");
    if (lane.context < 1 || lane.first_replica < 0 || lane.first_replica + lane.context > program.replicas)
      broken(l, "its ", lane.context, " ranks from place ", lane.first_replica, " on do not fit the ",
             program.replicas, " replicas of a stage");
    check_blocks(l, lane);
    for (std::size_t s = 0; s < lane.stages.size(); ++s) {
      const std::size_t buckets = program.ends.empty() ? 0 : program.ends[s].buckets.size();
      const std::vector<int> filled = check_scheduled_ops(l, lane, s, buckets);
      for (std::size_t k = 0; k < buckets && !lane.stages[s].empty(); ++k)
        if (filled[k] != 1 && (filled[k] != 0 || lane.barrier_group == last_group))
          broken(l, "stage ", s, " fills gradient bucket ", k, " ", filled[k], " times; expected once");
    }
    check_clock(l, lane);
  }
  check_lockstep_groups(program);
}

}  // namespace equipoise
