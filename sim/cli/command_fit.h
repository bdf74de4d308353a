// `equipoise fit`: turns samples into a profile; with --steps, measured steps into a framework preset.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "sim/calibration/step_rows.h"

namespace equipoise {

struct FitCommandOptions {
  // Files of samples: .json of `profile`; .csv in the columns of public tables; output of nccl-tests, or its
  // -J; traces of torch.profiler. Each may be compressed.
  std::vector<std::string> samples;
  std::string recipe;              // decides which samples make which table; needed for .csv
  std::string document_histogram;  // for rows that state only the distribution of their documents
  std::string base;                // a profile that the samples calibrate, instead of a recipe
  std::string base_network;        // the base's network where samples between nodes begin, or its default
  std::string network;             // name of the fabric of samples between nodes; "measured" if empty
  double nic_GBps = 0;             // per GPU and direction; 0 if not given
  std::string out = "profile.json";
  bool all = false;  // with a base: the errors of its tables that no sample moved, too
};

// Prints errors on samples that the fit did not see. Writes the profile whole or not at all.
void fit_command(const FitCommandOptions&, std::ostream& out, std::ostream& notes);

// `equipoise fit --steps`: turns measured training steps into a framework preset.
struct FitStepsOptions {
  StepTables tables;
  // Prints the rows at these slowdowns instead of a fit: "G,A,E" (GEMM, attention, elementwise), "G,A,E,X,U"
  // (experts' products: X over other GEMMs, U microseconds each), or "preset".
  std::vector<std::string> slowdowns;
  std::string out = "framework.json";
  int jobs = all_cores();
};

// Prints errors on benchmarks that the fit did not see. Writes the preset whole or not at all.
void fit_steps_command(const FitStepsOptions&, std::ostream& out, std::ostream& notes);

}  // namespace equipoise
