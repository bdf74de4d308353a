// Sees ranks to their end: starts mpirun, looks at the ranks' health, passes on what they say, and leaves no
// process behind.
#pragma once

#include <sys/types.h>

#include <csignal>

#include "sim/execution/launch_command.h"
#include "sim/execution/rank_health.h"

namespace equipoise::execution {

struct Supervision {
  const LaunchCommand& command;
  int ranks = 1;
  HealthLimits limits;
  pid_t caller = 0;  // the parent: when it dies, the ranks end
  sigset_t signals;  // blocked: SIGCHLD and those that end the ranks
  sigset_t before;   // the ranks' mask
};

// In a process of its own, which has no other children. Returns the exit status of the ranks.
int supervise(const Supervision& supervision);

}  // namespace equipoise::execution
