// Solves the assignment program with CBC (COIN-OR branch and cut), called as a library.
//
// Bins are interchangeable, so every solution has bins! copies; without help branch and bound visits them
// all. Symmetry breaking: documents sorted heaviest first, document i may use bins 0..i only. Any assignment
// can be renamed to obey that (name bins by their first document), the warm start included. z starts at the
// bound max(mean bin, heaviest document), which is mostly what the search ends up proving. Weights are scaled
// to a mean bin of 1000, so that CBC's absolute tolerances mean the same for tokens squared and for seconds.
// The result is priced again from the assignment, not read from the solver.
#include <CbcEventHandler.hpp>
#include <CbcHeuristicLocal.hpp>
#include <CbcModel.hpp>
#include <CglKnapsackCover.hpp>
#include <CglMixedIntegerRounding2.hpp>
#include <CglProbing.hpp>
#include <CoinPackedMatrix.hpp>
#include <OsiClpSolverInterface.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "policies/solver/assignment.h"

namespace equipoise {
namespace {

constexpr double kMeanBin = 1000;
constexpr double kOptimalGap = 1e-9;

// Polled by CBC at every node and cut round.
class StopOnRequest : public CbcEventHandler {
 public:
  explicit StopOnRequest(const std::atomic<bool>* cancel) : cancel_(cancel) {}
  CbcAction event(CbcEvent) override {
    return cancel_ != nullptr && cancel_->load(std::memory_order_relaxed) ? stop : noAction;
  }
  [[nodiscard]] CbcEventHandler* clone() const override { return new StopOnRequest(*this); }

 private:
  const std::atomic<bool>* cancel_;
};

// The program in CBC's terms, documents heaviest first.
class Formulation {
 public:
  Formulation(const AssignmentProblem& problem, double scale)
      : problem_(problem), order_(problem.weight.size()) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::size_t a, std::size_t b) { return problem.weight[a] > problem.weight[b]; });
    const std::size_t documents = order_.size();
    first_column_.resize(documents + 1, 1);  // column 0 is z
    for (std::size_t k = 0; k < documents; ++k) first_column_[k + 1] = first_column_[k] + bins_of(k);

    const auto columns = static_cast<std::size_t>(first_column_[documents]);
    CoinPackedMatrix matrix(false, 0, 0);
    matrix.setDimensions(0, static_cast<int>(columns));
    for (std::size_t k = 0; k < documents; ++k) add_row_of_document(matrix, k);
    for (std::size_t b = 0; b < problem.bins; ++b) add_rows_of_bin(matrix, b, scale);

    std::vector<double> lower(columns, 0);
    std::vector<double> upper(columns, 1);
    std::vector<double> cost(columns, 0);
    cost[0] = 1;
    lower[0] = lower_bound(problem) * scale;
    upper[0] = solver_.getInfinity();
    solver_.messageHandler()->setLogLevel(0);
    solver_.loadProblem(matrix, lower.data(), upper.data(), cost.data(), row_lower_.data(),
                        row_upper_.data());
    for (std::size_t c = 1; c < columns; ++c) solver_.setInteger(static_cast<int>(c));
  }

  OsiClpSolverInterface& solver() { return solver_; }

  // An assignment as column values, its bins renamed so that it obeys the symmetry breaking.
  [[nodiscard]] std::vector<double> columns_of(const BinOf& bin_of, double objective) const {
    constexpr int kUnnamed = -1;
    std::vector<double> columns(static_cast<std::size_t>(first_column_.back()), 0);
    std::vector<int> name(problem_.bins, kUnnamed);
    int next = 0;
    for (std::size_t k = 0; k < order_.size(); ++k) {
      int& renamed = name[bin_of[order_[k]]];
      if (renamed == kUnnamed) renamed = next++;
      columns[static_cast<std::size_t>(first_column_[k] + renamed)] = 1;
    }
    columns[0] = objective;
    return columns;
  }

  [[nodiscard]] BinOf assignment_of(const double* columns) const {
    BinOf bin_of(order_.size(), 0);
    for (std::size_t k = 0; k < order_.size(); ++k) {
      const double* const first = columns + first_column_[k];
      const double* const end = columns + first_column_[k + 1];
      bin_of[order_[k]] = static_cast<std::uint32_t>(std::max_element(first, end) - first);
    }
    return bin_of;
  }

 private:
  [[nodiscard]] int bins_of(std::size_t k) const { return static_cast<int>(std::min(k + 1, problem_.bins)); }

  void add_row_of_document(CoinPackedMatrix& matrix, std::size_t k) {
    CoinPackedVector row;
    for (int b = 0; b < bins_of(k); ++b) row.insert(first_column_[k] + b, 1);
    matrix.appendRow(row);
    row_lower_.push_back(1);
    row_upper_.push_back(1);
  }

  void add_rows_of_bin(CoinPackedMatrix& matrix, std::size_t bin, double scale) {
    CoinPackedVector weight;
    CoinPackedVector tokens;
    weight.insert(0, -1);
    for (std::size_t k = bin; k < order_.size(); ++k) {
      const int column = first_column_[k] + static_cast<int>(bin);
      weight.insert(column, problem_.weight[order_[k]] * scale);
      tokens.insert(column, static_cast<double>(problem_.tokens[order_[k]]));
    }
    matrix.appendRow(weight);
    matrix.appendRow(tokens);
    row_lower_.insert(row_lower_.end(), 2, -solver_.getInfinity());
    row_upper_.push_back(0);
    row_upper_.push_back(static_cast<double>(problem_.capacity));
  }

  const AssignmentProblem& problem_;
  std::vector<std::size_t> order_;  // documents, heaviest first
  std::vector<int> first_column_;   // of document order_[k]
  std::vector<double> row_lower_;
  std::vector<double> row_upper_;
  OsiClpSolverInterface solver_;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Runs CBC from result.bin_of and improves the result.
