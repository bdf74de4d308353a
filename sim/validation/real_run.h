// Runs of a study's rows on real ranks.
//
// A row is made ready for ranks to run: the same plan, sharding and op program on every rank. Rank 0
// plans and tells the others, since a policy with a solver may plan otherwise a second time.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/collectives.h"
#include "sim/execution/equivalence.h"
#include "sim/execution/executable_step.h"
#include "sim/execution/rank_health.h"
#include "sim/study/row/study_row.h"
#include "sim/study/study_inputs.h"

namespace equipoise {

struct RealRow {
  std::string label;
  StudyRow ready;
  Plan plan;
  std::string shard;   // the rule that runs
  std::string reason;  // why it cannot run; else empty
  std::vector<execution::ExecutableStep> steps;
  RangeUse use{};  // of the profile by its plan; rank 0 knows it

  [[nodiscard]] bool runs() const { return reason.empty(); }
};

struct RealRowOptions {
  std::string policy;  // label; empty: all rows
  int steps = 1;       // full steps of each plan, at most
  execution::LossNormalizer normalizer = execution::LossNormalizer::token;
};

// The study as real ranks run it: the preset of our own ranks instead of a framework's.
void use_own_ranks(Study& study);

// Bytes that the ranks and the reference cannot do without on this machine: parameters, gradients and
// optimizer states in fp32, and with `reference` the float64 weights and gradients that judge them.
// Activations come on top.
double least_real_bytes(const Study& study, bool reference);

// What real_rows refuses whatever the ranks are, before any of them starts. `policy`: the only row that runs;
// empty: all. Throws UserError.
void check_real_rows(const Study& study, const StudyInputs& inputs, const std::string& policy);
// All ranks of `world` call it. Throws UserError for a study that ranks cannot run at all, or no such label.
std::vector<RealRow> real_rows(const Study& study, const StudyInputs& inputs, const RealRowOptions& options,
                               kernels::Communicator& world);

// Text from rank 0 to all.
std::string broadcast(kernels::Communicator& world, const std::string& text);

// --- Runs a study's rows on ranks: first one step of each, checked against the reference, then all steps in
// turn, timed op by op.

// The ranks that this process is part of, as one of them sees them.
struct RealRank {
  kernels::Backend& backend;
  kernels::Communicator& elements;          // of the backend's type and memory
  kernels::Communicator& floats;            // f32 on the host
  execution::Watchdog* watchdog = nullptr;  // of processes
};

struct RealRunOptions {
  bool check = true;     // equivalence of every row's first step
  bool warm_up = false;  // every row's first step (on a GPU: all) is run once before anything is timed
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

// --- The ranks of a real run, whoever started them: processes under a launcher, or threads that take turns
// on one device.

// Calls `body` on every rank that lives in this process. `ranks`: how many the study has. Under a launcher
// that started another number, and for a device that is not here: UserError. `turns`: as threads, one at a
// time.
void on_ranks(int ranks, const std::string& device, bool turns, const execution::HealthLimits& limits,
              const std::function<void(const RealRank&)>& body);

// Whether the body runs in processes that are yet to be started.
bool needs_launcher(int ranks, bool turns);

}  // namespace equipoise
