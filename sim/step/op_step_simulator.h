// One optimizer step at `op` fidelity: the plan's step expanded into every op of every rank and run.
//
// The step's work (StepWork) is that of layer resolution, which costs a hundredth. So is what ops take
// without waiting for each other: useful time and recompute by lane, latencies, communication that compute
// never hides. When things happen, compute per GPU and what waiting adds come from the ops.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "sim/step/contended_run.h"
#include "sim/step/critical_path.h"
#include "sim/step/expansion.h"
#include "sim/step/step_simulator.h"
#include "sim/topology/fabric.h"

namespace equipoise {

struct OpStepOptions {
  bool fold_tp = true;
  Jitter jitter;              // its seed is advanced by one from step to step
  std::vector<double> speed;  // as OpOptions::speed; empty if all GPUs are nominal
  int threads = 1;
  // Link contention: flows share the links of this network (null: every op has the network to itself). TP is
  // folded where that is exact: nominal GPUs without jitter, whose routes are alike.
  const Fabric* fabric = nullptr;
  std::function<void(double)> progress;  // under contention, called with the share of a step that is done
};

// One per thread, like StepSimulator.
class OpStepSimulator {
 public:
  OpStepSimulator(const LayerCosts& costs, const ShardRule& shard, const StepOptions& options,
                  OpStepOptions op, const MemoryModel* memory = nullptr);

  // `number` is the step's number in the run, so that jitter differs between steps. Throws as StepSimulator
  // does, and EngineError.
  StepResult run(const Step& step, std::int64_t number = 0);

  // The program of the latest step, and its times under contention.
  [[nodiscard]] const OpProgram& program() const { return program_; }
  [[nodiscard]] const OpResult& result() const { return contended_ ? contended_->result : result_; }
  [[nodiscard]] const OpOptions& op_options() const { return op_options_; }
  [[nodiscard]] std::vector<PathSegment> critical_path() const {
    return equipoise::critical_path(program_, op_options_, result());
  }
  [[nodiscard]] bool contention() const { return contended_.has_value(); }
  // The makespan of the same step if every op has the network to itself.
  [[nodiscard]] Picoseconds makespan_without_contention() const { return result_.makespan; }

 private:
  // Fills the times of the step that ran. `stage` has those of the same step at stage fidelity.
  void run_with_contention(const Step& step);
  [[nodiscard]] StepTimes make_times(const Step& step, const StepTimes& stage, const MemoryPeak& peak);
  [[nodiscard]] std::vector<LaneResult> lanes_of(const Step& step,
                                                 const std::vector<LaneResult>& stage) const;
  void add_contention(const Step& step, StepTimes& times) const;
  void account_gpus(const Step& step);
  [[nodiscard]] TimeSpan span_of(std::size_t lane, int stage, std::size_t scheduled) const;
  [[nodiscard]] std::vector<StageOp> stage_ops(const Step& step) const;
  [[nodiscard]] GpuSpread attention_spread(const GpuSpread& nominal) const;
  [[nodiscard]] std::optional<TimeSpan> time_of_peak(const MemoryPeak& peak) const;

  const LayerCosts& costs_;
  const ShardRule& shard_;
  StepOptions options_;
  OpStepOptions op_;
  OpOptions op_options_;
  StepSimulator stage_;
  StepExpander expander_;
  std::optional<StepExpander> unfolded_;  // for steps where folding TP is not exact
  GpuCompute gpu_compute_;
  OpProgram program_;
  OpResult result_;  // without contention
  std::optional<ContendedTimes> contended_;
  ExposedTime added_;  // exposed time that contention adds, summed over GPUs
};

}  // namespace equipoise
