// What a long run shows of itself.
#include <doctest/doctest.h>

#include "sim/cli/commands.h"

using namespace equipoise;

TEST_CASE("a quarter in 10 s leaves 30 s; the second that has begun counts whole") {
  CHECK(time_left(0.25, 10) == "25 %, 31 s left");
  CHECK(time_left(0.999, 10) == "99 %, 1 s left");
}

TEST_CASE("nothing is said of what has only begun, or of what nothing is done of yet") {
  TimeLeft left;
  CHECK(left.text(0).empty());
  CHECK(left.text(0.5).empty());
}
