#include "profiler/fit/least_squares.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

namespace equipoise {
namespace {

constexpr double kDifference = 1e-5;  // of a logarithm
constexpr double kFlattest = 1e-10;   // relative gain below which a step is the last
constexpr double kLongestStep = 1.5;  // of one logarithm in one iteration: a factor of 4.5
constexpr double kStiffest = 1e12;

struct Point {
  Eigen::VectorXd theta;
  Eigen::VectorXd residuals;
  double cost = 0;
};

class Problem {
 public:
  Problem(std::span<const FitParameter> parameters, std::size_t residuals, const ResidualsAt& at,
          const FitOptions& options)
      : parameters_(parameters), residuals_(residuals), at_(at), options_(options) {}

  [[nodiscard]] std::vector<double> values(const Eigen::VectorXd& theta) const {
    std::vector<double> p(parameters_.size());
    for (std::size_t i = 0; i < p.size(); ++i)
      p[i] = parameters_[i].start * std::exp(theta[static_cast<Eigen::Index>(i)]);
    return p;
  }

  [[nodiscard]] Eigen::VectorXd residuals(const Eigen::VectorXd& theta) const {
    Eigen::VectorXd r(static_cast<Eigen::Index>(residuals_));
    const std::vector<double> p = values(theta);
    at_(p, std::span<double>(r.data(), residuals_));
    for (double& value : r)
      if (!std::isfinite(value)) value = 1e3;
    return r;
  }

  [[nodiscard]] Point at(const Eigen::VectorXd& theta) const {
    Point point{theta, residuals(theta), 0};
    const double s2 = options_.robust_scale * options_.robust_scale;
    for (const double r : point.residuals) point.cost += 2 * s2 * (std::sqrt(1 + r * r / s2) - 1);
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      point.cost += std::pow(prior(i) * theta[static_cast<Eigen::Index>(i)], 2);
    return point;
  }

  [[nodiscard]] double prior(std::size_t i) const { return options_.prior_weight / parameters_[i].trust; }

  // Gauss-Newton system of the reweighted residuals and the prior: (J^T W J + P) step = -(J^T W r + P theta).
  void linearize(const Point& point, Eigen::MatrixXd& hessian, Eigen::VectorXd& gradient) const {
    const auto n = static_cast<Eigen::Index>(parameters_.size());
    Eigen::MatrixXd jacobian(point.residuals.size(), n);
    for (Eigen::Index i = 0; i < n; ++i) {
      Eigen::VectorXd moved = point.theta;
      moved[i] += kDifference;
      jacobian.col(i) = (residuals(moved) - point.residuals) / kDifference;
    }
    const double s2 = options_.robust_scale * options_.robust_scale;
    const Eigen::VectorXd weights =
        point.residuals.unaryExpr([s2](double r) { return 1 / std::sqrt(1 + r * r / s2); });
    hessian = jacobian.transpose() * weights.asDiagonal() * jacobian;
    gradient = jacobian.transpose() * weights.asDiagonal() * point.residuals;
    for (Eigen::Index i = 0; i < n; ++i) {
      const double pull = std::pow(prior(static_cast<std::size_t>(i)), 2);
      hessian(i, i) += pull;
      gradient[i] += pull * point.theta[i];
    }
  }

 private:
  std::span<const FitParameter> parameters_;
  std::size_t residuals_;
  const ResidualsAt& at_;
  const FitOptions& options_;
};

}  // namespace

std::vector<double> fit_parameters(std::span<const FitParameter> parameters, std::size_t residuals,
                                   const ResidualsAt& residuals_at, const FitOptions& options) {
  const Problem problem(parameters, residuals, residuals_at, options);
  Point here = problem.at(Eigen::VectorXd::Zero(static_cast<Eigen::Index>(parameters.size())));
  double damping = 1e-3;
  Eigen::MatrixXd hessian;
  Eigen::VectorXd gradient;
  for (int iteration = 0; iteration < options.most_iterations; ++iteration) {
    problem.linearize(here, hessian, gradient);
    bool moved = false;
    double gain = 0;
    while (!moved && damping < kStiffest) {
      Eigen::MatrixXd damped = hessian;
      damped.diagonal() *= 1 + damping;
      Eigen::VectorXd step = -damped.ldlt().solve(gradient);
      const double longest = step.cwiseAbs().maxCoeff();
      if (longest > kLongestStep) step *= kLongestStep / longest;
      Point next = problem.at(here.theta + step);
      moved = next.cost < here.cost;
      if (moved) {
        gain = (here.cost - next.cost) / here.cost;
        here = std::move(next);
        damping = std::max(damping / 5, 1e-9);
      } else {
        damping *= 4;
      }
    }
    if (!moved || gain < kFlattest) break;
  }
  return problem.values(here.theta);
}

}  // namespace equipoise
