#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <map>
#include <string>

#include "policies/base/index.h"
#include "sim/execution/communicators.h"
#include "sim/execution/rank_health.h"

namespace {

using namespace equipoise;
using namespace equipoise::execution;

std::map<int, ProcessState> states;
ProcessState told_state(int pid) {
  return states.count(pid) != 0 ? states[pid] : ProcessState::alive;
}

// Three ranks with pids 100, 101, 102 that a fourth party looks at, half a second a look.
struct Ranks {
  RankTable table{3};
  RankHealth health;
  explicit Ranks(HealthLimits limits = {10, 120}, bool all_here = true)
      : health(table, limits, all_here, told_state) {
    states.clear();
    for (int i = 0; i < 3; ++i) {
      join(table.slot(i), i);
      table.slot(i).pid = 100 + i;
      table.slot(i).step = 2;
      table.slot(i).label.set("wlb");
    }
  }
  void beat(int rank) { table.slot(rank).beats.fetch_add(1); }
  void go_on(int rank) { begin_op(&table.slot(rank).progress, OpName::attention); }
  void wait(int rank, bool waits) { table.slot(rank).progress.waiting = waits ? 1 : 0; }
  // What is found within so many seconds while `alive` beat and `busy` go on (bits by rank); "" if nothing.
  std::string watch(double seconds, int alive, int busy) {
    for (double t = 0; t < seconds; t += 0.5) {
      for (int i = 0; i < 3; ++i) {
        if ((alive >> i & 1) != 0) beat(i);
        if ((busy >> i & 1) != 0) go_on(i);
      }
      if (const auto found = health.look(-1, 0.5)) return *found;
    }
    return "";
  }
};

constexpr int kAll = 0b111;

}  // namespace

TEST_CASE("ranks that live and go on are well") {
  Ranks ranks;
  CHECK(ranks.watch(300, kAll, kAll).empty());
}

TEST_CASE("a rank whose process is gone died, which is seen when it misses two signs of life") {
  Ranks ranks;
  CHECK(ranks.watch(5, kAll, kAll).empty());
  states[101] = ProcessState::gone;
  CHECK(ranks.watch(3, 0b101, 0b101) == "rank 1 (pid 101) died, in attention of step 2 of wlb");
}

TEST_CASE("a rank that ended in order is not missed") {
  Ranks ranks;
  states[101] = ProcessState::gone;
  ranks.table.slot(1).left = 1;
  CHECK(ranks.watch(60, 0b101, 0b101).empty());
  CHECK_FALSE(ranks.health.gone(-1));
}

TEST_CASE("a rank without a sign of life for ten seconds was stopped or hangs") {
  Ranks ranks;
  ranks.watch(5, kAll, kAll);
  CHECK(ranks.watch(9.5, 0b011, 0b011).empty());
  states[102] = ProcessState::stopped;
  CHECK(ranks.watch(1, 0b011, 0b011) ==
        "rank 2 (pid 102) was stopped: no sign of life for 10 s, in attention of step 2 of wlb");
  states[102] = ProcessState::alive;
  CHECK(ranks.watch(1, 0b011, 0b011).find("rank 2 (pid 102) hangs: no sign of life") == 0);
}

TEST_CASE("who looks again after a pause of an hour finds nobody silent") {
  Ranks ranks;
  ranks.watch(5, kAll, kAll);
  CHECK_FALSE(ranks.health.look(-1, 3600));
  CHECK(ranks.watch(5, kAll, kAll).empty());
}

TEST_CASE("a rank that computes one op for too long hangs, if all others wait for it") {
  Ranks ranks({10, 20});
  ranks.watch(5, kAll, kAll);
  ranks.wait(0, true);
  ranks.wait(1, true);
  CHECK(ranks.watch(19, kAll, 0).empty());
  CHECK(ranks.watch(2, kAll, 0) ==
        "rank 2 (pid 102) hangs: the others wait, and it has not gone on for 20 s, in attention of step 2 of "
        "wlb");
  ranks.wait(1, false);
  // The second goes on: the third is slow, as a long document may make it.
  CHECK(ranks.watch(60, kAll, 0b010).empty());
}

TEST_CASE("ranks that all compute one op for long are slow, not wrong") {
  Ranks ranks({10, 20});
  CHECK(ranks.watch(300, kAll, 0).empty());
}

TEST_CASE("all ranks waiting is a fault on one host; else somebody elsewhere may be computing") {
  for (const bool all_here : {true, false}) {
    Ranks ranks({10, 20}, all_here);
    ranks.watch(5, kAll, kAll);
    for (int rank = 0; rank < 3; ++rank) ranks.wait(rank, true);
    const std::string found = ranks.watch(30, kAll, 0);
    CHECK((found.find("all ranks wait for each other for 20 s: rank 0 (pid 100)") == 0) == all_here);
    CHECK(found.empty() != all_here);
  }
}

TEST_CASE("of several that find a fault one has the word") {
  const RankTable table(1);
  CHECK_FALSE(table.is_ended());
  CHECK(table.claim_end());
  CHECK_FALSE(table.claim_end());
  CHECK(table.is_ended());
}

TEST_CASE("a table is reached by process and file, and others reach none") {
  const RankTable made(2);
  const auto reached = RankTable::open(getpid(), made.file());
  REQUIRE(reached);
  CHECK(reached->slots() == 2);
  made.slot(1).step = 42;
  CHECK(reached->slot(1).step == 42);
  CHECK_FALSE(RankTable::open(1, 4711));
}

TEST_CASE("a watched communicator waits in calls and computes between them, in groups, too") {
  kernels::run_in_process(2, [](kernels::Communicator& inner) {
    Progress progress;
    const auto world = watched(inner, progress);
    const auto group = world->split(0, world->rank());
    CHECK(progress.waiting == 0);
    std::vector<float> mine{1};
    std::vector<float> all(2);
    group->all_gather(mine.data(), all.data(), 1);
    CHECK(all == std::vector<float>{1, 1});
    CHECK(progress.waiting == 0);
    auto pending = world->start_send(mine.data(), 1, 1 - world->rank(), 3);
    CHECK(progress.waiting == 0);
    world->receive(all.data(), 1, 1 - world->rank(), 3);
    pending->wait();
    CHECK(progress.waiting == 0);
  });
}

TEST_CASE("a rank waits in a barrier, and in a patient one for no op") {
  for (const bool patient : {false, true}) {
    std::array<Progress, 2> progress;
    kernels::run_in_process(2, [&](kernels::Communicator& inner) {
      const auto world = watched(inner, progress[at(inner.rank())]);
      if (world->rank() == 0) {  // comes late
        for (int i = 0; i < (patient ? 10 : 2000) && progress[1].waiting == 0; ++i) usleep(10'000);
        CHECK(progress[1].waiting == (patient ? 0 : 1));
      }
      patient ? world->patient_barrier() : world->barrier();
    });
  }
}

TEST_CASE("this process lives, and one that has ended without being asked for is gone") {
  CHECK(process_state(getpid()) == ProcessState::alive);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  for (int i = 0; i < 500 && process_state(child) != ProcessState::gone; ++i) usleep(10'000);
  CHECK(process_state(child) == ProcessState::gone);
}
