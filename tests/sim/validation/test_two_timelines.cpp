#include <map>

#include "sim/validation/two_timelines.h"
#include "tests/sim/timeline/decode.h"

using namespace equipoise;
using namespace equipoise::pftrace;

namespace {

// What a trace shows: tracks by number, and of each track its events in order.
struct Shown {
  struct Track {
    std::string name;
    std::uint64_t parent = 0;
  };
  std::map<std::uint64_t, Track> tracks;
  std::vector<std::string> events;  // "track begin 12", in the order of the file
};

Shown show(const fs::path& path) {
  Shown shown;
  for (const Field& packet : decode(read(path))) {
    const std::vector<Field> fields = decode(packet.bytes);
    std::uint64_t time = 0;
    if (const Field* at = find(fields, 8)) time = at->value;
    if (const Field* descriptor = find(fields, 60)) {
      const std::vector<Field> track = decode(descriptor->bytes);
      Shown::Track& made = shown.tracks[find(track, 1)->value];
      if (const Field* name = find(track, 2)) made.name = name->bytes;
      if (const Field* parent = find(track, 5)) made.parent = parent->value;
    }
    if (const Field* event = find(fields, 11)) {
      const std::vector<Field> inside = decode(event->bytes);
      const std::uint64_t type = find(inside, 9)->value;
      shown.events.push_back(std::to_string(find(inside, 11)->value) + (type == 1 ? " begin " : " end ") +
                             std::to_string(time));
    }
  }
  return shown;
}

std::uint64_t track_of(const Shown& shown, const std::string& group, const std::string& name) {
  for (const auto& [id, track] : shown.tracks)
    if (track.name == name && shown.tracks.contains(track.parent) &&
        shown.tracks.at(track.parent).name == group)
      return id;
  FAIL("no track " << name << " in " << group);
  return 0;
}

std::vector<std::string> events_of(const Shown& shown, std::uint64_t track) {
  std::vector<std::string> own;
  const std::string prefix = std::to_string(track) + " ";
  for (const std::string& event : shown.events)
    if (event.starts_with(prefix)) own.push_back(event.substr(prefix.size()));
  return own;
}

}  // namespace

TEST_CASE("Measured is above simulated, each from its own begin, tracks in one order") {
  const fs::path path = scratch("two.pftrace");
  // The measured run began at 100 s; the slice of rank 1 ends before it begins.
  const std::vector<TimelineSlice> measured = {{"rank 1", "F0", 100 + 4e-6, 100 + 3e-6},
                                               {"rank 0", "B0", 100 + 2e-6, 100 + 3e-6, 5},
                                               {"rank 0", "F0", 100.0, 100 + 1e-6}};
  const std::vector<TimelineSlice> simulated = {{"rank 0", "F0", 7.0, 7 + 2e-6},
                                                {"rank 2", "B0", 7.0, 7 + 1e-6}};
  write_two_timelines(path.string(), measured, simulated);
  const Shown shown = show(path);
  std::vector<std::string> names;
  for (const auto& [id, track] : shown.tracks) names.push_back(track.name);
  CHECK(names == std::vector<std::string>{"measured", "rank 1", "rank 0", "simulated", "rank 0", "rank 2"});
  using Events = std::vector<std::string>;
  CHECK(events_of(shown, track_of(shown, "measured", "rank 0")) ==
        Events{"begin 0", "end 1000", "begin 2000", "end 3000"});
  CHECK(events_of(shown, track_of(shown, "measured", "rank 1")) == Events{"begin 4000", "end 4000"});
  CHECK(events_of(shown, track_of(shown, "simulated", "rank 0")) == Events{"begin 0", "end 2000"});
}

TEST_CASE("A timeline without slices has its groups alone") {
  const fs::path path = scratch("empty.pftrace");
  write_two_timelines(path.string(), {}, {});
  CHECK(show(path).tracks.size() == 2);
}
