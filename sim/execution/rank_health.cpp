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
#include <functional>
#include <limits>
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

std::size_t table_bytes(int slots) {
  return (at(slots) + 1) * sizeof(RankSlot);  // the first slot tells whether the run has ended
}

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

RankTable::RankTable(int slots)
    : RankTable(memfd_create("equipoise-ranks", MFD_CLOEXEC), table_bytes(slots)) {
  if (ftruncate(file_, static_cast<off_t>(bytes_)) != 0)
    throw UserError("execute: no memory that ranks can share: ", std::strerror(errno));
}

std::optional<RankTable> RankTable::open(int pid, int file) {
  const std::string path = concatenated("/proc/", pid, "/fd/", file);
  const int opened = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status {};
  if (opened < 0) return std::nullopt;
  if (fstat(opened, &status) == 0 && static_cast<std::size_t>(status.st_size) >= table_bytes(1))
    return RankTable(opened, static_cast<std::size_t>(status.st_size));
  close(opened);
  return std::nullopt;
}

RankSlot& RankTable::slot(int index) const {
  return static_cast<RankSlot*>(memory_.get())[index + 1];
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

ProcessState process_state(int pid) {
  if (kill(pid, 0) != 0 && errno == ESRCH) return ProcessState::gone;
  char text[512] = {};
  std::snprintf(text, sizeof text, "/proc/%d/stat", pid);
  const int file = open(text, O_RDONLY | O_CLOEXEC);
  if (file < 0) return ProcessState::alive;  // /proc may be hidden; then only silence shows a dead rank
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  text[std::max<ssize_t>(length, 0)] = '\0';
  const char* name_end = std::strrchr(text, ')');  // because the name may hold any character
  if (name_end == nullptr || name_end[1] == '\0') return ProcessState::alive;
  const char state = name_end[2];
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
    if (state == ProcessState::gone) return name_of(slot) + " died" + doing_of(slot);
    if (silence < limits_.silence_seconds) continue;
    const char* what = state == ProcessState::stopped ? " was stopped" : " hangs";
    return name_of(slot) + what + ": no sign of life for " + whole_seconds(silence) + doing_of(slot);
  }
  return std::nullopt;
}

// A fault if one rank computes the same op for too long while all others wait, or if all wait.
std::optional<std::string> RankHealth::stuck() const {
  const RankSlot* culprit = nullptr;
  const RankSlot* waiting = nullptr;
  double shortest_wait = std::numeric_limits<double>::infinity();
  for (int i = 0; i < table_.slots(); ++i) {
    const RankSlot& slot = table_.slot(i);
    if (slot.pid == 0) return std::nullopt;
    const Seen& seen = seen_[at(i)];
    if (slot.left != 0 || slot.progress.waiting != 0) {
      // It may have only just begun to wait, or be stopped as well.
      if (seen.same_op_seconds < kSuspiciousSeconds) return std::nullopt;
      if (slot.left != 0) continue;
      if (seen.silent_seconds > kSuspiciousSeconds) return std::nullopt;
      if (waiting == nullptr) waiting = &slot;
      shortest_wait = std::min(shortest_wait, seen.same_op_seconds);
      continue;
    }
    if (seen.same_op_seconds < limits_.same_op_seconds) return std::nullopt;
    if (seen.silent_seconds > kSuspiciousSeconds) return std::nullopt;  // not computing: see missing()
    if (culprit == nullptr) culprit = &slot;
  }
  if (waiting == nullptr) return std::nullopt;
  if (culprit != nullptr)
    return name_of(*culprit) + " hangs: the others wait, and it has not gone on for " +
           whole_seconds(limits_.same_op_seconds) + doing_of(*culprit);
  if (!all_here_ || shortest_wait < limits_.same_op_seconds) return std::nullopt;
  return "all ranks wait for each other for " + whole_seconds(shortest_wait) + ": " + name_of(*waiting) +
         doing_of(*waiting);
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

// Two integers below 2^24 of every rank, sent through a communicator, which moves f32.
using Pair = std::array<float, 2>;
std::vector<Pair> share_pair(Communicator& world, std::size_t first, std::size_t second) {
  const Pair mine = {static_cast<float>(first), static_cast<float>(second)};
  std::vector<Pair> all(at(world.size()));
  world.all_gather(mine.data(), all.data(), 2);
  return all;
}

// Processes see each other by pid if host and PID namespace are equal.
std::size_t host_key() {
  std::array<char, 65> host{};
  gethostname(host.data(), host.size() - 1);
  std::array<char, 64> space{};
  [[maybe_unused]] const ssize_t length = readlink("/proc/self/ns/pid", space.data(), space.size() - 1);
  return std::hash<std::string>()(std::string(host.data()) + " " + space.data());
}

}  // namespace

