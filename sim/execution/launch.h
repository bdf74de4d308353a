// Starts the ranks of a run on this host, as processes under Open MPI's mpirun, and sees them to their end.
//
// mpirun ends all ranks when one dies, and the ranks watch each other (rank_health.h). A supervisor, which is
// a process between the caller and mpirun, does what neither can do: it notices that mpirun or all ranks are
// stopped, ends everything when the caller or mpirun is gone, says in one line why the run ended, and leaves
// no process and no file behind. The stderr of mpirun goes to a file of the job, which a user sees only if
// mpirun itself failed; the stderr of the ranks goes through a pipe to the supervisor's own.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/execution/rank_health.h"

namespace equipoise::execution {

// Whether mpirun, srun or the like started this process as a rank.
bool under_launcher();

// Runs this program with these arguments on so many ranks, and returns their exit status. Their stdout and
// stderr are ours. Every rank makes a Watchdog as early as it can. mpirun ends all ranks when one ends with a
// status other than 0, so only rank 0, who prints results, ends with 1 or 2.
//
// A rank that dies, is stopped, hangs or runs out of memory ends all: the last line on stderr names it, and
// the status is kRankFailed (3). SIGINT, SIGTERM and SIGHUP end all ranks, too. However it ends, no process
// and no file of the job stays. Throws UserError where there is no mpirun.
int run_ranks(int ranks, const std::vector<std::string>& arguments, const HealthLimits& limits = {});

// --- The parts of run_ranks, for tests.

// The properties of the machine on which the command depends.
struct LaunchHost {
  std::string launcher;  // path of mpirun
  int cores = 1;         // that this process may use: not threads of a core, and not more than its quota
  bool root = false;
  bool reads_processes = true;  // memory of other processes: containers often forbid it
};
// Throws UserError where mpirun is missing.
LaunchHost this_host();

struct LaunchCommand {
  std::vector<std::string> words;
  // Environment variables: those that are set, and defaults, which the user's own override.
  std::vector<std::pair<std::string, std::string>> variables, defaults;
};
// `folder`: of all files of the job, and of the memory that its ranks share.
LaunchCommand launch_command(const LaunchHost& host, const std::string& folder, int ranks,
                             const std::string& program, const std::vector<std::string>& arguments);

// What the user is told after the end: lines for stderr, or nothing where a rank's exit status says all.
// `status`: of mpirun, as wait() gives it. `fault`: what a rank or the supervisor found, if anything.
// `ranks_spoke`: whether a rank wrote to stderr.
std::string last_words(int status, std::string fault, const std::string& words_of_mpirun,
                       bool ranks_spoke = false);

}  // namespace equipoise::execution
