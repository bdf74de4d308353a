// Compares a real run with its simulation, op by op. Both ran the same op program, so every op of one has its
// twin in the other. Also prepares a comparison: it composes the steps of a replay, and measures on other
// documents how long ops take inside a step.
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

// Runs that lost a larger share of their time to others are dropped and counted.
inline constexpr double kMostStolen = 0.05;

// Adds policies and ops. Waiting for others is no error of an op's price (step_ops.h). `times` says how long
// ops take inside a step; if null, they take as long as in the profile.
void compare_real(const std::vector<RealRow>& rows, const std::vector<RealResult>& results,
                  const InStepTimes* times, Validation& validation);

// Removes collectives and transfers, which a replay does not measure.
void keep_kernels(Validation& validation);

// --- Steps of a replay, whose ranks ran one after the other on one device: the op program puts their ops
// together. Kernels take their measured times, collectives and transfers those of the profile.

// Sets `seconds` of every timed step of the row.
void compose_steps(const RealRow& row, RealResult& result);

// --- The steps that show how long ops take inside a step (step_ops.h): the study's own policies and layout,
// on other documents and in other windows than the validated ones.

struct CalibrationOptions {
  std::string policy;  // label; all rows if empty
  int steps = 0;       // for each plan and window; 0: no calibration
  bool replay = false;
  std::uint64_t seed = 7;
  std::function<void(const std::string&)> progress;
};

// Makes the study with this context window. A window that throws UserError is skipped.
using StudyOfWindow = std::function<Study(std::int64_t context_window)>;

// All ranks make one and call it in the same way. A machine's pace drifts over minutes, so a round of these
// steps runs before each validated round.
class Calibration {
 public:
  // `trace` is the study's, and its documents are taken from its end.
  Calibration(const StudyOfWindow& study_of, std::int64_t context_window, const Trace& trace,
              const RealRank& rank, CalibrationOptions options);

  void run_round();  // runs all the steps once

  // On rank 0, from all rounds so far, at least one. There are no times if no window runs.
  [[nodiscard]] InStepTimes times() const;
  // What the calibration ran on, and what could not run.
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
  std::vector<std::unique_ptr<Window>> windows_;  // on the heap, because rows refer to their window's study
  Notes not_run_;
};

}  // namespace equipoise
