// The steps that show how long ops take inside a step (in_step.h): the study's own policies and layout, on
// other documents in other windows than those that are validated.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sim/validation/in_step.h"
#include "sim/validation/real_run.h"

namespace equipoise {

struct CalibrationOptions {
  std::string policy;  // label; empty: all rows
  int steps = 0;       // of each plan and window; 0: no calibration
  bool replay = false;
  std::uint64_t seed = 7;
  std::function<void(const std::string&)> progress;
};

// The study with this context window. May throw UserError: such a window is left out.
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
  [[nodiscard]] std::vector<std::string> notes() const;

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
  std::vector<std::string> left_out_;
};

}  // namespace equipoise
