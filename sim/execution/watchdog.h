// Ends a run in which a rank died, was stopped, hangs or ran out of memory, with one line that says which.
//
// Every rank has one, made right after the communicator of all ranks. Its thread writes a sign of life and
// looks at the other ranks of the host twice a second. The first that finds something wrong prints it (under
// run_ranks, the supervisor does) and ends all ranks; where that does not succeed, each other rank ends the
// culprit and itself two seconds later. Works under any launcher; nothing is left in a file system.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/collectives.h"
#include "sim/execution/progress.h"
#include "sim/execution/rank_health.h"
#include "sim/execution/rank_table.h"

namespace equipoise::execution {

// Of a run in which a rank died, was stopped, hung or ran out of memory.
inline constexpr int kRankFailed = 3;
// Environment variable: path of the table that the supervisor of run_ranks made.
inline constexpr const char* kRankTableVariable = "EQUIPOISE_RANK_TABLE";

struct WatchdogOptions {
  HealthLimits limits;
};

class Watchdog {
 public:
  // All ranks call it. One a process: it takes SIGTERM while it lives.
  explicit Watchdog(kernels::Communicator& world, const WatchdogOptions& options = {});
  // From here on this rank may end, and is not missed.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // What the next ops belong to.
  void doing(std::string_view label, int step);
  // To be kept up to date by begin_op and WaitingCall.
  [[nodiscard]] Progress& progress() { return own().progress; }

  // This rank cannot go on: says so (`what` continues "rank 3 (pid 4711) ") and ends all ranks with exit
  // status 3. Needs no memory to speak of.
  [[noreturn]] void fail(std::string_view what);
  // Ends all ranks with this exit status; the user has been told why. For errors that only some ranks see.
  [[noreturn]] void end_all(int exit_status);

 private:
  [[nodiscard]] RankSlot& own() const { return table_->slot(own_); }
  void meet(kernels::Communicator& world);
  void watch();
  void look(double elapsed_seconds);
  void follow(double elapsed_seconds);
  [[noreturn]] void terminated();
  [[noreturn]] void end(std::string_view text, int culprit_pid);

  WatchdogOptions options_;
  std::unique_ptr<RankTable> table_;
  int own_ = 0;
  bool all_here_ = true;
  bool supervised_ = false;
  int launcher_pid_ = 0;
  std::unique_ptr<RankHealth> health_;
  std::vector<char> reserve_;  // given back when memory is short
  double told_seconds_ = 0;    // since another rank has said what is wrong
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace equipoise::execution
