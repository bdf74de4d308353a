#include <doctest/doctest.h>

#include "profiler/measure/collective_ruler.h"

using namespace equipoise;
using namespace equipoise::measure;

namespace {

// A call of two ranks that had the processor all the time.
void add_call(std::vector<Stay>& stays, double arrived_0, double left_0, double arrived_1, double left_1,
              double pace = 100) {
  stays.push_back({arrived_0, left_0, left_0 - arrived_0, pace});
  stays.push_back({arrived_1, left_1, left_1 - arrived_1, pace});
}

RulerOptions median_of() {
  RulerOptions options;
  options.answer_quantile = 0.5;
  return options;
}

}  // namespace

TEST_CASE("a collective's time runs from the last arrival, averaged over ranks") {
  // Rank 1 comes 1 ms late, which is not the collective's. From then rank 0 leaves after 0.5 ms, rank 1 after
  // 0.7 ms.
  std::vector<Stay> stays;
  for (int call = 0; call < 3; ++call) add_call(stays, 1.0, 1.0015, 1.001, 1.0017);
  const Measurement m = answer_of(stays, 2, 0, median_of());
  CHECK(m.seconds == doctest::Approx(0.6e-3));
  CHECK(m.kept == 3);
  CHECK_FALSE(m.disturbed);
}

TEST_CASE(
    "calls during which a rank was off its processor, or below the usual pace, are dropped and counted") {
  std::vector<Stay> stays;
  for (const double ms : {1.0, 2.0, 3.0}) add_call(stays, 5, 5 + 1e-3 * ms, 5, 5 + 1e-3 * ms);
  add_call(stays, 6, 6.012, 6, 6.012);
  stays.back().cpu_seconds = 0.002;  // rank 1 was away for 10 of 12 ms, and rank 0 waited for it
  add_call(stays, 7, 7.0001, 7, 7.0001, 80);
  const Measurement m = answer_of(stays, 2, 94, median_of());
  CHECK(m.seconds == doctest::Approx(2e-3));
  CHECK(m.kept == 3);
  CHECK(m.stolen == 1);
  CHECK(m.throttled == 1);
}

TEST_CASE("with fewer than three clean calls all are kept, and the sample says so") {
  std::vector<Stay> stays;
  add_call(stays, 5, 5.001, 5, 5.001);
  add_call(stays, 6, 6.002, 6, 6.002, 80);
  add_call(stays, 7, 7.003, 7, 7.003, 80);
  const Measurement m = answer_of(stays, 2, 94, median_of());
  CHECK(m.disturbed);
  CHECK(m.kept == 3);
  CHECK(m.seconds == doctest::Approx(2e-3));
}
