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

TEST_CASE("An exchange takes until it and what runs under it have ended, and exposes what is left of it") {
  // 2; an exchange of 10 over 3, and a pair of TP 4 and 1: 7 run under it, 3 of it are exposed, and 3 of the
  // TP collective, which the concurrent kernel does not hide; 5. Then an exchange of 4 over 6: hidden.
  Op exchange = op(Stream::ep, 10), hidden = op(Stream::ep, 4);
  exchange.over = 3;
  hidden.over = 1;
  const Op ops[] = {op(Stream::compute, 2),
                    exchange,
                    op(Stream::compute, 3),
                    op(Stream::tp, 4, true),
                    op(Stream::compute, 1),
                    op(Stream::compute, 5),
                    hidden,
                    op(Stream::compute, 6)};
  const RunTime time = run_time(ops);
  CHECK(time.total == 2 + 10 + 5 + 6);
  CHECK(of(time.busy, Stream::compute) == 2 + 3 + 1 + 5 + 6);
  CHECK(of(time.busy, Stream::ep) == 14);
  CHECK(of(time.exposed, Stream::ep) == 3);
  CHECK(of(time.exposed, Stream::tp) == 3);
  // Each moment counts once: compute and what is exposed add up to the whole.
  CHECK(time.total == of(time.busy, Stream::compute) + 3 + 3);
}

TEST_CASE("Seconds become the nearest picosecond, and no two names are equal") {
  CHECK(to_picoseconds(1.5e-12) == 2);
  CHECK(to_picoseconds(3.4e-12) == 3);
  CHECK(to_seconds(2'000'000) == doctest::Approx(2e-6));
  std::set<std::string> names;
  for (int i = 0; i <= static_cast<int>(OpName::optimizer); ++i)
    CHECK(names.insert(name_of(static_cast<OpName>(i))).second);
  CHECK(std::string(name_of(Stream::dp)) == "dp");
}
