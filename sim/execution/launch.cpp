#include "sim/execution/launch.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <initializer_list>
#include <system_error>
#include <thread>

#include "policies/base/error.h"
#include "sim/execution/launch_command.h"
#include "sim/execution/supervisor.h"
#include "sim/execution/watchdog.h"

namespace equipoise::execution {
namespace {

// What Open MPI takes, about twice: its book-keeping, and what ranks hand each other messages through.
constexpr std::uintmax_t kFileBytes = 16 << 20;
constexpr std::uintmax_t kSharedBytesOfRank = 8 << 20;

// In which mpirun ends all ranks when its parent, the supervisor, is gone.
constexpr std::chrono::seconds kOrphansEnd{3};

// A folder of the job's files, removed with all that is in it.
class JobFolder {
 public:
  // In the first of these folders that has so much space.
  JobFolder(std::initializer_list<const char*> bases, std::uintmax_t bytes) {
    std::string tried;
    for (const char* base : bases) {
      if (base == nullptr || *base == '\0') continue;
      tried += (tried.empty() ? "" : ", ") + std::string(base);
      std::error_code error;
      const auto space = std::filesystem::space(base, error);
      if (error || space.available < bytes) continue;
      path_ = std::string(base) + "/equipoise." + std::to_string(getpid()) + ".XXXXXX";
      if (mkdtemp(path_.data()) != nullptr) return;
    }
    throw UserError("execute: files of the ranks need " + std::to_string(bytes >> 20) +
                    " MiB in one of these, found less, or no right to write: " + tried);
  }
  ~JobFolder() { remove(); }
  void remove() const {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// What nohup, or a shell for a job in the background, has had ignored.
bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// Signals are taken one by one with sigwait while it lives, other than those that are ignored.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigemptyset(&set_);
    std::signal(SIGCHLD, SIG_DFL);  // or nobody could be waited for
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP})
      if (!is_ignored(signal)) sigaddset(&set_, signal);
    sigprocmask(SIG_BLOCK, &set_, &before_);
  }
  ~BlockedSignals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  [[nodiscard]] const sigset_t& set() const { return set_; }
  [[nodiscard]] const sigset_t& before() const { return before_; }

 private:
  sigset_t set_{}, before_{};
};

std::string own_program() {
  char path[PATH_MAX + 1] = {};
  const ssize_t length = readlink("/proc/self/exe", path, PATH_MAX);
  if (length <= 0) throw UserError("execute: /proc/self/exe cannot be read, so no ranks can be started");
  return path;
}

// The supervisor is a process of its own, so that it alone has the ranks as descendants, and so that one is
// left to clean up if the other is killed.
int wait_for(pid_t supervisor, const sigset_t& signals) {
  int interrupted = 0;
  for (;;) {
    int status = 0;
    const pid_t ended = waitpid(supervisor, &status, WNOHANG);
    if (ended == supervisor) {
      if (interrupted != 0) return 128 + interrupted;
      if (WIFEXITED(status)) return WEXITSTATUS(status);
      std::this_thread::sleep_for(kOrphansEnd);
      std::fprintf(stderr, "error: the supervisor of the ranks died: %s\n", strsignal(WTERMSIG(status)));
      return kRankFailed;
    }
    int signal = 0;
    sigwait(&signals, &signal);
    if (signal == SIGCHLD) continue;
    interrupted = signal;
    kill(supervisor, SIGTERM);
  }
}

}  // namespace

bool under_launcher() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(variable) != nullptr) return true;
  return false;
}

int run_ranks(int ranks, const std::vector<std::string>& arguments, const HealthLimits& limits) {
  LaunchHost host = this_host();
  const std::string program = own_program();
  const BlockedSignals signals;
  const char* temporary = std::getenv("TMPDIR");
  const JobFolder files({temporary, "/tmp", "/dev/shm"}, kFileBytes);
  // What lies on a disk would be written to it again and again.
  const JobFolder memory({"/dev/shm", temporary, "/tmp"},
                         static_cast<std::uintmax_t>(std::max(ranks, 1)) * kSharedBytesOfRank);
  host.file_folder = files.path();
  host.memory_folder = memory.path();
  const LaunchCommand command = launch_command(host, ranks, program, arguments);

  std::fflush(nullptr);
  const pid_t caller = getpid();
  const pid_t supervisor = fork();
  if (supervisor < 0)
    throw UserError(std::string("execute: no process for the ranks: ") + std::strerror(errno));
  if (supervisor > 0) return wait_for(supervisor, signals.set());
  int status = kRankFailed;
  try {
    status = supervise({command, ranks, limits, caller, signals.set(), signals.before()});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
  }
  files.remove();  // the caller may be gone
  memory.remove();
  _exit(status);
}

}  // namespace equipoise::execution
