#include "sim/engine/op_engine.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <numeric>
#include <string>
#include <thread>

#include "sim/engine/op_rows.h"

namespace equipoise {
namespace {

using op_rows::CellContext;
using op_rows::NoObserver;
using op_rows::Scratch;

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

std::string describe(const ScheduleOp& op) {
  constexpr std::string_view kNames = "FBDRW";
  std::string text(1, kNames[static_cast<std::size_t>(op.kind)]);
  return text + " of micro-batch " + std::to_string(op.micro_batch) +
         (op.virtual_stage > 0 ? " on virtual stage " + std::to_string(op.virtual_stage) : "");
}

// "lane 0: stage 1 waits at F of micro-batch 2 for stage 0, which waits ..."
[[noreturn]] void report_stall(const OpProgram& program, std::size_t lane_number,
                               const std::vector<std::size_t>& next) {
  const OpLane& lane = program.lanes[lane_number];
  std::string text = "the step never ends: lane " + std::to_string(lane_number);
  for (std::size_t s = 0; s < lane.stages.size(); ++s) {
    if (next[s] == lane.stages[s].size()) continue;
    const OpCell& cell = lane.stages[s][next[s]];
    const OpCell& input = lane.stages[at(cell.input_stage)][at(cell.input_cell)];
    text += "; stage " + std::to_string(s) + " waits at " + describe(cell.op) + " for stage " +
            std::to_string(cell.input_stage) + "'s " + describe(input.op);
  }
  throw EngineError(text);
}

// One lane's pipeline. `filled[stage]` gets the times at which buckets were filled, [bucket * ranks + rank].
class LaneRun {
 public:
  LaneRun(const OpProgram& program, const OpOptions& options, std::size_t lane, SimTime begin,
          OpResult::Lane& result, std::vector<std::vector<SimTime>>& filled, Scratch& scratch)
      : program_(program),
        options_(options),
        number_(lane),
        lane_(program.lanes[lane]),
        result_(result),
        filled_(filled),
        scratch_(scratch),
        begin_(begin),
        ranks_(at(lane_.context) * at(program.tensor)) {}

  void run() {
    const std::size_t stages = lane_.stages.size();
    result_.start.resize(stages);
    result_.end.resize(stages);
    result_.compute.resize(stages);
    filled_.resize(stages);
    next_.assign(stages, 0);
    clock_.assign(ranks_, 0);
    for (std::size_t s = 0; s < stages; ++s) {
      result_.start[s].resize(lane_.stages[s].size() * ranks_);
      result_.end[s].resize(lane_.stages[s].size() * ranks_);
      result_.compute[s].assign(ranks_, 0);
      if (!program_.ends.empty() && !lane_.stages[s].empty())
        filled_[s].assign(program_.ends[s].buckets.size() * ranks_, 0);
    }
    // Stages wait only for each other: sweep down for forwards and up for backwards until nothing moves.
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t s = 0; s < stages; ++s) moved |= run_ready(s);
      for (std::size_t s = stages; s-- > 0;) moved |= run_ready(s);
    }
    for (std::size_t s = 0; s < stages; ++s)
      if (next_[s] < lane_.stages[s].size()) report_stall(program_, number_, next_);
  }

 private:
  bool run_ready(std::size_t stage) {
    bool moved = false;
    while (next_[stage] < lane_.stages[stage].size()) {
      const OpCell& cell = lane_.stages[stage][next_[stage]];
      if (cell.input_stage != kNoCell && next_[at(cell.input_stage)] <= at(cell.input_cell)) break;
      run_cell(stage, next_[stage]++, cell);
      moved = true;
    }
    return moved;
  }

  void run_cell(std::size_t stage, std::size_t index, const OpCell& cell) {
    SimTime* const start = result_.start[stage].data() + index * ranks_;
    SimTime* const end = result_.end[stage].data() + index * ranks_;
    if (index == 0)
      std::fill_n(start, ranks_, begin_);
    else
      leave_previous(lane_.stages[stage][index - 1], end - ranks_, start);
    if (cell.input_stage != kNoCell && at(cell.input_stage) != stage) await_input(cell, start);
    std::copy_n(start, ranks_, end);

    const CellContext context = op_rows::context_of(program_, options_, static_cast<int>(number_),
                                                    static_cast<int>(stage), static_cast<int>(index), speed_);
    NoObserver nobody;
    SimTime* const buckets = filled_[stage].empty() ? nullptr : filled_[stage].data();
    SimTime* const compute = result_.compute[stage].data();
    if (options_.jitter.sigma > 0)
      op_rows::run_cell<true>(context, cell, end, buckets, compute, scratch_, nobody);
    else
      op_rows::run_cell<false>(context, cell, end, buckets, compute, scratch_, nobody);
  }

