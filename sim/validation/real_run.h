// Runs of a study's rows on real ranks.
//
// A row is prepared for ranks: every rank has the same plan, sharding and op program. Rank 0 plans and tells
// the others, since a policy with a solver may plan differently a second time.
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
  std::string shard;   // the rule in use
  std::string reason;  // why it cannot run; else empty
  std::vector<execution::ExecutableStep> steps;
  RangeUse use{};  // the plan's use of the profile; only rank 0 knows it

  [[nodiscard]] bool runs() const { return reason.empty(); }
};

struct RealRowOptions {
  std::string policy;  // label; all rows if empty
  int steps = 1;       // limit of full steps per plan
  execution::LossNormalizer normalizer = execution::LossNormalizer::token;
};

// Prepares the study for real ranks: the preset of our own ranks replaces a framework's.
void use_own_ranks(Study& study);

// Bytes that the ranks and the reference need at least on this machine: parameters, gradients and optimizer
// states in fp32, and with `reference` the float64 weights and gradients, but no activations.
double least_real_bytes(const Study& study, bool reference);

// Throws UserError for what real_rows refuses on any ranks, before one starts. `policy` is the only row that
// runs; if empty, all run.
void check_real_rows(const Study& study, const StudyInputs& inputs, const std::string& policy);
// All ranks of `world` call it. Throws UserError for a study that no rank can run, or an unknown label.
std::vector<RealRow> real_rows(const Study& study, const StudyInputs& inputs, const RealRowOptions& options,
                               kernels::Communicator& world);

// Sends a text from rank 0 to all.
std::string broadcast(kernels::Communicator& world, const std::string& text);

// --- Runs a study's rows on ranks: first one step of each, compared with the reference, then all steps in
// turn, timed op by op.

// One rank of this process, with its communicators.
struct RealRank {
  kernels::Backend& backend;
  kernels::Communicator& elements;          // for the backend's type and memory
  kernels::Communicator& floats;            // for f32 on the host
  execution::Watchdog* watchdog = nullptr;  // of processes
};

struct RealRunOptions {
  bool check = true;     // whether every row's first step is compared with the reference
  bool warm_up = false;  // every row's first step (on a GPU, all) runs once before the timing
  int repetitions = 0;   // timed rounds over all steps
  std::uint64_t seed = 7;
  int threads = 1;   // of the reference, on rank 0
  std::string dump;  // folder for --dump; none if empty
  // Called on rank 0 after every round; the run ends if it returns false. If null, all rounds run.
  std::function<void(const std::string&)> progress;
};

// One run of a step by all ranks.
struct TimedStep {
  int step = 0;  // in the row
  int repetition = 0;
  double seconds = 0;  // from the first rank's beginning to the last rank's end
  double stolen = 0;   // share of time that others had the processor: guests of a hypervisor, other processes
  std::vector<execution::StepRecord> ranks;
};

// Valid on rank 0 only.
struct RealResult {
  std::string label, reason;
  std::optional<execution::Equivalence> equivalence;
  std::vector<std::vector<std::vector<double>>>
      losses;  // sums for the first step: [lane][micro-batch][slice]
  std::vector<TimedStep> timed;
};

std::vector<RealResult> run_real(const Study& study, const std::vector<RealRow>& rows, const RealRank& rank,
                                 const RealRunOptions& options);

// Joins separately timed rounds into one run: the repetitions of `more` continue the count.
void append_rounds(std::vector<RealResult>& results, std::vector<RealResult> more);

// --- The ranks of a real run, whoever started them: processes under a launcher, or threads that take turns
// on one device.

// Calls `body` on every rank in this process. `ranks` is the study's number of ranks. Throws UserError if a
// launcher started another number, or the device is absent. With `turns` ranks are threads that run one at a
// time.
void on_ranks(int ranks, const std::string& device, bool turns, const execution::HealthLimits& limits,
              const std::function<void(const RealRank&)>& body);

// Whether the body needs processes that do not run yet.
bool needs_launcher(int ranks, bool turns);

}  // namespace equipoise
