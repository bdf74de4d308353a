// The ops of a step that ranks ran, each with its twin in the op program.
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

// The kinds that a report shows: forward and backward of a kernel are separate if their prices are.
std::string kind_of(OpName name, SyncGroup sync, BlockRole role);

// One op of one rank, with its entry in the program.
struct StepOp {
  const execution::RecordedOp* recorded = nullptr;
  int rank = 0;
  execution::RankPlace place;
  OpName name{};
  SyncGroup sync = SyncGroup::none;
  BlockRole role = BlockRole::none;
  bool at_end = false;  // at the step's end, over all replicas
  double simulated_seconds = 0;
  int micro_batch = -1;

  [[nodiscard]] std::string kind() const { return kind_of(name, sync, role); }
  // False for ops that have no simulated time, or that take none (gradients without replicas).
  [[nodiscard]] bool counts() const { return simulated_seconds > 0 && name != OpName::host_stall; }
};

// The ops of all ranks of a step in each rank's order, and the members of every collective. Keeps references.
class StepOps {
 public:
  StepOps(const execution::ExecutableStep& step, const RankGrid& grid,
          const std::vector<execution::StepRecord>& ranks);

  [[nodiscard]] const std::vector<StepOp>& all() const { return ops_; }
  // A kernel's time is its rank's. A collective's goes from its last member's arrival to the rank's end. A
  // transfer's goes from the sender's end, or from the receiver's arrival if that was later.
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
  std::map<SentBy, std::int64_t> ends_;  // when scheduled ops ended
};

// --- How long ops take inside a step, if that differs from the profile's times.
//
// A profile measures a kernel on operands from memory, and a collective whose members do nothing else. Inside
// a step an op finds in a cache what the op before it has just written, and ranks of one machine share its
// memory. The effect on each kind of op is fitted to steps of other documents in other windows, and predicts
// the validated steps.

class InStepTimes {
 public:
  // One kind of op: seconds inside a step = extra_seconds + factor * seconds alone.
  struct Line {
    double extra_seconds = 0;
    double factor = 1;
    std::int64_t ops = 0;  // number of ops in its fit
  };

  InStepTimes() = default;
  // Least squares of each kind's measured times over the profile's, so that the fitted ops take as long in
  // sum as measured. Ops that take several times their line are part of what a step costs, and are not
  // excluded. Neither number is negative. Kinds with fewer than `kLeastOps` ops keep their price.
  explicit InStepTimes(std::span<const OpPair> ops);
  static constexpr std::int64_t kLeastOps = 8;

  [[nodiscard]] bool empty() const { return lines_.empty(); }
  [[nodiscard]] double seconds(const std::string& kind, double alone) const;
  [[nodiscard]] const std::map<std::string, Line>& lines() const { return lines_; }

 private:
  std::map<std::string, Line> lines_;
};

// The program in which every op takes as long as inside a step.
OpProgram in_step(OpProgram program, const InStepTimes& times);

}  // namespace equipoise
