// Steps whose lanes wait for each other inside layers: every lockstep group of lanes runs as one
// (lockstep_run.h).
#include <algorithm>
#include <utility>

#include "policies/base/index.h"
#include "sim/engine/stage/expert_meetings.h"
#include "sim/engine/stage/lockstep_run.h"
#include "sim/engine/stage/step_simulator.h"

namespace equipoise {

void StepSimulator::run_lockstep(LockstepGroup& lockstep, Picoseconds start,
                                 std::vector<LockstepMember>& members, StepResult& result) {
  std::vector<RunningLane> lanes;
  std::vector<std::vector<MicroBatchCost>> costs = cost_lockstep_group(lockstep, coster_, costs_, *walks_);
  for (std::size_t l = 0; l < lockstep.lanes.size(); ++l) {
    const LockstepLane& lane = lockstep.lanes[l];
    LockstepMember& member = members[at(lane.lane)];
    member.plan = lane;
    member.costs = std::move(costs[l]);
    member.engine = std::make_unique<LaneEngine>(walks_, costs_.layout());
    if (on_lane_ != nullptr)
      (*on_lane_)({static_cast<std::size_t>(lane.lane), lane.micro_batches, member.costs, lane.schedule,
                   &lockstep, lockstep_groups_});
    lanes.push_back({&member.plan, member.costs, member.engine.get(), &member.accounts});
  }
  ++lockstep_groups_;
  LockstepRun run(lockstep, lanes, gradients_, options_, options_.record_ops ? &result.times.ops : nullptr);
  const std::vector<LaneResult> done = run.run(start);
  sums_.exposed[at(Stream::dp)] += run.exposed_seconds();
  for (std::size_t l = 0; l < lanes.size(); ++l) members[at(lockstep.lanes[l].lane)].timing = done[l];
}

void StepSimulator::run_in_lockstep(const Step& step, StepResult& result) {
  for (int group = 0; group <= last_barrier_group(step); ++group) {
    const Picoseconds start = result.times.pipeline;
    std::vector<LockstepMember> members(step.lanes.size());
    for (LockstepGroup& lockstep :
         make_lockstep_groups(step, group, costs_.layout(), costs_.grid(), options_)) {
      result.work.unsynchronized_lanes = result.work.unsynchronized_lanes || lockstep.unsynchronized;
      run_lockstep(lockstep, start, members, result);
    }
    // In the order of lanes, whatever lockstep groups they were in.
    for (LockstepMember& member : members) {
      if (member.engine == nullptr) continue;
      const LockstepLane& plan = member.plan;
      const auto lane = static_cast<std::size_t>(plan.lane);
      gradients_.add_lane(member.engine->grad_ready());
      result.times.lanes.push_back(member.timing);
      result.times.pipeline = std::max(result.times.pipeline, member.engine->end());
      micro_batches_ = std::move(member.costs);
      std::swap(accounts_, member.accounts);
      begin_lane();
      for (std::size_t j = 0; j < plan.real; ++j)
        account_micro_batch(plan.micro_batches[j], micro_batches_[j], result);
      account_lane(step.lanes[lane], lane, result);
      if (memory_ == nullptr) continue;
      micro_batch_count_ = plan.micro_batches.size();
      for (std::size_t j = plan.real; j < micro_batch_count_; ++j)
        count_tokens(micro_batches_[j], result);  // of those without documents: none
      check_memory(plan.micro_batches, step.lanes[lane].context, plan.lane, plan.schedule, result);
    }
  }
}

}  // namespace equipoise
