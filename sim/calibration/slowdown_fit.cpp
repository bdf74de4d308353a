#include "sim/calibration/slowdown_fit.h"

#include <Eigen/Dense>
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "policies/base/index.h"
#include "policies/base/parallel.h"

namespace equipoise {
namespace {

constexpr double kCoarse = 0.5, kFine = 0.0625;  // spacing of the lattices; both divide 1 .. 3
constexpr double kDifference = 1e-4;             // of a logarithm
constexpr int kMostIterations = 100;
constexpr double kFlattest = 1e-12;  // relative gain below which a step is the last
// Low, and each kind high in turn: the kinds trade against each other.
constexpr Slowdowns kStarts[] = {
    {1.1, 1.1, 1.1}, {1.7, 1.1, 1.1}, {1.1, 1.7, 1.1}, {1.1, 1.1, 1.7}, {1.7, 1.7, 1.7}};

using Rows = std::vector<std::size_t>;

// Seconds of all samples on a lattice of slowdowns, simulated where a search comes by.
class Lattice {
 public:
  Lattice(std::span<const StepSample> samples, double spacing, int jobs)
      : samples_(samples),
        spacing_(spacing),
        cells_(static_cast<int>(std::lround((kMostSlowdown - kLeastSlowdown) / spacing))),
        jobs_(jobs) {}

  // ln(predicted / published) of every sample.
  std::vector<double> residuals(const Slowdowns& at) {
    std::array<int, 3> cell{};
    Slowdowns part{};
    for (std::size_t k = 0; k < 3; ++k) {
      const double place = (at[k] - kLeastSlowdown) / spacing_;
      cell[k] = std::clamp(static_cast<int>(place), 0, cells_ - 1);
      part[k] = place - cell[k];
    }
    const std::array<const std::vector<double>*, 8> corners = simulate(cell);
    std::vector<double> out(samples_.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      double seconds = 0;
      for (unsigned c = 0; c < 8; ++c) {
        double weight = 1;
        for (unsigned k = 0; k < 3; ++k) weight *= (c >> k & 1U) != 0 ? part[k] : 1 - part[k];
        seconds += weight * (*corners[c])[i];
      }
      out[i] = std::log(seconds / samples_[i].published);
    }
    return out;
  }

 private:
  using Node = std::array<int, 3>;

  // The seconds at the corners of a cell; what is missing is simulated, all of it at once.
  std::array<const std::vector<double>*, 8> simulate(const Node& cell) {
    std::array<const std::vector<double>*, 8> corners{};
    std::vector<std::pair<Slowdowns, std::vector<double>*>> missing;
    for (unsigned c = 0; c < 8; ++c) {
      Node node = cell;
      Slowdowns slowdowns{};
      for (unsigned k = 0; k < 3; ++k) {
        node[k] += static_cast<int>(c >> k & 1U);
        slowdowns[k] = kLeastSlowdown + node[k] * spacing_;
      }
      const auto [at, fresh] = known_.try_emplace(node);
      if (fresh) {
        at->second.resize(samples_.size());
        missing.emplace_back(slowdowns, &at->second);
      }
      corners[c] = &at->second;
    }
    parallel_for(jobs_, missing.size() * samples_.size(), [&](int, std::size_t i) {
      auto& [slowdowns, seconds] = missing[i / samples_.size()];
      const std::size_t sample = i % samples_.size();
      (*seconds)[sample] = samples_[sample].seconds(slowdowns);
    });
    return corners;
  }

  std::span<const StepSample> samples_;
  double spacing_;
  int cells_;
  int jobs_;
  std::map<Node, std::vector<double>> known_;  // pointers into it stay
};

// One fit: some of the rows, one or three numbers.
class Fit {
 public:
  Fit(Lattice& lattice, const Rows& rows, int numbers) : lattice_(lattice), rows_(rows), numbers_(numbers) {}

  struct Point {
    Eigen::VectorXd theta;
    double cost = 0;
  };

  [[nodiscard]] Slowdowns slowdowns(const Eigen::VectorXd& theta) const {
    Slowdowns s{};
    for (std::size_t k = 0; k < 3; ++k)
      s[k] = std::exp(theta[numbers_ == 1 ? 0 : static_cast<Eigen::Index>(k)]);
    return s;
  }

  [[nodiscard]] Eigen::VectorXd theta(const Slowdowns& s) const {
    Eigen::VectorXd theta(numbers_);
    for (Eigen::Index k = 0; k < numbers_; ++k) theta[k] = std::log(s[static_cast<std::size_t>(k)]);
    return theta;
  }

  Point descend(const Slowdowns& start) {
    Point here = at(theta(start));
    double damping = 1e-3;
    for (int i = 0; i < kMostIterations; ++i) {
      const auto [hessian, gradient] = linearize(here);
      double gain = -1;
      while (gain < 0 && damping < 1e9) {
        const Point next = at(step(here.theta, hessian, gradient, damping));
        if (next.cost < here.cost) {
          gain = (here.cost - next.cost) / here.cost;
          here = next;
          damping = std::max(damping / 5, 1e-9);
        } else {
          damping *= 4;
        }
      }
      if (gain < kFlattest) break;
    }
    return here;
  }

 private:
  [[nodiscard]] Eigen::VectorXd residuals(const Eigen::VectorXd& theta) {
    const std::vector<double> all = lattice_.residuals(slowdowns(theta));
    Eigen::VectorXd out(static_cast<Eigen::Index>(rows_.size()));
    for (std::size_t i = 0; i < rows_.size(); ++i) out[static_cast<Eigen::Index>(i)] = all[rows_[i]];
    return out;
  }

