#include "sim/execution/launch.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"

namespace equipoise::execution {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// About twice what Open MPI takes for its bookkeeping and for the messages between ranks.
constexpr std::uintmax_t kFolderBytes = 16 << 20;
constexpr std::uintmax_t kFolderBytesOfRank = 8 << 20;

constexpr int kLookMilliseconds = 200, kStartLookMilliseconds = 20;  // between looks, until all ranks are
                                                                     // seen
// The supervisor waits a little longer than the ranks, which usually find the fault themselves.
constexpr double kPatienceSeconds = 5;
// How long mpirun may take to end all ranks after one has reported a fault, or the supervisor has died.
constexpr double kFaultSeconds = 5;
constexpr double kStartSeconds = 20;  // without a single rank mpirun hangs
constexpr double kMpiInitSeconds = 0.5;  // on one core
constexpr std::chrono::seconds kOrphansEnd{3};

// --- What is planned: the machine, the files, the command
// The whole text of a file; a process that ends meanwhile has none.
std::string all_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();  // because an iterator would throw
  return text.str();
}

// On Debian the plain name may belong to another MPI, so the full one is tried first.
std::string find_launcher() {
  const char* path = std::getenv("PATH");
  const std::string folders = path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin";
  for (const char* name : {"mpirun.openmpi", "mpirun"}) {
    std::istringstream split(folders);
    for (std::string folder; std::getline(split, folder, ':');) {
      const std::string program = (folder.empty() ? "." : folder) + "/" + name;
      if (access(program.c_str(), X_OK) == 0) return program;
    }
  }
  throw UserError(
      "execute: mpirun, which starts the ranks, is not on PATH: install it (Debian: openmpi-bin), or run the "
      "ranks one after another with --replay");
}

// Counts the threads of a core once. A container's quota "200000 100000" is two cores, and "max 100000" is no
// limit.
int count_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const std::string number = std::to_string(cpu);
    const std::string siblings =
        all_of("/sys/devices/system/cpu/cpu" + number + "/topology/thread_siblings_list");
    cores.insert(siblings.empty() ? number : siblings);
  }
  double count = static_cast<double>(cores.size());
  double quota = 0;
  double period = 0;
  if (std::istringstream(all_of("/sys/fs/cgroup/cpu.max")) >> quota >> period && quota > 0 && period > 0)
    count = std::min(count, quota / period);
  return std::max(1, static_cast<int>(count));
}

// A container that forbids this also forbids a process to read its own memory this way.
bool can_read_processes() {
  int from = 1;
  int to = 0;
  const iovec local{&to, sizeof to};
  const iovec remote{&from, sizeof from};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(sizeof to);
}

// Takes the first folder with enough space, memory first: a disk would be written to again and again.
std::string make_job_folder(int ranks) {
  const std::uintmax_t bytes =
      kFolderBytes + static_cast<std::uintmax_t>(std::max(ranks, 1)) * kFolderBytesOfRank;
  std::string tried;
  const char* temporary = std::getenv("TMPDIR");
  for (const char* base : {"/dev/shm", temporary, "/tmp"}) {
    if (base == nullptr || *base == '\0') continue;
    tried += (tried.empty() ? "" : ", ") + std::string(base);
    std::error_code error;
    const fs::space_info space = fs::space(base, error);
    std::string folder = concatenated(base, "/equipoise.", getpid(), ".XXXXXX");
    if (!error && space.available >= bytes && mkdtemp(folder.data()) != nullptr) return folder;
  }
  throw UserError("execute: files of the ranks need ", bytes >> 20,
                  " MiB in one of these, found less, or no right to write: ", tried);
}

// The files of the job's folder.
std::string ranks_stderr(const std::string& folder) {
  return folder + "/stderr";
}
std::string launcher_stderr(const std::string& folder) {
  return folder + "/mpirun.stderr";
}
std::string fault_file(const std::string& folder) {
  return folder + "/fault";
}

// --- How ranks are watched
std::string text_of_signal(int signal) {
  const char* name = strsignal(signal);
  const std::string text =
      "signal " + std::to_string(signal) + " (" + (name != nullptr ? name : "unknown") + ")";
  return signal == SIGKILL ? text + ": out of memory?" : text;
}

std::vector<int> children_of(int pid) {
  std::vector<int> children;
  std::error_code error;
  auto task = fs::directory_iterator("/proc/" + std::to_string(pid) + "/task", error);
  for (; !error && task != fs::directory_iterator(); task.increment(error)) {
    std::ifstream file(task->path() / "children");
    for (int child = 0; file >> child;) children.push_back(child);
  }
  return children;
}

