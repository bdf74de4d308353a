// Solves a mixed integer program with CBC (COIN-OR branch and cut), called as a library. This file is the
// whole module.
#include <CbcEventHandler.hpp>
#include <CbcHeuristicLocal.hpp>
#include <CbcModel.hpp>
#include <CglKnapsackCover.hpp>
#include <CglMixedIntegerRounding2.hpp>
#include <CglProbing.hpp>
#include <CoinPackedMatrix.hpp>
#include <OsiClpSolverInterface.hpp>
#include <algorithm>
#include <cstdint>

#include "policies/solver/mixed_program.h"

namespace equipoise {
namespace {

// CBC polls this at every node and cut round.
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

void load(const MixedProgram& program, OsiClpSolverInterface& solver) {
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
  for (int c = program.continuous; c < program.columns(); ++c) solver.setInteger(c);
}

}  // namespace

}  // namespace equipoise

extern "C" void equipoise_search_with_cbc(const equipoise::MixedProgram& program,
                                          const equipoise::SolverLimits& limits,
                                          const std::vector<double>& start, double objective,
                                          equipoise::SearchEnd& end) {
  using namespace equipoise;
  OsiClpSolverInterface solver;
  load(program, solver);
  if (limits.nodes == 0) solver.getModelPtr()->setMaximumWallSeconds(limits.seconds);
  CbcModel model(solver);
  model.setLogLevel(0);
  model.solver()->messageHandler()->setLogLevel(0);
  model.messageHandler()->setLogLevel(0);
  if (limits.nodes > 0) {
    model.setMaximumNodes(static_cast<int>(std::min<std::int64_t>(limits.nodes, INT32_MAX)));
  } else {
    model.setUseElapsedTime(true);
    model.setMaximumSeconds(limits.seconds);
  }
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

  model.setBestSolution(start.data(), static_cast<int>(start.size()), objective, true);
  model.branchAndBound(0);

  if (const double* const best = model.bestSolution()) end.columns.assign(best, best + program.columns());
  end.proven = model.isProvenOptimal();
  end.best_possible = model.getBestPossibleObjValue();
}
