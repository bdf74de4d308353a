// Ranks that compute and wait for each other until something happens to them, for test_launch.py.
//   rank_program launch RANKS MODE [WHO] TOKEN    starts itself on so many ranks
//   rank_program rank MODE [WHO] TOKEN            is one of them, under any launcher
// The token only marks the processes. Modes: loop; late (joins after two seconds); memory WHO, hang WHO: that
// rank runs out of memory or stops going on; hang-first, hang-before, hang-after, hang-last WHO: it does so
// before MPI_Init, before or after watchdogs, or after MPI_Finalize; user-error WHO: it alone ends with
// status 2; exit0, exit1, exit2: all end in order, rank 0 with this status.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/collectives.h"
#include "policies/base/error.h"
#include "sim/execution/communicators.h"
#include "sim/execution/launch.h"
#include "sim/execution/rank_health.h"

namespace {

using namespace equipoise;
using namespace equipoise::execution;

constexpr HealthLimits kLimits{10, 4,
                               6};  // a hanging op is found in seconds, silence when it is in real runs

void compute() {
  const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
  while (std::chrono::steady_clock::now() < until) {
  }
}

std::vector<std::unique_ptr<std::vector<char>>> hoard;

[[noreturn]] void exhaust_memory() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  throw std::bad_alloc();  // its allocator ends the process instead
#endif
  constexpr std::size_t kPiece = 1 << 20;  // few enough that a busy machine does not take it for a hang
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  unsigned long pages = 0;
  if (file == nullptr || std::fscanf(file, "%lu", &pages) != 1) std::abort();
  std::fclose(file);
  const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + 16 * kPiece;
  const rlimit limit{bytes, bytes};
  setrlimit(RLIMIT_AS, &limit);
  for (;;) hoard.push_back(std::make_unique<std::vector<char>>(kPiece, '\1'));
}

struct Case {
  std::string mode;
  int who = -1;
};

void misbehave(const Case& what, Watchdog& watchdog) {
  if (what.mode == "memory") exhaust_memory();
  if (what.mode == "hang")
    for (;;) compute();
  if (what.mode == "user-error") {
    std::fprintf(stderr, "error: only this rank knows\n");
    watchdog.end_all(2);
  }
}

// The rank that is meant stops here.
void hang_at(std::string_view mode, const Case& what) {
  const char* const rank = std::getenv(kRankVariable);
  while (what.mode == mode && rank != nullptr && what.who == std::atoi(rank))
    std::this_thread::sleep_for(std::chrono::seconds(1));
}

void work(const Case& what, kernels::Communicator& world) {
  Watchdog watchdog(world, kLimits);
  const auto calls = watched(world, watchdog.progress());
  const int steps = what.mode.starts_with("exit") || what.mode.starts_with("hang-") ? 20 : 1'000'000;
  try {
    for (int step = 0; step < steps; ++step) {
      watchdog.doing("wlb", step);
      begin_op(&watchdog.progress(), OpName::attention);
      compute();
      if (step == 50 && what.who == world.rank()) misbehave(what, watchdog);
      begin_op(&watchdog.progress(), OpName::tp_all_gather);
      calls->barrier();
      if (step == 0 && world.rank() == 0) {
        std::puts("ready");
        std::fflush(stdout);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  } catch (const std::bad_alloc&) {
    watchdog.fail("ran out of memory");
  }
}

int run_rank(const Case& what) {
  std::string reason;
  hang_at("hang-first", what);
  note_stage(RankStage::in_mpi_init);
  const auto world = kernels::make_mpi_world(reason);
  if (world == nullptr) throw UserError(reason);
  if (what.mode == "late") std::this_thread::sleep_for(std::chrono::seconds(2));
  hang_at("hang-before", what);
  work(what, *world);
  hang_at("hang-after", what);
  const bool speaks = world->rank() == 0;
  if (speaks) std::puts("done");
  note_stage(RankStage::in_mpi_finalize);
  kernels::finish_mpi();
  note_stage(RankStage::ended);
  hang_at("hang-last", what);
  return speaks && what.mode.starts_with("exit") ? what.mode.back() - '0' : 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() >= 4 && words[0] == "launch") {
      std::vector<std::string> rank_words = {"rank"};
      rank_words.insert(rank_words.end(), words.begin() + 2, words.end());
      return run_ranks(std::stoi(words[1]), rank_words, kLimits);
    }
    if (words.size() >= 3 && words[0] == "rank")
      return run_rank({words[1], words.size() > 3 ? std::stoi(words[2]) : -1});
  } catch (const UserError& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 2;
  }
  std::fprintf(stderr, "usage: rank_program launch RANKS MODE [WHO] TOKEN | rank MODE [WHO] TOKEN\n");
  return 2;
}
