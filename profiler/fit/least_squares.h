// Robust least squares over positive parameters: Levenberg-Marquardt on their logarithms.
//
// Every parameter of our forms is a time, a rate, a share or a slowdown: positive, and known to within a
// factor before any data is seen. So the search runs over theta = ln(p / start), with a weak prior that draws
// theta to 0 where the data does not say (a parameter that no sample moves stays at its start), and minimises
//
//   sum over residuals of 2 R^2 (sqrt(1 + (r / R)^2) - 1)  +  sum over parameters of (w theta / trust)^2
//
// with R = `robust_scale` and w = `prior_weight`. Residuals are logarithms of predicted over measured; beyond
// R they count linearly (soft L1), so that a misprinted row does not bend the rest. A parameter may have
// bounds: one at its bound whose gradient points outward stays there. Derivatives are one-sided differences;
// the steps depend on nothing but the input. Eigen's own LevenbergMarquardt and Ceres take other steps, to
// other last digits of the shipped profiles; Eigen's knows no bounds either. Cost: O(iterations * parameters
// * residuals) calls of the form.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace equipoise {

struct FitParameter {
  std::string name;
  double start = 1;  // > 0: what the prior draws it to
  double trust = 1;  // standard deviation of the prior, in logarithms
  double from = 0;   // where the search begins; 0: at `start`
  double least = 0, most = std::numeric_limits<double>::infinity();
};

struct FitOptions {
  double robust_scale = 0.04;
  double prior_weight = 0.03;  // of one parameter at one standard deviation, beside residuals
  int most_iterations = 200;
  double difference = 1e-5;   // of a logarithm, for derivatives
  double flattest = 1e-10;    // relative gain below which a step is the last
  double longest_step = 1.5;  // of one logarithm in one iteration: a factor of 4.5
};

// Fills `out` with the residuals at `parameters`.
using ResidualsAt = std::function<void(std::span<const double> parameters, std::span<double> out)>;

struct FittedParameters {
  std::vector<double> values;
  double cost = 0;  // the sum above
};

FittedParameters fit_parameters(std::span<const FitParameter> parameters, std::size_t residuals,
                                const ResidualsAt& residuals_at, const FitOptions& options = {});

}  // namespace equipoise
