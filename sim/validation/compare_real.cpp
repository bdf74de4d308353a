#include "sim/validation/compare_real.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

#include "sim/engine/op/op_engine.h"
#include "sim/topology/rank_grid.h"
#include "sim/validation/noise.h"

namespace equipoise {
namespace {

using execution::ExecutableStep;
using execution::RecordedOp;
using execution::StepRecord;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

struct Place {
  int stage = 0, replica = 0, tensor = 0;
};

Place place_of(const RankGrid& grid, int rank) {
  const RankCoordinates coordinates = grid.coordinates(rank);
  const std::vector<int> replicas = grid.data_context_group(rank);
  const auto found = std::find(replicas.begin(), replicas.end(), rank);
  return {coordinates.pipeline, static_cast<int>(found - replicas.begin()), coordinates.tensor};
}

// One op of one rank, with what the program says of it.
struct Op {
  const RecordedOp* recorded = nullptr;
  int rank = 0;
  Place place;
  OpName name{};
  SyncGroup sync = SyncGroup::none;
  bool at_end = false;  // of the step: over all replicas
  double predicted_seconds = 0;
  int micro_batch = -1;
};

// The ops of all ranks of a step, in each rank's order, and who was in which collective.
class StepOps {
 public:
  StepOps(const ExecutableStep& step, const RankGrid& grid, const std::vector<StepRecord>& ranks)
      : step_(step), grid_(grid), ranks_(ranks) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const Place place = place_of(grid, static_cast<int>(r));
      places_.push_back(place);
      first_.push_back(ops_.size());
      for (const RecordedOp& recorded : ranks[r].ops)
        ops_.push_back(describe(recorded, static_cast<int>(r), place));
    }
    note_arrivals();
  }

  [[nodiscard]] const std::vector<Op>& all() const { return ops_; }
  [[nodiscard]] double measured_seconds(const Op& op) const {
    std::int64_t begin = op.recorded->begin_ns;
    if (const auto arrived = arrivals_.find(meeting_of(op)); arrived != arrivals_.end())
      begin = std::max(begin, arrived->second);
    if (op.name == OpName::pp_send) begin = std::max(begin, sent_at(op));
    return 1e-9 * static_cast<double>(std::max<std::int64_t>(0, op.recorded->end_ns - begin));
  }

 private:
  using Meeting = std::tuple<int, int, int, int, int, int, int, int>;

  [[nodiscard]] Op describe(const RecordedOp& recorded, int rank, const Place& place) const {
    Op op{&recorded,         rank, place, static_cast<OpName>(recorded.name), SyncGroup::none,
          recorded.lane < 0, 0,    -1};
    if (op.at_end) {
      const StageEnd& end = step_.program.ends[at(place.stage)];
      op.predicted_seconds = to_seconds(end.durations[at(recorded.step)]);
      return op;
    }
    const OpLane& lane = step_.program.lanes[at(recorded.lane)];
    const ScheduledOp& scheduled = lane.stages[at(place.stage)][at(recorded.scheduled)];
    op.micro_batch = scheduled.op.micro_batch;
    const int cp_rank = place.replica - lane.first_replica;
    if (recorded.run < 0) {
      op.predicted_seconds =
          to_seconds(lane.transfers[static_cast<std::size_t>(scheduled.transfer) + at(cp_rank)]);
      return op;
    }
    const OpBlock& block =
        lane.blocks[lane.runs[scheduled.first_run + static_cast<std::uint32_t>(recorded.run)].block];
    op.sync = block.steps[at(recorded.step)].sync;
    op.predicted_seconds = to_seconds(block.durations[at(recorded.step * lane.context + cp_rank)]);
    return op;
  }

