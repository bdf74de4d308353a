// Solves the assignment program with CBC (COIN-OR branch and cut), called as a library.
#include <CbcEventHandler.hpp>
#include <CbcHeuristicLocal.hpp>
#include <CbcModel.hpp>
#include <CglKnapsackCover.hpp>
#include <CglMixedIntegerRounding2.hpp>
#include <CglProbing.hpp>
#include <CoinPackedMatrix.hpp>
#include <OsiClpSolverInterface.hpp>

#include "policies/solver/assignment_program.h"

namespace equipoise {
namespace {

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

void load(const AssignmentProgram& program, OsiClpSolverInterface& solver) {
  CoinPackedMatrix matrix(false, 0, 0);
  matrix.setDimensions(0, program.columns());
  for (std::size_t row = 0; row + 1 < program.row_begin.size(); ++row) {
    const int begin = program.row_begin[row];
    matrix.appendRow(program.row_begin[row + 1] - begin, program.column.data() + begin,
                     program.value.data() + begin);
  }
  solver.messageHandler()->setLogLevel(0);
  solver.loadProblem(matrix, program.column_lower.data(), program.column_upper.data(),
                     program.column_cost.data(), program.row_lower.data(), program.row_upper.data());
  for (int c = 1; c < program.columns(); ++c) solver.setInteger(c);
}

}  // namespace

bool cbc_available() {
  return true;
}

void search_with_cbc(const AssignmentProblem& problem, const SolverLimits& limits, AssignmentResult& result) {
  const AssignmentProgram program(problem);
  OsiClpSolverInterface solver;
  load(program, solver);
  solver.getModelPtr()->setMaximumWallSeconds(limits.seconds);
  CbcModel model(solver);
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

  const std::vector<double> start = program.columns_of(result.bin_of, result.objective);
  model.setBestSolution(start.data(), static_cast<int>(start.size()), start[0], true);
  model.branchAndBound(0);

  if (model.bestSolution() != nullptr)
    take_found(problem, program.assignment_of(model.bestSolution()), result);
  // A completed search proves the incumbent; one that was cut short proves its best open node.
  take_bound(model.isProvenOptimal() ? result.objective : model.getBestPossibleObjValue() / program.scale,
             result);
}

}  // namespace equipoise
