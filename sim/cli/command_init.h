// `equipoise init`: writes a job given by options as a study.
#pragma once

#include <atomic>
#include <iosfwd>
#include <string>

#include "sim/cli/job.h"

namespace equipoise {

struct InitOptions {
  JobOptions job;
  std::string out;         // empty: printed
  int jobs = all_cores();  // threads
};

// Throws UserError if the job fits on no layout, and Interrupted.
int run_init_command(const InitOptions& options, std::ostream& out, std::ostream& log,
                     const std::atomic<bool>& stop);

}  // namespace equipoise