  Point at(const Eigen::VectorXd& theta) {
    Point point{theta, 0};
    for (const double r : residuals(theta))
      point.cost +=
          2 * kRobustScale * kRobustScale * (std::sqrt(1 + r * r / (kRobustScale * kRobustScale)) - 1);
    point.cost += pull() * theta.squaredNorm() * copies();
    return point;
  }

  [[nodiscard]] static double pull() { return std::pow(kRobustScale / kPriorDeviation, 2); }
  [[nodiscard]] double copies() const {
    return numbers_ == 1 ? 3 : 1;
  }  // a number for all kinds has their priors

  std::pair<Eigen::MatrixXd, Eigen::VectorXd> linearize(const Point& here) {
    const Eigen::VectorXd r = residuals(here.theta);
    Eigen::MatrixXd jacobian(r.size(), numbers_);
    for (Eigen::Index k = 0; k < numbers_; ++k) {
      Eigen::VectorXd moved = here.theta;
      const double by = here.theta[k] + kDifference > std::log(kMostSlowdown) ? -kDifference : kDifference;
      moved[k] += by;
      jacobian.col(k) = (residuals(moved) - r) / by;
    }
    const Eigen::VectorXd weights =
        r.unaryExpr([](double e) { return 1 / std::sqrt(1 + e * e / (kRobustScale * kRobustScale)); });
    Eigen::MatrixXd hessian = jacobian.transpose() * weights.asDiagonal() * jacobian;
    hessian.diagonal().array() += pull() * copies();
    return {hessian, jacobian.transpose() * weights.asDiagonal() * r + pull() * copies() * here.theta};
  }

  // Within the bounds; a number at a bound that the gradient pushes against stays.
  [[nodiscard]] Eigen::VectorXd step(const Eigen::VectorXd& theta, Eigen::MatrixXd hessian,
                                     Eigen::VectorXd gradient, double damping) const {
    const double low = std::log(kLeastSlowdown), high = std::log(kMostSlowdown);
    hessian.diagonal() *= 1 + damping;
    for (Eigen::Index k = 0; k < numbers_; ++k) {
      const bool stays = (theta[k] <= low && gradient[k] > 0) || (theta[k] >= high && gradient[k] < 0);
      if (!stays) continue;
      hessian.row(k).setZero();
      hessian.col(k).setZero();
      hessian(k, k) = 1;
      gradient[k] = 0;
    }
    return (theta - hessian.ldlt().solve(gradient)).cwiseMax(low).cwiseMin(high);
  }

  Lattice& lattice_;
  const Rows& rows_;
  int numbers_;
};

// From several starts on the coarse lattice, then from the best of them on the fine one.
std::pair<Slowdowns, double> fit(Lattice& coarse, Lattice& fine, const Rows& rows, int numbers) {
  Fit rough(coarse, rows, numbers);
  Fit::Point best;
  bool first = true;
  for (const Slowdowns& start : kStarts) {
    if (numbers == 1 && start[0] != start[1]) continue;
    const Fit::Point found = rough.descend(start);
    if (first || found.cost < best.cost) best = found;
    first = false;
  }
  Fit exact(fine, rows, numbers);
  const Fit::Point found = exact.descend(rough.slowdowns(best.theta));
  return {exact.slowdowns(found.theta), found.cost};
}

std::vector<double> errors_at(std::span<const StepSample> samples, const Rows& rows,
                              const Slowdowns& slowdowns, int jobs) {
  std::vector<double> errors(rows.size());
  parallel_for(jobs, rows.size(), [&](int, std::size_t i) {
    const StepSample& sample = samples[rows[i]];
    errors[i] = sample.seconds(slowdowns) / sample.published - 1;
  });
  return errors;
}

BenchmarkError summary_of(const std::string& benchmark, const std::vector<double>& errors,
                          const Slowdowns& slowdowns) {
  BenchmarkError out{benchmark, errors.size(), 0, 0, 0, slowdowns};
  for (const double e : errors) {
    out.mean_abs += std::abs(e) / static_cast<double>(errors.size());
    out.mean += e / static_cast<double>(errors.size());
    if (std::abs(e) > std::abs(out.worst)) out.worst = e;
  }
  return out;
}

}  // namespace

SlowdownFit fit_slowdowns(std::span<const StepSample> samples, int jobs) {
  std::map<std::string, Rows> benchmarks;
  Rows all;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    benchmarks[samples[i].benchmark].push_back(i);
    all.push_back(i);
  }
  SlowdownFit result;
  result.numbers = benchmarks.size() < kLeastBenchmarks ? 1 : 3;
  Lattice coarse(samples, kCoarse, jobs), fine(samples, kFine, jobs);
  std::tie(result.slowdowns, result.cost) = fit(coarse, fine, all, result.numbers);
  result.errors = errors_at(samples, all, result.slowdowns, jobs);
  if (benchmarks.size() < 2) return result;
  result.left_out_errors.resize(samples.size());
  for (const auto& [name, members] : benchmarks) {
    Rows others;
    std::set_difference(all.begin(), all.end(), members.begin(), members.end(), std::back_inserter(others));
    const Slowdowns without = fit(coarse, fine, others, result.numbers).first;
    const std::vector<double> errors = errors_at(samples, members, without, jobs);
    for (std::size_t i = 0; i < members.size(); ++i) result.left_out_errors[members[i]] = errors[i];
    result.left_out.push_back(summary_of(name, errors, without));
  }
  return result;
}

}  // namespace equipoise
