// Timelines of simulated steps, at either fidelity, as Perfetto traces.
//
// Op fidelity: a track per rank and stream below its lane and stage. On the compute track the ops of the
// schedule (F0, B0, ...) hold their kernels; communication lies on the track of its axis, transfers on the
// receiver's; arrows join an op of the schedule with the one it feeds. Gradient buckets and the optimizer
// have a track per stage. Only the ranks selected are run again and written, so memory stays flat. Stage
// fidelity: the schedule's ops on every CP rank, with the transfers that bring their inputs and the arrows
// between them, but nothing inside an op. At either, ranks have counters of what they hold and of their
// tokens in flight: all that are selected; at stage fidelity, where none are named, the
// fullest CP rank of each stage.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "policies/base/clock.h"
#include "policies/plan.h"
#include "sim/step/op_program.h"
#include "sim/step/op_run.h"
#include "sim/step/step_result.h"
#include "sim/timeline/perfetto.h"
#include "sim/timeline/rank_counters.h"

namespace equipoise {

// Empty lists select everything. `ranks` are CP ranks of a lane. Only the first rank of a TP group is written
// unless all_tensor_ranks is set.
struct TimelineSelection {
  std::vector<int> lanes, stages, ranks;
  bool all_tensor_ranks = false;
  CounterSelection counters;

  [[nodiscard]] static bool selects(const std::vector<int>& list, int number) {
    return list.empty() || std::find(list.begin(), list.end(), number) != list.end();
  }
};

// What the counters of a step are computed from. Without it they count only whole micro-batches.
struct StepLoads {
  const MemoryModel* memory = nullptr;
  const std::vector<LaneTokens>* lanes = nullptr;  // StepWork::lane_tokens
  bool recompute_ahead = false;
};

// "3, 4, 7, ...": the ids of a micro-batch's first documents.
std::string documents_text(const MicroBatch& micro_batch);

class LayerStarts;

class Timeline {
 public:
  explicit Timeline(const std::string& path, TimelineSelection selection = {});

  // Appends a step after earlier ones. `step` is the plan's, for the arguments of slices.
  void add(const Step& step, const OpProgram& program, const OpOptions& options, const OpResult& result,
           const StepLoads& loads = {});
  // Needs StepOptions::record_ops.
  void add(const Step& step, const StepTimes& times, const StepLoads& loads = {});

  void close() { writer_.close(); }
  [[nodiscard]] std::int64_t slices() const { return slices_; }

 private:
  friend class ScheduledOpSlices;
  using TrackKey = std::tuple<int, int, int, int>;  // lane, stage, rank, stream or one of the kinds below
  static constexpr int kRank = 100, kStage = 101, kLane = 102, kEnd = 103;  // kinds other than the streams
  static constexpr int kNone = -1;
  static constexpr auto selects = TimelineSelection::selects;
  TrackId track(const TrackKey& key, const std::string& name, TrackId parent, int order);
  TrackId stage_track(int lane, int stage);
  TrackId rank_track(int lane, int stage, int rank, int tensor);
  TrackId stream_track(int lane, int stage, int rank, int tensor, Stream stream);

  void write_scheduled_op(const Step& step, const OpProgram& program, const OpOptions& options,
                          const OpResult& result, const StepLoads& loads, int lane, int stage, int index,
                          LayerStarts& layers);
  struct LaneRows;
  void write_rank_op(const Step& step, const LaneRows& rows, const StageOp& op, int place, int rank,
                     Picoseconds& free);
  void write_stage_ops(const Step& step, const std::vector<const StageOp*>& row);
  void write_stage_row(const Step& step, const StepLoads& loads, const LaneRows& rows,
                       const std::vector<const StageOp*>& row);
  void write_transfer(TrackId parent, const ScheduleOp& op, const TimeSpan& span);
  void write_transfers(const OpProgram& program, const OpResult& result, int lane, int stage, int index);
  void write_end(const OpProgram& program, const OpResult& result, int stage);
  void begin_op(TrackId track, Picoseconds at, const Step& step, int lane, const ScheduleOp& op,
                std::span<const std::uint64_t> flows, std::span<const std::uint64_t> arriving);
  void end_slice(TrackId track, Picoseconds at);
  static int fullest_rank(const Step& step, const StepLoads& loads, int lane);
  // The rank's counters at the beginning of a step; null if none are selected.
  RankCounters* begin_counters(const Step& step, const StepLoads& loads, int lane, int stage, int rank,
                               bool splits_backward);
  // The number of the arrow from a scheduled op on a rank to its receiver.
  [[nodiscard]] std::uint64_t flow_of(int lane, int stage, int index, int rank) const;

  PerfettoWriter writer_;
  TimelineSelection selection_;
  std::map<TrackKey, TrackId> tracks_;
  std::map<TrackKey, std::unique_ptr<RankCounters>> counters_;
  std::map<std::pair<TrackId, int>, std::vector<std::pair<TrackId, Picoseconds>>>
      transfer_rows_;       // with the end of their last slice
  Picoseconds offset_ = 0;  // begin of the current step
  std::uint64_t step_number_ = 0;
  std::int64_t slices_ = 0;
};

}  // namespace equipoise
