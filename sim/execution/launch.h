// Starts the ranks of a run on this host, as processes under Open MPI's mpirun, and watches them to their
// end.
//
// mpirun ends all ranks when one dies, and the ranks watch each other (rank_health.h). A supervisor, a
// process between the caller and mpirun, does what neither can do. It notices that mpirun or all ranks are
// stopped, or that nothing goes on before ranks watch each other and after they did. It ends everything when
// the caller or mpirun is gone. It says in one line why the run ended, and leaves no process and no file. The
// stderr of mpirun goes to a file of the job, which a user sees only if mpirun itself failed. The stderr of
// the ranks goes through a pipe to the supervisor's own.
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
// status other than 0, so only rank 0, which prints results, ends with 1 or 2.
//
// A rank that dies, is stopped, hangs or runs out of memory ends all: the last line on stderr names it, and
// the status is kRankFailed (3). SIGINT, SIGTERM and SIGHUP also end all ranks. In every case no process and
// no file of the job remains. Throws UserError if there is no mpirun.
int run_ranks(int ranks, const std::vector<std::string>& arguments, HealthLimits limits = {});

// --- The parts of run_ranks, for tests.

// The properties of the machine on which the command depends.
struct LaunchHost {
  std::string launcher;  // path of mpirun
  int cores = 1;         // cores that this process may use: not threads of a core, and at most its quota
  bool root = false;
  bool reads_processes = true;  // whether it may read other processes' memory, unlike many containers
};
// Throws UserError if mpirun is missing.
LaunchHost this_host();

struct LaunchCommand {
  std::vector<std::string> words;
  // Environment variables to set, and defaults that the user's own override.
  std::vector<std::pair<std::string, std::string>> variables, defaults;
};
// `folder` is for all files of the job, and for the memory that its ranks share.
LaunchCommand launch_command(const LaunchHost& host, const std::string& folder, int ranks,
                             const std::string& program, const std::vector<std::string>& arguments);

// What the user is told after the end: lines for stderr, or nothing if a rank's exit status says all.
// `status` is mpirun's, as wait() gives it. `fault` is what a rank or the supervisor found, if anything.
// `ranks_spoke` says whether a rank wrote to stderr.
std::string last_words(int status, std::string fault, const std::string& words_of_mpirun,
                       bool ranks_spoke = false);

}  // namespace equipoise::execution
