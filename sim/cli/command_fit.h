// `equipoise fit`: samples to a profile; with --steps, measured training steps to a framework preset.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "sim/calibration/step_rows.h"

namespace equipoise {

struct FitCommandOptions {
  // .json as `profile` writes; .csv in the columns of the public tables; what nccl-tests printed, or its -J;
  // traces of torch.profiler. Each may be compressed.
  std::vector<std::string> samples;
  std::string recipe;              // which samples make which table; needed for .csv
  std::string document_histogram;  // of rows whose documents are named by their distribution only
  std::string base;                // a profile that the samples calibrate, instead of a recipe
  std::string base_network;        // of the base, where samples between nodes begin; empty: its default
  std::string network;             // what to call the fabric of samples between nodes; empty: "measured"
  double nic_GBps = 0;             // of one GPU, one direction; 0: not given
  std::string out = "profile.json";
};

// Prints the errors on samples the fit did not see; writes the profile whole or not at all.
void fit_command(const FitCommandOptions&, std::ostream& out, std::ostream& notes);

// `equipoise fit --steps`: measured training steps in, a framework preset out.
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
