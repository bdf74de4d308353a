// Fits the three slowdowns of a framework (GEMM, attention, elementwise) to measured steps, and says how
// wrong they are on benchmarks that the fit did not see.
//
// Problem: few rows, groups of which differ little, one of which may be misprinted; each prediction is a
// simulation. Idea: minimise, over ln s within [ln 1, ln 3],
//
//   sum over rows of 2 R^2 (sqrt(1 + (e / R)^2) - 1)  +  sum over k of (R ln s_k / P)^2
//
// with e = ln(predicted / published), R = 0.08 (beyond 8 % a row counts linearly, so that one misprint does
// not bend the rest) and P = 0.5 (a weak prior on "no slowdown" where the rows do not say). Kernels in
// training are not faster than alone: hence the bound at 1. A row's seconds are close to linear in the
// slowdowns and do not depend on which rows are fitted. So they are simulated once at the corners of the
// lattice boxes that the search visits, and interpolated between them. The search
// (profiler/fit/least_squares.h) first uses a coarse lattice from several starts, then a fine one around
// the best of these. Fewer than four benchmarks do not determine three numbers: one number is fitted for
// all three kinds.
//
// Cost: a few dozen simulations of each row, shared by the fits that hold one benchmark out.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace equipoise {

// How much slower kernels run than alone: GEMM, attention, elementwise.
using Slowdowns = std::array<double, 3>;

inline constexpr double kLeastSlowdown = 1, kMostSlowdown = 3;
inline constexpr double kRobustScale = 0.08;    // of a logarithm
inline constexpr double kPriorDeviation = 0.5;  // of the logarithm of a slowdown
inline constexpr std::size_t kLeastBenchmarks = 4;

// A measured step and what predicts it.
struct StepSample {
  std::string benchmark;
  double published = 0;
  std::function<double(const Slowdowns&)> seconds;
};

struct BenchmarkError {
  std::string benchmark;
  std::size_t rows = 0;
  double mean_abs = 0, mean = 0, worst = 0;  // of predicted / published - 1; `mean` and `worst` are signed
  Slowdowns slowdowns{};                     // fitted without this benchmark
};

struct SlowdownFit {
  Slowdowns slowdowns{1, 1, 1};  // fitted to all rows
  int numbers = 3;               // of fitted numbers: 3, or 1 for all kinds
  double cost = 0;
  std::vector<double> errors;            // by row, with `slowdowns`, hence in sample
  std::vector<BenchmarkError> held_out;  // each benchmark predicted by a fit without it, if there are several
  std::vector<double> held_out_errors;   // by row
};

// `jobs` threads simulate rows; the result does not depend on their number.
SlowdownFit fit_slowdowns(std::span<const StepSample> samples, int jobs);

}  // namespace equipoise
