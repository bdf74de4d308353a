#include <doctest/doctest.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "sim/timeline/perfetto.h"
#include "tests/sim/timeline/decode.h"

using namespace equipoise;
using namespace equipoise::pftrace;

namespace {

// Two ranks, nested slices, a flow, arguments, a counter.
void write_example(const fs::path& path) {
  PerfettoWriter trace(path.string());
  const TrackId rank0 = trace.add_track("rank 0");
  const TrackId compute0 = trace.add_track("compute", rank0, 1);
  const TrackId compute1 = trace.add_track("compute", trace.add_track("rank 1"), 1);
  const TrackId memory = trace.add_counter("memory", "bytes", rank0);
  const NameId forward = trace.slice_name("F0");
  const std::vector<TraceArgument> arguments = {{trace.argument_name("tokens"), std::int64_t{-7}},
                                                {trace.argument_name("flops"), 1.5},
                                                {trace.argument_name("documents"), std::string_view("3, 4")}};
  const std::vector<std::uint64_t> flow = {99};
  trace.begin(compute0, 1000, forward, arguments, flow);
  trace.slice(compute0, 2000, 3999, trace.slice_name("attention"));
  trace.end(compute0, 5000);
  trace.begin(compute1, 6000, forward, {}, {}, flow);
  trace.end(compute1, 9000);
  trace.count(memory, 1000, 1LL << 40);
  trace.close();
}

}  // namespace

TEST_CASE("a trace decodes to the tracks, slices, flows, arguments and counters that were written") {
  const fs::path path = scratch("example.pftrace");
  write_example(path);
  CHECK_FALSE(fs::exists(path.string() + ".partial"));
  std::map<std::uint64_t, std::string> names, argument_names, tracks;
  std::map<std::uint64_t, std::uint64_t> parents;
  std::map<std::uint64_t, std::vector<std::string>> open;  // by track
  std::vector<std::string> closed;
  std::map<std::uint64_t, std::uint64_t> begun_at;
  std::uint64_t flow_from = 0, flow_to = 0, counted = 0;
  std::vector<std::string> arguments;
  for (const Field& packet : decode(read(path))) {
    REQUIRE(packet.number == 1);
    const std::vector<Field> fields = decode(packet.bytes);
    REQUIRE(find(fields, 10) != nullptr);  // every packet belongs to a sequence
    if (const Field* interned = find(fields, 12))
      for (const Field& entry : decode(interned->bytes)) {
        const auto pair = decode(entry.bytes);
        (entry.number == 2 ? names : argument_names)[find(pair, 1)->value] = find(pair, 2)->bytes;
      }
    if (const Field* descriptor = find(fields, 60)) {
      const auto d = decode(descriptor->bytes);
      tracks[find(d, 1)->value] = find(d, 2)->bytes;
      if (const Field* parent = find(d, 5)) parents[find(d, 1)->value] = parent->value;
    }
    const Field* event = find(fields, 11);
    if (event == nullptr) continue;
    const auto e = decode(event->bytes);
    const std::uint64_t track = find(e, 11)->value;
    const std::uint64_t type = find(e, 9)->value;
    if (type == 1) {
      REQUIRE(names.count(find(e, 10)->value) == 1);  // interned before its first use
      open[track].push_back(names[find(e, 10)->value]);
      begun_at[track] = find(fields, 8)->value;
      if (const Field* flow = find(e, 47)) flow_from = flow->value;
      if (const Field* flow = find(e, 48)) flow_to = flow->value;
      for (const Field& f : e)
        if (f.number == 4) {
          const auto a = decode(f.bytes);
          std::string text = argument_names[find(a, 1)->value] + "=";
          if (const Field* i = find(a, 4)) text += std::to_string(static_cast<std::int64_t>(i->value));
          if (const Field* d = find(a, 5)) text += std::to_string(std::bit_cast<double>(d->value));
          if (const Field* s = find(a, 6)) text += s->bytes;
          arguments.push_back(text);
        }
    } else if (type == 2) {
      REQUIRE_FALSE(open[track].empty());
      closed.push_back(tracks[parents[track]] + "/" + tracks[track] + "/" + open[track].back() + "@" +
                       std::to_string(find(fields, 8)->value));
      open[track].pop_back();
    } else {
      CHECK(type == 4);
      counted = find(e, 30)->value;
    }
  }
  for (const auto& [track, slices] : open) CHECK(slices.empty());
  // 3999 ps are 3 whole nanoseconds.
  CHECK(closed ==
        std::vector<std::string>{"rank 0/compute/attention@3", "rank 0/compute/F0@5", "rank 1/compute/F0@9"});
  CHECK(flow_from == 99);
  CHECK(flow_to == 99);
  CHECK(counted == (1ULL << 40));
  CHECK(arguments == std::vector<std::string>{"tokens=-7", "flops=1.500000", "documents=3, 4"});
}

TEST_CASE("protoc reads the whole trace, where it is installed") {
  if (std::system("protoc --version > /dev/null 2>&1") != 0) return;
  const fs::path path = scratch("protoc.pftrace");
  write_example(path);
  // --decode_raw fails on anything that is no well-formed message.
  CHECK(std::system(("protoc --decode_raw < " + path.string() + " > " + path.string() + ".txt").c_str()) ==
        0);
  std::ifstream text(path.string() + ".txt");
  std::size_t packets = 0;
  for (std::string line; std::getline(text, line);) packets += line == "1 {" ? 1 : 0;
  CHECK(packets == decode(read(path)).size());
}

TEST_CASE("a trace that is not closed leaves nothing behind, and one that cannot be made says so") {
  const fs::path path = scratch("abandoned.pftrace");
  {
    PerfettoWriter trace(path.string());
    trace.slice(trace.add_track("rank 0"), 0, 1000, trace.slice_name("x"));
  }
  CHECK_FALSE(fs::exists(path));
  CHECK_FALSE(fs::exists(path.string() + ".partial"));
  CHECK_THROWS_WITH_AS(PerfettoWriter("/nonexistent/folder/x.pftrace"),
                       doctest::Contains("cannot be written"), UserError);
}

TEST_CASE("the same events make the same bytes") {
  write_example(scratch("a.pftrace"));
  write_example(scratch("b.pftrace"));
  CHECK(read(scratch("a.pftrace")) == read(scratch("b.pftrace")));
}