  // Equal for the members of one collective.
  [[nodiscard]] Meeting meeting_of(const Op& op) const {
    const RecordedOp& r = *op.recorded;
    const Place& p = op.place;
    if (op.at_end)
      return {-1, p.stage, r.step, 0, 0, 0, op.name == OpName::optimizer ? p.replica : -1, p.tensor};
    if (r.run < 0 || op.sync == SyncGroup::none)
      return {r.lane, p.stage, r.scheduled, r.run, r.repetition, r.step, p.replica, p.tensor};
    return {r.lane,
            p.stage,
            r.scheduled,
            r.run,
            r.repetition,
            r.step,
            op.sync == SyncGroup::context ? -1 : p.replica,
            op.sync == SyncGroup::tensor ? -1 : p.tensor};
  }
  void note_arrivals() {
    for (const Op& op : ops_) {
      if (op.sync == SyncGroup::none && !op.at_end) continue;
      std::int64_t& latest = arrivals_[meeting_of(op)];
      latest = std::max(latest, op.recorded->begin_ns);
    }
  }
  // When the scheduled op that made the input had ended on the rank that sends it.
  [[nodiscard]] std::int64_t sent_at(const Op& op) const {
    const OpLane& lane = step_.program.lanes[at(op.recorded->lane)];
    const ScheduledOp& scheduled = lane.stages[at(op.place.stage)][at(op.recorded->scheduled)];
    for (std::size_t r = 0; r < places_.size(); ++r) {
      const Place& p = places_[r];
      if (p.stage != scheduled.input_stage || p.replica != op.place.replica || p.tensor != op.place.tensor)
        continue;
      std::int64_t end = 0;
      for (const RecordedOp& other : ranks_[r].ops)
        if (other.lane == op.recorded->lane && other.scheduled == scheduled.input_op) end = other.end_ns;
      return end;
    }
    return 0;
  }

  const ExecutableStep& step_;
  const RankGrid& grid_;
  const std::vector<StepRecord>& ranks_;
  std::vector<Place> places_;
  std::vector<std::size_t> first_;
  std::vector<Op> ops_;
  std::map<Meeting, std::int64_t> arrivals_;
};

// Ops that no time was predicted for, or that none is spent on: a stage's gradients without replicas.
bool counts(const Op& op) {
  return op.predicted_seconds > 0 && op.name != OpName::host_stall;
}

// Kinds as a reader looks for them: forward and backward of an op apart where their prices are.
std::string kind_of(const ExecutableStep& step, const Op& op) {
  std::string name = name_of(op.name);
  if (op.at_end || op.recorded->run < 0) return name;
  const OpLane& lane = step.program.lanes[at(op.recorded->lane)];
  const ScheduledOp& scheduled = lane.stages[at(op.place.stage)][at(op.recorded->scheduled)];
  const BlockRole role =
      lane.blocks[lane.runs[scheduled.first_run + static_cast<std::uint32_t>(op.recorded->run)].block].role;
  const bool backward = role == BlockRole::layer_backward || role == BlockRole::layer_input_gradient ||
                        role == BlockRole::head_backward || role == BlockRole::embedding_backward;
  const bool kernel = op.sync == SyncGroup::none;
  return backward && kernel && op.name != OpName::input_gradient && op.name != OpName::weight_gradient
             ? name + " backward"
             : name;
}

void compare_row(const RealRow& row, const RealResult& result, Validation& validation) {
  PolicyPairs policy;
  policy.label = row.label;
  std::map<int, std::vector<const TimedStep*>> by_step;
  for (const TimedStep& timed : result.timed) {
    ++policy.runs;
    if (timed.stolen > kMostStolen)
      ++policy.dropped_runs;
    else
      by_step[timed.step].push_back(&timed);
  }
  if (policy.runs > 0 && policy.dropped_runs == policy.runs)
    validation.notes.push_back(
        row.label + ": all " + std::to_string(policy.runs) +
        " runs were dropped, for others had the processor: measure on a quieter machine");
  const RankGrid& grid = row.ready.models->grid;
  for (const auto& [number, runs] : by_step) {
    const ExecutableStep& step = row.steps[at(number)];
    StepPair pair;
    pair.step = number;
    pair.predicted_seconds = to_seconds(run(step.program).makespan);
    for (const Lane& lane : step.step.lanes)
      for (const MicroBatch& micro_batch : lane.micro_batches) pair.tokens += micro_batch.tokens();
    const std::size_t first = validation.ops.size();
    for (const TimedStep* timed : runs) {
      pair.measured_seconds.push_back(timed->seconds);
      const StepOps ops(step, grid, timed->ranks);
      std::size_t next = first;
      for (const Op& op : ops.all()) {
        if (!counts(op)) continue;
        if (timed == runs.front()) {
          OpPair& made = validation.ops.emplace_back();
          made.op = kind_of(step, op);
          made.label = row.label;
          made.step = number;
          made.lane = op.recorded->lane;
          made.stage = op.place.stage;
          made.micro_batch = op.micro_batch;
          made.rank = op.rank;
          made.predicted_seconds = op.predicted_seconds;
        }
        validation.ops.at(next++).measured_seconds.push_back(ops.measured_seconds(op));
      }
    }
    policy.steps.push_back(std::move(pair));
  }
  validation.policies.push_back(std::move(policy));
}

}  // namespace

