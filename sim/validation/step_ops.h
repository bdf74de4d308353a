// The ops of a step that ranks ran, each with what the op program says of it: the twin of a recorded op.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "sim/execution/executable_step.h"
#include "sim/step/op_program.h"
#include "sim/topology/rank_grid.h"
#include "sim/validation/figures.h"

namespace equipoise {

// Kinds as a reader looks for them: forward and backward of a kernel apart, where their prices are.
std::string kind_of(OpName name, SyncGroup sync, BlockRole role);

// One op of one rank, with what the program says of it.
struct StepOp {
  const execution::RecordedOp* recorded = nullptr;
  int rank = 0;
  execution::RankPlace place;
  OpName name{};
  SyncGroup sync = SyncGroup::none;
  BlockRole role = BlockRole::none;
  bool at_end = false;  // of the step: over all replicas
  double simulated_seconds = 0;
  int micro_batch = -1;

  [[nodiscard]] std::string kind() const { return kind_of(name, sync, role); }
  // Not so: ops that no time was simulated for, or that none is spent on (gradients without replicas).
  [[nodiscard]] bool counts() const { return simulated_seconds > 0 && name != OpName::host_stall; }
};

// The ops of all ranks of a step, in each rank's order, and who was in which collective. Keeps references.
class StepOps {
 public:
  StepOps(const execution::ExecutableStep& step, const RankGrid& grid,
          const std::vector<execution::StepRecord>& ranks);

  [[nodiscard]] const std::vector<StepOp>& all() const { return ops_; }
  // A kernel takes what its rank took. A collective takes from its last member's arrival to the rank's end. A
  // transfer takes from the sender's end, or from when the receiver came to it if that was later.
  [[nodiscard]] double measured_seconds(const StepOp& op) const;

 private:
  using CollectiveKey = std::tuple<int, int, int, int, int, int, int, int>;
  using SentBy = std::tuple<int, int, int, int, int>;  // stage, replica, TP coordinate, lane, scheduled op

  [[nodiscard]] StepOp describe(const execution::RecordedOp& recorded, int rank,
                                const execution::RankPlace& place) const;
  [[nodiscard]] CollectiveKey collective_of(const StepOp& op) const;
  [[nodiscard]] std::int64_t sent_at(const StepOp& op) const;

  const execution::ExecutableStep& step_;
  std::vector<StepOp> ops_;
  std::map<CollectiveKey, std::int64_t> arrivals_;
  std::map<SentBy, std::int64_t> ends_;  // of scheduled ops
};

// --- How long ops take inside a step, as far as it differs from what a profile says of them alone.
//
// A profile measures a kernel on operands that come from memory, and a collective whose members do nothing
// else. Inside a step an op finds what the op before it has just written in a cache, and ranks of one machine
// share its memory. What that does to each kind of op is measured on steps of other documents in other
// windows, and taken over for the steps that are validated: fitted there, predicted here.

class InStepTimes {
 public:
  // One kind of op: seconds inside a step = extra_seconds + factor * seconds alone.
  struct Line {
    double extra_seconds = 0;
    double factor = 1;
    std::int64_t ops = 0;  // that it was fitted to
  };

  InStepTimes() = default;
  // Least squares of each kind's measured times over those of the profile, so that the fitted ops take as
  // long in sum as measured: ops that take several times their line are part of what a step costs, and are
  // not excluded. Neither number is negative. Kinds with fewer than `kLeastOps` ops keep their price.
  explicit InStepTimes(std::span<const OpPair> ops);
  static constexpr std::int64_t kLeastOps = 8;

  [[nodiscard]] bool empty() const { return lines_.empty(); }
  [[nodiscard]] double seconds(const std::string& kind, double alone) const;
  [[nodiscard]] const std::map<std::string, Line>& lines() const { return lines_; }

 private:
  std::map<std::string, Line> lines_;
};

// The program with every op as long as it takes inside a step.
OpProgram in_step(OpProgram program, const InStepTimes& times);

}  // namespace equipoise
