// Fits one form to one group of samples, and computes its errors on samples that the fit did not see.
//
// Distinct shapes are sorted and dealt to four folds; samples of one shape stay together. Shape i goes to
// fold (i + i / 4) mod 4, so that each round of four starts one fold further. Tables are grids: if each
// length has four shapes, dealing i mod 4 would put all rows of one head dim into one fold and ask for a head
// dim that no fit has seen. The parameters come from folds 0, 1 and 3; fold 2 is never fitted and gives
// `held_out`. A quarter of a small group is few samples, and the deal decides which ones. `crossed` does not
// depend on it: one shape after the other is held out, the rest is fitted anew, and each sample's error comes
// from the fit that did not see its shape. With more than 64 shapes, those of equal rank modulo 64 are held
// out together. A group of fewer than four shapes has no fold to spare: all of it is fitted, and only
// `crossed` says how wrong the fit is.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "profiler/fit/least_squares.h"

namespace equipoise {

inline constexpr std::size_t kFolds = 4;
inline constexpr std::size_t kHeldOutFold = 2;
inline constexpr std::size_t kMostCrossed = 64;

struct FitProblem {
  std::vector<FitParameter> parameters;
  std::vector<std::vector<double>> shapes;  // shape of each sample; equal vectors are one shape
  // ln(predicted / measured) of one sample.
  std::function<double(std::span<const double> parameters, std::size_t sample)> log_error;
  // Relative uncertainty of a sample as published (a figure read off a chart). Only the part of an error that
  // exceeds it counts. If empty, all are 0.
  std::vector<double> uncertainty;
  bool set_aside = true;  // whether one fold is never fitted; off if every sample is needed
  FitOptions options;
};

struct GroupFit {
  std::vector<double> parameters;
  std::vector<std::size_t> held_out;    // samples of the held-out fold
  std::vector<double> held_out_errors;  // relative and signed, in the order of held_out
  std::vector<double> crossed_errors;   // each sample's error by the fit without its shape
};

GroupFit fit_group(const FitProblem& problem);

struct ErrorSummary {
  std::size_t count = 0;
  double median = 0;  // median of absolute relative errors
  double p90 = 0;
  double bias = 0;  // median of signed errors
};
ErrorSummary summarize(std::vector<double> errors);

}  // namespace equipoise
