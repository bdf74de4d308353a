#include "sim/execution/rank_health.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/index.h"

namespace equipoise::execution {
namespace {

// A silent rank is suspicious after a dozen missed beats.
constexpr double kSuspiciousSeconds = 1.2;
constexpr double kLongestLookSeconds = 1;

// Zeroed memory is a valid table: every member is an atomic that works between processes.
static_assert(std::atomic<std::int32_t>::is_always_lock_free &&
              std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<char>::is_always_lock_free);

std::string whole_seconds(double value) {
  return std::to_string(static_cast<int>(value)) + " s";
}

// ", in attention of step 2 of wlb", as far as that is known.
std::string doing_of(const RankSlot& slot) {
  const std::int32_t op = slot.progress.name;
  const std::int32_t step = slot.step;
  if (step < 0) return ", before its first step";
  std::string text = ", in ";
  if (op >= 0 && op < static_cast<std::int32_t>(kOpNames))
    text += std::string(equipoise::name_of(static_cast<OpName>(op))) + " of ";
  text += "step " + std::to_string(step);
  const std::string label = slot.label.get();
  return label.empty() ? text : text + " of " + label;
}

}  // namespace

RankTable::RankTable(int file, std::size_t bytes) : file_(file), bytes_(bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED)
    throw UserError("execute: no memory that ranks can share: ", std::strerror(errno));
  memory_ = std::shared_ptr<void>(memory, [file, bytes](void* mapped) {
    munmap(mapped, bytes);
    close(file);
  });
}

RankTable::RankTable(int slots, const std::string& path)
    : RankTable(path.empty() ? memfd_create("equipoise-ranks", MFD_CLOEXEC)
                             : ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600),
                sizeof(RunEnd) + at(slots) * sizeof(RankSlot)) {
  if (ftruncate(file_, static_cast<off_t>(bytes_)) != 0)
    throw UserError("execute: no memory that ranks can share: ", std::strerror(errno));
}

std::optional<RankTable> RankTable::open(const std::string& path) {
  const int opened = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status {};
  if (opened < 0) return std::nullopt;
  if (fstat(opened, &status) == 0 && at(status.st_size) >= sizeof(RunEnd) + sizeof(RankSlot))
    return RankTable(opened, at(status.st_size));
  close(opened);
  return std::nullopt;
}

RankSlot& RankTable::slot(int index) const {
  return reinterpret_cast<RankSlot*>(static_cast<char*>(memory_.get()) + sizeof(RunEnd))[index];
}

void join(RankSlot& slot, int rank) {
  slot.rank = rank;
  slot.step = -1;
  slot.progress.name = Progress::kNoOp;
  slot.pid = static_cast<std::int32_t>(getpid());  // written last: whoever sees it also sees the rest
}

std::string name_of(const RankSlot& slot) {
  return concatenated("rank ", slot.rank.load(), " (pid ", slot.pid.load(), ")");
}

std::string death_of(const RankSlot& slot) {
  return name_of(slot) + " died" + doing_of(slot);
}

ProcessState process_state(int pid) {
  if (kill(pid, 0) != 0 && errno == ESRCH) return ProcessState::gone;
  std::ostringstream text;  // it may end meanwhile, and an iterator would throw
  text << std::ifstream(concatenated("/proc/", pid, "/stat")).rdbuf();
  const std::string stat = text.str();
  const std::size_t name_end = stat.rfind(')');  // because the name may hold any character
  // /proc may be hidden; then only silence shows a dead rank.
  if (name_end == std::string::npos || name_end + 2 >= stat.size()) return ProcessState::alive;
  const char state = stat[name_end + 2];
  if (state == 'Z' || state == 'X') return ProcessState::gone;
  return state == 'T' || state == 't' ? ProcessState::stopped : ProcessState::alive;
}

RankHealth::RankHealth(RankTable table, HealthLimits limits, bool all_here, ProcessState (*state_of)(int))
    : table_(std::move(table)),
      limits_(limits),
      all_here_(all_here),
      state_of_(state_of),
      seen_(at(table_.slots())) {}

