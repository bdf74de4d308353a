// Robust least squares over positive parameters: Levenberg-Marquardt on their logarithms.
//
// Every parameter of a form is a time, a rate, a share or a slowdown: positive, and known to within a factor
// before any data is seen. So the search runs over theta = ln(p / start). A weak prior draws theta to 0,
// which leaves a parameter that no sample moves at its start. The search minimises
//
//   sum over residuals of 2 R^2 (sqrt(1 + (r / R)^2) - 1)  +  sum over parameters of (w theta / trust)^2
//
// with R = `robust_scale` and w = `prior_weight`. Residuals are logarithms of predicted over measured; beyond
// R they count linearly (soft L1), so that a misprinted row does not bend the rest. A parameter may have
// bounds; one at its bound whose gradient points outward stays there. Derivatives are one-sided differences.
// The steps depend only on the input. Eigen's own LevenbergMarquardt and Ceres take other steps, which would
// change the last digits of the shipped profiles, and Eigen's has no bounds. Cost: O(iterations * parameters
// * residuals) evaluations of the form.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace equipoise {

struct FitParameter {
  std::string name;
  double start = 1;  // > 0, the centre of the prior
  double trust = 1;  // standard deviation of the prior, in logarithms
  double from = 0;   // where the search begins; `start` if 0
  double least = 0, most = std::numeric_limits<double>::infinity();
};

struct FitOptions {
  double robust_scale = 0.04;
  double prior_weight = 0.03;  // weight of one parameter at one standard deviation, relative to residuals
  int most_iterations = 200;
  double difference = 1e-5;   // step of a logarithm for derivatives
  double flattest = 1e-10;    // the search ends after a step with less relative gain
  double longest_step = 1.5;  // change of one logarithm in one iteration: a factor of 4.5
};

using ResidualsAt = std::function<void(std::span<const double> parameters, std::span<double> out)>;

struct FittedParameters {
  std::vector<double> values;
  double cost = 0;  // the minimised sum
};

FittedParameters fit_parameters(std::span<const FitParameter> parameters, std::size_t residuals,
                                const ResidualsAt& residuals_at, const FitOptions& options = {});

}  // namespace equipoise