  // When each rank is free again.
  void leave_previous(const OpCell& previous, const SimTime* end, SimTime* free) const {
    std::copy_n(end, ranks_, free);
    if (previous.blocking_send == kNoTransfer) return;
    for (std::size_t r = 0; r < ranks_; ++r)
      free[r] += lane_.transfers[static_cast<std::size_t>(previous.blocking_send) + r / at(program_.tensor)];
  }

  void await_input(const OpCell& cell, SimTime* start) const {
    const SimTime* const sent = result_.end[at(cell.input_stage)].data() + at(cell.input_cell) * ranks_;
    const SimTime* const transfer = lane_.transfers.data() + static_cast<std::size_t>(cell.transfer);
    for (std::size_t r = 0; r < ranks_; ++r)
      start[r] = std::max(start[r], sent[r] + transfer[r / at(program_.tensor)]);
  }

  const OpProgram& program_;
  const OpOptions& options_;
  std::size_t number_;
  const OpLane& lane_;
  OpResult::Lane& result_;
  std::vector<std::vector<SimTime>>& filled_;
  Scratch& scratch_;
  SimTime begin_;
  std::size_t ranks_;
  std::vector<std::size_t> next_;
  std::vector<SimTime> clock_;
  std::vector<double> speed_;
};

// Lanes of one barrier group, over the threads. The first fault by lane number is the one reported.
void run_lanes(const OpProgram& program, const OpOptions& options, const std::vector<std::size_t>& lanes,
               SimTime begin, OpResult& result, std::vector<std::vector<std::vector<SimTime>>>& filled) {
  std::vector<std::exception_ptr> faults(lanes.size());
  std::atomic<std::size_t> taken{0};
  const auto work = [&] {
    Scratch scratch;
    for (std::size_t i = taken++; i < lanes.size(); i = taken++) {
      try {
        LaneRun(program, options, lanes[i], begin, result.lanes[lanes[i]], filled[lanes[i]], scratch).run();
      } catch (...) {
        faults[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> helpers;
  const std::size_t threads = std::min(lanes.size(), static_cast<std::size_t>(std::max(1, options.threads)));
  for (std::size_t t = 1; t < threads; ++t) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  for (const std::exception_ptr& fault : faults)
    if (fault) std::rethrow_exception(fault);
}

SimTime last_end(const OpProgram& program, const OpResult& result, const std::vector<std::size_t>& lanes,
                 SimTime begin) {
  SimTime latest = begin;
  for (const std::size_t l : lanes)
    for (std::size_t s = 0; s < at(program.stages); ++s)
      for (const SimTime end : result.lanes[l].end[s]) latest = std::max(latest, end);
  return latest;
}

// Gradient buckets and what follows them, of one stage, for the ranks of one TP coordinate.
void run_stage_end(const OpProgram& program, std::size_t stage, std::size_t t,
                   const std::vector<std::vector<std::vector<SimTime>>>& filled, OpResult& result) {
  const StageEnd& end = program.ends[stage];
  const std::size_t tensor = at(program.tensor);
  std::vector<OpResult::Bucket>& buckets = result.buckets[stage * tensor + t];
  buckets.resize(end.buckets.size());
  SimTime done = 0;
  for (std::size_t l = 0; l < program.lanes.size(); ++l) {
    const std::size_t ranks = at(program.lanes[l].context) * tensor;
    const std::vector<SimTime>& ends = result.lanes[l].end[stage];
    for (std::size_t r = t; r < ranks && !ends.empty(); r += tensor) {
      done = std::max(done, ends[ends.size() - ranks + r]);
      for (std::size_t k = 0; k < buckets.size(); ++k) {
        const SimTime filled_at = filled[l][stage][k * ranks + r];
        if (buckets[k].last_lane >= 0 && filled_at <= buckets[k].filled) continue;
        buckets[k].filled = filled_at;
        buckets[k].last_lane = static_cast<std::int32_t>(l);
        buckets[k].last_rank = static_cast<std::int32_t>(r);
      }
    }
  }
  std::vector<std::size_t> order(buckets.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return buckets[a].filled < buckets[b].filled; });
  SimTime free = 0;
  for (const std::size_t k : order) {
    buckets[k].start = std::max(free, buckets[k].filled);
    free = buckets[k].end = buckets[k].start + end.buckets[k];
  }
  // The end's steps wait for the slowest replica's backward and the last bucket.
  done = std::max(done, free);
  result.end_begins[stage * tensor + t] = done;
  for (const SimTime duration : end.durations) done += duration;
  result.makespan = std::max(result.makespan, done);
}

}  // namespace

namespace op_rows {

CellContext context_of(const OpProgram& program, const OpOptions& options, int lane, int stage, int cell,
                       std::vector<double>& speed_buffer) {
  const OpLane& l = program.lanes[at(lane)];
  CellContext context{program, options, l, l.context, program.tensor, at(l.context) * at(program.tensor),
                      {},      0};
  if (!options.speed.empty()) {
    const std::size_t first = (at(stage) * at(program.replicas) + at(l.first_replica)) * at(program.tensor);
    if (first + context.ranks > options.speed.size())
      throw EngineError("speed factors are given for " + std::to_string(options.speed.size()) +
                        " GPUs; the program has more");
    speed_buffer.assign(options.speed.begin() + static_cast<std::ptrdiff_t>(first),
                        options.speed.begin() + static_cast<std::ptrdiff_t>(first + context.ranks));
    context.speed = speed_buffer;
  }
  const auto place = static_cast<std::uint64_t>(lane) * static_cast<std::uint64_t>(program.stages) +
                     static_cast<std::uint64_t>(stage);
  context.jitter_base = SplitMix64((place << 24) + static_cast<std::uint64_t>(cell)).next();
  return context;
}

}  // namespace op_rows

OpResult run(const OpProgram& program, const OpOptions& options) {
  check_program(program);
  OpResult result;
  result.lanes.resize(program.lanes.size());
  result.buckets.resize(at(program.stages) * at(program.tensor));
  result.end_begins.assign(result.buckets.size(), 0);
  result.tasks = program.tasks();
  std::vector<std::vector<std::vector<SimTime>>> filled(program.lanes.size());

  // Barrier groups in order; each starts when the one before has ended.
  std::vector<std::size_t> order(program.lanes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return program.lanes[a].barrier_group < program.lanes[b].barrier_group;
  });
  SimTime begin = 0;
  std::vector<std::size_t> group;
  for (std::size_t i = 0; i < order.size();) {
    group.clear();
    begin = result.pipeline_end;
    const int number = program.lanes[order[i]].barrier_group;
    for (; i < order.size() && program.lanes[order[i]].barrier_group == number; ++i)
      group.push_back(order[i]);
    run_lanes(program, options, group, begin, result, filled);
    result.pipeline_end = last_end(program, result, group, begin);
  }
  result.makespan = result.pipeline_end;
  for (std::size_t s = 0; s < program.ends.size(); ++s)
    for (std::size_t t = 0; t < at(program.tensor); ++t) run_stage_end(program, s, t, filled, result);
  return result;
}

void replay_cell(const OpProgram& program, const OpOptions& options, const OpResult& result, int lane,
                 int stage, int cell, OpSink& sink) {
  std::vector<double> speed;
  Scratch scratch;
  const CellContext context = op_rows::context_of(program, options, lane, stage, cell, speed);
  const auto first =
      result.lanes[at(lane)].start[at(stage)].begin() + static_cast<std::ptrdiff_t>(at(cell) * context.ranks);
  std::vector<SimTime> clock(first, first + static_cast<std::ptrdiff_t>(context.ranks));
  op_rows::SinkObserver observer{&sink};
  const OpCell& what = program.lanes[at(lane)].stages[at(stage)][at(cell)];
  if (options.jitter.sigma > 0)
    op_rows::run_cell<true>(context, what, clock.data(), nullptr, nullptr, scratch, observer);
  else
    op_rows::run_cell<false>(context, what, clock.data(), nullptr, nullptr, scratch, observer);
}

}  // namespace equipoise
