#include <doctest/doctest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/timeline/timeline.h"
#include "tests/sim/step/random_program.h"
#include "tests/sim/timeline/decode.h"

using namespace equipoise;
using namespace equipoise::pftrace;

namespace {

// What a trace holds: for every track its full name and its slices as (begin, end, name, depth).
struct Slice4 {
  std::uint64_t begin = 0, end = 0;
  std::string name;
  std::size_t depth = 0;
};
struct Content {
  std::map<std::string, std::vector<Slice4>> slices;
  std::set<std::uint64_t> leaving, arriving;
  std::size_t counts = 0;
};

// Fails on slices that do not nest and on events of a track that go back in time.
Content content_of(const fs::path& path) {
  Content content;
  std::map<std::uint64_t, std::string> names, tracks;
  std::map<std::uint64_t, std::vector<Slice4>> open;
  std::map<std::uint64_t, std::uint64_t> last;
  for (const Field& packet : decode(read(path))) {
    const std::vector<Field> fields = decode(packet.bytes);
    if (const Field* interned = find(fields, 12))
      for (const Field& entry : decode(interned->bytes))
        if (entry.number == 2) {
          const auto pair = decode(entry.bytes);
          names[find(pair, 1)->value] = find(pair, 2)->bytes;
        }
    if (const Field* descriptor = find(fields, 60)) {
      const auto d = decode(descriptor->bytes);
      const Field* parent = find(d, 5);
      tracks[find(d, 1)->value] =
          (parent != nullptr ? tracks.at(parent->value) + "/" : "") + find(d, 2)->bytes;
    }
    const Field* event = find(fields, 11);
    if (event == nullptr) continue;
    const auto e = decode(event->bytes);
    const std::uint64_t track = find(e, 11)->value;
    const std::uint64_t time = find(fields, 8)->value;
    const std::uint64_t type = find(e, 9)->value;
    if (time < last[track]) FAIL("events of a track go back in time");
    last[track] = time;
    if (type == 1) {
      open[track].push_back({time, 0, names.at(find(e, 10)->value), open[track].size()});
      for (const Field& f : e) {
        if (f.number == 47) content.leaving.insert(f.value);
        if (f.number == 48) content.arriving.insert(f.value);
      }
    } else if (type == 2) {
      REQUIRE_FALSE(open[track].empty());
      Slice4 slice = open[track].back();
      open[track].pop_back();
      slice.end = time;
      content.slices[tracks.at(track)].push_back(slice);
    } else {
      ++content.counts;
    }
  }
  for (const auto& [track, left] : open) REQUIRE(left.empty());
  return content;
}

// A plan with as many lanes and micro-batches as the program.
Step step_for(const ProgramShape& shape, const OpProgram& program) {
  Step step;
  for (const OpLane& lane : program.lanes) {
    Lane& out = step.lanes.emplace_back();
    out.context = lane.context;
    for (int m = 0; m < shape.micro_batches; ++m)
      out.micro_batches.push_back({{{m, 0, 10 + m}}, {}, {}, 0, {}, 0, 0});
  }
  return step;
}

}  // namespace

TEST_CASE("an op timeline has a track per rank and stream, nested slices, arrows, and every op once") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    ProgramShape shape;
    shape.tensor = static_cast<int>(seed % 3) + 1;
    shape.barriers = seed % 2 == 0;
    const OpProgram program = RandomProgram(seed, shape, 1000000).make();
    const OpResult result = run(program);
    const fs::path path = scratch("ops.pftrace");
    TimelineSelection selection;
    selection.all_tensor_ranks = true;
    Timeline timeline(path.string(), selection);
    const Step step = step_for(shape, program);
    timeline.add(step, program, {}, result);
    timeline.add(step, program, {}, result);  // a second step after the first
    timeline.close();
    const Content content = content_of(path);
    std::size_t compute_tracks = 0, slices = 0;
    for (const auto& [name, list] : content.slices) {
      compute_tracks += name.size() > 8 && name.substr(name.size() - 8) == "/compute" ? 1 : 0;
      slices += list.size();
    }
    CHECK(static_cast<std::int64_t>(compute_tracks) == program.ranks());
    CHECK(static_cast<std::int64_t>(slices) == timeline.slices());
    for (const std::uint64_t flow : content.arriving) CHECK(content.leaving.count(flow) == 1);
    CHECK(content.counts > 0);
    // On lane 0, stage 0, CP rank 0: one slice of the schedule per scheduled op and step, at the engine's
    // times.
    const auto& first = content.slices.at("lane 0/stage 0/cp 0 tp 0/compute");
    std::vector<Slice4> cells;
    for (const Slice4& s : first)
      if (s.depth == 0) cells.push_back(s);
    REQUIRE(cells.size() == 2 * program.lanes[0].stages[0].size());
    const std::size_t ranks = static_cast<std::size_t>(program.lanes[0].context * program.tensor);
    for (std::size_t c = 0; c < program.lanes[0].stages[0].size(); ++c) {
      CHECK(cells[c].begin == static_cast<std::uint64_t>(result.lanes[0].start[0][c * ranks] / 1000));
      CHECK(cells[c].end == static_cast<std::uint64_t>(result.lanes[0].end[0][c * ranks] / 1000));
    }
  }
}

