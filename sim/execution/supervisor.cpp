#include "sim/execution/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "sim/execution/children.h"
#include "sim/execution/launcher_noise.h"
#include "sim/execution/rank_table.h"
#include "sim/execution/watchdog.h"

namespace equipoise::execution {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLookMilliseconds = 500;
// The ranks see what is wrong themselves; the supervisor is for what they cannot see, a little later.
constexpr double kPatienceSeconds = 2;
// After the first sign of trouble: mpirun ends by itself, is asked to, is made to.
constexpr double kAskSeconds = 4;
constexpr double kForceSeconds = 8;

double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

HealthLimits with_patience(HealthLimits limits) {
  limits.silence_seconds += kPatienceSeconds;
  limits.same_op_seconds += kPatienceSeconds;
  return limits;
}

// Lines of mpirun's stderr, the ranks' among them.
class ErrorLines {
 public:
  explicit ErrorLines(int file) : file_(file) {}
  // What has come; false at the end of the stream.
  bool read_some() {
    std::array<char, 4096> buffer{};
    const ssize_t bytes = read(file_, buffer.data(), buffer.size());
    if (bytes < 0) return errno == EAGAIN || errno == EINTR;
    if (bytes == 0) return false;
    pending_.append(buffer.data(), static_cast<std::size_t>(bytes));
    for (std::size_t end = pending_.find('\n'); end != std::string::npos; end = pending_.find('\n')) {
      pass_on(pending_.substr(0, end));
      pending_.erase(0, end + 1);
    }
    return true;
  }
  // All that is there, after the writers have ended.
  void read_rest() {
    pollfd poll_file{file_, POLLIN, 0};
    while (poll(&poll_file, 1, 0) > 0 && read_some()) {
    }
    if (!pending_.empty()) pass_on(pending_);
    pending_.clear();
  }
  [[nodiscard]] const LauncherNoise& noise() const { return noise_; }

 private:
  void pass_on(const std::string& line) {
    if (noise_.keeps(line)) std::fprintf(stderr, "%s\n", line.c_str());
  }
  int file_;
  std::string pending_;
  LauncherNoise noise_;
};

class Supervisor {
 public:
  explicit Supervisor(const Supervision& supervision)
      : supervision_(supervision),
        table_(supervision.ranks),
        health_(table_, with_patience(supervision.limits), true) {}

  int run() {
    prctl(PR_SET_CHILD_SUBREAPER, 1);  // ranks whose mpirun is gone become our children
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setsid();  // a terminal's signals reach the caller only
    start();
    ErrorLines errors(errors_);
    while (!launcher_status_) step(errors);
    kill_children();
    errors.read_rest();
    return finish(errors.noise());
  }

 private:
  void start();
  void step(ErrorLines& errors);
  void take_signals();
  void look();
  void look_at_launcher(double elapsed_seconds);
  void press_on();
  int finish(const LauncherNoise& noise);

  [[nodiscard]] bool all_joined() const {
    for (int i = 0; i < table_.slots(); ++i)
      if (table_.slot(i).pid == 0) return false;
    return true;
  }
  void trouble() {
    if (!trouble_since_) trouble_since_ = Clock::now();
  }

  const Supervision& supervision_;
  RankTable table_;
  RankHealth health_;
  int signals_ = -1;
  int errors_ = -1;
  bool errors_end_ = false;
  pid_t launcher_ = -1;
  std::optional<int> launcher_status_;
  int interrupts_ = 0;
  bool asked_ = false;
  double stopped_seconds_ = 0;  // mpirun, or a rank that has not joined
  Clock::time_point last_look_ = Clock::now();
  std::optional<Clock::time_point> trouble_since_;
};

void Supervisor::start() {
  std::array<int, 2> pipe_ends{};
  signals_ = signalfd(-1, &supervision_.signals, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals_ < 0 || pipe2(pipe_ends.data(), O_CLOEXEC) != 0)
    throw UserError(std::string("execute: no pipe for the ranks: ") + std::strerror(errno));
  errors_ = pipe_ends[0];
  fcntl(errors_, F_SETFL, O_NONBLOCK);

  std::vector<char*> words;
  for (const std::string& word : supervision_.command.words) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  for (const auto& [name, value] : supervision_.command.variables) setenv(name.c_str(), value.c_str(), 1);
  for (const auto& [name, value] : supervision_.command.defaults) setenv(name.c_str(), value.c_str(), 0);
  setenv(kRankTableVariable, table_.path().c_str(), 1);

  const pid_t self = getpid();
  launcher_ = fork();
  if (launcher_ < 0) throw UserError(std::string("execute: no process for mpirun: ") + std::strerror(errno));
  if (launcher_ > 0) {
    close(pipe_ends[1]);
    return;
  }
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != self) _exit(kRankFailed);
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(pipe_ends[1], STDERR_FILENO);
  sigprocmask(SIG_SETMASK, &supervision_.before, nullptr);
  execv(words[0], words.data());
  std::fprintf(stderr, "error: %s cannot be started: %s\n", words[0], std::strerror(errno));
  _exit(kRankFailed);
}

