// Local search of the solver baselines: exchanges of single documents between two bins.
#include <algorithm>
#include <limits>
#include <numeric>

#include "policies/solver/assignment.h"

namespace equipoise {
namespace {

constexpr int kMostRounds = 10000;
constexpr double kWorthIt = 1 - 1e-12;  // below this a gain is rounding
constexpr std::size_t kNobody = static_cast<std::size_t>(-1);

// Document `i` of the heaviest bin goes to bin `to`, and `partner`, unless kNobody, comes back for it.
struct Exchange {
  std::size_t i = kNobody;
  std::size_t partner = kNobody;
  std::uint32_t to = 0;
  double heavier = std::numeric_limits<double>::infinity();  // of the two bins, afterwards
};

Exchange best_exchange(const AssignmentProblem& problem, const BinOf& bin_of, std::uint32_t heaviest,
                       const std::vector<double>& weights, const std::vector<std::int64_t>& tokens) {
  Exchange best;
  const auto consider = [&](std::size_t i, std::size_t partner, std::uint32_t to) {
    const double gained = problem.weight[i] - (partner == kNobody ? 0 : problem.weight[partner]);
    const std::int64_t moved = problem.tokens[i] - (partner == kNobody ? 0 : problem.tokens[partner]);
    if (gained <= 0) return;
    if (tokens[to] + moved > problem.capacity || tokens[heaviest] - moved > problem.capacity) return;
    const double heavier = std::max(weights[heaviest] - gained, weights[to] + gained);
    if (heavier < best.heavier) best = {i, partner, to, heavier};
  };
  for (std::size_t i = 0; i < bin_of.size(); ++i) {
    if (bin_of[i] != heaviest) continue;
    for (std::uint32_t to = 0; to < problem.bins; ++to)
      if (to != heaviest) consider(i, kNobody, to);
    for (std::size_t k = 0; k < bin_of.size(); ++k)
      if (bin_of[k] != heaviest) consider(i, k, bin_of[k]);
  }
  return best;
}

// Sum over steps after two bins change their weight.
class StepSums {
 public:
  StepSums(const AssignmentProblem& problem, const std::vector<double>& weights)
      : step_bins_(problem.step_bins()), order_(weights.size()), sorted_(weights.size()) {
    std::iota(order_.begin(), order_.end(), std::uint32_t{0});
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return weights[a] > weights[b]; });
    place_.resize(weights.size());
    for (std::size_t p = 0; p < order_.size(); ++p) {
      place_[order_[p]] = p;
      sorted_[p] = weights[order_[p]];
    }
  }

  // The heaviest bin of each step.
  [[nodiscard]] std::vector<std::uint32_t> leaders() const {
    std::vector<std::uint32_t> bins;
    for (std::size_t p = 0; p < order_.size(); p += step_bins_) bins.push_back(order_[p]);
    return bins;
  }

  [[nodiscard]] double sum() const {
    double sum = 0;
    for (std::size_t p = 0; p < sorted_.size(); p += step_bins_) sum += sorted_[p];
    return sum;
  }

  [[nodiscard]] double with(std::uint32_t a, double weight_a, std::uint32_t b, double weight_b) const {
    double waiting[] = {std::max(weight_a, weight_b), std::min(weight_a, weight_b)};
    std::size_t taken = 0;
    double sum = 0;
    std::size_t from = 0;
    for (std::size_t p = 0; p < sorted_.size(); ++p) {
      while (from < sorted_.size() && (from == place_[a] || from == place_[b])) ++from;
      const bool changed = taken < 2 && (from == sorted_.size() || waiting[taken] > sorted_[from]);
      const double weight = changed ? waiting[taken++] : sorted_[from++];
      if (p % step_bins_ == 0) sum += weight;
    }
    return sum;
  }

 private:
  std::size_t step_bins_;
  std::vector<std::uint32_t> order_;  // bins, heaviest first
  std::vector<double> sorted_;        // their weights
  std::vector<std::size_t> place_;    // of a bin in order_
};

// The exchange that lowers the sum over steps most; `heavier` is that sum. Counts its evaluations down.
Exchange best_step_exchange(const AssignmentProblem& problem, const BinOf& bin_of, const StepSums& sums,
                            const std::vector<double>& weights, std::int64_t& evaluations) {
  const std::vector<std::int64_t> tokens = bin_tokens(problem, bin_of);
  const std::vector<std::uint32_t> leaders = sums.leaders();
  std::vector<char> leads(problem.bins, 0);
  for (const std::uint32_t bin : leaders) leads[bin] = 1;
  Exchange best;
  const auto consider = [&](std::size_t i, std::size_t partner, std::uint32_t to) {
    const std::uint32_t from = bin_of[i];
    const double gained = problem.weight[i] - (partner == kNobody ? 0 : problem.weight[partner]);
    const std::int64_t moved = problem.tokens[i] - (partner == kNobody ? 0 : problem.tokens[partner]);
    if (gained <= 0 || weights[to] + gained > problem.heaviest_allowed) return;
    if (tokens[to] + moved > problem.capacity || tokens[from] - moved > problem.capacity) return;
    --evaluations;
    const double sum = sums.with(from, weights[from] - gained, to, weights[to] + gained);
    if (sum < best.heavier) best = {i, partner, to, sum};
  };
  for (std::size_t i = 0; i < bin_of.size() && evaluations > 0; ++i) {
    if (leads[bin_of[i]] == 0) continue;
    for (std::uint32_t to = 0; to < problem.bins; ++to)
      if (to != bin_of[i]) consider(i, kNobody, to);
    for (std::size_t k = 0; k < bin_of.size(); ++k)
      if (bin_of[k] != bin_of[i]) consider(i, k, bin_of[k]);
  }
  return best;
}

}  // namespace

void improve_by_swaps(const AssignmentProblem& problem, BinOf& bin_of) {
  for (int round = 0; round < kMostRounds; ++round) {
    const std::vector<double> weights = bin_weights(problem, bin_of);
    const std::vector<std::int64_t> tokens = bin_tokens(problem, bin_of);
    const auto heaviest =
        static_cast<std::uint32_t>(std::max_element(weights.begin(), weights.end()) - weights.begin());
    const Exchange best = best_exchange(problem, bin_of, heaviest, weights, tokens);
    if (!(best.heavier < weights[heaviest] * kWorthIt)) return;
    bin_of[best.i] = best.to;
    if (best.partner != kNobody) bin_of[best.partner] = heaviest;
  }
}

void improve_steps_by_swaps(const AssignmentProblem& problem, BinOf& bin_of) {
  std::int64_t evaluations = 4'000'000;
  for (int round = 0; round < kMostRounds && evaluations > 0; ++round) {
    const std::vector<double> weights = bin_weights(problem, bin_of);
    const StepSums sums(problem, weights);
    const Exchange best = best_step_exchange(problem, bin_of, sums, weights, evaluations);
    if (!(best.heavier < sums.sum() * kWorthIt)) return;
    const std::uint32_t from = bin_of[best.i];
    bin_of[best.i] = best.to;
    if (best.partner != kNobody) bin_of[best.partner] = from;
  }
}

}  // namespace equipoise