void compare_real(const std::vector<RealRow>& rows, const std::vector<RealResult>& results,
                  Validation& validation) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].runs())
      compare_row(rows[i], results[i], validation);
    else
      validation.notes.push_back(rows[i].label + " was not run: " + rows[i].reason);
  }
}

void keep_kernels(Validation& validation) {
  const auto is_message = [](const OpPair& pair) {
    for (const OpName op : {OpName::tp_all_gather, OpName::tp_reduce_scatter, OpName::cp_all_gather,
                            OpName::cp_reduce_scatter, OpName::cp_ring_step, OpName::cp_all_to_all,
                            OpName::pp_send, OpName::dp_reduce, OpName::dp_all_gather})
      if (pair.op == name_of(op)) return true;
    return false;
  };
  std::erase_if(validation.ops, is_message);
}

namespace {

// Receives the ops of a simulated rank as slices.
class SliceSink final : public OpSink {
 public:
  SliceSink(const OpProgram& program, std::vector<TimelineSlice>& slices)
      : program_(program), slices_(slices) {}
  void begin(int lane, int stage, int scheduled, std::function<std::string(int)> track) {
    lane_ = &program_.lanes[at(lane)];
    scheduled_ = &lane_->stages[at(stage)][at(scheduled)];
    track_ = std::move(track);
  }
  void on_op(const OpEvent& event) override {
    const OpBlock& block = lane_->blocks[lane_->runs[scheduled_->first_run + event.run].block];
    slices_.push_back({track_(event.rank),
                       name_of(block.steps[event.step].name),
                       to_seconds(event.start),
                       to_seconds(event.end),
                       {{"micro-batch", std::int64_t{scheduled_->op.micro_batch}}}});
  }
  void on_repetition(std::uint32_t, std::uint32_t) override {}

 private:
  const OpProgram& program_;
  std::vector<TimelineSlice>& slices_;
  const OpLane* lane_ = nullptr;
  const ScheduledOp* scheduled_ = nullptr;
  std::function<std::string(int)> track_;
};

std::string track_of(int stage, int replica, int tensor) {
  return "stage " + std::to_string(stage) + ", replica " + std::to_string(replica) + ", TP " +
         std::to_string(tensor);
}

std::vector<TimelineSlice> simulated_slices(const OpProgram& program) {
  const OpResult result = run(program);
  std::vector<TimelineSlice> slices;
  SliceSink sink(program, slices);
  for (std::size_t l = 0; l < program.lanes.size(); ++l)
    for (std::size_t s = 0; s < program.lanes[l].stages.size(); ++s)
      for (std::size_t i = 0; i < program.lanes[l].stages[s].size(); ++i) {
        sink.begin(static_cast<int>(l), static_cast<int>(s), static_cast<int>(i), [&, l, s](int rank) {
          return track_of(static_cast<int>(s), program.lanes[l].first_replica + rank / program.tensor,
                          rank % program.tensor);
        });
        replay_scheduled_op(program, {}, result, static_cast<int>(l), static_cast<int>(s),
                            static_cast<int>(i), sink);
      }
  for (std::size_t s = 0; s < program.ends.size(); ++s)
    for (int replica = 0; replica < program.replicas; ++replica) {
      Picoseconds clock = result.end_begins[s * at(program.tensor)];
      for (std::size_t i = 0; i < program.ends[s].steps.size(); ++i) {
        const Picoseconds end = clock + program.ends[s].durations[i];
        slices.push_back({track_of(static_cast<int>(s), replica, 0),
                          name_of(program.ends[s].steps[i].name),
                          to_seconds(clock),
                          to_seconds(end),
                          {}});
        clock = end;
      }
    }
  return slices;
}

}  // namespace

void write_real_timeline(const std::string& path, const RealRow& row, const RealResult& result) {
  if (result.timed.empty()) return;
  const TimedStep& timed = result.timed.front();
  std::vector<TimelineSlice> measured;
  for (std::size_t r = 0; r < timed.ranks.size(); ++r) {
    const Place place = place_of(row.ready.models->grid, static_cast<int>(r));
    for (const RecordedOp& op : timed.ranks[r].ops)
      measured.push_back({track_of(place.stage, place.replica, place.tensor),
                          name_of(static_cast<OpName>(op.name)),
                          1e-9 * static_cast<double>(op.begin_ns),
                          1e-9 * static_cast<double>(op.end_ns),
                          {}});
  }
  write_two_timelines(path, measured, simulated_slices(row.steps[at(timed.step)].program));
}

}  // namespace equipoise
