// One optimizer step at `op` fidelity: the plan's step expanded into every op of every rank and run.
//
// What does not depend on the fidelity (tokens, causal pairs, KV traffic, exposed communication by axis)
// comes from the stage engine, which costs a hundredth; times and compute per GPU come from the ops.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "sim/engine/op/contended_step.h"
#include "sim/engine/op/critical_path.h"
#include "sim/engine/op/expansion.h"
#include "sim/engine/op/op_engine.h"
#include "sim/engine/stage/step_simulator.h"
#include "sim/topology/fabric.h"

namespace equipoise {

struct OpStepOptions {
  bool fold_tp = true;
  Jitter jitter;              // its seed is advanced by one from step to step
  std::vector<double> speed;  // as OpOptions::speed; empty: all GPUs nominal
  int threads = 1;
  // Link contention: flows share the links of this network (null: every op has the network to itself). Runs
  // the task graph of the step through the event loop, every GPU its own tasks: for hundreds of GPUs.
  const Fabric* fabric = nullptr;
};

// One per thread, like StepSimulator.
class OpStepSimulator {
 public:
  OpStepSimulator(const LayerCosts& costs, const ShardRule& shard, const StepOptions& options,
                  OpStepOptions op, const MemoryModel* memory = nullptr);

  // `number`: of the step in the run, so that jitter differs between steps. Throws as StepSimulator, and
  // EngineError.
  StepResult run(const Step& step, std::int64_t number = 0);

  // Of the latest step, with its contention.
  [[nodiscard]] const OpProgram& program() const { return program_; }
  [[nodiscard]] const OpResult& result() const { return contended_ ? contended_->result() : result_; }
  [[nodiscard]] const OpOptions& op_options() const { return op_options_; }
  [[nodiscard]] std::vector<PathSegment> critical_path() const {
    return contended_ ? contended_->critical_path()
                      : equipoise::critical_path(program_, op_options_, result_);
  }
  [[nodiscard]] bool contention() const { return contended_.has_value(); }
  // Of the same step, had every op the network to itself.
  [[nodiscard]] Picoseconds makespan_without_contention() const { return result_.makespan; }

 private:
  void take_times(const Step& step, StepResult& out);
  void take_contention(StepResult& out) const;
  void spread_attention(StepResult& out) const;
  void time_peak(StepResult& out) const;

  const LayerCosts& costs_;
  StepOptions options_;
  OpStepOptions op_;
  OpOptions op_options_;
  StepSimulator stage_;
  StepExpander expander_;
  GpuCompute gpu_compute_;
  std::vector<char> lane_is_empty_;
  OpProgram program_;
  OpResult result_;  // without contention
  std::optional<ContendedStep> contended_;
};

}  // namespace equipoise
