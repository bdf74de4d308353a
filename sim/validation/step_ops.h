// The ops of a step that ranks ran, each with what the op program says of it: the twin of a recorded op.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "sim/execution/executable_step.h"
#include "sim/execution/recorder.h"
#include "sim/topology/rank_grid.h"

namespace equipoise {

// Where a rank is: its stage, its place among the data x context ranks of the stage, its TP coordinate.
struct RankPlace {
  int stage = 0, replica = 0, tensor = 0;
};
RankPlace place_of(const RankGrid& grid, int rank);

// Kinds as a reader looks for them: forward and backward of a kernel apart, where their prices are.
std::string kind_of(OpName name, SyncGroup sync, BlockRole role);

// One op of one rank, with what the program says of it.
struct StepOp {
  const execution::RecordedOp* recorded = nullptr;
  int rank = 0;
  RankPlace place;
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
  using Meeting = std::tuple<int, int, int, int, int, int, int, int>;
  using SentBy = std::tuple<int, int, int, int, int>;  // stage, replica, TP coordinate, lane, scheduled op

  [[nodiscard]] StepOp describe(const execution::RecordedOp& recorded, int rank,
                                const RankPlace& place) const;
  [[nodiscard]] Meeting meeting_of(const StepOp& op) const;
  [[nodiscard]] std::int64_t sent_at(const StepOp& op) const;

  const execution::ExecutableStep& step_;
  std::vector<StepOp> ops_;
  std::map<Meeting, std::int64_t> arrivals_;
  std::map<SentBy, std::int64_t> ends_;  // of scheduled ops
};

}  // namespace equipoise
