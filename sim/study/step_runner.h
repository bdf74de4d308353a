// Simulates the steps of a row's plan at the fidelity asked for.
#pragma once

#include <cstddef>
#include <memory>

#include "sim/engine/op/op_step.h"
#include "sim/study/run.h"

namespace equipoise {

// One per thread. Keeps a reference to `rule`.
class StepRunner {
 public:
  StepRunner(const Run& run, const ShardRule& rule, const StepOptions& options);
  StepResult run(const Step& step, std::size_t number);
  [[nodiscard]] const OpStepSimulator* op() const { return op_.get(); }  // null at stage fidelity

 private:
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<StepSimulator> stage_;
  std::unique_ptr<OpStepSimulator> op_;
};

}  // namespace equipoise