// Kills and reaps all children of this process and those they leave. It returns after a few seconds even if
// the kernel does not release one.
void kill_children() {
  for (int tries = 0; tries < 300; ++tries) {
    pid_t reaped = 0;
    do reaped = waitpid(-1, nullptr, WNOHANG);
    while (reaped > 0);
    if (reaped < 0 && errno == ECHILD) return;
    for (const int child : children_of(getpid())) kill(child, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// The rank of a process that mpirun started; empty if it is no rank, or not yet.
std::string rank_of(int pid) {
  const std::string variable_is = std::string(kRankVariable) + "=";
  std::ifstream environment("/proc/" + std::to_string(pid) + "/environ");
  for (std::string variable; std::getline(environment, variable, '\0');)
    if (variable.rfind(variable_is, 0) == 0) return variable.substr(variable_is.size());
  return "";
}

// Whether a process below this one is a rank, whoever started it.
bool has_rank_below(int pid) {
  const std::vector<int> children = children_of(pid);
  return std::ranges::any_of(children,
                             [](int child) { return !rank_of(child).empty() || has_rank_below(child); });
}

// The signal that ended a process for which nobody has waited yet; 0 if there was none or it is unknown.
int signal_of_ended(int pid) {
  const std::string stat = all_of("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t last = stat.find_last_of(' ');  // field 52, the status that a parent will receive
  return last == std::string::npos ? 0 : std::atoi(stat.c_str() + last) & 0x7f;
}

// The CPU time of a process in ticks of the clock; 0 if it is gone.
std::int64_t cpu_ticks(int pid) {
  const std::string stat = all_of("/proc/" + std::to_string(pid) + "/stat");
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  std::string other;
  for (int field = 3; field < 14; ++field) fields >> other;
  std::int64_t user = 0, system = 0;
  fields >> user >> system;
  return user + system;
}

// These words say where a rank hangs, by its stage.
constexpr const char* kWhileAt[] = {"before MPI starts", "while MPI starts", "where ranks meet", "",
                                    "after its work",    "while MPI ends",   "at its exit"};

// Watches the ranks under mpirun. mpirun may miss the end of a rank that dies while it starts, and then waits
// forever. Or it ends the others, too, and does not say which rank ended first.
class SeenRanks {
 public:
  struct Rank {
    std::string number;
    int file = -1;   // readable once the process has ended; -1 afterwards
    int signal = 0;  // the signal that ended it; 0: none, or mpirun was told before we looked
    RankStage stage = RankStage::starts;
    std::int64_t cpu_ticks = 0;
  };
  SeenRanks(pid_t launcher, int ranks, const sigset_t& signals, std::string fault_file)
      : launcher_(launcher),
        ranks_(at(ranks)),
        signals_(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK)),
        fault_file_(std::move(fault_file)) {}

  // Waits until a signal arrives, a rank ends or it is time to look again. Returns the signal, or 0.
  int wait() {
    for (const int child : children_of(launcher_))
      if (!rank_by_pid_.contains(child) && process_state(child) != ProcessState::gone)
        if (std::string rank = rank_of(child); !rank.empty())
          rank_by_pid_[child] = {std::move(rank), static_cast<int>(syscall(SYS_pidfd_open, child, 0))};
    std::vector<pollfd> events{{signals_, POLLIN, 0}};
    for (const auto& [pid, rank] : rank_by_pid_) events.push_back({rank.file, POLLIN, 0});
    poll(events.data(), events.size(),
         rank_by_pid_.size() < ranks_ ? kStartLookMilliseconds : kLookMilliseconds);
    const Rank* ended = nullptr;  // of several that ended since the last look, one that mpirun did not end
    for (std::size_t next = 1; auto& [pid, rank] : rank_by_pid_) {
      if (events[next++].revents == 0) continue;
      close(std::exchange(rank.file, -1));
      rank.signal = signal_of_ended(pid);
      if (stage_of(fault_file_, rank.number) == RankStage::ended) continue;
      if (ended == nullptr || ended->signal == SIGTERM) ended = &rank;
    }
    if (first_ended_ == nullptr) first_ended_ = ended;
    look_at_stages();
    signalfd_siginfo signal{};
    return read(signals_, &signal, sizeof signal) == sizeof signal ? static_cast<int>(signal.ssi_signo) : 0;
  }
  // The rank that ended first, as "rank 1 died: signal 9 (Killed)"; empty if none did. `signal` is the signal
  // if another source knows it.
  [[nodiscard]] std::string death(int signal = 0) const {
    if (first_ended_ == nullptr) return "";
    if (first_ended_->signal != 0) signal = first_ended_->signal;
    return "rank " + first_ended_->number + " died" + (signal > 0 ? ": " + text_of_signal(signal) : "");
  }
  // What ranks cannot see themselves: one of them ended while others have yet to start, or all of them or
  // mpirun are stopped.
  [[nodiscard]] std::string wrong() const {
    if (first_ended_ != nullptr) return death();
    if (process_state(launcher_) == ProcessState::stopped)
      return "mpirun (pid " + std::to_string(launcher_) + ") was stopped";
    for (const auto& [pid, rank] : rank_by_pid_)
      if (process_state(pid) == ProcessState::stopped)
        return "rank " + rank.number + " (pid " + std::to_string(pid) + ") was stopped";
    return has_started_none() ? "mpirun (pid " + std::to_string(launcher_) + ") has started no rank" : "";
  }
  [[nodiscard]] bool has_started_none() const { return rank_by_pid_.empty() && !has_rank_below(launcher_); }
  // Whether a rank has come to another stage since the last look, computes before the first, or has a
  // watchdog, which looks at all. Ranks that note no stage, as those of `profile`, are taken to go on.
  [[nodiscard]] bool goes_on() const { return goes_on_; }
  // Names what the others wait for where nothing goes on.
  [[nodiscard]] std::string behind() const {
    std::vector<std::pair<RankStage, std::string>> running;
    for (const auto& [pid, rank] : rank_by_pid_)
      if (process_state(pid) != ProcessState::gone)
        running.emplace_back(rank.stage, "rank " + rank.number + " (pid " + std::to_string(pid) + ")");
    if (running.empty())
      return "mpirun (pid " + std::to_string(launcher_) + ") hangs after the end of all ranks";
    const auto& [stage, name] = *std::ranges::min_element(running);
    const auto alike = std::ranges::count(running, stage, [](const auto& rank) { return rank.first; });
    return name + (alike > 1 ? " and " + std::to_string(alike - 1) + " more hang " : " hangs ") +
           kWhileAt[static_cast<std::size_t>(stage)];
  }

 private:
  void look_at_stages() {
    bool noted = false, goes_on = false;
    for (auto& [pid, rank] : rank_by_pid_) {
      const RankStage before = std::exchange(rank.stage, stage_of(fault_file_, rank.number));
      goes_on |= rank.stage != before || rank.stage == RankStage::watched;
      noted |= rank.stage != RankStage::starts;
      if (rank.stage != RankStage::starts) continue;
      const std::int64_t ticks = cpu_ticks(pid);
      goes_on |= std::exchange(rank.cpu_ticks, ticks) != ticks;
    }
    goes_on_ = goes_on || !noted;
  }

  pid_t launcher_;
  std::size_t ranks_;
  int signals_;
  std::string fault_file_;
  std::map<int, Rank> rank_by_pid_;
  bool goes_on_ = true;
  const Rank* first_ended_ = nullptr;
};

// The rank that a signal ended, and the signal, as mpirun reports them.
struct KilledRank {
  int rank = 0, signal = 0;
};
std::optional<KilledRank> killed_rank(const std::string& words_of_mpirun) {
  const char* sign = std::strstr(words_of_mpirun.c_str(), "process rank ");
  KilledRank killed;
  if (sign == nullptr || std::sscanf(sign, "process rank %d with PID %*d on node %*s exited on signal %d",
                                     &killed.rank, &killed.signal) != 2)
    return std::nullopt;
  return killed;
}

// --- How ranks are started
struct Supervision {
  const LaunchCommand& command;
  int ranks;
  std::string folder;
  HealthLimits limits;
  pid_t caller;      // the parent; when it dies, the ranks end
  sigset_t signals;  // the blocked ones: SIGCHLD and those that end the ranks
  sigset_t before;   // the signal mask of the ranks
};

pid_t start_launcher(const Supervision& job) {
  std::vector<char*> words;
  for (const std::string& word : job.command.words) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t self = getpid();
  const pid_t launcher = fork();
  if (launcher != 0) return launcher;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != self) _exit(kRankFailed);
  for (const auto& [name, value] : job.command.variables) setenv(name.c_str(), value.c_str(), 1);
  for (const auto& [name, value] : job.command.defaults) setenv(name.c_str(), value.c_str(), 0);
  dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  dup2(open(launcher_stderr(job.folder).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600),
       STDERR_FILENO);
  sigprocmask(SIG_SETMASK, &job.before, nullptr);
  execv(words[0], words.data());
  std::fprintf(stderr, "error: %s cannot be started: %s\n", words[0], std::strerror(errno));
  _exit(kRankFailed);
}

// Copies what the ranks wrote to stderr. Returns false if there was nothing.
bool pass_on(int from) {
  std::array<char, 4096> buffer{};
  bool any = false;
  for (ssize_t bytes = 0; (bytes = read(from, buffer.data(), buffer.size())) > 0; any = true)
    std::fwrite(buffer.data(), 1, static_cast<std::size_t>(bytes), stderr);
  return any;
}

// Starts mpirun and watches the run to its end, in a process without other children. Returns the exit status.
int supervise(const Supervision& job) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // so that ranks whose mpirun has ended become our children
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  setsid();  // so that a terminal's signals reach only the caller
  mkfifo(ranks_stderr(job.folder).c_str(), 0600);
  const int errors = open(ranks_stderr(job.folder).c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  const pid_t launcher = start_launcher(job);
  std::string fault = errors < 0 || launcher < 0 ? "no process or no pipe for the ranks" : "";
  SeenRanks seen(launcher, job.ranks, job.signals, fault_file(job.folder));
  double wrong_seconds = 0, same_stage_seconds = 0;
  bool interrupted = false;
  bool ranks_spoke = false;
  int status = 0;
  for (auto last = Clock::now(); fault.empty() && waitpid(launcher, &status, WNOHANG) == 0;) {
    const int signal = seen.wait();
    ranks_spoke |= pass_on(errors);
    interrupted = (signal > 0 && signal != SIGCHLD) || getppid() != job.caller;
    if (interrupted) break;
    const auto now = Clock::now();
    const double elapsed = std::min(std::chrono::duration<double>(now - last).count(), 1.0);
    last = now;
    const bool told = fs::exists(fault_file(job.folder));
    const std::string wrong = told ? "a rank failed" : seen.wrong();
    wrong_seconds = wrong.empty() ? 0 : wrong_seconds + elapsed;
    const double patience = told                      ? kFaultSeconds
                            : seen.has_started_none() ? kStartSeconds
                                                      : job.limits.silence_seconds + kPatienceSeconds;
    if (wrong_seconds > patience) fault = wrong;
    same_stage_seconds = seen.goes_on() || !wrong.empty() ? 0 : same_stage_seconds + elapsed;
    if (fault.empty() && same_stage_seconds > job.limits.same_stage_seconds) fault = seen.behind();
  }
  kill_children();
  ranks_spoke |= pass_on(errors);
  if (interrupted) return 128 + SIGTERM;
  const std::string words = all_of(launcher_stderr(job.folder));
  constexpr int kBySignal = 128;  // a higher status means that a signal ended the process
  if (const std::string told = all_of(fault_file(job.folder)); !told.empty())
    fault = told;
  else if (fault.empty() && WIFEXITED(status) && WEXITSTATUS(status) > kBySignal && !killed_rank(words))
    fault = seen.death(WEXITSTATUS(status) - kBySignal);
  else if (fault.empty() && WIFEXITED(status) && WEXITSTATUS(status) < kRankFailed &&
           stage_of(fault_file(job.folder), "0") <
               (WEXITSTATUS(status) == 0 ? RankStage::ended : RankStage::leaves) &&
           (WEXITSTATUS(status) == 0 || (words.empty() && !ranks_spoke)))
    fault = "mpirun ended with status " + std::to_string(WEXITSTATUS(status)) +
            ", and no rank had run to its end";
  const std::string last = last_words(status, fault, words, ranks_spoke);
  std::fputs(last.c_str(), stderr);
  return last.empty() ? WEXITSTATUS(status) : kRankFailed;
}

// --- What comes back
// What mpirun may say of itself while it shuts down, in any run; its own message may then be lost.
bool is_a_log_line(const std::string& line) {
  return line.find("ORTE_ERROR_LOG") != std::string::npos || line.rfind("[warn] Epoll", 0) == 0;
}

// Whether a rank ended with a status of its own and told the user why. If mpirun's message about it was lost,
// the ranks' output is the only sign.
bool tells_of_a_status(const std::string& words, bool ranks_spoke) {
  for (const char* sign :
       {"non-zero status", "a non-zero exit code", "MPI_ABORT was invoked", "exiting improperly"})
    if (words.find(sign) != std::string::npos) return true;
  if (words.empty()) return true;
  bool only_log = true;
  std::istringstream lines(words);
  for (std::string line; std::getline(lines, line);) only_log &= is_a_log_line(line);
  return only_log && ranks_spoke;
}

}  // namespace

bool under_launcher() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(variable) != nullptr) return true;
  return false;
}

