// `equipoise fit --steps`: measured training steps in, a framework preset out.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "sim/calibration/step_rows.h"

namespace equipoise {

struct FitStepsOptions {
  StepTables tables;
  // Instead of a fit, print the rows at these: "G,A,E" (GEMM, attention, elementwise) or "G,A,E,X,U"
  // (the experts' products: X over other GEMMs, U microseconds each), or "preset".
  std::vector<std::string> slowdowns;
  std::string out = "framework.json";
  int jobs = 0;  // 0: all cores
};

// Prints the errors on benchmarks that the fit did not see; writes the preset whole or not at all.
void fit_steps_command(const FitStepsOptions&, std::ostream& out, std::ostream& notes);

}  // namespace equipoise
