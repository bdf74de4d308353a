#include "sim/engine/op/contended_step.h"

#include <algorithm>
#include <utility>

#include "sim/engine/op/contention.h"

namespace equipoise {
namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

std::vector<Picoseconds> times_of(const std::vector<TaskId>& tasks, const std::vector<Picoseconds>& of_task) {
  std::vector<Picoseconds> times;
  times.reserve(tasks.size());
  for (const TaskId task : tasks) times.push_back(task == kNoTask ? 0 : of_task[task]);
  return times;
}

// What a rank that was free waited for inputs on their way: of a scheduled op, or of the two of a pair, whose
// common time counts once.
Picoseconds waited_for_inputs(const EngineResult& times, const LoweredProgram::Stage& stage, std::size_t one,
                              std::size_t other, Picoseconds free) {
  TaskId first = stage.input[one], second = one == other ? kNoTask : stage.input[other];
  if (first == kNoTask || (second != kNoTask && times.start[second] < times.start[first]))
    std::swap(first, second);
  Picoseconds waited = 0;
  for (const TaskId input : {first, second}) {
    if (input == kNoTask) continue;
    waited += std::max<Picoseconds>(0, times.end[input] - std::max(times.start[input], free));
    free = std::max(free, times.end[input]);
  }
  return waited;
}

}  // namespace

ContendedStep::ContendedStep(const OpProgram& program, const OpOptions& options, const OpResult& alone,
                             const RankGrid& grid, const Fabric& fabric)
    : program_(program),
      lowered_(lower(program, options, alone)),
      shared_(run_with_contention(lowered_.graph, traffic_of(lowered_, program, grid, fabric))) {
  count_added();
  make_result(alone);
}

void ContendedStep::make_result(const OpResult& alone) {
  result_ = alone;
  result_.makespan = shared_.makespan;
  result_.pipeline_end = 0;
  RecordedTimes recorded;
  recorded.start = times_of(lowered_.op_tasks, shared_.start);
  recorded.end = times_of(lowered_.op_tasks, shared_.end);
  recorded.lanes.resize(lowered_.lanes.size());
  for (std::size_t l = 0; l < lowered_.lanes.size(); ++l)
    for (std::size_t s = 0; s < lowered_.lanes[l].size(); ++s) {
      const LoweredProgram::Stage& stage = lowered_.lanes[l][s];
      result_.lanes[l].start[s] = times_of(stage.begin, shared_.end);
      result_.lanes[l].end[s] = times_of(stage.end, shared_.end);
      const std::vector<ScheduledOp>& ops = program_.lanes[l].stages[s];
      const std::size_t ranks = at(program_.lanes[l].context) * at(program_.tensor);
      for (std::size_t c = 0; c < ops.size(); ++c)
        if (ends_pair(ops, c)) {
          const auto first = result_.lanes[l].start[s].begin() + static_cast<std::ptrdiff_t>((c - 1) * ranks);
          std::copy_n(first, ranks, first + static_cast<std::ptrdiff_t>(ranks));
        }
      for (const Picoseconds end : result_.lanes[l].end[s])
        result_.pipeline_end = std::max(result_.pipeline_end, end);
      recorded.lanes[l].push_back({stage.first, times_of(stage.input, shared_.end)});
    }
  for (std::size_t e = 0; e < lowered_.ends.size(); ++e) {
    const LoweredProgram::End& end = lowered_.ends[e];
    for (std::size_t k = 0; k < end.buckets.size(); ++k) {
      result_.buckets[e][k].start = shared_.start[end.buckets[k]];
      result_.buckets[e][k].end = shared_.end[end.buckets[k]];
    }
    result_.end_begins[e] = shared_.end[end.border];
    recorded.steps_end.push_back(times_of(end.steps, shared_.end));
  }
  result_.recorded = std::make_shared<const RecordedTimes>(std::move(recorded));
}

