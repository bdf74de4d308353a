#include "sim/calibration/slowdown_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "policies/base/index.h"
#include "policies/base/parallel.h"
#include "profiler/fit/least_squares.h"

namespace equipoise {
namespace {

constexpr double kCoarse = 0.5, kFine = 0.0625;  // spacing of the lattices; both divide 1 .. 3
// All low, each kind high in turn, and all high, because the kinds can replace each other.
constexpr Slowdowns kStarts[] = {
    {1.1, 1.1, 1.1}, {1.7, 1.1, 1.1}, {1.1, 1.7, 1.1}, {1.1, 1.1, 1.7}, {1.7, 1.7, 1.7}};

using Rows = std::vector<std::size_t>;

// Seconds of all samples on a lattice of slowdowns; a node is simulated when a search first needs it.
class Lattice {
 public:
  Lattice(std::span<const StepSample> samples, double spacing, int jobs)
      : samples_(samples),
        spacing_(spacing),
        boxes_(static_cast<int>(std::lround((kMostSlowdown - kLeastSlowdown) / spacing))),
        jobs_(jobs) {}

  // ln(predicted / published) of every sample.
  std::vector<double> residuals(const Slowdowns& at) {
    std::array<int, 3> box{};
    Slowdowns part{};
    for (std::size_t k = 0; k < 3; ++k) {
      const double place = (at[k] - kLeastSlowdown) / spacing_;
      box[k] = std::clamp(static_cast<int>(place), 0, boxes_ - 1);
      part[k] = place - box[k];
    }
    const std::array<const std::vector<double>*, 8> corners = simulate(box);
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

  // The seconds at the corners of a box. Missing ones are simulated, all at once.
  std::array<const std::vector<double>*, 8> simulate(const Node& box) {
    std::array<const std::vector<double>*, 8> corners{};
    std::vector<std::pair<Slowdowns, std::vector<double>*>> missing;
    for (unsigned c = 0; c < 8; ++c) {
      Node node = box;
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
  int boxes_;
  int jobs_;
  std::map<Node, std::vector<double>> known_;  // a map, since pointers to its values must stay valid
};

// Slowdowns fitted to some of the rows: one number for all kinds, or three.
struct Fitted {
  Slowdowns slowdowns{1, 1, 1};
  double cost = 0;
};

Slowdowns slowdowns_of(std::span<const double> fitted) {
  Slowdowns s{};
  for (std::size_t k = 0; k < s.size(); ++k) s[k] = fitted[fitted.size() == 1 ? 0 : k];
  return s;
}

Fitted descend(Lattice& lattice, const Rows& rows, std::size_t numbers, const Slowdowns& from) {
  // One number for all kinds takes the priors of all three.
  const double trust = numbers == 1 ? kPriorDeviation / std::sqrt(3.0) : kPriorDeviation;
  std::vector<FitParameter> parameters;
  for (std::size_t k = 0; k < numbers; ++k)
    parameters.push_back({"slowdown", 1, trust, from[k], kLeastSlowdown, kMostSlowdown});
  const auto residuals_at = [&](std::span<const double> fitted, std::span<double> out) {
    const std::vector<double> all = lattice.residuals(slowdowns_of(fitted));
    for (std::size_t i = 0; i < rows.size(); ++i) out[i] = all[rows[i]];
  };
  FitOptions options;
  options.robust_scale = kRobustScale;
  options.prior_weight = kRobustScale;
  options.most_iterations = 100;
  options.difference = 1e-4;
  options.flattest = 1e-12;
  options.longest_step = std::numeric_limits<double>::infinity();
  const FittedParameters found = fit_parameters(parameters, rows.size(), residuals_at, options);
  return {slowdowns_of(found.values), found.cost};
}

// Descends from several starts on the coarse lattice, then from the best of them on the fine one.
Fitted fit_rows(Lattice& coarse, Lattice& fine, const Rows& rows, std::size_t numbers) {
  std::optional<Fitted> best;
  for (const Slowdowns& start : kStarts) {
    if (numbers == 1 && start[0] != start[1]) continue;
    const Fitted found = descend(coarse, rows, numbers, start);
    if (!best || found.cost < best->cost) best = found;
  }
  return descend(fine, rows, numbers, best->slowdowns);
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
  const Fitted fitted = fit_rows(coarse, fine, all, at(result.numbers));
  result.slowdowns = fitted.slowdowns;
  result.cost = fitted.cost;
  result.errors = errors_at(samples, all, result.slowdowns, jobs);
  if (benchmarks.size() < 2) return result;
  result.held_out_errors.resize(samples.size());
  for (const auto& [name, members] : benchmarks) {
    Rows others;
    std::set_difference(all.begin(), all.end(), members.begin(), members.end(), std::back_inserter(others));
    const Slowdowns without = fit_rows(coarse, fine, others, at(result.numbers)).slowdowns;
    const std::vector<double> errors = errors_at(samples, members, without, jobs);
    for (std::size_t i = 0; i < members.size(); ++i) result.held_out_errors[members[i]] = errors[i];
    result.held_out.push_back(summary_of(name, errors, without));
  }
  return result;
}

}  // namespace equipoise
