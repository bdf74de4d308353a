// Starts the ranks of a run on this host, as processes under Open MPI's mpirun, and sees them to their end.
#pragma once

#include <string>
#include <vector>

#include "sim/execution/rank_health.h"

namespace equipoise::execution {

// Whether mpirun, srun or the like started this process as a rank.
bool under_launcher();

// Runs this program with these arguments on so many ranks, and returns their exit status. Their stdout is
// ours; of stderr, mpirun's own words are left out. Every rank makes a Watchdog as early as it can. mpirun
// ends all ranks when one ends with a status other than 0, so only rank 0, who prints results, ends with 1
// or 2.
//
// A rank that dies, is stopped, hangs or runs out of memory ends all: the last line on stderr names it, and
// the status is kRankFailed (3). SIGINT, SIGTERM and SIGHUP end all ranks, too; a second one at once. However
// it ends, no process and no file of the job stays. Throws UserError where there is no mpirun.
int run_ranks(int ranks, const std::vector<std::string>& arguments, const HealthLimits& limits = {});

}  // namespace equipoise::execution