// Where a rank writes about itself.
struct Watchdog::Place {
  RankTable table;
  int slot = 0;
  bool all_here = true;
};

// In the table of the host's lowest rank. A rank that cannot reach that table watches only itself, and nobody
// misses it.
Watchdog::Place Watchdog::find_place(Communicator& world) {
  note_stage(RankStage::meets);
  constexpr std::size_t k24Bits = 0xFFFFFF;
  const std::size_t key = host_key();
  const std::vector<Pair> hosts = share_pair(world, key & k24Bits, key >> 24 & k24Bits);
  const auto mine = hosts.begin() + world.rank();
  const auto here = static_cast<int>(std::count(hosts.begin(), hosts.end(), *mine));
  const auto leader = std::find(hosts.begin(), hosts.end(), *mine);
  Place place{RankTable(here), static_cast<int>(std::count(leader, mine, *mine)), here == world.size()};
  const auto tables = share_pair(world, at(getpid()), at(place.table.file()));
  const auto [pid, file] = tables[at(leader - hosts.begin())];
  if (leader != mine)
    if (const auto led = RankTable::open(static_cast<int>(pid), static_cast<int>(file))) place.table = *led;
  world.barrier();  // the leader may leave once all have its table
  return place;
}

Watchdog::Watchdog(Communicator& world, const HealthLimits& limits)
    : Watchdog(find_place(world), world.rank(), limits) {}

Watchdog::Watchdog(const Place& place, int rank, const HealthLimits& limits)
    : table_(place.table),
      own_(place.slot),
      fault_file_(std::getenv(kFaultFileVariable)),
      launcher_pid_(getppid()),
      health_(table_, limits, place.all_here),
      reserve_(kReserveBytes, '\1') {
  join(own(), rank);
  // A stopped rank cannot see that its launcher died.
  if (fault_file_ != nullptr) prctl(PR_SET_PDEATHSIG, SIGKILL);
  terminate_asked = false;
  std::signal(SIGTERM, on_terminate);
  thread_ = std::thread([this] { watch(); });
  note_stage(RankStage::watched);
}

Watchdog::~Watchdog() {
  note_stage(RankStage::leaves);
  own().left = 1;
  stop_ = true;
  thread_.join();
  std::signal(SIGTERM, SIG_DFL);
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
    if (table_.is_ended()) {
      ended_seconds += elapsed;
      if (ended_seconds > kFollowSeconds) _exit(kRankFailed);
    } else if (getppid() != launcher_pid_) {
      end("the launcher (pid " + std::to_string(launcher_pid_) + ") died");
    } else if (const auto found = health_.look(own_, elapsed)) {
      end(*found);
    }
  }
}

void Watchdog::terminated() {
  if (const auto found = health_.gone(own_); found && !table_.is_ended()) end(*found);
  own().left = 1;
  _exit(128 + SIGTERM);
}

void Watchdog::end(const std::string& text) {
  if (table_.claim_end()) {
    const int file = fault_file_ == nullptr ? -1 : open(fault_file_, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (file < 0 || write(file, text.data(), text.size()) < 0)
      std::fprintf(stderr, "error: %s\n", text.c_str());
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
  std::fflush(nullptr);
  kernels::end_mpi_job(exit_status);
  _exit(exit_status);
}

// Holds one digit, which is never half written.
static std::string stage_file(const std::string& fault_file, const std::string& rank) {
  return fault_file + ".stage." + rank;
}

void note_stage(RankStage stage) {
  const char* const fault = std::getenv(kFaultFileVariable);
  const char* const rank = std::getenv(kRankVariable);
  if (fault == nullptr || rank == nullptr) return;
  const char digit = static_cast<char>('0' + static_cast<int>(stage));
  const int file = open(stage_file(fault, rank).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = write(file, &digit, 1);
  close(file);
}

RankStage stage_of(const std::string& fault_file, const std::string& rank) {
  char digit = '0';
  std::ifstream(stage_file(fault_file, rank)).get(digit);
  return static_cast<RankStage>(digit - '0');
}

}  // namespace equipoise::execution
