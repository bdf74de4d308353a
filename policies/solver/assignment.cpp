#include "policies/solver/assignment.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace equipoise {
namespace {

std::vector<double> bin_weights(const AssignmentProblem& problem, const BinOf& bin_of) {
  std::vector<double> weights(problem.bins, 0);
  for (std::size_t i = 0; i < bin_of.size(); ++i) weights[bin_of[i]] += problem.weight[i];
  return weights;
}

std::vector<std::int64_t> bin_tokens(const AssignmentProblem& problem, const BinOf& bin_of) {
  std::vector<std::int64_t> tokens(problem.bins, 0);
  for (std::size_t i = 0; i < bin_of.size(); ++i) tokens[bin_of[i]] += problem.tokens[i];
  return tokens;
}

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

}  // namespace

double heaviest_bin(const AssignmentProblem& problem, const BinOf& bin_of) {
  const std::vector<double> weights = bin_weights(problem, bin_of);
  return *std::max_element(weights.begin(), weights.end());
}

double lower_bound(const AssignmentProblem& problem) {
  double sum = 0;
  double most = 0;
  for (const double w : problem.weight) {
    sum += w;
    most = std::max(most, w);
  }
  return std::max(most, sum / static_cast<double>(problem.bins));
}

bool within_capacity(const AssignmentProblem& problem, const BinOf& bin_of) {
  const std::vector<std::int64_t> tokens = bin_tokens(problem, bin_of);
  return *std::max_element(tokens.begin(), tokens.end()) <= problem.capacity;
}

void improve_by_swaps(const AssignmentProblem& problem, BinOf& bin_of) {
  constexpr int kMostRounds = 10000;
  constexpr double kWorthIt = 1 - 1e-12;  // below this a gain is rounding
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

bool assign_greedily(const AssignmentProblem& problem, BinOf& bin_of) {
  std::vector<std::size_t> order(problem.weight.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return problem.weight[a] > problem.weight[b]; });
  std::vector<double> weights(problem.bins, 0);
  std::vector<std::int64_t> tokens(problem.bins, 0);
  bin_of.assign(order.size(), 0);
  for (const std::size_t i : order) {
    std::size_t best = kNobody;
    for (std::size_t b = 0; b < problem.bins; ++b) {
      if (tokens[b] + problem.tokens[i] > problem.capacity) continue;
      if (best == kNobody || weights[b] < weights[best]) best = b;
    }
    if (best == kNobody) return false;
    bin_of[i] = static_cast<std::uint32_t>(best);
    weights[best] += problem.weight[i];
    tokens[best] += problem.tokens[i];
  }
  return true;
}

}  // namespace equipoise
