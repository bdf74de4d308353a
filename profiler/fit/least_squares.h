// Robust least squares over positive parameters: Levenberg-Marquardt on their logarithms.
//
// Every parameter of our forms is a time, a rate or a share: positive, and known to within a factor before
// any data is seen. So the search runs over theta = ln(p / start), with a weak prior that draws theta to 0
// where the data does not say (a parameter that no sample moves stays at its start). Residuals are logarithms
// of predicted over measured; beyond `robust_scale` they count linearly (soft L1), so that a misprinted row
// does not bend the rest. Derivatives are forward differences; the steps depend on nothing but the input.
// Cost: O(iterations * parameters * residuals) calls of the form.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace equipoise {

struct FitParameter {
  std::string name;
  double start = 1;  // > 0
  double trust = 1;  // standard deviation of the prior, in logarithms
};

struct FitOptions {
  double robust_scale = 0.04;
  double prior_weight = 0.03;  // of one parameter at one standard deviation, beside residuals
  int most_iterations = 200;
};

// Fills `out` with the residuals at `parameters`.
using ResidualsAt = std::function<void(std::span<const double> parameters, std::span<double> out)>;

std::vector<double> fit_parameters(std::span<const FitParameter> parameters, std::size_t residuals,
                                   const ResidualsAt& residuals_at, const FitOptions& options = {});

}  // namespace equipoise
