#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "policies/base/error.h"
#include "sim/execution/launch_command.h"

namespace {

using namespace equipoise::execution;

LaunchHost four_cores() {
  LaunchHost host;
  host.launcher = "/usr/bin/mpirun";
  host.cores = 4;
  host.file_folder = "/tmp/job";
  host.memory_folder = "/dev/shm/job";
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
  const LaunchCommand bound = launch_command(four_cores(), 4, "/bin/p", {"rank", "a b"});
  CHECK(line(bound) ==
        "/usr/bin/mpirun -np 4 --host localhost:4 --bind-to core --stdin none /bin/p rank a b");
  CHECK(bound.words.back() == "a b");
  CHECK(variable(bound, "OMPI_MCA_mpi_yield_when_idle").empty());

  const LaunchCommand crowded = launch_command(four_cores(), 5, "/bin/p", {});
  CHECK(line(crowded) ==
        "/usr/bin/mpirun -np 5 --host localhost:5 --oversubscribe --bind-to none --stdin none /bin/p");
  CHECK(variable(crowded, "OMPI_MCA_mpi_yield_when_idle") == "1");
}

TEST_CASE("root and containers get what they need, and all files of a job are in its folders") {
  LaunchHost host = four_cores();
  CHECK(variable(launch_command(host, 2, "p", {}), "OMPI_MCA_btl_vader_single_copy_mechanism").empty());
  host.root = true;
  host.reads_processes = false;
  const LaunchCommand command = launch_command(host, 2, "p", {});
  CHECK(std::count(command.words.begin(), command.words.end(), "--allow-run-as-root") == 1);
  CHECK(variable(command, "OMPI_MCA_btl_vader_single_copy_mechanism") == "none");
  CHECK(variable(command, "OMPI_MCA_orte_tmpdir_base") == "/tmp/job");
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
