#include "policies/solver/assignment.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include "policies/base/index.h"
#include "policies/least_loaded.h"

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

// The heaviest bin of a step is at least the mean of its bins. Documents of more than half a capacity are in
// bins of their own, so bins 0, N, 2N, ... of the sorted list are at least as heavy as those documents.
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

// Local search for the solver baselines by exchanges of single documents between two bins.

namespace {

constexpr double kWorthIt = 1 - 1e-12;  // a smaller gain is rounding
constexpr std::size_t kNobody = static_cast<std::size_t>(-1);

// Document `i` of the heaviest bin moves to bin `to`, and `partner`, unless kNobody, moves back.
struct Exchange {
  std::size_t i = kNobody;
  std::size_t partner = kNobody;
  std::uint32_t to = 0;
  double heavier =
      std::numeric_limits<double>::infinity();  // weight of the heavier of the two bins afterwards
};

// The exchange that lowers the heaviest bin most. Counts evaluations down, as the next function does.
Exchange best_exchange(const AssignmentProblem& problem, const BinOf& bin_of, std::uint32_t heaviest,
                       const std::vector<double>& weights, const std::vector<std::int64_t>& tokens,
                       std::int64_t& evaluations) {
  Exchange best;
  const auto consider = [&](std::size_t i, std::size_t partner, std::uint32_t to) {
    --evaluations;
    const double gained = problem.weight[i] - (partner == kNobody ? 0 : problem.weight[partner]);
    const std::int64_t moved = problem.tokens[i] - (partner == kNobody ? 0 : problem.tokens[partner]);
    if (gained <= 0) return;
    if (tokens[to] + moved > problem.capacity || tokens[heaviest] - moved > problem.capacity) return;
    const double heavier = std::max(weights[heaviest] - gained, weights[to] + gained);
    if (heavier < best.heavier) best = {i, partner, to, heavier};
  };
  for (std::size_t i = 0; i < bin_of.size() && evaluations > 0; ++i) {
    if (bin_of[i] != heaviest) continue;
    for (std::uint32_t to = 0; to < problem.bins; ++to)
      if (to != heaviest) consider(i, kNobody, to);
    for (std::size_t k = 0; k < bin_of.size(); ++k)
      if (bin_of[k] != heaviest) consider(i, k, bin_of[k]);
  }
  return best;
}

// The sum over steps after two bins change their weight.
class StepSums {
 public:
  StepSums(const AssignmentProblem& problem, const std::vector<double>& weights)
      : step_bins_(problem.step_bins()), order_(heaviest_first(weights)), sorted_(weights.size()) {
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
  std::vector<std::size_t> place_;    // index of each bin in order_
};

// The exchange that lowers the sum over steps most; `heavier` is the sum after it.
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

void improve_by_swaps(const AssignmentProblem& problem, BinOf& bin_of, std::int64_t evaluations) {
  while (evaluations > 0) {
    const std::vector<double> weights = bin_weights(problem, bin_of);
    const std::vector<std::int64_t> tokens = bin_tokens(problem, bin_of);
    const auto heaviest = static_cast<std::uint32_t>(std::ranges::max_element(weights) - weights.begin());
    const Exchange best = best_exchange(problem, bin_of, heaviest, weights, tokens, evaluations);
    if (!(best.heavier < weights[heaviest] * kWorthIt)) return;
    bin_of[best.i] = best.to;
    if (best.partner != kNobody) bin_of[best.partner] = heaviest;
  }
}

void improve_steps_by_swaps(const AssignmentProblem& problem, BinOf& bin_of, std::int64_t evaluations) {
  while (evaluations > 0) {
    const std::vector<double> weights = bin_weights(problem, bin_of);
    const StepSums sums(problem, weights);
    const Exchange best = best_step_exchange(problem, bin_of, sums, weights, evaluations);
    if (!(best.heavier < sums.sum() * kWorthIt)) return;
    const std::uint32_t from = bin_of[best.i];
    bin_of[best.i] = best.to;
    if (best.partner != kNobody) bin_of[best.partner] = from;
  }
}

// --- The assignment program as columns and rows.

namespace {

constexpr double kMeanBin = 1000;
constexpr double kRounding = 1 + 1e-9;

}  // namespace

AssignmentProgram::AssignmentProgram(const AssignmentProblem& problem)
    : problem_(problem), order_(heaviest_first(problem.weight)) {
  scale = kMeanBin * static_cast<double>(problem.bins) / sum_of(problem.weight);
  add_columns();
  add_rows();
}

void AssignmentProgram::add_columns() {
  const std::size_t steps = problem_.steps();
  continuous = static_cast<int>(steps);
  first_column_.assign(1, continuous);
  for (std::size_t k = 0; k < order_.size(); ++k) {
    for (std::uint32_t bin = 0; bin < problem_.bins; ++bin)
      if (bin / problem_.step_bins() + bin % problem_.step_bins() <= k) bins_of_.push_back(bin);
    first_column_.push_back(static_cast<int>(steps + bins_of_.size()));
  }
  const auto count = static_cast<std::size_t>(first_column_.back());
  column_lower.assign(count, 0);
  column_upper.assign(count, 1);
  column_cost.assign(count, 0);
  for (std::size_t s = 0; s < steps; ++s) {
    column_cost[s] = 1;
    column_upper[s] = problem_.heaviest_allowed * scale * kRounding;
  }
  // The heaviest document is in the first step. A single step takes the whole bound.
  column_lower[0] = (steps == 1       ? lower_bound(problem_)
                     : order_.empty() ? 0
                                      : problem_.weight[order_[0]]) *
                    scale;
}

int AssignmentProgram::column_of(std::size_t k, std::uint32_t bin) const {
  const int base = first_column_.front();
  const auto first = bins_of_.begin() + (first_column_[k] - base);
  const auto end = bins_of_.begin() + (first_column_[k + 1] - base);
  const auto found = std::lower_bound(first, end, bin);
  return found != end && *found == bin ? base + static_cast<int>(found - bins_of_.begin()) : -1;
}

void AssignmentProgram::add_rows() {
  for (std::size_t k = 0; k < order_.size(); ++k) {
    for (int c = first_column_[k]; c < first_column_[k + 1]; ++c) add(c, 1);
    close_row(1, 1);
  }
  for (std::uint32_t bin = 0; bin < problem_.bins; ++bin) {
    const auto add_documents = [&](const auto& value_of) {
      for (std::size_t k = 0; k < order_.size(); ++k)
        if (const int c = column_of(k, bin); c >= 0) add(c, value_of(order_[k]));
    };
    add(static_cast<int>(bin / problem_.step_bins()), -1);
    add_documents([&](std::size_t i) { return problem_.weight[i] * scale; });
    close_row(-kInfinity, 0);
    add_documents([&](std::size_t i) { return static_cast<double>(problem_.tokens[i]); });
    close_row(-kInfinity, static_cast<double>(problem_.capacity));
  }
  if (continuous == 1) return;
  for (int s = 0; s < continuous; ++s) add(s, 1);
  close_row(lower_bound(problem_) * scale, kInfinity);
}

std::vector<double> AssignmentProgram::columns_of(const BinOf& bin_of) const {
  const std::size_t n = problem_.step_bins();
  const std::vector<double> weights = bin_weights(problem_, bin_of);
  const std::vector<std::uint32_t> order = heaviest_first(weights);
  std::vector<std::size_t> step_of(problem_.bins);
  for (std::size_t p = 0; p < order.size(); ++p) step_of[order[p]] = p / n;

  constexpr std::size_t kUnnamed = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> step_name(problem_.steps(), kUnnamed);
  std::vector<std::size_t> bin_name(problem_.bins, kUnnamed);  // name of each bin inside its step
  std::vector<std::size_t> bins_named(problem_.steps(), 0);
  std::size_t steps_named = 0;
  std::vector<double> values(static_cast<std::size_t>(columns()), 0);
  for (std::size_t k = 0; k < order_.size(); ++k) {
    const std::uint32_t bin = bin_of[order_[k]];
    const std::size_t step = step_of[bin];
    if (step_name[step] == kUnnamed) step_name[step] = steps_named++;
    if (bin_name[bin] == kUnnamed) bin_name[bin] = bins_named[step]++;
    const auto renamed = static_cast<std::uint32_t>(step_name[step] * n + bin_name[bin]);
    values[at(column_of(k, renamed))] = 1;
    double& z = values[step_name[step]];
    z = std::max(z, weights[bin] * scale);
  }
  return values;
}

BinOf AssignmentProgram::assignment_of(const double* values) const {
  BinOf bin_of(order_.size(), 0);
  for (std::size_t k = 0; k < order_.size(); ++k) {
    const double* const first = values + first_column_[k];
    const double* const end = values + first_column_[k + 1];
    const auto chosen = std::max_element(first, end) - values - first_column_.front();
    bin_of[order_[k]] = bins_of_[at(chosen)];
  }
  return bin_of;
}

constexpr double kOptimalGap = 1e-9;

// Takes the solver's solution if it is better. Returns false if the solution violates a limit by more than
// rounding; the solver's claim of optimality then does not apply to this problem.
static bool take_found(const AssignmentProblem& problem, const BinOf& found, AssignmentResult& result) {
  constexpr double kExact = 1 + 1e-12;
  if (!within_capacity(problem, found)) return false;
  if (heaviest_bin(problem, found) > problem.heaviest_allowed * kExact) return false;
  const double objective = sum_over_steps(problem, found);
  if (objective >= result.objective) return true;
  result.bin_of = found;
  result.objective = objective;
  return true;
}

// Improves the incumbent and the bound. The incumbent's price is computed from the assignment, not read from
// the solver.
static void search(const AssignmentProblem& problem, const SolverLimits& limits, AssignmentResult& result) {
  const AssignmentProgram program(problem);
  const SearchEnd end =
      search_program(program, limits, program.columns_of(result.bin_of), result.objective * program.scale);
  const bool legal =
      end.columns.empty() || take_found(problem, program.assignment_of(end.columns.data()), result);
  // A completed search proves the incumbent optimal. A search that was cut short proves only its best open
  // node as bound.
  const double bound = legal && end.proven ? result.objective : end.best_possible / program.scale;
  if (std::isfinite(bound)) result.bound = std::max(result.bound, std::min(bound, result.objective));
}

AssignmentResult solve_assignment(const AssignmentProblem& problem, const BinOf& start,
                                  const SolverLimits& limits) {
  const auto begin = std::chrono::steady_clock::now();
  AssignmentResult result{start, sum_over_steps(problem, start), lower_bound(problem), 0, false, false};
  const auto closed = [&] { return result.objective <= result.bound * (1 + kOptimalGap); };
  const bool cancelled = limits.cancel != nullptr && limits.cancel->load(std::memory_order_relaxed);
  if (!solver_available(limits.solver) ||
      (!closed() && !cancelled && (limits.nodes > 0 || limits.seconds > 0))) {
    result.searched = true;
    search(problem, limits, result);
  }
  result.optimal = closed();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace equipoise
