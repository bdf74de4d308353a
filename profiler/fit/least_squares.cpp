#include "profiler/fit/least_squares.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "policies/base/index.h"

namespace equipoise {
namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kStiffest = 1e12;  // no step is tried with a higher damping

struct SearchPoint {
  VectorXd theta;
  VectorXd residuals;
  double cost = 0;
};

class LeastSquares {
 public:
  LeastSquares(std::span<const FitParameter> parameters, std::size_t residuals,
               const ResidualsAt& residuals_at, const FitOptions& options)
      : parameters_(parameters), residuals_(residuals), residuals_at_(residuals_at), options_(options) {}

  [[nodiscard]] SearchPoint first() const {
    VectorXd theta = VectorXd::Zero(count());
    for (Index i = 0; i < count(); ++i)
      if (const FitParameter& one = parameter(i); one.from > 0) theta[i] = std::log(one.from / one.start);
    return point_at(theta);
  }

  [[nodiscard]] std::vector<double> values(const VectorXd& theta) const {
    std::vector<double> p(parameters_.size());
    for (Index i = 0; i < count(); ++i) p[at(i)] = parameter(i).start * std::exp(theta[i]);
    return p;
  }

  [[nodiscard]] SearchPoint point_at(const VectorXd& theta) const {
    SearchPoint point{theta, residuals(theta), 0};
    const double s2 = options_.robust_scale * options_.robust_scale;
    for (const double r : point.residuals) point.cost += 2 * s2 * (std::sqrt(1 + r * r / s2) - 1);
    for (Index i = 0; i < count(); ++i) point.cost += std::pow(prior(i) * theta[i], 2);
    return point;
  }

  // The Gauss-Newton system of the reweighted residuals and the prior is
  // (J^T W J + P) step = -(J^T W r + P theta).
  void linearize(const SearchPoint& point, MatrixXd& hessian, VectorXd& gradient) const {
    MatrixXd jacobian(point.residuals.size(), count());
    for (Index i = 0; i < count(); ++i) {
      VectorXd moved = point.theta;
      const double by =
          moved[i] + options_.difference > highest(i) ? -options_.difference : options_.difference;
      moved[i] += by;
      jacobian.col(i) = (residuals(moved) - point.residuals) / by;
    }
    const double s2 = options_.robust_scale * options_.robust_scale;
    const VectorXd weights =
        point.residuals.unaryExpr([s2](double r) { return 1 / std::sqrt(1 + r * r / s2); });
    hessian = jacobian.transpose() * weights.asDiagonal() * jacobian;
    gradient = jacobian.transpose() * weights.asDiagonal() * point.residuals;
    for (Index i = 0; i < count(); ++i) {
      const double pull = std::pow(prior(i), 2);
      hessian(i, i) += pull;
      gradient[i] += pull * point.theta[i];
    }
  }

  // The point that a damped step from `theta` reaches, clipped to the bounds.
  [[nodiscard]] VectorXd stepped(const VectorXd& theta, MatrixXd hessian, VectorXd gradient,
                                 double damping) const {
    hessian.diagonal() *= 1 + damping;
    for (Index i = 0; i < count(); ++i) {
      if (!(theta[i] <= lowest(i) && gradient[i] > 0) && !(theta[i] >= highest(i) && gradient[i] < 0))
        continue;
      hessian.row(i).setZero();
      hessian.col(i).setZero();
      hessian(i, i) = 1;
      gradient[i] = 0;
    }
    VectorXd step = -hessian.ldlt().solve(gradient);
    const double longest = step.cwiseAbs().maxCoeff();
    if (longest > options_.longest_step) step *= options_.longest_step / longest;
    VectorXd next = theta + step;
    for (Index i = 0; i < count(); ++i) next[i] = std::min(std::max(next[i], lowest(i)), highest(i));
    return next;
  }

 private:
  [[nodiscard]] Index count() const { return static_cast<Index>(parameters_.size()); }
  [[nodiscard]] const FitParameter& parameter(Index i) const { return parameters_[at(i)]; }
  [[nodiscard]] double lowest(Index i) const { return std::log(parameter(i).least / parameter(i).start); }
  [[nodiscard]] double highest(Index i) const { return std::log(parameter(i).most / parameter(i).start); }
  [[nodiscard]] double prior(Index i) const { return options_.prior_weight / parameter(i).trust; }

  [[nodiscard]] VectorXd residuals(const VectorXd& theta) const {
    VectorXd r(static_cast<Index>(residuals_));
    const std::vector<double> p = values(theta);
    residuals_at_(p, std::span<double>(r.data(), residuals_));
    for (double& value : r)
      if (!std::isfinite(value)) value = 1e3;
    return r;
  }

  std::span<const FitParameter> parameters_;
  std::size_t residuals_;
  const ResidualsAt& residuals_at_;
  const FitOptions& options_;
};

}  // namespace

FittedParameters fit_parameters(std::span<const FitParameter> parameters, std::size_t residuals,
                                const ResidualsAt& residuals_at, const FitOptions& options) {
  const LeastSquares problem(parameters, residuals, residuals_at, options);
  SearchPoint here = problem.first();
  double damping = 1e-3;
  MatrixXd hessian;
  VectorXd gradient;
  for (int iteration = 0; iteration < options.most_iterations; ++iteration) {
    problem.linearize(here, hessian, gradient);
    bool moved = false;
    double gain = 0;
    while (!moved && damping < kStiffest) {
      SearchPoint next = problem.point_at(problem.stepped(here.theta, hessian, gradient, damping));
      moved = next.cost < here.cost;
      if (moved) {
        gain = (here.cost - next.cost) / here.cost;
        here = std::move(next);
        damping = std::max(damping / 5, 1e-9);
      } else {
        damping *= 4;
      }
    }
    if (!moved || gain < options.flattest) break;
  }
  return {problem.values(here.theta), here.cost};
}

}  // namespace equipoise