std::vector<PathSegment> ContendedStep::critical_path() const {
  const TaskGraph& graph = lowered_.graph;
  // Who ends when a task starts, among those that it waits for.
  std::vector<TaskId> cause(graph.tasks(), kNoTask);
  const auto is_compute = [&](TaskId t) { return lowered_.origin[t].stream == Stream::compute; };
  for (TaskId before = 0; before < graph.tasks(); ++before)
    for (const TaskId after : graph.successors(before)) {
      if (shared_.end[before] != shared_.start[after]) continue;
      TaskId& known = cause[after];
      if (known == kNoTask || (is_compute(before) && !is_compute(known))) known = before;
    }
  TaskId task = kNoTask;
  for (TaskId t = 0; t < graph.tasks(); ++t)
    if (shared_.end[t] == shared_.makespan && (task == kNoTask || (is_compute(t) && !is_compute(task))))
      task = t;
  std::vector<PathSegment> path;
  for (; task != kNoTask; task = cause[task]) {
    const LoweredTask& what = lowered_.origin[task];
    if (shared_.start[task] == shared_.end[task]) continue;
    PathSegment& segment = path.emplace_back();
    segment.start = shared_.start[task];
    segment.end = shared_.end[task];
    segment.name = what.name;
    segment.stream = what.stream;
    segment.lane = what.lane;
    segment.stage = what.stage;
    segment.rank = what.rank;
    if (what.lane < 0) continue;
    const std::vector<ScheduledOp>& ops = program_.lanes[at(what.lane)].stages[at(what.stage)];
    const ScheduleOp& op = ops[at(what.scheduled) + (what.of_second ? 1 : 0)].op;
    segment.micro_batch = op.micro_batch;
    segment.kind = op.kind;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

void ContendedStep::count_added() {
  added_ = exposed(shared_);
  const ExposedTime alone = exposed(run(lowered_.graph));
  for (std::size_t s = 0; s < kStreams; ++s) added_.by_stream[s] -= alone.by_stream[s];
  for (std::size_t l = 0; l < added_.in_ops.size(); ++l) {
    added_.in_ops[l] -= alone.in_ops[l];
    added_.in_recompute[l] -= alone.in_recompute[l];
  }
}

ExposedTime ContendedStep::exposed(const EngineResult& times) const {
  ExposedTime out;
  out.in_ops.assign(program_.lanes.size(), 0);
  out.in_recompute = out.in_ops;
  const auto count = [&out](Stream stream, Picoseconds time) {
    out.by_stream[static_cast<std::size_t>(stream)] += time;
  };
  std::vector<Picoseconds> free;  // by rank: its latest op ends
  for (std::size_t l = 0; l < program_.lanes.size(); ++l) {
    const OpLane& lane = program_.lanes[l];
    const std::size_t ranks = at(lane.context) * at(program_.tensor);
    for (std::size_t s = 0; s < lane.stages.size(); ++s) {
      const LoweredProgram::Stage& stage = lowered_.lanes[l][s];
      free.assign(ranks, 0);
      for (std::size_t c = 0; c < lane.stages[s].size(); ++c) {
        const ScheduledOp& scheduled = lane.stages[s][c];
        Picoseconds inside = 0;
        for (std::size_t r = 0; r < ranks; ++r) {
          if (ends_pair(lane.stages[s], c)) continue;  // counted with the first
          count(Stream::pp,
                waited_for_inputs(times, stage, c * ranks + r,
                                  scheduled.op.with_next ? (c + 1) * ranks + r : c * ranks + r, free[r]));
          free[r] = times.end[stage.begin[c * ranks + r]];
        }
        std::size_t row = stage.first[c];
        for (std::uint32_t n = 0; n < scheduled.run_count; ++n) {
          const BlockRun& run = lane.runs[scheduled.first_run + n];
          const std::vector<OpStep>& steps = lane.blocks[run.block].steps;
          for (std::uint32_t repetition = 0; repetition < run.repeat; ++repetition)
            for (std::size_t i = 0; i < steps.size(); ++i, row += ranks)
              for (std::size_t r = 0; r < ranks; ++r) {
                const auto lasts = [&](std::size_t of_row) {
                  const TaskId task = lowered_.op_tasks[of_row + r];
                  return times.end[task] - times.start[task];
                };
                const Picoseconds end = times.end[lowered_.op_tasks[row + r]];
                const OpStep& step = steps[i];
                if (step.waits) count(Stream::dp, std::max<Picoseconds>(0, end - free[r]));
                const bool second = i > 0 && steps[i - 1].with_next;
                if (step.over > 0) {  // what is exposed of it begins when nothing runs under it any more
                  Picoseconds from = times.start[lowered_.op_tasks[row + r]];
                  for (std::size_t u = 1; u <= step.over; ++u)
                    from = std::max(from, times.end[lowered_.op_tasks[row + u * ranks + r]]);
                  const Picoseconds exposed = std::max<Picoseconds>(0, end - from);
                  count(step.stream, exposed);
                  inside += exposed;
                  continue;  // the ops under it begin when the rank came here
                }
                if (step.stream != Stream::compute && !step.background && !step.waits) {
                  const Picoseconds under = step.with_next ? lasts(row + ranks)
                                            : second       ? lasts(row - ranks)
                                                           : 0;
                  const Picoseconds exposed = std::max<Picoseconds>(0, lasts(row) - under);
                  count(step.stream, exposed);
                  inside += exposed;
                }
                if (!step.background) free[r] = std::max(free[r], end);
              }
        }
        (scheduled.op.kind == OpKind::R ? out.in_recompute : out.in_ops)[l] += inside;
      }
    }
  }
  return out;
}

}  // namespace equipoise
