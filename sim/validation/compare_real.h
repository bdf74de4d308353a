// A real run compared with its simulation, op by op: both ran the same op program, so every op of one has its
// twin in the other. And what a comparison needs before: the steps of a replay put together, the times of ops
// inside a step found on other documents.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "policies/base/note.h"
#include "sim/validation/figures.h"
#include "sim/validation/real_run.h"
#include "sim/validation/step_ops.h"

namespace equipoise {

// Runs with a larger share of stolen time are dropped and counted.
inline constexpr double kMostStolen = 0.05;

// Adds policies and ops. Waiting for others is no error of an op's price (step_ops.h). `times`: how long ops
// take inside a step, or null: as long as the profile says.
void compare_real(const std::vector<RealRow>& rows, const std::vector<RealResult>& results,
                  const InStepTimes* times, Validation& validation);

// Leaves collectives and transfers out: what a replay does not measure.
void keep_kernels(Validation& validation);

// --- Steps of a replay: ranks ran one after the other on one device, so their ops are put together by the op
// program. Kernels take what was measured of them, collectives and transfers what the profile says.

// Sets `seconds` of every timed step of the row.
void compose_steps(const RealRow& row, RealResult& result);

// --- The steps that show how long ops take inside a step (step_ops.h): the study's own policies and layout,
// on other documents in other windows than those that are validated.

struct CalibrationOptions {
  std::string policy;  // label; empty: all rows
  int steps = 0;       // of each plan and window; 0: no calibration
  bool replay = false;
  std::uint64_t seed = 7;
  std::function<void(const std::string&)> progress;
};

// The study with this context window. May throw UserError: such a window is skipped.
using StudyOfWindow = std::function<Study(std::int64_t context_window)>;

// All ranks make one and call it alike. A machine's pace drifts over minutes, so a round of these steps is
// run before each round of what is validated.
class Calibration {
 public:
  // `trace`: that of the study, whose documents are taken from its end on.
  Calibration(const StudyOfWindow& study_of, std::int64_t context_window, const Trace& trace,
              const RealRank& rank, CalibrationOptions options);

  void run_round();  // all the steps, once

  // On rank 0: of all rounds so far, at least one; no times where no window runs.
  [[nodiscard]] InStepTimes times() const;
  // On what it was done, and what could not be.
  [[nodiscard]] Notes notes() const;

 private:
  struct Window {
    std::int64_t tokens = 0;
    Study study;
    StudyInputs inputs;
    std::vector<RealRow> rows;
    std::vector<RealResult> results;
  };

  const RealRank& rank_;
  CalibrationOptions options_;
  std::vector<std::unique_ptr<Window>> windows_;  // rows refer to their window's study
  Notes not_run_;
};

}  // namespace equipoise