TEST_CASE("a selection leaves out the rest") {
  const ProgramShape shape;
  const OpProgram program = RandomProgram(3, shape, 1000000).make();
  const OpResult result = run(program);
  const fs::path path = scratch("selected.pftrace");
  Timeline timeline(path.string(), {{1}, {0, 2}, {0}, false, {}});
  timeline.add(step_for(shape, program), program, {}, result);
  timeline.close();
  std::set<std::string> compute;
  for (const auto& [name, list] : content_of(path).slices)
    if (name.find("/compute") != std::string::npos) compute.insert(name);
  CHECK(compute == std::set<std::string>{"lane 1/stage 0/cp 0/compute", "lane 1/stage 2/cp 0/compute"});
}

TEST_CASE("a stage timeline has a track per lane and stage with the schedule's ops") {
  StepTimes result;
  result.ops = {{0, 0, {OpKind::F, 0, 0}, 0, 2000},
                {0, 0, {OpKind::B, 0, 0}, 6000, 9000},
                {0, 1, {OpKind::F, 0, 0}, 2000, 4000},
                {0, 1, {OpKind::B, 0, 0}, 4000, 6000}};
  result.pipeline = 9000;
  result.makespan = 10000;
  Step step;
  step.lanes.emplace_back().micro_batches.push_back({{{0, 0, 5}}, {}, {}, 0, {}, 0, 0});
  const fs::path path = scratch("stages.pftrace");
  Timeline timeline(path.string());
  timeline.add(step, result);
  timeline.close();
  const Content content = content_of(path);
  REQUIRE(content.slices.count("lane 0/stage 0") == 1);
  CHECK(content.slices.at("lane 0/stage 0")[1].name == "B0");
  CHECK(content.slices.at("lane 0/stage 0")[1].begin == 6);
  CHECK(content.slices.at("gradients, optimizer")[0].end == 10);
  CHECK(timeline.slices() == 5);
}

TEST_CASE(
    "a stage timeline has every CP rank, what it waits for on its way, and arrows from sender to receiver") {
  // Two stages, two CP ranks. F0 ends on stage 0 at 2 ns on rank 0 and at 3 ns on rank 1; the transfer takes
  // 1 ns.
  StepTimes times;
  times.ops = {
      {0, 0, {OpKind::F, 0, 0}, 0, 3000, {{{0, 2000}, {}}, {{0, 3000}, {}}}},
      {0, 1, {OpKind::F, 0, 0}, 3000, 6000, {{{3000, 5000}, {2000, 3000}}, {{4000, 6000}, {3000, 4000}}}},
      {0, 1, {OpKind::B, 0, 0}, 5000, 9000, {{{5000, 8000}, {}}, {{6000, 9000}, {}}}},
      {0,
       0,
       {OpKind::B, 0, 0},
       9000,
       12000,
       {{{9000, 11000}, {8000, 9000}}, {{10000, 12000}, {9000, 10000}}}}};
  times.pipeline = times.makespan = 12000;
  Step step;
  step.lanes.emplace_back().micro_batches.push_back({{{0, 0, 5}}, {}, {}, 0, {}, 0, 0});
  step.lanes.front().context = 2;
  const fs::path path = scratch("ranks.pftrace");
  Timeline timeline(path.string());
  timeline.add(step, times);
  timeline.close();
  const Content content = content_of(path);
  const auto& sender = content.slices.at("lane 0/stage 0/cp 1/compute");
  REQUIRE(sender.size() == 2);
  CHECK(sender[0].name == "F0");
  CHECK(sender[0].end == 3);
  CHECK(sender[1].begin == 10);
  const auto& transfer = content.slices.at("lane 0/stage 1/cp 1/pp activations in");
  REQUIRE(transfer.size() == 1);
  CHECK(transfer[0].begin == 3);
  CHECK(transfer[0].end == 4);
  CHECK(content.slices.at("lane 0/stage 0/cp 0/pp gradients in")[0].begin == 8);
  CHECK(content.slices.count("lane 0/stage 1/cp 0/pp gradients in") == 0);
  CHECK(content.arriving.size() == 4);  // F and B, on two ranks each
  for (const std::uint64_t flow : content.arriving) CHECK(content.leaving.count(flow) == 1);
  CHECK(timeline.slices() == 8 + 4);
  const fs::path one = scratch("one_rank.pftrace");
  TimelineSelection selection;
  selection.ranks = {1};
  Timeline selected(one.string(), selection);
  selected.add(step, times);
  selected.close();
  CHECK(selected.slices() == 4 + 2);
}