LaunchHost this_host() {
  return {find_launcher(), count_cores(), geteuid() == 0, can_read_processes()};
}

LaunchCommand launch_command(const LaunchHost& host, const std::string& folder, int ranks,
                             const std::string& program, const std::vector<std::string>& arguments) {
  const bool crowded = ranks > host.cores;
  LaunchCommand command;
  auto& words = command.words;
  words = {host.launcher, "-np", std::to_string(ranks), "--host", "localhost:" + std::to_string(ranks)};
  if (host.root) words.push_back("--allow-run-as-root");
  if (crowded) words.push_back("--oversubscribe");
  words.insert(words.end(), {"--bind-to", crowded ? "none" : "core", "--stdin", "none"});
  words.insert(words.end(), {"/bin/sh", "-c", "exec \"$@\" 2>\"$0\"", ranks_stderr(folder), program});
  words.insert(words.end(), arguments.begin(), arguments.end());

  // All ranks are on one host, so they need no network, no remote shell and no batch system.
  command.variables = {{"OMPI_MCA_plm", "isolated"},
                       {"OMPI_MCA_btl", "vader,self"},
                       {"OMPI_MCA_orte_tmpdir_base", folder},
                       {"OMPI_MCA_btl_vader_backing_directory", folder},
                       {kFaultFileVariable, fault_file(folder)}};
  if (crowded) command.variables.emplace_back("OMPI_MCA_mpi_yield_when_idle", "1");
  if (!host.reads_processes)
    command.variables.emplace_back("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
  // A rank computes on one core, as it would on one GPU.
  command.defaults = {{"OMP_NUM_THREADS", "1"}};
  return command;
}

std::string last_words(int status, std::string fault, const std::string& words_of_mpirun, bool ranks_spoke) {
  if (fault.empty() && WIFEXITED(status) && WEXITSTATUS(status) < kRankFailed &&
      (WEXITSTATUS(status) == 0 || tells_of_a_status(words_of_mpirun, ranks_spoke)))
    return "";
  if (const auto killed = killed_rank(words_of_mpirun)) {
    const std::string name = "rank " + std::to_string(killed->rank) + " ";
    if (fault.empty()) fault = name + "died";
    if (fault.starts_with(name) && fault.find(" died") != std::string::npos &&
        fault.find(": signal ") == std::string::npos)
      fault += ": " + text_of_signal(killed->signal);
  }
  if (!fault.empty()) return "error: " + fault + "\n";
  if (WIFSIGNALED(status)) return "error: mpirun died: " + text_of_signal(WTERMSIG(status)) + "\n";
  return printable_lines(words_of_mpirun) + "error: the ranks could not be run: mpirun ended with status " +
         std::to_string(WEXITSTATUS(status)) + "\n";
}

int run_ranks(int ranks, const std::vector<std::string>& arguments, HealthLimits limits) {
  const LaunchHost host = this_host();
  const std::string program = fs::read_symlink("/proc/self/exe");
  const std::string folder = make_job_folder(ranks);
  const LaunchCommand command = launch_command(host, folder, ranks, program, arguments);
  limits.same_stage_seconds += kMpiInitSeconds * ranks / host.cores;

  // From here on signals are handled one by one, except those that nohup or a shell had ignored.
  sigset_t signals;
  sigset_t before;
  sigemptyset(&signals);
  std::signal(SIGCHLD, SIG_DFL);  // otherwise nobody could be waited for
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(&signals, signal);
  }
  sigprocmask(SIG_BLOCK, &signals, &before);

  std::fflush(nullptr);
  const pid_t caller = getpid();
  // The supervisor is a separate process. So it alone has the ranks as descendants, and if the caller or it
  // is killed, the other can clean up.
  const pid_t supervisor = fork();
  int interrupted = 0;
  int status = supervisor == 0 ? supervise({command, ranks, folder, limits, caller, signals, before}) : 0;
  while (supervisor > 0 && waitpid(supervisor, &status, WNOHANG) == 0) {
    int signal = 0;
    sigwait(&signals, &signal);
    if (signal == SIGCHLD) continue;
    interrupted = signal;
    kill(supervisor, SIGTERM);
  }
  if (supervisor > 0 && WIFSIGNALED(status)) std::this_thread::sleep_for(kOrphansEnd);
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  if (supervisor == 0) _exit(status);

  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (supervisor < 0) throw UserError("execute: no process for the ranks");
  if (interrupted != 0) return 128 + interrupted;
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  std::fprintf(stderr, "error: the supervisor of the ranks died: %s\n", strsignal(WTERMSIG(status)));
  return kRankFailed;
}

}  // namespace equipoise::execution
