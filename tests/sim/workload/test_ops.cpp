// Lists of ops: concurrent pairs count once.
#include <doctest/doctest.h>

#include <set>
#include <string>

#include "sim/workload/ops.h"

using namespace equipoise;

namespace {

Op op(Stream stream, Picoseconds duration, bool with_next = false) {
  Op o{OpName::qkv_gemm, stream};
  o.duration = duration;
  o.with_next = with_next;
  return o;
}

Picoseconds of(const std::array<Picoseconds, kStreams>& times, Stream stream) {
  return times[static_cast<std::size_t>(stream)];
}

}  // namespace

TEST_CASE("Ops add up; a pair takes the longer of the two, and exposes what compute does not hide") {
  // 5 compute; 3 of TP under 10 of compute: 10; 12 of TP over 4 of compute: 12, 8 exposed; 2 of CP alone.
  const Op ops[] = {op(Stream::compute, 5),   op(Stream::tp, 3, true), op(Stream::compute, 10),
                    op(Stream::tp, 12, true), op(Stream::compute, 4),  op(Stream::cp, 2)};
  const RunTime time = run_time(ops);
  CHECK(time.total == 5 + 10 + 12 + 2);
  CHECK(of(time.busy, Stream::compute) == 19);
  CHECK(of(time.busy, Stream::tp) == 15);
  CHECK(of(time.busy, Stream::cp) == 2);
  CHECK(of(time.exposed, Stream::tp) == 8);
  CHECK(of(time.exposed, Stream::cp) == 2);
  CHECK(of(time.exposed, Stream::compute) == 0);
  RunTime twice = time;
  twice += time;
  CHECK(twice.total == 58);
  CHECK(of(twice.exposed, Stream::tp) == 16);
  CHECK(run_time({}).total == 0);
}

TEST_CASE("Seconds become the nearest picosecond, and names are told apart") {
  CHECK(to_picoseconds(1.5e-12) == 2);
  CHECK(to_picoseconds(3.4e-12) == 3);
  CHECK(to_seconds(2'000'000) == doctest::Approx(2e-6));
  std::set<std::string> names;
  for (int i = 0; i <= static_cast<int>(OpName::optimizer); ++i)
    CHECK(names.insert(name_of(static_cast<OpName>(i))).second);
  CHECK(std::string(name_of(Stream::dp)) == "dp");
}
