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
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "policies/base/clock.h"
#include "policies/plan.h"
#include "sim/memory/memory_model.h"
#include "sim/step/op_program.h"
#include "sim/step/op_run.h"
#include "sim/step/step_result.h"
#include "sim/timeline/perfetto.h"
#include "sim/topology/rank_grid.h"

namespace equipoise {

struct CounterSelection {
  bool memory = true;
  bool tokens = true;
};

// What a rank holds of the micro-batches of one step. Without a memory model it has only tokens.
struct RankLoad {
  const MemoryModel* memory = nullptr;
  std::span<const MicroBatch> micro_batches;
  std::vector<std::int64_t> rank_tokens;          // by micro-batch
  std::span<const std::int64_t> gathered_tokens;  // by micro-batch
  int context = 1;
  int stage = 0;
  bool recompute_ahead = false;
  bool splits_backward = false;
};

// Counters of one rank: what it holds, in all and by category, and its tokens in flight. The bytes are those
// of the memory model (StageMemory), put at the times of the simulated ops: the largest value
// that any rank's `memory` shows is the peak that a study reports, where CP ranks hold equally much. Given
// when each layer of an op begins, they change from layer to layer; else an op's most is shown from its
// start. A category has a counter if it is ever used, and a new value where it changes.
class RankCounters {
 public:
  RankCounters(PerfettoWriter& writer, TrackId parent, CounterSelection selection);
  RankCounters(const RankCounters&) = delete;  // because memory_ refers to load_
  RankCounters& operator=(const RankCounters&) = delete;

  void begin_step(RankLoad load, Picoseconds now);
  // Adds the rank's next op, in the order of the schedule.
  void op(const ScheduleOp& op, Picoseconds start, Picoseconds end,
          std::span<const Picoseconds> layer_starts = {});

 private:
  struct Counter {
    TrackId track = 0;
    std::int64_t shown = 0;
  };
  void show(Counter& counter, const char* name, const char* unit, std::int64_t value, Picoseconds when);
  void show(const MemoryParts& parts, Picoseconds when);

  PerfettoWriter& writer_;
  TrackId parent_;
  CounterSelection selection_;
  RankLoad load_;
  std::optional<StageMemory> memory_;
  std::array<Counter, std::size(kMemoryParts)> parts_;
  Counter total_, tokens_;
  std::int64_t in_flight_ = 0;
};

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

// --- One simulated step as a Chakra execution trace, for ASTRA-sim and other tools that replay one: a file
// per GPU with a node per kernel, collective, send and receive of that GPU, and what each waits for.
//
// A file is a sequence of protobuf messages, each behind its length as a varint: GlobalMetadata, then one
// Node after another (the public schema et_def.proto of MLCommons Chakra). Kernels carry their duration,
// FLOPs (num_ops) and bytes (tensor_size); collectives their type, the bytes that a rank puts in (comm_size)
// and their process group (pg_name), whose members comm_groups.json lists; sends and receives their peers,
// bytes and a tag that is equal on both sides. Durations are the profile's, without jitter and stragglers:
// waiting is the replayer's to find. They are whole microseconds in this format, so each is the difference of
// two rounded sums: a rank's total stays right.
//
// The dependencies are those of the op program: a rank's ops follow each other, a pair runs side by side,
// gradient buckets and ZeRO-3's collectives run alongside the rest in their own order.

struct ChakraFacts {
  std::int64_t files = 0;
  std::int64_t nodes = 0;
  std::int64_t groups = 0;
};

// Writes folder/step.GPU.et for every GPU, and folder/comm_groups.json. With folded TP every rank of a TP
// group gets the group's nodes. Throws UserError if a file cannot be written.
ChakraFacts write_chakra(const std::string& folder, const OpProgram& program, const RankGrid& grid,
                         bool gradients_all_reduced);

}  // namespace equipoise
