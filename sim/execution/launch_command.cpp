#include "sim/execution/launch_command.h"

#include <sched.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "policies/base/error.h"

namespace equipoise::execution {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Debian lets another MPI have the plain name, so the full one is tried first.
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

// Threads of a core count once.
int allowed_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const std::string siblings =
        first_line("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    cores.insert(siblings.empty() ? std::to_string(cpu) : siblings);
  }
  return std::max<int>(1, static_cast<int>(cores.size()));
}

// Of a container: "200000 100000" is two cores' worth, "max 100000" no quota.
int with_quota(int cores) {
  std::istringstream line(first_line("/sys/fs/cgroup/cpu.max"));
  double quota = 0;
  double period = 0;
  if (!(line >> quota >> period) || quota <= 0 || period <= 0) return cores;
  return std::clamp(static_cast<int>(quota / period), 1, cores);
}

// Where a container forbids it, it forbids reading the own memory this way, too.
bool can_read_processes() {
  int from = 1;
  int to = 0;
  const iovec local{&to, sizeof to};
  const iovec remote{&from, sizeof from};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(sizeof to);
}

}  // namespace

LaunchHost this_host() {
  LaunchHost host;
  host.launcher = find_launcher();
  host.cores = with_quota(allowed_cores());
  host.root = geteuid() == 0;
  host.reads_processes = can_read_processes();
  return host;
}

LaunchCommand launch_command(const LaunchHost& host, int ranks, const std::string& program,
                             const std::vector<std::string>& arguments) {
  const bool crowded = ranks > host.cores;
  LaunchCommand command;
  auto& words = command.words;
  words = {host.launcher, "-np", std::to_string(ranks), "--host", "localhost:" + std::to_string(ranks)};
  if (host.root) words.push_back("--allow-run-as-root");
  if (crowded) words.push_back("--oversubscribe");
  words.insert(words.end(), {"--bind-to", crowded ? "none" : "core", "--stdin", "none", program});
  words.insert(words.end(), arguments.begin(), arguments.end());

  // One host: no network, no remote shell, no batch system; files in folders of the job, so that none stays
  // behind.
  command.variables = {{"OMPI_MCA_plm", "isolated"},
                       {"OMPI_MCA_btl", "vader,self"},
                       {"OMPI_MCA_orte_tmpdir_base", host.file_folder},
                       {"OMPI_MCA_btl_vader_backing_directory", host.memory_folder}};
  if (crowded) command.variables.emplace_back("OMPI_MCA_mpi_yield_when_idle", "1");
  if (!host.reads_processes)
    command.variables.emplace_back("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
  // A rank computes on one core, as a GPU would on itself.
  command.defaults = {{"OMP_NUM_THREADS", "1"}};
  return command;
}

}  // namespace equipoise::execution
