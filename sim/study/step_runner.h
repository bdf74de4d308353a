// Simulates the steps of a row's plan at the fidelity asked for.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "sim/step/step_simulator.h"
#include "sim/study/run.h"

namespace equipoise {

// One per thread. Keeps a reference to `rule`.
class StepRunner {
 public:
  // `threads`: of one step at op fidelity. `progress`: of a step with contention.
  StepRunner(const Run& run, const ShardRule& rule, const StepOptions& options, int threads = 1,
             std::function<void(double)> progress = {});
  StepResult run(const Step& step, std::size_t number);
  [[nodiscard]] const OpStepSimulator* op() const { return op_.get(); }  // null at stage fidelity

 private:
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<StepSimulator> stage_;
  std::unique_ptr<OpStepSimulator> op_;
};

}  // namespace equipoise
