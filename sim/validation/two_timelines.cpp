#include "sim/validation/two_timelines.h"

#include <algorithm>
#include <map>
#include <optional>

#include "policies/base/clock.h"
#include "policies/base/utf8.h"
#include "sim/timeline/perfetto.h"

namespace equipoise {
namespace {

// A slice in whole picoseconds since the first of its list.
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

// Slices of a row lie inside each other or apart; one that crosses another goes to the next row.
std::vector<std::vector<Placed>> rows_of(const std::vector<Placed>& sorted) {
  std::vector<std::vector<Placed>> rows;
  std::vector<std::vector<std::int64_t>> open;  // of each row: ends of the slices around the next one
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
    std::vector<std::string> texts;  // what the arguments' views refer to
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

}  // namespace equipoise
