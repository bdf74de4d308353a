// The lanes of a lockstep group inside the op engine. They meet inside scheduled ops: at expert-parallel
// exchanges, and at the gathers and reductions of ZeRO-2 and 3. Every lane runs to its next op of this kind;
// when all stand there, each group's op starts at the time of its last member and takes as long as its
// longest member says. Which lane is visited first cannot be seen in the result.
#pragma once

#include "sim/engine/op/op_lane_run.h"

namespace equipoise::op_rows {

// A lane's way through one scheduled op, from one op that meets other lanes to the next. `network[t]`: when
// the last background op of TP coordinate t ends.
template <bool kJitter, class Observer>
class OpCursor {
 public:
  OpCursor(const OpContext& at, const ScheduledOp& scheduled, Picoseconds* clock, Picoseconds* buckets,
           Picoseconds* compute, const Picoseconds* network, Observer& observer)
      : at_(at),
        scheduled_(scheduled),
        clock_(clock),
        buckets_(buckets),
        compute_(compute),
        network_(network),
        observer_(observer) {
    scratch_.latest.resize(at.ranks);
    scratch_.last.resize(at.ranks);
  }

  // Runs to the next op that meets lanes; null at the end of the scheduled op.
  const OpStep* next() {
    while (place_.run < scheduled_.run_count) {
      const BlockRun& run = at_.lane.runs[scheduled_.first_run + place_.run];
      const OpBlock& block = at_.lane.blocks[run.block];
      if (place_.repetition == 0 && place_.step == 0)
        rows_ = enter_run<kJitter>(at_, run, compute_, scratch_);
      while (place_.repetition < run.repeat) {
        for (;;) {
          if (under_end_ > 0 && place_.step == under_end_) await_exchange();
          if (place_.step == block.steps.size()) break;
          const OpStep& step = block.steps[place_.step];
          if (spans_lanes(step.sync)) return &step;
          if (step.waits)
            wait();
          else
            run_local<kJitter>(at_, block, rows_, place_, key_, clock_, compute_, scratch_, observer_);
        }
        end_repetition(at_, run, place_, clock_, buckets_, observer_);
      }
      ++place_.run;
      place_.repetition = 0;
    }
    return nullptr;
  }
  // Of the op that next() returned, by rank.
  [[nodiscard]] const Picoseconds* durations() const { return rows_ + place_.step * at_.ranks; }
  [[nodiscard]] const Place& place() const { return place_; }
  [[nodiscard]] Picoseconds* clock() const { return clock_; }
  // Goes behind the op that next() returned, which ends at end_of(rank). In the background the rank goes on
  // at once; else then, after what runs under the op.
  template <class EndOf>
  void pass(const EndOf& end_of) {
    const OpStep& step = at_.lane.blocks[at_.lane.runs[scheduled_.first_run + place_.run].block].steps[place_.step];
    ++place_.step;
    if (step.background) return;
    if (step.over == 0) {
      for (std::size_t r = 0; r < at_.ranks; ++r) clock_[r] = end_of(r);
      return;
    }
    under_end_ = place_.step + step.over;
    exchange_end_.resize(at_.ranks);
    for (std::size_t r = 0; r < at_.ranks; ++r) exchange_end_[r] = end_of(r);
  }

 private:
  void await_exchange() {
    for (std::size_t r = 0; r < at_.ranks; ++r) clock_[r] = std::max(clock_[r], exchange_end_[r]);
    under_end_ = 0;
  }
  void wait() {
    for (std::size_t r = 0; r < at_.ranks; ++r) {
      const Picoseconds arrived = clock_[r];
      clock_[r] = std::max(arrived, network_[r % static_cast<std::size_t>(at_.tensor)]);
      if constexpr (Observer::kListens) {
        const int rank = static_cast<int>(r);
        observer_.on_op(
            {place_.run, place_.repetition, place_.step, rank, arrived, arrived, clock_[r], rank});
      }
    }
    ++place_.step;
  }

  OpContext at_;
  const ScheduledOp& scheduled_;
  Picoseconds *clock_, *buckets_, *compute_;
  const Picoseconds* network_;
  Observer& observer_;
  Scratch scratch_;
  Place place_;
  const Picoseconds* rows_ = nullptr;
  std::uint64_t key_ = 0;
  std::uint32_t under_end_ = 0;            // of the block's steps: the first behind those under an exchange
  std::vector<Picoseconds> exchange_end_;  // by rank
};

// The group of a rank at an op that meets lanes, as an index into OpResult::Lockstep.
inline std::size_t sync_index(const OpLane& lane, std::size_t rank, SyncGroup sync, int tensor) {
  const auto t = static_cast<std::size_t>(tensor);
  const std::size_t group =
      sync == SyncGroup::expert ? static_cast<std::size_t>(lane.expert_group[rank / t]) : std::size_t{0};
  return group * t + (sync == SyncGroup::expert ? expert_coordinate(lane, rank % t) : rank % t);
}

// Runs the lanes to their end.
void run_lockstep(const OpProgram& program, const OpOptions& options, const std::vector<std::size_t>& lanes,
                  Picoseconds begin, OpResult& result,
                  std::vector<std::vector<std::vector<Picoseconds>>>& filled);

// One lane's scheduled op again, from the recorded meetings.
void replay_lockstep_op(const OpProgram& program, const OpOptions& options, const OpResult& result, int lane,
                        int stage, int scheduled, OpSink& sink);

}  // namespace equipoise::op_rows
