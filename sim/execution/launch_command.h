// The command line and environment with which Open MPI's mpirun starts ranks on this host.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace equipoise::execution {

// What of the machine the command depends on.
struct LaunchHost {
  std::string launcher;  // path of mpirun
  int cores = 1;         // that this process may use: not threads of a core, and not more than its quota
  bool root = false;
  bool reads_processes = true;  // memory of other processes: containers often forbid it
  std::string file_folder;      // for files of the job, and for memory that its ranks share
  std::string memory_folder;
};

// The folders are the caller's to choose. Throws UserError where mpirun is missing.
LaunchHost this_host();

struct LaunchCommand {
  std::vector<std::string> words;
  // To set; the second of each is kept where the user has set it.
  std::vector<std::pair<std::string, std::string>> variables, defaults;
};

LaunchCommand launch_command(const LaunchHost& host, int ranks, const std::string& program,
                             const std::vector<std::string>& arguments);

}  // namespace equipoise::execution