std::optional<std::string> RankHealth::look(int own, double elapsed_seconds) {
  elapsed_seconds = std::min(elapsed_seconds, kLongestLookSeconds);
  for (int i = 0; i < table_.slots(); ++i) {
    const RankSlot& slot = table_.slot(i);
    Seen& seen = seen_[at(i)];
    const std::uint64_t beats = slot.beats;
    const std::uint64_t ops = slot.progress.ops;
    seen.silent_seconds = beats == seen.beats ? seen.silent_seconds + elapsed_seconds : 0;
    seen.same_op_seconds = ops == seen.ops ? seen.same_op_seconds + elapsed_seconds : 0;
    seen.beats = beats;
    seen.ops = ops;
  }
  if (auto found = missing(own, kSuspiciousSeconds)) return found;
  return stuck();
}

std::optional<std::string> RankHealth::missing(int own, double least_silence) const {
  for (int i = 0; i < table_.slots(); ++i) {
    const RankSlot& slot = table_.slot(i);
    const double silence = seen_[at(i)].silent_seconds;
    if (i == own || slot.pid == 0 || slot.left != 0 || silence < least_silence) continue;
    const ProcessState state = state_of_(slot.pid);
    if (slot.left != 0) continue;  // it left in order before it ended
    if (state == ProcessState::gone) return death_of(slot);
    // A rank that starts has no watchdog yet, so it is silent while it is well.
    const bool starts = slot.beats == 0 && state == ProcessState::alive;
    if (silence < limits_.silence_seconds || starts) continue;
    const char* what = state == ProcessState::stopped ? " was stopped" : " hangs";
    return name_of(slot) + what + ": no sign of life for " + whole_seconds(silence) + doing_of(slot);
  }
  return std::nullopt;
}

// A fault if no rank has gone on for too long and at least one waits for others in its op.
std::optional<std::string> RankHealth::stuck() const {
  const RankSlot* culprit = nullptr;
  const RankSlot* waiting = nullptr;
  for (int i = 0; i < table_.slots(); ++i) {
    const RankSlot& slot = table_.slot(i);
    const Seen& seen = seen_[at(i)];
    const std::int32_t op = slot.progress.name;
    if (slot.left != 0) continue;
    // Between ops a rank may plan for any length of time; one that is silent is missing(), not stuck.
    if (slot.pid == 0 || op == Progress::kNoOp || seen.silent_seconds > kSuspiciousSeconds ||
        seen.same_op_seconds < limits_.same_op_seconds)
      return std::nullopt;
    const RankSlot*& first = is_message(static_cast<OpName>(op)) ? waiting : culprit;
    if (first == nullptr) first = &slot;
  }
  if (waiting == nullptr || (culprit == nullptr && !all_here_)) return std::nullopt;
  const std::string seconds = whole_seconds(limits_.same_op_seconds);
  if (culprit != nullptr)
    return name_of(*culprit) + " hangs: the others wait, and it has not gone on for " + seconds +
           doing_of(*culprit);
  return "all ranks wait for each other for " + seconds + ": " + name_of(*waiting) + doing_of(*waiting);
}

namespace {

using kernels::Communicator;

constexpr auto kBeat = std::chrono::milliseconds(100);
constexpr double kFollowSeconds = 2;
constexpr std::size_t kReserveBytes = 1 << 20;

// Launchers send SIGTERM to all ranks as soon as one has died. The watchdog's thread sees it at its next beat
// and names the dead rank, for which launchers leave a second.
std::atomic<bool> terminate_asked{false};

void on_terminate(int) {
  terminate_asked = true;
}

// The table of run_ranks, and this rank's slot; null in any other process.
const RankTable* run_table = nullptr;
RankSlot* run_slot = nullptr;

// The supervisor names the rank that died.
void leave_at_once(int) {
  run_slot->left = 1;
  _exit(128 + SIGTERM);
}

}  // namespace

void join_run() {
  const char* const path = std::getenv(kTableVariable);
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (path == nullptr || rank == nullptr) return;
  static const std::optional<RankTable> table = RankTable::open(path);
  if (!table || std::atoi(rank) >= table->slots()) return;
  run_table = &*table;
  run_slot = &table->slot(std::atoi(rank));
  join(*run_slot, std::atoi(rank));
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a stopped rank cannot see that its launcher died
  std::signal(SIGTERM, leave_at_once);
}

