#include "sim/step/expansion.h"

#include <algorithm>
#include <vector>

#include "policies/base/index.h"
#include "sim/step/barrier_groups.h"
#include "sim/step/lockstep_costs.h"
#include "sim/step/op_inputs.h"

namespace equipoise {

StepExpander::StepExpander(const LayerCosts& costs, const ShardRule& shard, const StepOptions& options,
                           bool fold_tp)
    : costs_(costs),
      options_(options),
      tensor_(fold_tp ? 1 : costs.layout().tensor),
      coster_(costs, shard),
      orders_(costs.model(), costs.layout()),
      gradients_(costs),
      blocks_(costs, gradients_),
      runs_(costs, orders_, gradients_, blocks_) {
  options_.pairs = costs.basis.pairs_micro_batches(options.pairs);
}

OpProgram StepExpander::expand(const Step& step) {
  const Layout& layout = costs_.layout();
  OpProgram program;
  begin(step, program);
  if (lanes_synchronize(layout)) {
    expand_lockstep_groups(step, program);
  } else {
    for (std::size_t l = 0; l < step.lanes.size(); ++l)
      if (const Lane& lane = step.lanes[l]; !lane.micro_batches.empty())
        add_costed({l, lane.micro_batches, {}, schedule_of(lane.micro_batches, layout, options_)}, program);
  }
  finish(program);
  return program;
}

void StepExpander::begin(const Step& step, OpProgram& program) {
  const Layout& layout = costs_.layout();
  program.stages = layout.pipeline;
  program.tensor = tensor_;
  program.replicas = layout.data * layout.context;
  program.lockstep_groups = 0;
  program.lanes.resize(step.lanes.size());
  int group = 0;
  int place = 0;
  for (std::size_t l = 0; l < step.lanes.size(); ++l) {
    const Lane& lane = step.lanes[l];
    if (lane.barrier_group != group) place = 0;  // lanes of a later group reuse the GPUs
    group = lane.barrier_group;
    OpLane& out = program.lanes[l];
    out.context = lane.context;
    out.barrier_group = lane.barrier_group;
    out.first_replica = place;
    out.lockstep = kNoLockstep;
    out.expert_group.clear();
    out.expert_tensor = 0;
    out.runs.clear();
    out.transfers.clear();
    out.transfer_bytes.clear();
    out.stages.resize(at(layout.pipeline));
    for (std::vector<ScheduledOp>& stage : out.stages) stage.clear();
    if (lane.micro_batches.empty()) out.blocks.clear();
    place += lane.context;
    program.replicas = std::max(program.replicas, place);
  }
}

void StepExpander::finish(OpProgram& program) const {
  program.ends = gradients_.ends();
}

void StepExpander::expand_lockstep_groups(const Step& step, OpProgram& program) {
  int number = 0;
  run_barrier_groups(step.lanes, [&](int group, Picoseconds begin) {
    for (LockstepGroup& lockstep :
         make_lockstep_groups(step, group, costs_.layout(), costs_.grid(), options_)) {
      const std::vector<std::vector<MicroBatchCost>> costs =
          cost_lockstep_group(lockstep, coster_, costs_, orders_);
      for (std::size_t l = 0; l < lockstep.lanes.size(); ++l) {
        const LockstepLane& lane = lockstep.lanes[l];
        add_lane({at(lane.lane), lane.micro_batches, costs[l], lane.schedule, &lockstep, number}, program);
      }
      ++number;
    }
    return begin;
  });
}

// Costs the micro-batches of a lane that waits for no other.
void StepExpander::add_costed(const CostedLane& lane, OpProgram& program) {
  std::vector<MicroBatchCost> costs(lane.micro_batches.size());
  for (std::size_t j = 0; j < costs.size(); ++j)
    coster_.cost(lane.micro_batches[j], program.lanes[lane.lane].context, costs[j]);
  add_lane({lane.lane, lane.micro_batches, costs, lane.schedule}, program);
}

void StepExpander::add_lane(const CostedLane& lane, OpProgram& program) {
  OpLane& out = program.lanes[lane.lane];
  const LaneArrivals* arrivals = nullptr;
  if (lane.lockstep != nullptr) {
    const auto plan =
        std::ranges::find(lane.lockstep->lanes, lane.lane, [](const LockstepLane& l) { return at(l.lane); });
    out.lockstep = lane.group;
    out.expert_group = plan->expert_group;
    out.expert_tensor = costs_.layout().expert_tensor_size();
    arrivals = &plan->arrivals;
    program.lockstep_groups = std::max(program.lockstep_groups, lane.group + 1);
  }
  blocks_.begin_lane(out);
  const MicroBatch nothing;
  for (std::size_t e = 0; e < lane.costs.size(); ++e) {
    const std::int32_t number =
        arrivals == nullptr ? static_cast<std::int32_t>(e) : arrivals->entries[e].micro_batch;
    blocks_.add_micro_batch(lane.costs[e], number == kNoMicroBatch ? nothing : lane.micro_batches[at(number)],
                            number);
    if (e < lane.micro_batches.size()) add_transfers(lane.costs[e], out);
  }
  blocks_.add_shared();
  add_scheduled_ops(lane.schedule, costs_.layout().stage_order(), options_.blocking_sends, out);
  runs_.add(lane, arrivals, out);
  blocks_.end_lane();
}

void StepExpander::add_transfers(const MicroBatchCost& cost, OpLane& out) {
  for (const auto* send : {&cost.send_next, &cost.send_previous, &cost.send_wrap})
    out.transfers.insert(out.transfers.end(), send->begin(), send->end());
  for (int hop = 0; hop < kHops; ++hop)
    for (const std::int64_t tokens : cost.sharding.rank_tokens) {
      const bool moves = costs_.layout().pipeline > 1 && tokens > 0;
      out.transfer_bytes.push_back(moves ? costs_.kernels.pipeline_send(tokens, 0, 1, use_).bytes : 0);
    }
}

}  // namespace equipoise
