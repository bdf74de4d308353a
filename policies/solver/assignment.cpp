#include "policies/solver/assignment.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <numeric>
#include <string>

#include "policies/base/error.h"
#include "policies/base/module.h"

namespace equipoise {

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

double heaviest_bin(const AssignmentProblem& problem, const BinOf& bin_of) {
  const std::vector<double> weights = bin_weights(problem, bin_of);
  return *std::max_element(weights.begin(), weights.end());
}

double sum_over_steps(const AssignmentProblem& problem, const BinOf& bin_of) {
  std::vector<double> weights = bin_weights(problem, bin_of);
  std::sort(weights.begin(), weights.end(), std::greater<>());
  double sum = 0;
  for (std::size_t b = 0; b < weights.size(); b += problem.step_bins()) sum += weights[b];
  return sum;
}

// The heaviest bin of a step is no lighter than the mean of its bins. Documents of more than half a capacity
// stand in bins of their own, so the bins in the places 0, N, 2N, ... of the sorted list are no lighter than
// those documents are.
double lower_bound(const AssignmentProblem& problem) {
  double sum = 0;
  double most = 0;
  std::vector<double> alone;
  for (std::size_t i = 0; i < problem.weight.size(); ++i) {
    sum += problem.weight[i];
    most = std::max(most, problem.weight[i]);
    if (2 * problem.tokens[i] > problem.capacity) alone.push_back(problem.weight[i]);
  }
  std::sort(alone.begin(), alone.end(), std::greater<>());
  double of_leaders = 0;
  for (std::size_t b = 0; b < alone.size(); b += problem.step_bins()) of_leaders += alone[b];
  return std::max({most, of_leaders, sum / static_cast<double>(problem.step_bins())});
}

bool within_capacity(const AssignmentProblem& problem, const BinOf& bin_of) {
  const std::vector<std::int64_t> tokens = bin_tokens(problem, bin_of);
  return *std::max_element(tokens.begin(), tokens.end()) <= problem.capacity;
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
    std::size_t best = problem.bins;
    for (std::size_t b = 0; b < problem.bins; ++b) {
      if (tokens[b] + problem.tokens[i] > problem.capacity) continue;
      if (best == problem.bins || weights[b] < weights[best]) best = b;
    }
    if (best == problem.bins) return false;
    bin_of[i] = static_cast<std::uint32_t>(best);
    weights[best] += problem.weight[i];
    tokens[best] += problem.tokens[i];
  }
  return true;
}

// Local search of the solver baselines: exchanges of single documents between two bins.

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

namespace {

struct CbcModule {
  cbc::Search search = nullptr;
  std::string reason;
};

const CbcModule& cbc_module() {
  static const CbcModule opened = [] {
    CbcModule made;
    made.search = reinterpret_cast<cbc::Search>(module_symbol(
        cbc::kFile, cbc::kSearch,
        "this program was built without CBC; install the CBC development files (Debian: coinor-libcbc-dev) "
        "and configure again, or HiGHS, or use fixed-greedy or wlb",
        made.reason));
    return made;
  }();
  return opened;
}

}  // namespace

bool cbc_available() {
  return cbc_module().search != nullptr;
}

void search_with_cbc(const AssignmentProblem& problem, const SolverLimits& limits, AssignmentResult& result) {
  if (!cbc_available()) throw UserError("solver: " + cbc_module().reason);
  const AssignmentProgram program(problem);
  cbc::Ended ended;
  cbc_module().search(program, limits, program.columns_of(result.bin_of), result.objective * program.scale,
                      ended);
  bool legal = true;
  if (!ended.columns.empty())
    legal = take_found(problem, program.assignment_of(ended.columns.data()), result);
  // A completed search proves the incumbent; one that was cut short proves its best open node.
  take_bound(legal && ended.proven ? result.objective : ended.best_possible / program.scale, result);
}

namespace {

constexpr double kOptimalGap = 1e-9;

void search(const AssignmentProblem& problem, const SolverLimits& limits, AssignmentResult& result) {
  const bool choose_highs = limits.solver == MilpSolver::highs ||
                            (limits.solver == MilpSolver::automatic && !cbc_available() && highs_available());
  if (!choose_highs) return search_with_cbc(problem, limits, result);
  if (!highs_available()) throw UserError(highs_fault());
  search_with_highs(problem, limits, result);
}

}  // namespace

bool solver_available(MilpSolver solver) {
  if (solver == MilpSolver::cbc) return cbc_available();
  if (solver == MilpSolver::highs) return highs_available();
  return cbc_available() || highs_available();
}

AssignmentResult solve_assignment(const AssignmentProblem& problem, const BinOf& start,
                                  const SolverLimits& limits) {
  const auto begin = std::chrono::steady_clock::now();
  AssignmentResult result{start, sum_over_steps(problem, start), lower_bound(problem), 0, false};
  const auto closed = [&] { return result.objective <= result.bound * (1 + kOptimalGap); };
  const bool cancelled = limits.cancel != nullptr && limits.cancel->load(std::memory_order_relaxed);
  if (!solver_available(limits.solver) ||
      (!closed() && !cancelled && (limits.nodes > 0 || limits.seconds > 0)))
    search(problem, limits, result);
  result.optimal = closed();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace equipoise
