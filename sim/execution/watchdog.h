// Ends a run in which a rank died, was stopped, hangs or ran out of memory, with one line that says which.
//
// Every rank has one, made right after the communicator of all ranks. Its thread writes a sign of life and
// looks at the other ranks of the host twice a second. The first that finds something wrong prints it (or
// tells it to the supervisor of run_ranks, launch.h) and ends all ranks; where that does not succeed, each
// other rank ends the culprit and itself two seconds later. Works under any launcher.
#pragma once

#include <atomic>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/collectives.h"
#include "sim/execution/rank_health.h"

namespace equipoise::execution {

// Exit status of a run in which a rank died, was stopped, hung or ran out of memory.
inline constexpr int kRankFailed = 3;
// Environment variable, set for the ranks of run_ranks: the file in which the first rank that finds something
// wrong says what. Its supervisor prints it.
inline constexpr const char* kFaultFileVariable = "EQUIPOISE_FAULT_FILE";

class Watchdog {
 public:
  // All ranks call it. One a process: it takes SIGTERM while it lives.
  explicit Watchdog(kernels::Communicator& world, const HealthLimits& limits = {});
  // From here on this rank may end, and is not missed.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // What the next ops belong to.
  void doing(std::string_view label, int step);
  // To be kept up to date by begin_op and watched() (communicators.h).
  [[nodiscard]] Progress& progress() { return own().progress; }

  // This rank cannot go on: says so (`what` continues "rank 3 (pid 4711) ") and ends all ranks with exit
  // status 3. Needs no memory to speak of.
  [[noreturn]] void fail(std::string_view what);
  // Ends all ranks with this exit status; the user has been told why. For errors that only some ranks see.
  [[noreturn]] void end_all(int exit_status);

 private:
  struct Place;
  static Place find_place(kernels::Communicator& world);
  Watchdog(const Place& place, int rank, const HealthLimits& limits);
  [[nodiscard]] RankSlot& own() const { return table_.slot(own_); }
  void watch();
  void look(double elapsed_seconds);
  void follow(double elapsed_seconds);
  [[noreturn]] void terminated();
  [[noreturn]] void end(std::string_view text, int culprit_pid);

  RankTable table_;
  int own_;
  const char* fault_file_;  // null: this rank prints what is wrong
  int launcher_pid_;
  RankHealth health_;
  std::vector<char> reserve_;  // given back when memory is short
  double told_seconds_ = 0;    // since another rank has said what is wrong
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace equipoise::execution
