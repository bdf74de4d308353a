// Runs a study's rows on ranks: first one step of each, checked against the reference, then all steps in
// turn, timed op by op.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/collectives.h"
#include "sim/execution/equivalence.h"
#include "sim/execution/recorder.h"
#include "sim/execution/watchdog.h"
#include "sim/validation/real_row.h"

namespace equipoise {

// The ranks that this process is part of, as one of them sees them.
struct RealRank {
  kernels::Backend& backend;
  kernels::Communicator& elements;          // of the backend's type and memory
  kernels::Communicator& floats;            // f32 on the host
  execution::Watchdog* watchdog = nullptr;  // of processes
};

struct RealRunOptions {
  bool check = true;     // equivalence of every row's first step
  bool warm_up = false;  // every row's first step is run once before anything is timed
  int repetitions = 0;   // rounds over all steps that are timed
  std::uint64_t seed = 7;
  int threads = 1;   // of the reference, on rank 0
  std::string dump;  // folder for --dump; empty: none
  // Told on rank 0 after every round; the run ends where it returns false. Null: all rounds.
  std::function<void(const std::string&)> progress;
};

// A step as all ranks ran it, once.
struct TimedStep {
  int step = 0;  // of the row
  int repetition = 0;
  double seconds = 0;  // from the first rank's begin to the last one's end
  double stolen =
      0;  // share of the time that others had the processor: a hypervisor's guests, other processes
  std::vector<execution::StepRecord> ranks;
};

// On rank 0; elsewhere of no meaning.
struct RealResult {
  std::string label, reason;
  std::optional<execution::Equivalence> equivalence;
  std::vector<std::vector<std::vector<double>>>
      losses;  // of the first step: [lane][micro-batch][slice], sums
  std::vector<TimedStep> timed;
};

std::vector<RealResult> run_real(const Study& study, const std::vector<RealRow>& rows, const RealRank& rank,
                                 const RealRunOptions& options);

// Rounds that were timed apart, as if they were one run's: the repetitions of `more` count on.
void append_rounds(std::vector<RealResult>& results, std::vector<RealResult> more);

}  // namespace equipoise
