#include "sim/step/contended_state.h"

#include <algorithm>
#include <limits>
#include <memory>

namespace equipoise::contended {

// Whether the network can stretch a collective of folded TP ranks beyond its duration.
static bool slows_tensor(const LaneStage& here, const NetworkRoutes& routes) {
  double slowest = std::numeric_limits<double>::infinity();
  for (std::size_t c = 0; c < at(here.program->context); ++c) {
    const OpRoute& route =
        routes.collective(here.lane, here.stage, SyncGroup::tensor, c, OpName::tp_all_gather);
    if (route.flows) return true;
    slowest = std::min(slowest, route.limit);
  }
  const auto context = at(here.program->context);
  for (const OpBlock& block : here.program->blocks)
    for (std::size_t s = 0; s < block.steps.size(); ++s)
      for (std::size_t c = 0; block.steps[s].sync == SyncGroup::tensor && c < context; ++c) {
        const auto duration = static_cast<double>(block.durations[s * context + c]);
        if (duration > 0 && block.steps[s].bytes * kPicosecondsPerSecond / duration > slowest) return true;
      }
  return false;
}

State::State(const OpProgram& p, const OpOptions& o, const OpResult& a, const NetworkRoutes& r,
             const ContendedOptions& h)
    : program(p),
      options(o),
      alone(a),
      routes(r),
      how(h),
      tensor(at(p.tensor)),
      stages(at(p.stages)),
      result(a) {
  make_lane_stages();
  make_lockstep();
  make_ends();
}

void State::make_lane_stages() {
  std::vector<int> groups;  // groups that run something: an empty one is no barrier
  for (const OpLane& lane : program.lanes)
    if (!std::all_of(lane.stages.begin(), lane.stages.end(), [](const auto& ops) { return ops.empty(); }))
      groups.push_back(lane.barrier_group);
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  std::vector<std::uint32_t> running(groups.size(), 0);
  lane_stages.resize(program.lanes.size() * stages);
  for (std::size_t l = 0; l < program.lanes.size(); ++l) {
    const int group = program.lanes[l].barrier_group;
    const auto barrier = std::lower_bound(groups.begin(), groups.end(), group) - groups.begin();
    for (std::size_t s = 0; s < stages; ++s) {
      LaneStage& here = lane_stages[l * stages + s];
      here.lane = l;
      here.stage = s;
      here.barrier = at(barrier);
      make_lane_stage(here);
      if (!here.ops->empty()) running[here.barrier] += static_cast<std::uint32_t>(here.ranks);
      all_ops += static_cast<std::int64_t>(here.ops->size() * here.ranks);
    }
  }
  barriers = BarrierGroups(std::move(running));
}

void State::make_lane_stage(LaneStage& here) {
  const OpLane& lane = program.lanes[here.lane];
  here.program = &lane;
  here.ops = &lane.stages[here.stage];
  here.ranks = at(lane.context) * tensor;
  interpreter::context_of(program, options, static_cast<int>(here.lane), static_cast<int>(here.stage), 0,
                          here.speed);
  here.rank.resize(here.ranks);
  if (here.ops->empty())
    for (Rank& k : here.rank) k.wait = Wait::done;
  here.context.resize(tensor);
  here.tensor.resize(at(lane.context));
  here.receivers.resize(here.ops->size());
  for (std::size_t s = 0; s < stages; ++s)
    for (std::size_t i = 0; i < lane.stages[s].size() && s != here.stage; ++i) {
      const ScheduledOp& op = lane.stages[s][i];
      if (op.input_stage != kNoInput && at(op.input_stage) == here.stage)
        here.receivers[at(op.input_op)].push_back(
            {static_cast<std::uint32_t>(s), static_cast<std::uint32_t>(i)});
    }
  for (const ScheduledOp& op : *here.ops) {
    const bool sent = op.input_stage != kNoInput && at(op.input_stage) != here.stage;
    here.input_end.insert(here.input_end.end(), here.ranks, sent ? kUnknown : 0);
  }
  if (!program.ends.empty())
    here.filled.assign(program.ends[here.stage].buckets.size() * here.ranks, kUnknown);
  here.start = result.lanes[here.lane].start[here.stage].data();
  here.end = result.lanes[here.lane].end[here.stage].data();

  here.recorded.tensor = tensor > 1 || slows_tensor(here, routes);
  std::vector<std::size_t> of_block;
  for (const OpBlock& block : lane.blocks) {
    std::size_t& sum = of_block.emplace_back(0);
    for (const OpStep& step : block.steps) sum += recorded_ends(here, step);
  }
  std::size_t all = 0;
  for (const ScheduledOp& op : *here.ops) {
    here.recorded.first.push_back(all);
    for (std::uint32_t r = 0; r < op.run_count; ++r) {
      const BlockRun& run = lane.runs[op.first_run + r];
      all += run.repeat * of_block[run.block];
    }
  }
  here.recorded.collective_end.assign(all, 0);
}

void State::make_lockstep() {
  members.resize(at(program.lockstep_groups));
  lockstep.resize(members.size() * stages);
  for (std::size_t l = 0; l < program.lanes.size(); ++l) {
    const OpLane& lane = program.lanes[l];
    if (lane.lockstep == kNoLockstep) continue;
    LockstepMembers& group = members[at(lane.lockstep)];
    const auto groups = at(alone.lockstep_groups[at(lane.lockstep)].groups);
    group.expert.resize(std::max(group.expert.size(), groups));
    group.replicas.resize(group.expert.size());
    for (std::size_t r = 0; r < at(lane.context) * tensor; ++r) {
      const Place place{static_cast<std::uint32_t>(l), static_cast<std::uint32_t>(r)};
      const auto index = [&](SyncGroup sync) {
        return interpreter::sync_index(lane, r, sync, static_cast<int>(tensor));
      };
      group.expert[index(SyncGroup::expert)].push_back(place);
      group.replicas[index(SyncGroup::replicas)].push_back(place);
    }
    for (std::size_t s = 0; s < stages; ++s) {
      LockstepStage& stage = lockstep[at(lane.lockstep) * stages + s];
      stage.expert.resize(groups);
      stage.replicas.resize(groups);
      stage.background.resize(tensor);
      stage.before.assign(lane.stages[s].size() * tensor, 0);
    }
  }
}

void State::make_ends() {
  for (auto& buckets : result.buckets)
    for (OpResult::Bucket& bucket : buckets) bucket = {};
  recorded.steps_end.resize(result.buckets.size());
  for (std::size_t s = 0; s < program.ends.size(); ++s) {
    const std::size_t buckets = program.ends[s].buckets.size();
    std::vector<std::uint32_t> ranks_that_fill(buckets, 0);
    std::uint32_t ranks = 0;  // of each TP coordinate
    for (const OpLane& lane : program.lanes) {
      const auto context = static_cast<std::uint32_t>(lane.context);
      ranks += lane.stages[s].empty() ? 0 : context;
      for (const ScheduledOp& op : lane.stages[s])
        for (std::uint32_t r = 0; r < op.run_count; ++r) {
          const BlockRun& run = lane.runs[op.first_run + r];
          for (std::uint32_t i = 0; run.bucket != kNoBucket && i < run.repeat; ++i)
            ranks_that_fill[at(run.bucket) + i] += context;
        }
    }
    for (std::size_t t = 0; t < tensor; ++t) {
      StageEndRun& end = ends.emplace_back();
      end.begin(alone.buckets[s * tensor + t]);
      end.missing = ranks_that_fill;
      end.running_ranks = ranks;
      recorded.steps_end[s * tensor + t].assign(program.ends[s].steps.size(), 0);
    }
  }
}

OpResult State::take_result() {
  for (const LaneStage& here : lane_stages)
    for (std::size_t r = 0; r < here.rank.size(); ++r)
      if (here.rank[r].wait != Wait::done)
        throw EngineError("the step never ends: rank ", r, " of stage ", here.stage, ", lane ", here.lane,
                          ", stops at scheduled op ", here.rank[r].scheduled);
  result.pipeline_end = 0;
  recorded.lanes.resize(program.lanes.size());
  for (LaneStage& here : lane_stages) {
    const auto& ends_of = result.lanes[here.lane].end[here.stage];
    for (const Picoseconds end : ends_of) result.pipeline_end = std::max(result.pipeline_end, end);
    here.recorded.input_end = std::move(here.input_end);
    recorded.lanes[here.lane].push_back(std::move(here.recorded));
  }
  result.makespan = result.pipeline_end;
  for (const StageEndRun& end : ends) result.makespan = std::max(result.makespan, end.busy);
  for (std::size_t g = 0; g < members.size(); ++g)
    for (std::size_t s = 0; s < stages; ++s) {
      const LockstepStage& stage = lockstep[g * stages + s];
      std::vector<Picoseconds>& network = result.lockstep_groups[g].network[s];
      for (std::size_t i = 0; i < stage.before.size(); ++i)
        network[i] = stage.before[i] == 0 ? 0 : stage.background[i % tensor].ops[stage.before[i] - 1].end;
    }
  result.recorded = std::make_shared<const RecordedTimes>(std::move(recorded));
  return std::move(result);
}

}  // namespace equipoise::contended
