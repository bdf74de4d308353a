#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "policies/base/error.h"
#include "sim/execution/launch.h"

namespace {

using namespace equipoise::execution;

LaunchHost four_cores() {
  LaunchHost host;
  host.launcher = "/usr/bin/mpirun";
  host.cores = 4;
  return host;
}

std::string line(const LaunchCommand& command) {
  std::string text;
  for (const std::string& word : command.words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// "" if the variable is not set.
std::string variable(const LaunchCommand& command, const std::string& name) {
  for (const auto& [key, value] : command.variables)
    if (key == name) return value;
  return "";
}

}  // namespace

TEST_CASE("as many ranks as cores are bound to a core each, more share them and yield while they wait") {
  const LaunchCommand bound = launch_command(four_cores(), "/dev/shm/job", 4, "/bin/p", {"rank", "a b"});
  CHECK(line(bound) ==
        "/usr/bin/mpirun -np 4 --host localhost:4 --bind-to core --stdin none "
        "/bin/sh -c exec \"$@\" 2>\"$0\" /dev/shm/job/stderr /bin/p rank a b");
  CHECK(bound.words.back() == "a b");
  CHECK(variable(bound, "OMPI_MCA_mpi_yield_when_idle").empty());

  const LaunchCommand crowded = launch_command(four_cores(), "/dev/shm/job", 5, "/bin/p", {});
  CHECK(line(crowded) ==
        "/usr/bin/mpirun -np 5 --host localhost:5 --oversubscribe --bind-to none --stdin none "
        "/bin/sh -c exec \"$@\" 2>\"$0\" /dev/shm/job/stderr /bin/p");
  CHECK(variable(crowded, "OMPI_MCA_mpi_yield_when_idle") == "1");
}

TEST_CASE("root and containers get what they need, and all files of a job are in its folder") {
  LaunchHost host = four_cores();
  CHECK(variable(launch_command(host, "/dev/shm/job", 2, "p", {}), "OMPI_MCA_btl_vader_single_copy_mechanism")
            .empty());
  host.root = true;
  host.reads_processes = false;
  const LaunchCommand command = launch_command(host, "/dev/shm/job", 2, "p", {});
  CHECK(std::count(command.words.begin(), command.words.end(), "--allow-run-as-root") == 1);
  CHECK(variable(command, "OMPI_MCA_btl_vader_single_copy_mechanism") == "none");
  CHECK(variable(command, "OMPI_MCA_orte_tmpdir_base") == "/dev/shm/job");
  CHECK(variable(command, "OMPI_MCA_btl_vader_backing_directory") == "/dev/shm/job");
}

TEST_CASE("without mpirun the error says what to install and how to do without") {
  const char* path = std::getenv("PATH");
  const std::string before = path != nullptr ? path : "";
  setenv("PATH", "/nonexistent", 1);
  std::string text;
  try {
    this_host();
  } catch (const equipoise::UserError& e) {
    text = e.what();
  }
  setenv("PATH", before.c_str(), 1);
  CHECK(text.find("openmpi-bin") != std::string::npos);
  CHECK(text.find("--replay") != std::string::npos);
}

namespace {

constexpr int kExited1 = 1 << 8;  // as wait() gives them
constexpr int kKilled = 9;
const std::string kEdge = std::string(74, '-') + "\n";

std::string signal_banner(int rank, const std::string& signal) {
  return kEdge + "mpirun noticed that process rank " + std::to_string(rank) +
         " with PID 0 on node vm exited on signal " + signal + ".\n" + kEdge;
}

}  // namespace

TEST_CASE("a rank that a signal ended is named with it, and none of mpirun's own words are shown") {
  const std::string log =
      "[vm:19287] [[10153,0],0] ORTE_ERROR_LOG: Data unpack would read past end of buffer in file x\n"
      "[warn] Epoll MOD(1) on fd 28 failed. Old events were 6\n";
  CHECK(last_words(139 << 8, "", log + signal_banner(12, "11 (Segmentation fault)")) ==
        "error: rank 12 died: signal 11 (Segmentation fault)\n");
  CHECK(last_words(137 << 8, "", signal_banner(1, "9 (Killed)") + signal_banner(0, "15 (Terminated)")) ==
        "error: rank 1 died: signal 9 (Killed): out of memory?\n");
}

TEST_CASE("what a rank has found is told, with the signal if mpirun names the same rank") {
  const std::string found = "rank 1 (pid 4711) died, in attention of step 2 of wlb";
  const std::string banner = signal_banner(1, "9 (Killed)");
  CHECK(last_words(137 << 8, found, banner) == "error: " + found + ": signal 9 (Killed): out of memory?\n");
  CHECK(last_words(137 << 8, found, signal_banner(11, "9 (Killed)")) == "error: " + found + "\n");
  CHECK(last_words(137 << 8, "rank 1 (pid 4711) was stopped", banner) ==
        "error: rank 1 (pid 4711) was stopped\n");
  CHECK(last_words(0, "mpirun (pid 3) was stopped", "") == "error: mpirun (pid 3) was stopped\n");
}

TEST_CASE("a rank's own exit status is told from mpirun's failures, whose words are for the user") {
  CHECK(last_words(0, "", "[warn] Epoll MOD(1) on fd 28 failed.\n").empty());
  CHECK(last_words(
            kExited1, "",
            kEdge + "mpirun detected that one or more processes exited with non-zero status, thus causing\n" +
                "the job to be terminated. The first process to do so was:\n" + kEdge)
            .empty());
  CHECK(last_words(kExited1, "", "There are not enough slots available in the system\n") ==
        "There are not enough slots available in the system\n"
        "error: the ranks could not be run: mpirun ended with status 1\n");
  const std::string lost =
      "[vm:16184] [[21446,0],0] ORTE_ERROR_LOG: Data unpack would read past end of buffer\n";
  CHECK(last_words(2 << 8, "", lost, true).empty());
  CHECK(last_words(kExited1, "", lost, false) ==
        lost + "error: the ranks could not be run: mpirun ended with status 1\n");
  CHECK(last_words(kExited1, "", lost + "There are not enough slots\n", true) ==
        lost + "There are not enough slots\nerror: the ranks could not be run: mpirun ended with status 1\n");
  CHECK(last_words(kKilled, "", "") == "error: mpirun died: signal 9 (Killed): out of memory?\n");
}
