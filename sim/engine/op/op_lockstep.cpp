#include "sim/engine/op/op_lockstep.h"

#include <string>

#include "policies/base/index.h"

namespace equipoise::op_rows {
namespace {

int groups_of(const OpProgram& program, const std::vector<std::size_t>& lanes) {
  int experts = 1;
  for (const std::size_t l : lanes)
    for (const int group : program.lanes[l].expert_group) experts = std::max(experts, group + 1);
  return experts * program.tensor;
}

template <bool kJitter>
class GroupRun {
 public:
  GroupRun(const OpProgram& program, const OpOptions& options, const std::vector<std::size_t>& lanes,
           Picoseconds begin, OpResult& result, std::vector<std::vector<std::vector<Picoseconds>>>& filled)
      : program_(program),
        options_(options),
        lockstep_(result.lockstep_groups[at(program.lanes[lanes.front()].lockstep)]),
        network_(at(program.stages) * at(program.tensor), 0),
        speed_(lanes.size()) {
    for (const std::size_t l : lanes)
      lanes_.emplace_back(program, options, l, begin, result.lanes[l], filled[l]);
    lockstep_.groups = groups_of(program, lanes);
    lockstep_.scheduled_ops.resize(at(program.stages));
    lockstep_.network.resize(at(program.stages));
  }

  void run() {
    sweep_stages(at(program_.stages), [&](std::size_t stage) { return run_ready(stage); });
    for (const LaneRun& lane : lanes_) lane.check_finished();
  }

 private:
  using Cursor = OpCursor<kJitter, NoObserver>;

  bool run_ready(std::size_t stage) {
    bool moved = false;
    while (std::all_of(lanes_.begin(), lanes_.end(), [&](const LaneRun& l) { return l.ready(stage); })) {
      run_scheduled_op(stage);
      for (LaneRun& lane : lanes_) lane.close(stage);
      moved = true;
    }
    return moved;
  }

  void run_scheduled_op(std::size_t stage) {
    Picoseconds* const network = network_.data() + stage * at(program_.tensor);
    lockstep_.network[stage].insert(lockstep_.network[stage].end(), network, network + program_.tensor);
    std::vector<Cursor> cursors;
    cursors.reserve(lanes_.size());
    for (std::size_t l = 0; l < lanes_.size(); ++l) {
      LaneRun& lane = lanes_[l];
      Picoseconds* const clock = lane.open(stage);
      cursors.emplace_back(lane.context(stage, speed_[l]), lane.scheduled(stage), clock, lane.buckets(stage),
                           lane.compute(stage), network, nobody_);
    }
    // A base of its own for the jitter of ops that no single lane owns.
    const auto place =
        static_cast<std::uint64_t>(lanes_.front().lane().lockstep) * at(program_.stages) + stage;
    jitter_base_ = ~SplitMix64((place << 24) + lanes_.front().position(stage)).next();
    std::vector<OpResult::Synchronization>& synchronizations = lockstep_.scheduled_ops[stage].emplace_back();
    while (const OpStep* step = next_synchronization(cursors))
      synchronize(*step, cursors, synchronizations, network);
  }

  // All lanes run to their next op that meets others; null when all are through.
  const OpStep* next_synchronization(std::vector<Cursor>& cursors) {
    const OpStep* first = nullptr;
    for (std::size_t l = 0; l < cursors.size(); ++l) {
      const OpStep* const step = cursors[l].next();
      if (l == 0) first = step;
      const auto text = [](const OpStep* s) { return s == nullptr ? "its end" : name_of(s->name); };
      if ((step == nullptr) != (first == nullptr) ||
          (step != nullptr && (step->name != first->name || step->background != first->background)))
        throw EngineError("size mismatch: lane " + std::to_string(lanes_[0].number()) + " comes to " +
                          text(first) + " where lane " + std::to_string(lanes_[l].number()) + " comes to " +
                          text(step));
    }
    return first;
  }

