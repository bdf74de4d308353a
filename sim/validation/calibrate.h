// The steps that show how long ops take inside a step (in_step.h): the study's own policies and layout, on
// other documents in other windows than those that are validated.
#pragma once

#include <functional>
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

struct Calibration {
  InStepTimes times;
  std::vector<std::string> notes;  // on what it was done, and what could not be
};

// The study with this context window. May throw UserError: such a window is left out.
using StudyOfWindow = std::function<Study(std::int64_t context_window)>;

// All ranks call it; only rank 0 gets times. `trace`: that of the study, whose documents are taken from its
// end on.
Calibration calibrate(const StudyOfWindow& study_of, std::int64_t context_window, const Trace& trace,
                      const RealRank& rank, const CalibrationOptions& options);

}  // namespace equipoise
