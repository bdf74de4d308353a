// Lanes that wait for each other inside layers, and how they are kept in step.
//
// Two kinds of collectives have members on several lanes: expert-parallel exchanges, whose group may span
// replicas, and what all replicas make together with every micro-batch: the gradient reductions of ZeRO-2 and
// 3, the parameter gathers of ZeRO-3. Such a collective starts when its last member arrives, so every member
// must make the same number of them in the same order: a framework whose ranks disagree hangs. Lanes of one
// step may hold different numbers of micro-batches, and dependent chunks order their ops differently. So the
// lanes of a lockstep group (those that share a group, directly or over others) are brought in step as
// frameworks do it: with ops that hold no documents and only take part in the collectives.
//
// - Without a pipeline: the lanes' op lists are merged. In each round all lanes run one op of the same kind:
//   a forward while any lane has one next, else a backward, else a weight gradient; a lane whose next op is
//   of another kind, or that has none left, runs an empty one. The result never deadlocks, and no lane's own
//   order changes.
// - With a pipeline, or in pairs of a forward and a backward: a lane with fewer micro-batches gets empty ones
// behind its own, up to the longest lane's
//   number, and the schedule for that number. Lanes whose orders differ even then (dependent chunks in groups
//   of different sizes) could wait for each other in a circle; no framework runs them so. They are put in
//   lockstep groups of their own and do not wait for each other.
//
// A lane without any micro-batch takes no part: its GPUs are always ready.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "policies/base/index.h"
#include "policies/plan.h"
#include "sim/cost/expert_costs.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/step/part_order.h"
#include "sim/step/step_options.h"
#include "sim/step/step_result.h"
#include "sim/topology/rank_grid.h"

namespace equipoise {

// Whether lanes of the layout wait for each other inside layers, or the stages of each for each other.
bool lanes_synchronize(const Layout& layout);

// What arrives at a lane's experts during each of its ops.
struct LaneArrivals {
  struct Entry {
    std::int32_t micro_batch = 0;          // -1: no micro-batch; the lane works for what others send
    std::vector<ExpertArrivals> arriving;  // by CP rank
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  // The lane's micro-batches in order, then other arrivals that differ from them.
  std::vector<Entry> entries;
  std::vector<std::vector<std::int32_t>> of_op;  // by stage and position; empty if each is the op's
                                                 // micro-batch
  // By stage and position, if lanes recompute different numbers of layers: the entry with which each layer of
  // the virtual stage is recomputed.
  std::map<std::pair<std::size_t, std::size_t>, std::vector<std::int32_t>> again;

  [[nodiscard]] std::size_t entry_of(const ScheduleOp& op, int stage, std::size_t position) const {
    const auto s = at(stage);
    return at(of_op.empty() ? op.micro_batch : of_op[s][position]);
  }
  // Null if every recomputed layer has the op's own entry.
  [[nodiscard]] const std::vector<std::int32_t>* again_of(int stage, std::size_t position) const {
    const auto found = again.find({at(stage), position});
    return found == again.end() ? nullptr : &found->second;
  }
};

struct LockstepLane {
  std::int32_t lane = 0;                  // in the step
  int first_replica = 0;                  // place of CP rank 0 among the data x context ranks of a stage
  std::size_t real = 0;                   // micro-batches of the plan
  std::vector<MicroBatch> micro_batches;  // those and the empty ones
  Schedule schedule;
  std::vector<int> expert_group;  // by CP rank: its expert-parallel group, numbered within the lockstep group
  LaneArrivals arrivals;          // filled by find_expert_arrivals
};

struct LockstepGroup {
  std::vector<LockstepLane> lanes;  // equally many ops of equal kinds on every stage
  int expert_groups = 0;
  // By expert group, the data x context ranks that share its experts, including lanes without micro-batches.
  // An unsynchronized lane has a group of its own.
  std::vector<int> group_places;
  bool unsynchronized = false;  // shares groups with a lockstep group that has another order of ops
  bool ends_step = false;       // no lane with micro-batches is in a later barrier group
};

// Lockstep groups of the lanes of one barrier group, by their lowest lanes. Throws UserError as the schedule
// does.
std::vector<LockstepGroup> make_lockstep_groups(const Step& step, int barrier_group, const Layout& layout,
                                                const RankGrid& grid, const StepOptions& options);

// Layers of a virtual stage that any of the lockstep group's lanes recomputes in full in its op number
// `position` on the stage: the others take part in those layers' collectives.
int most_recomputed(const LockstepGroup& lockstep, const PartOrders& orders, int stage, std::size_t position);

// A lane with the costs of its micro-batches, including the empty ones of its lockstep group. A lane that
// waits for others has the costs of its arrivals' entries (LaneArrivals).
struct CostedLane {
  std::size_t lane = 0;  // in the step
  std::span<const MicroBatch> micro_batches;
  std::span<const MicroBatchCost> costs;
  const Schedule& schedule;
  const LockstepGroup* lockstep = nullptr;  // null if the lane waits for no other
  int group = -1;                           // its lockstep group's number in the step
};

}  // namespace equipoise