void Supervisor::step(ErrorLines& errors) {
  std::array<pollfd, 2> files{{{signals_, POLLIN, 0}, {errors_, POLLIN, 0}}};
  if (errors_end_) files[1].fd = -1;
  poll(files.data(), files.size(), kLookMilliseconds);
  if (files[1].revents != 0) errors_end_ = !errors.read_some();
  take_signals();
  if (getppid() != supervision_.caller && interrupts_ == 0) ++interrupts_;
  int status = 0;
  if (waitpid(launcher_, &status, WNOHANG) == launcher_) {
    launcher_status_ = status;
    return;
  }
  if (seconds_since(last_look_) * 1000 >= kLookMilliseconds) look();
  press_on();
}

void Supervisor::take_signals() {
  signalfd_siginfo info{};
  while (read(signals_, &info, sizeof info) == static_cast<ssize_t>(sizeof info))
    if (info.ssi_signo != SIGCHLD) ++interrupts_;
}

void Supervisor::look() {
  const double elapsed = seconds_since(last_look_);
  last_look_ = Clock::now();
  if (interrupts_ > 0) return;
  if (table_.fault().claimed != 0) return trouble();
  if (const auto found = health_.look(-1, elapsed)) {
    claim(table_.fault(), found->text, found->culprit_pid, 0);
    return trouble();
  }
  look_at_launcher(elapsed);
}

// What no rank can see: mpirun itself, and ranks that are not yet in the table.
void Supervisor::look_at_launcher(double elapsed_seconds) {
  std::string who;
  int culprit = launcher_;
  if (process_state(launcher_) == ProcessState::stopped) {
    who = "mpirun (pid " + std::to_string(launcher_) + ")";
  } else if (!all_joined()) {
    for (const int child : children_of(launcher_)) {
      if (process_state(child) != ProcessState::stopped) continue;
      who = "rank " + rank_of_process(child) + " (pid " + std::to_string(child) + ")";
      culprit = child;
    }
  }
  stopped_seconds_ = who.empty() ? 0 : stopped_seconds_ + std::min(elapsed_seconds, 1.0);
  if (stopped_seconds_ < supervision_.limits.silence_seconds) return;
  claim(table_.fault(), who + " was stopped", culprit, 0);
  trouble();
}

// Ends mpirun, ever more firmly.
void Supervisor::press_on() {
  if (interrupts_ > 0) trouble();
  if (!trouble_since_) return;
  const double waited = seconds_since(*trouble_since_);
  if (!asked_ && (interrupts_ > 0 || waited > kAskSeconds)) {
    asked_ = true;
    kill(launcher_, SIGTERM);
  }
  if (interrupts_ > 1 || waited > kForceSeconds) {
    kill(launcher_, SIGKILL);
    kill(launcher_, SIGCONT);
  }
}

int Supervisor::finish(const LauncherNoise& noise) {
  const int status = *launcher_status_;
  if (interrupts_ > 0) return 128 + SIGTERM;
  std::string text = table_.fault().text.get();
  if (text.empty() && WIFEXITED(status) && WEXITSTATUS(status) < kRankFailed &&
      (WEXITSTATUS(status) == 0 || noise.rank_status() || noise.banners().empty()))
    return WEXITSTATUS(status);
  const auto& killed = noise.killed();
  if (!text.empty()) {
    const bool same = killed && text.rfind("rank " + std::to_string(killed->rank) + " ", 0) == 0;
    if (same && text.find(" died") != std::string::npos) text += ": " + text_of_signal(killed->signal);
  } else if (killed) {
    text = "rank " + std::to_string(killed->rank) + " died: " + text_of_signal(killed->signal);
  } else {
    std::fputs(noise.banners().c_str(), stderr);
    text = WIFEXITED(status)
               ? "the ranks could not be run: mpirun ended with status " + std::to_string(WEXITSTATUS(status))
               : "mpirun died: " + text_of_signal(WTERMSIG(status));
  }
  std::fprintf(stderr, "error: %s\n", text.c_str());
  return kRankFailed;
}

}  // namespace

int supervise(const Supervision& supervision) {
  return Supervisor(supervision).run();
}

}  // namespace equipoise::execution