  void synchronize(const OpStep& step, std::vector<Cursor>& cursors,
                   std::vector<OpResult::Synchronization>& synchronizations, Picoseconds* network) {
    const std::size_t first = synchronizations.size();
    synchronizations.resize(first + at(lockstep_.groups));
    OpResult::Synchronization* const of_group = synchronizations.data() + first;
    for (std::size_t l = 0; l < cursors.size(); ++l) {
      const OpLane& lane = lanes_[l].lane();
      const Picoseconds* const duration = cursors[l].durations();
      for (std::size_t r = 0; r < at(lane.context) * at(program_.tensor); ++r) {
        OpResult::Synchronization& m = of_group[sync_index(lane, r, step.sync, program_.tensor)];
        m.end = std::max(m.end, duration[r]);  // a duration until the start is known, below
        if (m.lane >= 0 && cursors[l].clock()[r] <= m.arrived) continue;
        m.arrived = cursors[l].clock()[r];
        m.lane = static_cast<std::int32_t>(lanes_[l].number());
        m.rank = static_cast<std::int32_t>(r);
      }
    }
    for (std::size_t g = 0; g < at(lockstep_.groups); ++g) {
      OpResult::Synchronization& m = of_group[g];
      Picoseconds duration = m.end;
      if (kJitter) duration = scaled(duration, options_.jitter.factor(jitter_base_ + first + g));
      Picoseconds& busy = network[g % at(program_.tensor)];
      m.start = step.background ? std::max(m.arrived, busy) : m.arrived;
      m.end = m.start + duration;
      if (step.background && m.lane >= 0) busy = m.end;
    }
    for (std::size_t l = 0; l < cursors.size(); ++l) {
      const OpLane& lane = lanes_[l].lane();
      cursors[l].pass(
          [&](std::size_t r) { return of_group[sync_index(lane, r, step.sync, program_.tensor)].end; });
    }
  }

  const OpProgram& program_;
  const OpOptions& options_;
  OpResult::Lockstep& lockstep_;
  std::vector<LaneRun> lanes_;
  std::vector<Picoseconds> network_;  // by stage and TP coordinate: the last background op ends
  std::vector<std::vector<double>> speed_;
  std::uint64_t jitter_base_ = 0;
  NoObserver nobody_;
};

// `network`: by TP coordinate, when the background ops of the scheduled ops before have ended.
template <bool kJitter>
void replay(const OpContext& context, const ScheduledOp& scheduled, std::vector<Picoseconds>& clock,
            const OpResult::Lockstep& lockstep,
            const std::vector<OpResult::Synchronization>& synchronizations, std::vector<Picoseconds> network,
            SinkObserver& observer) {
  OpCursor<kJitter, SinkObserver> cursor(context, scheduled, clock.data(), nullptr, nullptr, network.data(),
                                         observer);
  std::size_t first = 0;
  while (const OpStep* step = cursor.next()) {
    const Place& place = cursor.place();
    const auto group_of = [&](std::size_t r) {
      return first + sync_index(context.lane, r, step->sync, context.tensor);
    };
    for (std::size_t r = 0; r < context.ranks; ++r) {
      const OpResult::Synchronization& m = synchronizations[group_of(r)];
      observer.on_op({place.run, place.repetition, place.step, static_cast<int>(r), clock[r], m.start, m.end,
                      m.rank, m.lane, static_cast<int>(group_of(r))});
      if (step->background) network[r % at(context.tensor)] = m.end;
    }
    cursor.pass([&](std::size_t r) { return synchronizations[group_of(r)].end; });
    first += at(lockstep.groups);
  }
}

}  // namespace

void run_lockstep(const OpProgram& program, const OpOptions& options, const std::vector<std::size_t>& lanes,
                  Picoseconds begin, OpResult& result,
                  std::vector<std::vector<std::vector<Picoseconds>>>& filled) {
  if (options.jitter.sigma > 0)
    GroupRun<true>(program, options, lanes, begin, result, filled).run();
  else
    GroupRun<false>(program, options, lanes, begin, result, filled).run();
}

void replay_lockstep_op(const OpProgram& program, const OpOptions& options, const OpResult& result, int lane,
                        int stage, int scheduled, OpSink& sink) {
  std::vector<double> speed;
  const OpContext context = context_of(program, options, lane, stage, scheduled, speed);
  const OpResult::Lockstep& lockstep = result.lockstep_groups[at(program.lanes[at(lane)].lockstep)];
  const auto first = result.lanes[at(lane)].start[at(stage)].begin() +
                     static_cast<std::ptrdiff_t>(at(scheduled) * context.ranks);
  std::vector<Picoseconds> clock(first, first + static_cast<std::ptrdiff_t>(context.ranks));
  SinkObserver observer = observer_of(result, lane, stage, scheduled, sink);
  const ScheduledOp& what = program.lanes[at(lane)].stages[at(stage)][at(scheduled)];
  const auto& synchronizations = lockstep.scheduled_ops[at(stage)][at(scheduled)];
  const auto before = lockstep.network[at(stage)].begin() + std::ptrdiff_t{scheduled} * program.tensor;
  const std::vector<Picoseconds> network(before, before + program.tensor);
  if (options.jitter.sigma > 0)
    replay<true>(context, what, clock, lockstep, synchronizations, network, observer);
  else
    replay<false>(context, what, clock, lockstep, synchronizations, network, observer);
}

}  // namespace equipoise::op_rows
