// Fits one group of samples and says how wrong the fit is on shapes that it did not see.
//
// Distinct shapes are sorted and dealt to four folds, whole shapes, never single rows. Each round of four
// starts one fold further (shape i goes to fold (i + i / 4) mod 4): tables are grids, and where each length
// has four shapes, dealing i mod 4 would put all rows of one head dim into one fold, and so ask for a head
// dim that no fit has seen instead of a shape. The parameters come from folds 0, 1 and 3; fold 2 is never
// fitted and gives `held_out`.
// A quarter of a small group is few samples, and which ones hangs on the deal. `crossed` does not: it leaves
// out one shape after the other, fits the rest anew, and collects every sample's error from the fit that did
// not see its shape. Beyond 64 shapes those of equal rank modulo 64 are left out together.
// A group of fewer than four shapes has no fold to spare: all of it is fitted, and `crossed` alone says how
// wrong the fit is.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "profiler/fit/least_squares.h"

namespace equipoise {

inline constexpr std::size_t kFolds = 4;
inline constexpr std::size_t kHeldOutFold = 2;
inline constexpr std::size_t kMostCrossed = 64;

struct FitProblem {
  std::vector<FitParameter> parameters;
  std::vector<std::vector<double>> shapes;  // one a sample: equal vectors are one shape
  // ln(predicted / measured) of one sample.
  std::function<double(std::span<const double> parameters, std::size_t sample)> log_error;
  // Relative uncertainty of a sample as published (a figure read off a chart); errors count from there on.
  // Empty: 0.
  std::vector<double> uncertainty;
  bool set_aside = true;  // a fold that is never fitted; false where every sample is needed
  FitOptions options;
};

struct GroupFit {
  std::vector<double> parameters;
  std::vector<std::size_t> held_out;    // samples of the held-out fold
  std::vector<double> held_out_errors;  // relative and signed, in the order of held_out
  std::vector<double> crossed_errors;   // of all samples, each from the fit without its shape
};

GroupFit fit_group(const FitProblem& problem);

struct ErrorSummary {
  std::size_t count = 0;
  double median = 0;  // of absolute relative errors
  double p90 = 0;
  double bias = 0;  // median of signed errors
};
ErrorSummary summarize(std::vector<double> errors);
nlohmann::json to_json(const ErrorSummary& summary);

}  // namespace equipoise
