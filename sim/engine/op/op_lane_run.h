// One lane's pipeline inside the op engine, scheduled op by scheduled op.
#pragma once

#include <algorithm>
#include <vector>

#include "policies/base/index.h"
#include "sim/engine/op/op_rows.h"

namespace equipoise::op_rows {

// Names who waits for whom: "lane 0: stage 1 waits at F of micro-batch 2 for stage 0's ..."
[[noreturn]] void report_stall(const OpProgram& program, std::size_t lane,
                               const std::vector<std::size_t>& next);

// `filled[stage]` gets the times at which buckets were filled, [bucket * ranks + rank].
class LaneRun {
 public:
  LaneRun(const OpProgram& program, const OpOptions& options, std::size_t lane, Picoseconds begin,
          OpResult::Lane& result, std::vector<std::vector<Picoseconds>>& filled)
      : program_(program),
        options_(options),
        number_(lane),
        lane_(program.lanes[lane]),
        result_(result),
        filled_(filled),
        begin_(begin),
        ranks_(static_cast<std::size_t>(lane_.context) * static_cast<std::size_t>(program.tensor)) {
    const std::size_t stages = lane_.stages.size();
    result_.start.resize(stages);
    result_.end.resize(stages);
    result_.compute.resize(stages);
    filled_.resize(stages);
    next_.assign(stages, 0);
    for (std::size_t s = 0; s < stages; ++s) {
      result_.start[s].resize(lane_.stages[s].size() * ranks_);
      result_.end[s].resize(lane_.stages[s].size() * ranks_);
      result_.compute[s].assign(ranks_, 0);
      if (!program_.ends.empty() && !lane_.stages[s].empty())
        filled_[s].assign(program_.ends[s].buckets.size() * ranks_, 0);
    }
  }

  [[nodiscard]] const OpLane& lane() const { return lane_; }
  [[nodiscard]] std::size_t number() const { return number_; }
  [[nodiscard]] const ScheduledOp& scheduled(std::size_t stage) const {
    return lane_.stages[stage][next_[stage]];
  }
  [[nodiscard]] Picoseconds* buckets(std::size_t stage) {
    return filled_[stage].empty() ? nullptr : filled_[stage].data();
  }
  [[nodiscard]] Picoseconds* compute(std::size_t stage) { return result_.compute[stage].data(); }
  [[nodiscard]] std::size_t position(std::size_t stage) const { return next_[stage]; }

  // Whether the stage's next scheduled op has its input; false at the end, too.
  [[nodiscard]] bool ready(std::size_t stage) const {
    if (next_[stage] == lane_.stages[stage].size()) return false;
    if (ends_pair(lane_.stages[stage], next_[stage])) return true;
    return has_input(scheduled(stage)) && (!scheduled(stage).op.with_next || has_input(second(stage)));
  }
  // Sets the clocks of the stage's next scheduled op to when each rank can begin, and returns them.
  Picoseconds* open(std::size_t stage) {
    const std::size_t index = next_[stage];
    Picoseconds* const start = result_.start[stage].data() + index * ranks_;
    Picoseconds* const end = result_.end[stage].data() + index * ranks_;
    if (ends_pair(lane_.stages[stage], index)) {
      std::copy_n(start - ranks_, ranks_, start);
      std::copy_n(end - ranks_, ranks_, end);
      return end;
    }
    if (index == 0)
      std::fill_n(start, ranks_, begin_);
    else
      leave_previous(stage, index - 1, end - ranks_, start);
    await_input(stage, scheduled(stage), start);
    if (scheduled(stage).op.with_next) await_input(stage, second(stage), start);
    std::copy_n(start, ranks_, end);
    return end;
  }
  // `speed`: keeps what the context refers to.
  [[nodiscard]] OpContext context(std::size_t stage, std::vector<double>& speed) const {
    return context_of(program_, options_, static_cast<int>(number_), static_cast<int>(stage),
                      static_cast<int>(next_[stage]), speed);
  }
  void close(std::size_t stage) { ++next_[stage]; }

  void check_finished() const {
    for (std::size_t s = 0; s < next_.size(); ++s)
      if (next_[s] < lane_.stages[s].size()) report_stall(program_, number_, next_);
  }

 private:
  [[nodiscard]] const ScheduledOp& second(std::size_t stage) const {
    return lane_.stages[stage][next_[stage] + 1];
  }
  [[nodiscard]] bool has_input(const ScheduledOp& op) const {
    return op.input_stage == kNoInput || next_[at(op.input_stage)] > static_cast<std::size_t>(op.input_op);
  }
  // When each rank is free again after a scheduled op, or the pair that it is the second of.
  void leave_previous(std::size_t stage, std::size_t index, const Picoseconds* end, Picoseconds* free) const {
    std::copy_n(end, ranks_, free);
    const std::vector<ScheduledOp>& ops = lane_.stages[stage];
    for (std::size_t i = ends_pair(ops, index) ? index - 1 : index; i <= index; ++i)
      for (std::size_t r = 0; r < ranks_ && ops[i].blocking_send != kNoTransfer; ++r)
        free[r] = std::max(free[r], end[r] + transfer(ops[i].blocking_send, r));
  }
  void await_input(std::size_t stage, const ScheduledOp& next, Picoseconds* start) const {
    if (next.input_stage == kNoInput || static_cast<std::size_t>(next.input_stage) == stage) return;
    const Picoseconds* const sent =
        result_.end[at(next.input_stage)].data() + static_cast<std::size_t>(next.input_op) * ranks_;
    for (std::size_t r = 0; r < ranks_; ++r)
      start[r] = std::max(start[r], sent[r] + transfer(next.transfer, r));
  }
  [[nodiscard]] Picoseconds transfer(std::int64_t first, std::size_t rank) const {
    return lane_.transfers[at(first) + rank / static_cast<std::size_t>(program_.tensor)];
  }

  const OpProgram& program_;
  const OpOptions& options_;
  std::size_t number_;
  const OpLane& lane_;
  OpResult::Lane& result_;
  std::vector<std::vector<Picoseconds>>& filled_;
  Picoseconds begin_;
  std::size_t ranks_;
  std::vector<std::size_t> next_;
};

// Calls run(stage) for every stage until none of them gets on: down for forwards and up for backwards.
template <class RunReady>
void sweep_stages(std::size_t stages, const RunReady& run_ready) {
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t s = 0; s < stages; ++s) moved |= run_ready(s);
    for (std::size_t s = stages; s-- > 0;) moved |= run_ready(s);
  }
}

}  // namespace equipoise::op_rows
