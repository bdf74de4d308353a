// `equipoise profile`: measures this machine's kernels and writes a samples file for `equipoise fit`.
#pragma once

#include <atomic>
#include <iosfwd>
#include <string>

#include "profiler/measure/session.h"

namespace equipoise {

struct ProfileOptions {
  measure::SessionOptions session;        // all but its lengths
  std::string lengths = "lmsys-chat-1m";  // a trace file, or the name of a published distribution
};

// Returns the exit status: 0, or 1 if a kernel is wrong, which is then not timed. Progress and notes go to
// `log`. `stop` ends the run cleanly after the current point.
int run_profile(const ProfileOptions& options, std::ostream& out, std::ostream& log,
                const std::atomic<bool>& stop);

}  // namespace equipoise
