#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "profiler/measure/ruler.h"
#include "profiler/measure/sample_file.h"
#include "profiler/measure/workload.h"

using namespace equipoise;
using namespace equipoise::measure;

namespace {

// A call of two ranks that had the processor all the time.
void add_call(std::vector<Stay>& stays, double arrived_0, double left_0, double arrived_1, double left_1) {
  stays.push_back({arrived_0, left_0, left_0 - arrived_0});
  stays.push_back({arrived_1, left_1, left_1 - arrived_1});
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
  const Measurement m = answer_of(stays, 2, median_of());
  CHECK(m.seconds == doctest::Approx(0.6e-3));
  CHECK(m.kept == 3);
  CHECK_FALSE(m.disturbed);
}

TEST_CASE("calls during which a rank was off its processor are dropped and counted") {
  std::vector<Stay> stays;
  for (const double ms : {1.0, 2.0, 3.0}) add_call(stays, 5, 5 + 1e-3 * ms, 5, 5 + 1e-3 * ms);
  add_call(stays, 6, 6.012, 6, 6.012);
  stays.back().cpu_seconds = 0.002;  // rank 1 was away for 10 of 12 ms, and rank 0 waited for it
  const Measurement m = answer_of(stays, 2, median_of());
  CHECK(m.seconds == doctest::Approx(2e-3));
  CHECK(m.kept == 3);
  CHECK(m.stolen == 1);
}

TEST_CASE("with fewer than three clean calls all are kept, and the sample says so") {
  std::vector<Stay> stays;
  for (const double ms : {1.0, 2.0, 3.0}) {
    add_call(stays, 5, 5 + 1e-3 * ms, 5, 5 + 1e-3 * ms);
    if (ms > 1) stays.back().cpu_seconds = 0;
  }
  const Measurement m = answer_of(stays, 2, median_of());
  CHECK(m.disturbed);
  CHECK(m.kept == 3);
  CHECK(m.seconds == doctest::Approx(2e-3));
}

TEST_CASE("a collective visited several times is told by its middle undisturbed visit at the usual reach") {
  // The usual reach is 0.6 us: 11 of the 16 visits have it. First point: of 2, 4 and 3 ms the middle is 3 ms;
  // at 1 ms the ranks stood closer, 2.5 ms was disturbed. Second: of two the faster. The third was disturbed
  // each time, the fourth never measured as the ranks usually stand: nothing is told of them.
  const std::string name = "equipoise_group_visits." + std::to_string(::getpid());
  const std::string path = (std::filesystem::temp_directory_path() / name).string();
  SampleContext context;
  {
    Journal journal(path, false, "cpu: test");
    int key = 0;
    const auto visit = [&](std::int64_t bytes, double seconds, double reach, bool disturbed) {
      Measurement m;
      m.seconds = seconds;
      m.reach_seconds = reach;
      m.disturbed = disturbed;
      const Point point{CollectivePoint{Collective::all_gather, bytes, 2}, {}};
      journal.add(sample_line(point, m, context, "visit " + std::to_string(key++)));
    };
    for (const double seconds : {2e-3, 4e-3, 3e-3}) visit(4096, seconds, 0.6e-6, false);
    visit(4096, 1e-3, 0.3e-6, false);
    visit(4096, 2.5e-3, 0.62e-6, true);
    for (const double seconds : {6e-3, 5e-3}) visit(5000, seconds, 0.58e-6, false);
    for (const double seconds : {9e-3, 8e-3, 7e-3}) visit(6000, seconds, 0.6e-6, true);
    for (const double seconds : {1e-3, 1e-3, 1e-3}) visit(7000, seconds, 0.3e-6, false);
    visit(8000, 1e-3, 0.63e-6, false);
    visit(8000, 1e-3, 0.61e-6, false);
    visit(8000, 1e-3, 0.3e-6, false);
  }
  const auto samples = samples_of_journal(path).at("collective");
  REQUIRE(samples.size() == 3);
  CHECK(samples[0].at("seconds").get<double>() == 3e-3);
  CHECK(samples[0].at("visits_seconds").get<std::vector<double>>() ==
        std::vector<double>{2e-3, 4e-3, 3e-3, 1e-3, 2.5e-3});
  CHECK(samples[1].at("seconds").get<double>() == 5e-3);
  CHECK(samples[2].at("bytes").get<std::int64_t>() == 8000);
  std::filesystem::remove(path);
}