void leave_run(int exit_status, bool alone) {
  if (run_slot == nullptr) return;
  run_slot->left = 1;
  if (alone || run_slot->rank == 0) run_table->end().status = 1 + exit_status;
}

// Where a rank writes about itself.
struct Watchdog::Place {
  RankTable table;
  int slot = 0;
  bool all_here = true;
  bool supervised = false;
};

// Without run_ranks in the table of the host's lowest rank. A rank that cannot reach that table watches only
// itself, and nobody misses it.
Watchdog::Place Watchdog::find_place(Communicator& world) {
  if (run_slot != nullptr) return {*run_table, world.rank(), true, true};
  const auto host = kernels::ranks_of_this_host(world);
  RankTable table(host->size());
  const std::array<float, 2> mine{static_cast<float>(getpid()), static_cast<float>(table.file())};
  std::vector<float> all(2 * at(host->size()));  // whole numbers below 2^24
  host->all_gather(mine.data(), all.data(), 2);
  if (host->rank() > 0)
    if (const auto led = RankTable::open(
            concatenated("/proc/", static_cast<int>(all[0]), "/fd/", static_cast<int>(all[1]))))
      table = *led;
  world.barrier();  // the leader may leave once all have its table
  return {table, host->rank(), host->size() == world.size()};
}

Watchdog::Watchdog(Communicator& world, const HealthLimits& limits)
    : Watchdog(find_place(world), world.rank(), limits) {}

Watchdog::Watchdog(const Place& place, int rank, const HealthLimits& limits)
    : table_(place.table),
      own_(place.slot),
      supervised_(place.supervised),
      launcher_pid_(getppid()),
      health_(table_, limits, place.all_here),
      reserve_(kReserveBytes, '\1') {
  if (!supervised_) {
    join(own(), rank);
    terminate_asked = false;
    std::signal(SIGTERM, on_terminate);
  }
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  own().left = 1;
  stop_ = true;
  thread_.join();
  if (!supervised_) std::signal(SIGTERM, SIG_DFL);
}

void Watchdog::doing(std::string_view label, int step) {
  own().label.set(label);
  own().step = step;
}

void Watchdog::watch() {
  using Clock = std::chrono::steady_clock;
  double ended_seconds = 0;  // since another rank ended the run
  for (auto last = Clock::now();;) {
    std::this_thread::sleep_for(kBeat);
    if (stop_) return;
    own().beats.fetch_add(1);
    if (terminate_asked) terminated();
    const auto now = Clock::now();
    const double elapsed = std::chrono::duration<double>(now - last).count();
    last = now;
    if (table_.end().claimed != 0) {
      ended_seconds += elapsed;
      if (ended_seconds > kFollowSeconds) _exit(kRankFailed);
    } else if (getppid() != launcher_pid_) {
      end("the launcher (pid " + std::to_string(launcher_pid_) + ") died");
    } else if (supervised_) {
      continue;
    } else if (const auto found = health_.look(own_, elapsed)) {
      end(*found);
    }
  }
}

void Watchdog::terminated() {
  if (const auto found = health_.gone(own_); found && table_.end().claimed == 0) end(*found);
  own().left = 1;
  _exit(128 + SIGTERM);
}

void Watchdog::end(const std::string& text) {
  if (table_.claim_end()) {
    table_.end().fault.set(text);
    table_.end().told = 1;
    if (!supervised_) std::fprintf(stderr, "error: %s\n", text.c_str());
  }
  std::fflush(stderr);
  kernels::end_mpi_job(kRankFailed);
  _exit(kRankFailed);
}

void Watchdog::fail(std::string_view what) {
  std::vector<char>().swap(reserve_);
  end(name_of(own()) + " " + std::string(what) + doing_of(own()));
}

void Watchdog::end_all(int exit_status) {
  own().left = 1;
  leave_run(exit_status, true);
  std::fflush(nullptr);
  kernels::end_mpi_job(exit_status);
  _exit(exit_status);
}

}  // namespace equipoise::execution
