#include "sim/execution/watchdog.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <utility>

namespace equipoise::execution {
namespace {

constexpr int kBeatMilliseconds = 500;
constexpr double kFollowSeconds = 2;
constexpr int kTerminated = 128 + SIGTERM;
constexpr std::size_t kReserveBytes = 1 << 20;

// --- SIGTERM: launchers send it to all ranks as soon as one has died. It wakes the thread, which says who.
// Lock-free atomics: a handler may use them, and another thread may read.
std::atomic<int> wake_file{-1};
std::atomic<bool> terminate_asked{false};
struct sigaction before {};

void wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_file, &one, sizeof one);
}

void on_terminate(int) {
  const int error = errno;
  terminate_asked = true;
  wake();
  errno = error;
}

void take_terminate() {
  wake_file = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  terminate_asked = false;
  struct sigaction action {};
  action.sa_handler = on_terminate;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, &before);
}

void give_terminate_back() {
  sigaction(SIGTERM, &before, nullptr);
  close(wake_file);
  wake_file = -1;
}

void wait_for_beat() {
  pollfd poll_file{wake_file, POLLIN, 0};
  if (poll(&poll_file, 1, kBeatMilliseconds) <= 0) return;
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t taken = read(wake_file, &count, sizeof count);
}

// --- Short texts through a communicator, which moves f32: a character an element.
constexpr std::size_t kTextBytes = 160;

std::vector<std::string> share_text(kernels::Communicator& world, const std::string& text) {
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<float> mine(kTextBytes, 0.0F);
  std::vector<float> all(ranks * kTextBytes);
  for (std::size_t i = 0; i < std::min(text.size(), kTextBytes - 1); ++i)
    mine[i] = static_cast<float>(static_cast<unsigned char>(text[i]));
  world.all_gather(mine.data(), all.data(), static_cast<std::int64_t>(kTextBytes));
  std::vector<std::string> texts(ranks);
  for (std::size_t r = 0; r < ranks; ++r)
    for (std::size_t i = 0; i < kTextBytes && all[r * kTextBytes + i] != 0; ++i)
      texts[r] += static_cast<char>(static_cast<unsigned char>(all[r * kTextBytes + i]));
  return texts;
}

// Processes see each other by pid where host and PID namespace are the same.
std::string host_key() {
  std::array<char, 65> host{};
  gethostname(host.data(), host.size() - 1);
  std::array<char, 64> space{};
  [[maybe_unused]] const ssize_t length = readlink("/proc/self/ns/pid", space.data(), space.size() - 1);
  return std::string(host.data()) + " " + space.data();
}

// The supervisor's where it has one that fits: in its environment, but made for as many ranks as are here.
std::unique_ptr<RankTable> supervisors_table(int ranks) {
  const char* path = std::getenv(kRankTableVariable);
  if (path == nullptr) return nullptr;
  auto table = std::make_unique<RankTable>(RankTable::open(path));
  return table->valid() && table->slots() == ranks ? std::move(table) : nullptr;
}

}  // namespace

Watchdog::Watchdog(kernels::Communicator& world, const WatchdogOptions& options)
    : options_(options), launcher_pid_(getppid()), reserve_(kReserveBytes, '\1') {
  meet(world);
  health_ = std::make_unique<RankHealth>(*table_, options_.limits, all_here_);
  join(own(), world.rank());
  // A rank that is stopped cannot see that its launcher died.
  if (supervised_) prctl(PR_SET_PDEATHSIG, SIGKILL);
  take_terminate();
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  own().left = 1;
  stop_ = true;
  wake();
  thread_.join();
  give_terminate_back();
}

// The lowest rank of a host makes the table, and the others of the host are told where it is.
void Watchdog::meet(kernels::Communicator& world) {
  const std::vector<std::string> hosts = share_text(world, host_key());
  const auto rank = static_cast<std::size_t>(world.rank());
  const std::string& here = hosts[rank];
  const auto count = static_cast<int>(std::count(hosts.begin(), hosts.end(), here));
  const auto leader = static_cast<std::size_t>(std::find(hosts.begin(), hosts.end(), here) - hosts.begin());
  own_ = static_cast<int>(std::count(hosts.begin(), hosts.begin() + world.rank(), here));
  all_here_ = count == world.size();
  std::string path;
  if (leader == rank) {
    table_ = supervisors_table(count);
    supervised_ = table_ != nullptr;
    path = supervised_ ? std::getenv(kRankTableVariable) : "";
    if (!supervised_) {
      table_ = std::make_unique<RankTable>(count);
      path = table_->path();
    }
  }
  const std::string told = share_text(world, path)[leader];
  if (leader != rank) {
    table_ = std::make_unique<RankTable>(RankTable::open(told));
    const char* supervisors = std::getenv(kRankTableVariable);
    supervised_ = supervisors != nullptr && told == supervisors;
    if (!table_->valid()) {  // not let in: this rank looks after itself only, and nobody misses it
      table_ = std::make_unique<RankTable>(RankTable::alone());
      own_ = 0;
    }
  }
  world.barrier();  // the leader may go when all have it
}

void Watchdog::doing(std::string_view label, int step) {
  own().label.set(label);
  own().step = step;
}

void Watchdog::watch() {
  using Clock = std::chrono::steady_clock;
  auto last = Clock::now();
  while (!stop_) {
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
  if (table_->fault().told != 0) return follow(elapsed_seconds);
  if (getppid() != launcher_pid_) end("the launcher (pid " + std::to_string(launcher_pid_) + ") died", 0);
  if (const auto found = health_->look(own_, elapsed_seconds)) end(found->text, found->culprit_pid);
}

// Another rank ends the run. Its launcher should be quicker than this.
void Watchdog::follow(double elapsed_seconds) {
  told_seconds_ += elapsed_seconds;
  if (told_seconds_ < kFollowSeconds) return;
  const RankFault& fault = table_->fault();
  for (const std::int32_t pid : {fault.culprit.load(), fault.teller.load()})
    if (pid > 0 && pid != getpid() && process_state(pid) != ProcessState::gone) kill(pid, SIGKILL);
  _exit(kRankFailed);
}

void Watchdog::terminated() {
  if (const auto found = health_->gone(own_); found && table_->fault().claimed == 0)
    end(found->text, found->culprit_pid);
  own().left = 1;
  _exit(kTerminated);
}

void Watchdog::end(std::string_view text, int culprit_pid) {
  if (claim(table_->fault(), text, culprit_pid, getpid()) && !supervised_)
    std::fprintf(stderr, "error: %.*s\n", static_cast<int>(text.size()), text.data());
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
