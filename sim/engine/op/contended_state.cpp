#include "sim/engine/op/contended_state.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "policies/base/index.h"
#include "sim/engine/op/op_lockstep.h"

namespace equipoise::contended {
namespace {

// Whether a collective of folded TP ranks can take longer than it says.
bool slows_tensor(const Cell& cell, const NetworkRoutes& routes) {
  double slowest = std::numeric_limits<double>::infinity();
  for (std::size_t c = 0; c < at(cell.program->context); ++c) {
    const OpRoute& route = routes.collective(cell.lane, cell.stage, SyncGroup::tensor, c);
    if (route.flows) return true;
    slowest = std::min(slowest, route.limit);
  }
  const auto context = at(cell.program->context);
  for (const OpBlock& block : cell.program->blocks)
    for (std::size_t s = 0; s < block.steps.size(); ++s)
      for (std::size_t c = 0; block.steps[s].sync == SyncGroup::tensor && c < context; ++c) {
        const auto duration = static_cast<double>(block.durations[s * context + c]);
        if (duration > 0 && block.steps[s].bytes * kPicosecondsPerSecond / duration > slowest) return true;
      }
  return false;
}

}  // namespace

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
  make_cells();
  make_lockstep();
  make_ends();
}

void State::make_cells() {
  std::vector<int> groups;  // that run something: others are no barrier
  for (const OpLane& lane : program.lanes)
    if (!std::all_of(lane.stages.begin(), lane.stages.end(), [](const auto& ops) { return ops.empty(); }))
      groups.push_back(lane.barrier_group);
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  barrier_running.assign(groups.size(), 0);
  barrier_end.assign(groups.size(), 0);
  cells.resize(program.lanes.size() * stages);
  for (std::size_t l = 0; l < program.lanes.size(); ++l) {
    const int group = program.lanes[l].barrier_group;
    const auto barrier = std::lower_bound(groups.begin(), groups.end(), group) - groups.begin();
    for (std::size_t s = 0; s < stages; ++s) {
      Cell& cell = cells[l * stages + s];
      cell.lane = l;
      cell.stage = s;
      cell.barrier = static_cast<std::size_t>(barrier);
      make_cell(cell);
      if (!cell.ops->empty()) barrier_running[cell.barrier] += static_cast<std::uint32_t>(cell.ranks);
      all_ops += static_cast<std::int64_t>(cell.ops->size() * cell.ranks);
    }
  }
  barrier_begin.assign(groups.size(), kUnknown);
  if (!groups.empty()) barrier_begin.front() = 0;
}

void State::make_cell(Cell& cell) {
  const OpLane& lane = program.lanes[cell.lane];
  cell.program = &lane;
  cell.ops = &lane.stages[cell.stage];
  cell.ranks = at(lane.context) * tensor;
  op_rows::context_of(program, options, static_cast<int>(cell.lane), static_cast<int>(cell.stage), 0,
                      cell.speed);
  cell.rank.resize(cell.ranks);
  if (cell.ops->empty())
    for (Rank& k : cell.rank) k.wait = Wait::done;
  cell.context.resize(tensor);
  cell.tensor.resize(at(lane.context));
  cell.receivers.resize(cell.ops->size());
  for (std::size_t s = 0; s < stages; ++s)
    for (std::size_t i = 0; i < lane.stages[s].size() && s != cell.stage; ++i) {
      const ScheduledOp& op = lane.stages[s][i];
      if (op.input_stage != kNoInput && at(op.input_stage) == cell.stage)
        cell.receivers[at(op.input_op)].push_back(
            {static_cast<std::uint32_t>(s), static_cast<std::uint32_t>(i)});
    }
  for (const ScheduledOp& op : *cell.ops) {
    const bool sent = op.input_stage != kNoInput && at(op.input_stage) != cell.stage;
    cell.input_end.insert(cell.input_end.end(), cell.ranks, sent ? kUnknown : 0);
  }
  if (!program.ends.empty())
    cell.filled.assign(program.ends[cell.stage].buckets.size() * cell.ranks, kUnknown);
  cell.start = result.lanes[cell.lane].start[cell.stage].data();
  cell.end = result.lanes[cell.lane].end[cell.stage].data();

  cell.recorded.tensor = tensor > 1 || slows_tensor(cell, routes);
  std::vector<std::size_t> of_block;
  for (const OpBlock& block : lane.blocks) {
    std::size_t& sum = of_block.emplace_back(0);
    for (const OpStep& step : block.steps) sum += meetings(cell, step);
  }
  std::size_t all = 0;
  for (const ScheduledOp& op : *cell.ops) {
    cell.recorded.first.push_back(all);
    for (std::uint32_t r = 0; r < op.run_count; ++r) {
      const BlockRun& run = lane.runs[op.first_run + r];
      all += run.repeat * of_block[run.block];
    }
  }
  cell.recorded.meeting_end.assign(all, 0);
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
        return op_rows::sync_index(lane, r, sync, static_cast<int>(tensor));
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
      End& end = ends.emplace_back();
      end.stage = s;
      end.tensor = t;
      end.missing = ranks_that_fill;
      end.running_ranks = ranks;
      end.order.resize(buckets);
      std::iota(end.order.begin(), end.order.end(), 0U);
      const auto& of_alone = alone.buckets[s * tensor + t];
      std::stable_sort(end.order.begin(), end.order.end(), [&](std::uint32_t a, std::uint32_t b) {
        return of_alone[a].filled < of_alone[b].filled;
      });
      recorded.steps_end[s * tensor + t].assign(program.ends[s].steps.size(), 0);
    }
  }
}

OpResult State::take_result() {
  for (const Cell& cell : cells)
    for (std::size_t r = 0; r < cell.rank.size(); ++r)
      if (cell.rank[r].wait != Wait::done)
        throw EngineError("the step never ends: rank " + std::to_string(r) + " of stage " +
                          std::to_string(cell.stage) + ", lane " + std::to_string(cell.lane) +
                          ", stops at scheduled op " + std::to_string(cell.rank[r].scheduled));
  result.pipeline_end = 0;
  recorded.lanes.resize(program.lanes.size());
  for (Cell& cell : cells) {
    const auto& ends_of = result.lanes[cell.lane].end[cell.stage];
    for (const Picoseconds end : ends_of) result.pipeline_end = std::max(result.pipeline_end, end);
    cell.recorded.input_end = std::move(cell.input_end);
    recorded.lanes[cell.lane].push_back(std::move(cell.recorded));
  }
  result.makespan = result.pipeline_end;
  for (const End& end : ends) result.makespan = std::max(result.makespan, end.busy);
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
