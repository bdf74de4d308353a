// The timeline of a real step, and of its simulation.
#include <functional>

#include "policies/base/index.h"
#include "sim/step/op_run.h"
#include "sim/validation/compare_real.h"
#include "sim/validation/step_ops.h"

namespace equipoise {
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

void write_real_timeline(const std::string& path, const RealRow& row, const RealResult& result,
                         const InStepTimes* times) {
  if (result.timed.empty()) return;
  const TimedStep& timed = result.timed.front();
  std::vector<TimelineSlice> measured;
  for (std::size_t r = 0; r < timed.ranks.size(); ++r) {
    const RankPlace place = place_of(row.ready.models->grid, static_cast<int>(r));
    for (const execution::RecordedOp& op : timed.ranks[r].ops)
      measured.push_back({track_of(place.stage, place.replica, place.tensor),
                          name_of(static_cast<OpName>(op.name)),
                          1e-9 * static_cast<double>(op.begin_ns),
                          1e-9 * static_cast<double>(op.end_ns),
                          {}});
  }
  const OpProgram& program = row.steps[at(timed.step)].program;
  write_two_timelines(path, measured,
                      simulated_slices(times == nullptr ? program : in_step(program, *times)));
}

}  // namespace equipoise
