// Finds ranks that died, were stopped or hang, and ends the run with one line that names the rank.
//
// The ranks of a host share a table in memory. It has no name in any file system (memfd), so it is gone with
// the last process that has it. A rank writes its op into its slot at every op, and its Watchdog thread
// counts a beat several times a second and looks at the slots of the others. An observer counts how long it
// has itself seen no change, with at most a second per look. So no rank looks dead when a machine sleeps, or
// a job is stopped and continued as a whole.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/collectives.h"
#include "sim/workload/ops.h"

namespace equipoise::execution {

// What a rank is doing, written by the rank and read by other threads and processes.
struct Progress {
  static constexpr std::int32_t kNoOp = -1;
  std::atomic<std::uint64_t> ops{0};      // ops begun so far; has one writer
  std::atomic<std::int32_t> name{kNoOp};  // OpName of the latest op
  std::atomic<std::int32_t> waiting{0};   // current calls that wait for other ranks
};

// Takes a nanosecond or two: plain stores suffice, since only the rank itself writes.
inline void begin_op(Progress* progress, OpName name) {
  if (progress == nullptr) return;
  progress->name.store(static_cast<std::int32_t>(name), std::memory_order_relaxed);
  progress->ops.store(progress->ops.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// Text that is written rarely and read by other processes at any time. A reader may see half of the old and
// half of the new, which is good enough for a message.
template <std::size_t kBytes>
class SharedText {
 public:
  void set(std::string_view text) {
    for (std::size_t i = 0; i < kBytes; ++i) bytes_[i] = i < text.size() ? text[i] : '\0';
  }
  [[nodiscard]] std::string get() const {
    std::string text;
    for (std::size_t i = 0; i < kBytes && bytes_[i] != '\0'; ++i) text += bytes_[i];
    return text;
  }

 private:
  std::array<std::atomic<char>, kBytes> bytes_;
};

// One rank's slot, all zero until it joins.
struct alignas(128) RankSlot {
  std::atomic<std::int32_t> pid;   // 0 until it joins
  std::atomic<std::int32_t> rank;  // in the world
  std::atomic<std::int32_t> left;  // it ended in order, or was told to end, so nobody misses it
  std::atomic<std::int32_t> step;
  std::atomic<std::uint64_t> beats;  // grows while the process lives and runs
  Progress progress;
  SharedText<64> label;  // the policy's
};

// Copies share the memory.
class RankTable {
 public:
  // Throws UserError if the system has no such memory.
  explicit RankTable(int slots);
  // The table that process `pid` has under this file number, if it can be reached.
  static std::optional<RankTable> open(int pid, int file);

  [[nodiscard]] int file() const { return file_; }
  [[nodiscard]] int slots() const { return static_cast<int>(bytes_ / sizeof(RankSlot)) - 1; }
  [[nodiscard]] RankSlot& slot(int index) const;
  // True only for the first rank that ends the run, which then says why.
  [[nodiscard]] bool claim_end() const { return ended().exchange(1) == 0; }
  [[nodiscard]] bool is_ended() const { return ended() != 0; }

 private:
  RankTable(int file, std::size_t bytes);
  [[nodiscard]] std::atomic<std::int32_t>& ended() const {
    return *static_cast<std::atomic<std::int32_t>*>(memory_.get());
  }
  int file_;
  std::size_t bytes_;
  std::shared_ptr<void> memory_;
};

void join(RankSlot& slot, int rank);
// "rank 3 (pid 4711)".
std::string name_of(const RankSlot& slot);

enum class ProcessState { alive, stopped, gone };
// Read from /proc. A process that has ended and waits for its parent counts as gone.
ProcessState process_state(int pid);

struct HealthLimits {
  double silence_seconds = 10;  // without any change
  // How long one op may run on one rank while all others wait, or all ranks may wait. A long op is no fault
  // while others go on. On a slow machine with long documents, raise it.
  double same_op_seconds = 120;
  // How long all ranks may stay at their stages where none has a watchdog, in addition to what MPI needs to
  // start on their cores.
  double same_stage_seconds = 20;
};

class RankHealth {
 public:
  // `all_here` says that the world has no ranks on other hosts, so a wait of all for each other is a fault.
  RankHealth(RankTable table, HealthLimits limits, bool all_here,
             ProcessState (*state_of)(int) = process_state);

  // What is wrong with a rank, in one line that names it. Looks at all slots but `own`, `elapsed_seconds`
  // after the last look.
  std::optional<std::string> look(int own, double elapsed_seconds);
  // Names a rank that is gone without waiting for silence, because something ended this rank.
  [[nodiscard]] std::optional<std::string> gone(int own) const { return missing(own, 0); }

 private:
  struct Seen {
    std::uint64_t beats = 0, ops = 0;
    double silent_seconds = 0, same_op_seconds = 0;
  };
  [[nodiscard]] std::optional<std::string> missing(int own, double least_silence) const;
  [[nodiscard]] std::optional<std::string> stuck() const;

  RankTable table_;
  HealthLimits limits_;
  bool all_here_;
  ProcessState (*state_of_)(int);
  std::vector<Seen> seen_;
};

// Exit status of a run in which a rank died, was stopped, hung or ran out of memory.
inline constexpr int kRankFailed = 3;
// Environment variable for the ranks of run_ranks: the file in which the first rank that finds a fault
// describes it. Its supervisor prints it.
inline constexpr const char* kFaultFileVariable = "EQUIPOISE_FAULT_FILE";
// Environment variable by which Open MPI gives a process its rank.
inline constexpr const char* kRankVariable = "OMPI_COMM_WORLD_RANK";

// How far a rank of run_ranks has come. Watchdogs find what happens while ranks are `watched`; at the other
// stages their supervisor does.
enum class RankStage { starts, in_mpi_init, meets, watched, leaves, in_mpi_finalize, ended };
// Written by the rank, for its supervisor; nothing under another launcher.
void note_stage(RankStage stage);
// `rank` is its number as text. `fault_file` is the file of kFaultFileVariable.
RankStage stage_of(const std::string& fault_file, const std::string& rank);

// Every rank makes one right after the communicator of all ranks, under any launcher. The first rank whose
// watchdog finds a fault prints it, or leaves that to the supervisor of run_ranks (launch.h), and has MPI
// abort all ranks. A rank that still runs two seconds later ends itself.
class Watchdog {
 public:
  // All ranks call it, once per process. It handles SIGTERM while it lives.
  explicit Watchdog(kernels::Communicator& world, const HealthLimits& limits = {});
  // From here on this rank may end, and nobody misses it.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Names what the next ops belong to.
  void doing(std::string_view label, int step);
  // begin_op and watched() (rank_executor.h) keep it up to date.
  [[nodiscard]] Progress& progress() { return own().progress; }

  // Says that this rank cannot go on (`what` continues "rank 3 (pid 4711) ") and ends all ranks with exit
  // status 3. It needs hardly any memory.
  [[noreturn]] void fail(std::string_view what);
  // Ends all ranks with this exit status, after the user was told why. For errors that only some ranks see.
  [[noreturn]] void end_all(int exit_status);

 private:
  struct Place;
  static Place find_place(kernels::Communicator& world);
  Watchdog(const Place& place, int rank, const HealthLimits& limits);
  [[nodiscard]] RankSlot& own() const { return table_.slot(own_); }
  void watch();
  [[noreturn]] void terminated();
  [[noreturn]] void end(const std::string& text);

  RankTable table_;
  int own_;
  const char* fault_file_;  // if null, this rank prints the fault
  int launcher_pid_;
  RankHealth health_;
  std::vector<char> reserve_;  // freed when memory is short
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace equipoise::execution
