#include "sim/validation/two_timelines.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "policies/base/clock.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/step/op_run.h"
#include "sim/timeline/perfetto.h"

namespace equipoise {
namespace {

// A slice in whole picoseconds since the first one of its list.
struct Placed {
  const TimelineSlice* slice;
  std::int64_t begin, end;
};

std::vector<std::string> track_order(std::span<const TimelineSlice> measured,
                                     std::span<const TimelineSlice> simulated) {
  std::vector<std::string> order;
  std::map<std::string, bool> known;
  for (const auto& list : {measured, simulated})
    for (const TimelineSlice& slice : list)
      if (known.try_emplace(slice.track, true).second) order.push_back(slice.track);
  return order;
}

std::map<std::string, std::vector<Placed>> placed_by_track(std::span<const TimelineSlice> slices) {
  std::optional<double> first;
  for (const TimelineSlice& slice : slices)
    first = std::min(first.value_or(slice.begin_seconds), slice.begin_seconds);
  std::map<std::string, std::vector<Placed>> tracks;
  for (const TimelineSlice& slice : slices) {
    const std::int64_t begin = to_picoseconds(slice.begin_seconds - *first);
    const std::int64_t end = to_picoseconds(std::max(slice.begin_seconds, slice.end_seconds) - *first);
    tracks[slice.track].push_back({&slice, begin, end});
  }
  for (auto& [name, list] : tracks)
    std::stable_sort(list.begin(), list.end(), [](const Placed& a, const Placed& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
  return tracks;
}

// Slices of a row are nested or disjoint; one that crosses another goes to the next row.
std::vector<std::vector<Placed>> rows_of(const std::vector<Placed>& sorted) {
  std::vector<std::vector<Placed>> rows;
  std::vector<std::vector<std::int64_t>> open;  // by row: the ends of the slices around the next one
  for (const Placed& slice : sorted) {
    std::size_t row = 0;
    for (; row < rows.size(); ++row) {
      while (!open[row].empty() && open[row].back() <= slice.begin) open[row].pop_back();
      if (open[row].empty() || slice.end <= open[row].back()) break;
    }
    if (row == rows.size()) {
      rows.emplace_back();
      open.emplace_back();
    }
    rows[row].push_back(slice);
    open[row].push_back(slice.end);
  }
  return rows;
}

class TimelineWriter {
 public:
  explicit TimelineWriter(const std::string& path) : writer_(path) {}

  void write(const std::string& group, int rank, std::span<const TimelineSlice> slices,
             const std::vector<std::string>& order) {
    const TrackId parent = writer_.add_track(group, 0, rank);
    const auto tracks = placed_by_track(slices);
    int place = 0;
    for (const std::string& name : order) {
      const auto found = tracks.find(name);
      if (found == tracks.end()) continue;
      for (const std::vector<Placed>& row : rows_of(found->second))
        write_row(writer_.add_track(printable(name), parent, place++), row);
    }
  }
  void close() { writer_.close(); }

 private:
  void write_row(TrackId track, const std::vector<Placed>& row) {
    std::vector<std::int64_t> open;
    const auto end_until = [&](std::int64_t time) {
      for (; !open.empty() && open.back() <= time; open.pop_back()) writer_.end(track, open.back());
    };
    for (const Placed& placed : row) {
      end_until(placed.begin);
      begin(track, placed);
      open.push_back(placed.end);
    }
    end_until(INT64_MAX);
  }

  void begin(TrackId track, const Placed& placed) {
    std::vector<TraceArgument> arguments;
    std::vector<std::string> texts;  // the arguments' views refer to these
    texts.reserve(placed.slice->arguments.size());
    for (const auto& [name, value] : placed.slice->arguments) {
      TraceArgument& argument = arguments.emplace_back();
      argument.name = writer_.argument_name(printable(name));
      if (const auto* text = std::get_if<std::string>(&value))
        argument.value = std::string_view(texts.emplace_back(printable(*text)));
      else if (const auto* whole = std::get_if<std::int64_t>(&value))
        argument.value = *whole;
      else
        argument.value = std::get<double>(value);
    }
    writer_.begin(track, placed.begin, writer_.slice_name(printable(placed.slice->name)), arguments);
  }

  PerfettoWriter writer_;
};

}  // namespace

void write_two_timelines(const std::string& path, std::span<const TimelineSlice> measured,
                         std::span<const TimelineSlice> simulated) {
  const std::vector<std::string> order = track_order(measured, simulated);
  TimelineWriter writer(path);
  writer.write("measured", 0, measured, order);
  writer.write("simulated", 1, simulated, order);
  writer.close();
}

// --- The timeline of a real step and of its simulation.

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
  return concatenated("stage ", stage, ", replica ", replica, ", TP ", tensor);
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
    const execution::RankPlace place = execution::place_of(row.ready.models->grid, static_cast<int>(r));
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