void search(const AssignmentProblem& problem, const SolverLimits& limits, AssignmentResult& result) {
  const double scale = kMeanBin * static_cast<double>(problem.bins) /
                       std::accumulate(problem.weight.begin(), problem.weight.end(), 0.0);
  Formulation formulation(problem, scale);
  formulation.solver().getModelPtr()->setMaximumWallSeconds(limits.seconds);
  CbcModel model(formulation.solver());
  model.setLogLevel(0);
  model.solver()->messageHandler()->setLogLevel(0);
  model.messageHandler()->setLogLevel(0);
  model.setUseElapsedTime(true);
  model.setMaximumSeconds(limits.seconds);
  model.setAllowableGap(0);
  model.setAllowableFractionGap(0);
  const StopOnRequest stop(limits.cancel);
  model.passInEventHandler(&stop);

  CglKnapsackCover covers;
  CglMixedIntegerRounding2 rounding;
  CglProbing probing;
  probing.setUsingObjective(1);
  model.addCutGenerator(&covers, -1, "knapsack cover");
  model.addCutGenerator(&rounding, -1, "rounding");
  model.addCutGenerator(&probing, -1, "probing");
  CbcHeuristicLocal local(model);
  model.addHeuristic(&local);

  const std::vector<double> start = formulation.columns_of(result.bin_of, result.objective * scale);
  model.setBestSolution(start.data(), static_cast<int>(start.size()), result.objective * scale, true);
  model.branchAndBound(0);

  if (model.bestSolution() != nullptr) {
    const BinOf found = formulation.assignment_of(model.bestSolution());
    const double objective = heaviest_bin(problem, found);
    if (within_capacity(problem, found) && objective < result.objective) {
      result.bin_of = found;
      result.objective = objective;
    }
  }
  // A completed search proves the incumbent; one that was cut short proves its best open node.
  const bool proven = model.isProvenOptimal();
  const double bound = proven ? result.objective : model.getBestPossibleObjValue() / scale;
  if (std::isfinite(bound)) result.bound = std::max(result.bound, std::min(bound, result.objective));
}

}  // namespace

bool solver_available() {
  return true;
}

AssignmentResult solve_assignment(const AssignmentProblem& problem, const BinOf& start,
                                  const SolverLimits& limits) {
  const auto begin = std::chrono::steady_clock::now();
  AssignmentResult result{start, heaviest_bin(problem, start), lower_bound(problem), 0, false};
  const auto closed = [&] { return result.objective <= result.bound * (1 + kOptimalGap); };
  const bool cancelled = limits.cancel != nullptr && limits.cancel->load(std::memory_order_relaxed);
  if (!closed() && !cancelled && limits.seconds > 0) search(problem, limits, result);
  result.optimal = closed();
  result.seconds = seconds_since(begin);
  return result;
}

}  // namespace equipoise
