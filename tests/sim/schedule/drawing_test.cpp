// The drawing of small schedules, column by column.
#include "tests/sim/schedule/schedule_case.h"

using namespace equipoise;
using namespace equipoise::testing;

TEST_CASE("Two micro-batches on two stages, four columns a unit of time") {
  // Stage 0: F1 0-1, F2 1-2, B1 4-6, B2 7-9. Stage 1: F1 1-2, B1 2-4, F2 4-5, B2 5-7. 9 units in 46 - 9 = 37
  // columns: 4 columns each.
  const TimedSchedule timed = run("1f1b", standalone({1, 1}), {.stages = 2});
  CHECK(draw_schedule(timed, 1, {.columns = 46}) ==
        "stage 0  F1--F2--........B1======....B2======\n"
        "stage 1  ....F1--B1======F2--B2======........\n"
        "F forward, B backward; the number is the micro-batch, from 1\n");
}

TEST_CASE("A drawing never exceeds its columns, and every row is equally wide") {
  for (const SchedulePolicy& policy : schedule_policies())
    for (const int columns : {10, 40, 61, 100, 333}) {
      const LaneCase lane = standalone({7, 1, 2, 30, 4, 4, 1, 9, 2, 2, 2, 5});
      const std::string text = draw_schedule(run(policy.name, lane, {}), 1, {.columns = columns});
      CAPTURE(text);
      std::size_t begin = 0;
      std::size_t width = 0;
      for (int s = 0; s < 4; ++s) {
        const std::size_t end = text.find('\n', begin);
        if (s > 0) CHECK(end - begin == width);
        width = end - begin;
        CHECK(width <= static_cast<std::size_t>(std::max(columns, 40)));
        begin = end + 1;
      }
    }
}

TEST_CASE("Virtual stages get a letter, colour only where asked") {
  const TimedSchedule timed = run("interleaved-1f1b", standalone({4, 4}), {.stages = 2, .virtual_stages = 2});
  const std::string plain = draw_schedule(timed, 2, {.columns = 200});
  CHECK(plain.find("F1a") != std::string::npos);
  CHECK(plain.find("B2b") != std::string::npos);
  CHECK(plain.find('\x1b') == std::string::npos);
  CHECK(draw_schedule(timed, 2, {.columns = 200, .color = true}).find("\x1b[30;44mF1a") != std::string::npos);
}
