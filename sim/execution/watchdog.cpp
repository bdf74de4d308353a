#include "sim/execution/watchdog.h"

#include <fcntl.h>
#include <semaphore.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>

#include "policies/base/index.h"

namespace equipoise::execution {
namespace {

using kernels::Communicator;

constexpr long kBeatNanoseconds = 500'000'000;
constexpr double kFollowSeconds = 2;
constexpr std::size_t kReserveBytes = 1 << 20;

// --- SIGTERM: launchers send it to all ranks as soon as one has died. It wakes the thread, which says who.
sem_t wake_up;  // sem_post is one of the few calls that a handler may make
std::atomic<bool> terminate_asked{false};

void on_terminate(int) {
  const int error = errno;
  terminate_asked = true;
  sem_post(&wake_up);
  errno = error;
}

void wait_for_beat() {
  timespec until{};
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += kBeatNanoseconds;
  until.tv_sec += until.tv_nsec / 1'000'000'000;
  until.tv_nsec %= 1'000'000'000;
  sem_clockwait(&wake_up, CLOCK_MONOTONIC, &until);
}

// --- Two whole numbers below 2^24 of every rank, through a communicator, which moves f32.
using Pair = std::array<float, 2>;
std::vector<Pair> share_pair(Communicator& world, std::size_t first, std::size_t second) {
  const Pair mine = {static_cast<float>(first), static_cast<float>(second)};
  std::vector<Pair> all(at(world.size()));
  world.all_gather(mine.data(), all.data(), 2);
  return all;
}

// Processes see each other by pid where host and PID namespace are the same.
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

// In the table of the host's lowest rank. A rank that cannot reach it looks after itself only, and nobody
// misses it.
Watchdog::Place Watchdog::find_place(Communicator& world) {
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
  world.barrier();  // the leader may go when all have its table
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
  // A rank that is stopped cannot see that its launcher died.
  if (fault_file_ != nullptr) prctl(PR_SET_PDEATHSIG, SIGKILL);
  sem_init(&wake_up, 0, 0);
  terminate_asked = false;
  std::signal(SIGTERM, on_terminate);
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  own().left = 1;
  stop_ = true;
  sem_post(&wake_up);
  thread_.join();
  std::signal(SIGTERM, SIG_DFL);
}

void Watchdog::doing(std::string_view label, int step) {
  own().label.set(label);
  own().step = step;
}

void Watchdog::watch() {
  using Clock = std::chrono::steady_clock;
  for (auto last = Clock::now();;) {
    wait_for_beat();
    if (stop_) return;
    own().beats.fetch_add(1);
    if (terminate_asked) terminated();
    const auto now = Clock::now();
    look(std::chrono::duration<double>(now - last).count());
    last = now;
  }
}

void Watchdog::look(double elapsed_seconds) {
  if (table_.fault().told != 0) return follow(elapsed_seconds);
  if (getppid() != launcher_pid_) end("the launcher (pid " + std::to_string(launcher_pid_) + ") died", 0);
  if (const auto found = health_.look(own_, elapsed_seconds)) end(found->text, found->culprit_pid);
}

// Another rank ends the run. Its launcher should be quicker than this.
void Watchdog::follow(double elapsed_seconds) {
  told_seconds_ += elapsed_seconds;
  if (told_seconds_ < kFollowSeconds) return;
  const RankFault& fault = table_.fault();
  for (const std::int32_t pid : {fault.culprit.load(), fault.teller.load()})
    if (pid > 0 && pid != getpid() && process_state(pid) != ProcessState::gone) kill(pid, SIGKILL);
  _exit(kRankFailed);
}

void Watchdog::terminated() {
  if (const auto found = health_.gone(own_); found && table_.fault().claimed == 0)
    end(found->text, found->culprit_pid);
  own().left = 1;
  _exit(128 + SIGTERM);
}

void Watchdog::end(std::string_view text, int culprit_pid) {
  if (claim(table_.fault(), text, culprit_pid, getpid())) {
    const int file = fault_file_ == nullptr ? -1 : open(fault_file_, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (file < 0 || write(file, text.data(), text.size()) < 0)
      std::fprintf(stderr, "error: %.*s\n", static_cast<int>(text.size()), text.data());
  }
  std::fflush(stderr);
  kernels::end_mpi_job(kRankFailed);
  _exit(kRankFailed);
}

void Watchdog::fail(std::string_view what) {
  std::vector<char>().swap(reserve_);
  const std::string text = name_of(own()) + " " + std::string(what) + doing_of(own());
  end(text, 0);
}

void Watchdog::end_all(int exit_status) {
  own().left = 1;
  std::fflush(nullptr);
  kernels::end_mpi_job(exit_status);
  _exit(exit_status);
}

}  // namespace equipoise::execution
