// Simulates the steps of a policy's plan at the fidelity asked for, and writes what can be looked at:
// timelines and critical paths of the first steps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/engine/op/op_step.h"
#include "sim/report/timeline.h"
#include "sim/study/derive.h"

namespace equipoise {

enum class Fidelity { stage, op };
Fidelity parse_fidelity(const std::string& text);  // throws UserError

// Of `op` fidelity; the defaults make it agree with `stage`.
struct OpFidelity {
  bool fold_tp = true;
  bool contention = false;  // flows share the links of the study's network
  double jitter = 0;        // relative standard deviation of every op
  std::uint64_t seed = 0;
  std::vector<std::pair<int, double>> stragglers;  // GPU number, speed (0.8: 20% slower than nominal)

  [[nodiscard]] bool is_plain() const { return !contention && jitter == 0 && stragglers.empty(); }
};

// "12:0.8,77:0.5". Throws UserError.
std::vector<std::pair<int, double>> parse_stragglers(const std::string& text);

struct StepSettings {
  Fidelity fidelity = Fidelity::stage;
  OpFidelity op;
};

// Throws UserError for stragglers that are not among the GPUs.
void check_stragglers(const StepSettings& settings, std::int64_t gpus);

// What is written of the first steps of every policy.
struct DetailOptions {
  std::string directory;  // timeline/LABEL.pftrace and critical_path/LABEL.json go there; empty: nothing
  int steps = 1;
  TimelineSelection selection;
  bool chakra = false;  // op fidelity: chakra/LABEL/step.GPU.et of the first step
};

// One per thread.
class StepRunner {
 public:
  StepRunner(const Study& study, const RunModels& models, const ShardRule& shard, const StepOptions& options,
             const StepSettings& settings);
  StepResult run(const Step& step, std::size_t number);
  [[nodiscard]] const OpStepSimulator* op() const { return op_.get(); }

 private:
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<StepSimulator> stage_;
  std::unique_ptr<OpStepSimulator> op_;
};

// Simulates the first steps once more and writes their timeline and, at op fidelity, what sets their time.
void write_details(const DetailOptions& details, const std::string& label, const Plan& plan,
                   const Study& study, const RunModels& models, const ShardRule& shard,
                   const StepOptions& options, const StepSettings& settings);

}  // namespace equipoise
