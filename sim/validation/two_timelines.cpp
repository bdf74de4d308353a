#include "sim/validation/two_timelines.h"

#include <algorithm>
#include <map>
#include <vector>

#include "policies/base/clock.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/step/op_run.h"
#include "sim/timeline/perfetto.h"

namespace equipoise {
namespace {

std::vector<std::string> track_order(std::span<const TimelineSlice> measured,
                                     std::span<const TimelineSlice> simulated) {
  std::vector<std::string> order;
  std::map<std::string, bool> known;
  for (const auto& list : {measured, simulated})
    for (const TimelineSlice& slice : list)
      if (known.try_emplace(slice.track, true).second) order.push_back(slice.track);
  return order;
}

void write_group(PerfettoWriter& writer, const std::string& group, int rank,
                 std::span<const TimelineSlice> slices, const std::vector<std::string>& order) {
  const TrackId parent = writer.add_track(group, 0, rank);
  if (slices.empty()) return;
  const double first = std::ranges::min(slices, {}, &TimelineSlice::begin_seconds).begin_seconds;
  std::map<std::string, std::vector<const TimelineSlice*>> tracks;
  for (const TimelineSlice& slice : slices) tracks[slice.track].push_back(&slice);
  int place = 0;
  for (const std::string& name : order) {
    const auto found = tracks.find(name);
    if (found == tracks.end()) continue;
    const TrackId track = writer.add_track(printable(name), parent, place++);
    std::ranges::stable_sort(found->second, {}, &TimelineSlice::begin_seconds);
    for (const TimelineSlice* const slice : found->second) {
      std::vector<TraceArgument> arguments;
      if (slice->micro_batch >= 0)
        arguments.push_back({writer.argument_name("micro-batch"), std::int64_t{slice->micro_batch}});
      writer.begin(track, to_picoseconds(slice->begin_seconds - first),
                   writer.slice_name(printable(slice->name)), arguments);
      writer.end(track, to_picoseconds(std::max(slice->begin_seconds, slice->end_seconds) - first));
    }
  }
}

}  // namespace

void write_two_timelines(const std::string& path, std::span<const TimelineSlice> measured,
                         std::span<const TimelineSlice> simulated) {
  const std::vector<std::string> order = track_order(measured, simulated);
  PerfettoWriter writer(path);
  write_group(writer, "measured", 0, measured, order);
  write_group(writer, "simulated", 1, simulated, order);
  writer.close();
}

// --- The timeline of a real step and of its simulation.

namespace {

std::string track_of(int stage, int replica, int tensor) {
  return concatenated("stage ", stage, ", replica ", replica, ", TP ", tensor);
}

// Receives the ops of one scheduled op as slices of its ranks.
class SliceSink final : public OpSink {
 public:
  SliceSink(const OpProgram& program, int lane, int stage, int scheduled, std::vector<TimelineSlice>& slices)
      : lane_(program.lanes[at(lane)]),
        scheduled_(lane_.stages[at(stage)][at(scheduled)]),
        stage_(stage),
        tensor_(program.tensor),
        slices_(slices) {}
  void on_op(const OpEvent& event) override {
    const OpBlock& block = lane_.blocks[lane_.runs[scheduled_.first_run + event.run].block];
    slices_.push_back({track_of(stage_, lane_.first_replica + event.rank / tensor_, event.rank % tensor_),
                       name_of(block.steps[event.step].name), to_seconds(event.start), to_seconds(event.end),
                       scheduled_.op.micro_batch});
  }

 private:
  const OpLane& lane_;
  const ScheduledOp& scheduled_;
  int stage_, tensor_;
  std::vector<TimelineSlice>& slices_;
};

std::vector<TimelineSlice> simulated_slices(const OpProgram& program) {
  const OpResult result = run(program);
  std::vector<TimelineSlice> slices;
  for (int l = 0; l < static_cast<int>(program.lanes.size()); ++l)
    for (int s = 0; s < program.stages; ++s)
      for (int i = 0; i < static_cast<int>(program.lanes[at(l)].stages[at(s)].size()); ++i) {
        SliceSink sink(program, l, s, i, slices);
        replay_scheduled_op(program, {}, result, l, s, i, sink);
      }
  for (std::size_t s = 0; s < program.ends.size(); ++s)
    for (int replica = 0; replica < program.replicas; ++replica) {
      Picoseconds clock = result.end_begins[s * at(program.tensor)];
      for (std::size_t i = 0; i < program.ends[s].steps.size(); ++i) {
        const Picoseconds end = clock + program.ends[s].durations[i];
        slices.push_back({track_of(static_cast<int>(s), replica, 0), name_of(program.ends[s].steps[i].name),
                          to_seconds(clock), to_seconds(end)});
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
    const execution::RankPlace place = execution::place_of(row.ready.models->grid, static_cast<int>(r));
    for (const execution::RecordedOp& op : timed.ranks[r].ops)
      measured.push_back({track_of(place.stage, place.replica, place.tensor),
                          name_of(static_cast<OpName>(op.name)), 1e-9 * static_cast<double>(op.begin_ns),
                          1e-9 * static_cast<double>(op.end_ns)});
  }
  const OpProgram& program = row.steps[at(timed.step)].program;
  write_two_timelines(path, measured,
                      simulated_slices(times == nullptr ? program : in_step(program, *times)));
}

}  // namespace equipoise
