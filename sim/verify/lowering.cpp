#include "sim/verify/lowering.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "policies/base/index.h"
#include "sim/step/op_interpreter.h"

namespace equipoise {
namespace {

// What a rank's next op waits for: its latest op or both ops of a pair, and an exchange that they overlapped.
struct Tail {
  std::array<TaskId, 3> tasks;
  explicit Tail(TaskId latest = kNoTask) : tasks{latest, kNoTask, kNoTask} {}
};

// An open exchange of experts, and how many more steps it overlaps.
struct OpenExchange {
  TaskId task = kNoTask;
  std::uint32_t under = 0;
};

class Lowering final : public OpSink {
 public:
  Lowering(const OpProgram& program, const OpOptions& options, const OpResult& result)
      : program_(program), options_(options), result_(result) {}

  LoweredProgram lower() {
    begin_of_.resize(program_.lanes.size());
    end_of_.resize(program_.lanes.size());
    filled_.resize(program_.lanes.size());
    out_.lanes.resize(program_.lanes.size());
    out_.ends.resize(program_.ends.size() * at(program_.tensor));
    for (std::size_t l = 0; l < program_.lanes.size(); ++l) lower_lane(l);
    join_barrier_groups();
    for (std::size_t s = 0; s < program_.ends.size(); ++s) lower_stage_end(s);
    builder_.name_tasks([origin = origin_](TaskId t) {
      const LoweredTask& o = origin[t];
      return std::string(o.marker ? "border" : name_of(o.name)) + " of rank " + std::to_string(o.rank) +
             ", stage " + std::to_string(o.stage) + ", lane " + std::to_string(o.lane);
    });
    for (std::size_t l = 0; l < program_.lanes.size(); ++l)
      for (std::size_t s = 0; s < out_.lanes[l].size(); ++s) {
        out_.lanes[l][s].begin = std::move(begin_of_[l][s]);
        out_.lanes[l][s].end = std::move(end_of_[l][s]);
      }
    out_.graph = builder_.build();
    out_.origin = std::move(origin_);
    return std::move(out_);
  }

  void on_op(const OpEvent& op) override {
    const OpLane& lane = program_.lanes[lane_];
    const OpBlock& block = lane.blocks[lane.runs[scheduled_->first_run + op.run].block];
    of_second_ = block_of_second(*scheduled_, block);
    const std::uint32_t step = op.step;
    if (block.steps[step].waits) return wait(op);
    if (op.synchronization >= 0) return synchronize(block.steps[step], op);
    const bool second = step > 0 && block.steps[step - 1].with_next;
    (second ? partner_ : row_)[at(op.rank)] = op.end - op.start;
    const bool pair = second || block.steps[step].with_next;
    if (at(op.rank) + 1 < ranks_ || (pair && !second)) return;  // the row continues
    const std::uint32_t first = second ? step - 1 : step;
    finish_row(block, op, first, pair);
  }

  void on_repetition(std::uint32_t run, std::uint32_t repetition) override {
    const BlockRun& block_run = program_.lanes[lane_].runs[scheduled_->first_run + run];
    if (block_run.bucket != kNoBucket) filled_[lane_][stage_][at(block_run.bucket) + repetition] = tail_;
  }

 private:
  TaskId add(TaskId task, OpName name, Stream stream, std::size_t rank, bool marker = false) {
    origin_.resize(std::size_t{task} + 1);
    origin_[task] = {name,
                     stream,
                     static_cast<std::int32_t>(lane_),
                     static_cast<std::int32_t>(stage_),
                     static_cast<std::int32_t>(scheduled_number_),
                     static_cast<std::int32_t>(rank),
                     marker,
                     false,
                     SyncGroup::none,
                     0,
                     -1};
    return task;
  }
  void add(TaskId task, const OpStep& step, std::size_t rank) {
    add(task, step.name, step.stream, rank);
    origin_[task].sync = step.sync;
    origin_[task].bytes = step.bytes;
    origin_[task].of_second = of_second_ || step.of_second;
  }
  StreamId stream(std::size_t rank, Stream which) {
    return streams_[stage_][rank * kStreams + static_cast<std::size_t>(which)];
  }
  void depend(const Tail& tail, TaskId task) {
    for (const TaskId before : tail.tasks)
      if (before != kNoTask) builder_.add_dependency(before, task);
  }
  TaskId marker(std::size_t rank) {
    const TaskId task = builder_.add_task(stream(rank, Stream::compute), 0);
    depend(tail_[rank], task);
    tail_[rank] = Tail(task);
    return add(task, OpName::host_stall, Stream::compute, rank, true);
  }

  // Records which task stands for an op of a rank.
  void note(const OpEvent& op, std::uint32_t step, std::size_t rank, TaskId task) {
    out_.op_tasks[out_.lanes[lane_][stage_].first.back() + rows_->of(op.run, op.repetition, step) * ranks_ +
                  rank] = task;
  }

  // An op of several lanes is one task, which is made when the first of them arrives at it.
  void synchronize(const OpStep& step, const OpEvent& op) {
    const auto [known, is_new] =
        synchronizations_.try_emplace({program_.lanes[lane_].lockstep, static_cast<int>(stage_),
                                       static_cast<int>(scheduled_number_), op.synchronization},
                                      kNoTask);
    TaskId& latest = background_[at(op.rank % program_.tensor)];
    if (is_new) {
      known->second = builder_.add_task(builder_.add_stream(-1), op.end - op.start);
      add(known->second, step, at(op.rank));
      if (step.background && latest != kNoTask) builder_.add_dependency(latest, known->second);
    }
    double& bytes = origin_[known->second].bytes;
    bytes = std::max(bytes, step.bytes);
    note(op, op.step, at(op.rank), known->second);
    depend(tail_[at(op.rank)], known->second);
    if (step.background)
      latest = known->second;
    else if (step.over > 0)
      exchange_[at(op.rank)] = {known->second, step.over};
    else
      tail_[at(op.rank)] = Tail(known->second);
  }
  // Counts steps that a rank has run, of which the last may be the last that an exchange overlaps.
  void ran_under(std::size_t rank, std::uint32_t steps) {
    OpenExchange& exchange = exchange_[rank];
    if (exchange.under == 0) return;
    exchange.under -= steps;
    if (exchange.under == 0) tail_[rank].tasks[2] = exchange.task;
  }
  void wait(const OpEvent& op) {
    const std::size_t rank = at(op.rank);
    const TaskId latest = background_[rank % at(program_.tensor)];
    const TaskId task = marker(rank);
    note(op, op.step, rank, task);
    if (latest != kNoTask) builder_.add_dependency(latest, task);
  }

  void lower_lane(std::size_t number) {
    lane_ = number;
    const OpLane& lane = program_.lanes[number];
    ranks_ = at(lane.context) * at(program_.tensor);
    row_.assign(ranks_, 0);
    partner_.assign(ranks_, 0);
    streams_.assign(lane.stages.size(), {});
    begin_of_[number].resize(lane.stages.size());
    end_of_[number].resize(lane.stages.size());
    filled_[number].resize(lane.stages.size());
    out_.lanes[number].resize(lane.stages.size());
    for (stage_ = 0; stage_ < lane.stages.size(); ++stage_) {
      for (std::size_t r = 0; r < ranks_ * kStreams; ++r)
        streams_[stage_].push_back(builder_.add_stream(static_cast<int>(r / kStreams)));
      tail_.assign(ranks_, Tail{});
      exchange_.assign(ranks_, OpenExchange{});
      background_.assign(at(program_.tensor), kNoTask);
      if (!program_.ends.empty()) filled_[number][stage_].assign(program_.ends[stage_].buckets.size(), tail_);
      for (scheduled_number_ = 0; scheduled_number_ < lane.stages[stage_].size(); ++scheduled_number_) {
        scheduled_ = &lane.stages[stage_][scheduled_number_];
        rows_.emplace(lane, *scheduled_);
        out_.lanes[number][stage_].first.push_back(out_.op_tasks.size());
        out_.op_tasks.resize(out_.op_tasks.size() + rows_->rows() * ranks_, kNoTask);
        for (std::size_t r = 0; r < ranks_; ++r) begin_of_[number][stage_].push_back(marker(r));
        replay_scheduled_op(program_, options_, result_, static_cast<int>(lane_), static_cast<int>(stage_),
                            static_cast<int>(scheduled_number_), *this);
        for (std::size_t r = 0; r < ranks_; ++r) end_of_[number][stage_].push_back(marker(r));
      }
    }
    connect_stages(lane);
  }

  // A row is one step on every rank, together with the other step of its pair if there is one.
  void finish_row(const OpBlock& block, const OpEvent& op, std::uint32_t s, bool pair) {
    const OpStep& step = block.steps[s];
    const bool alone = step.sync == SyncGroup::none ||
                       (step.sync == SyncGroup::tensor && program_.tensor == 1) ||
                       (step.sync == SyncGroup::context && program_.lanes[lane_].context == 1);
    std::vector<TaskId> task_of(ranks_, kNoTask);
    if (alone) {
      for (std::size_t r = 0; r < ranks_; ++r)
        task_of[r] = builder_.add_task(stream(r, step.stream), row_[r]);
    } else {
      const std::size_t groups =
          step.sync == SyncGroup::context ? at(program_.tensor) : ranks_ / at(program_.tensor);
      for (std::size_t g = 0; g < groups; ++g) {
        std::vector<StreamId> members;
        std::size_t first = ranks_;
        for (std::size_t r = 0; r < ranks_; ++r)
          if (interpreter::group_of(r, step.sync, program_.tensor) == g) {
            members.push_back(stream(r, step.stream));
            first = std::min(first, r);
          }
        const TaskId task = builder_.add_collective(members, row_[first]);
        for (std::size_t r = 0; r < ranks_; ++r)
          if (interpreter::group_of(r, step.sync, program_.tensor) == g) task_of[r] = task;
        add(task, step, first);
      }
    }
    for (std::size_t r = 0; r < ranks_; ++r) {
      if (alone) add(task_of[r], step, r);
      depend(tail_[r], task_of[r]);
      note(op, s, r, task_of[r]);
      Tail next(task_of[r]);
      if (pair) {
        next.tasks[1] = builder_.add_task(stream(r, block.steps[s + 1].stream), partner_[r]);
        add(next.tasks[1], block.steps[s + 1], r);
        depend(tail_[r], next.tasks[1]);
        note(op, s + 1, r, next.tasks[1]);
      }
      tail_[r] = next;
      ran_under(r, pair ? 2 : 1);
    }
  }

  void connect_stages(const OpLane& lane) {
    for (stage_ = 0; stage_ < lane.stages.size(); ++stage_) {
      std::vector<TaskId>& inputs = out_.lanes[lane_][stage_].input;
      inputs.assign(lane.stages[stage_].size() * ranks_, kNoTask);
      for (scheduled_number_ = 0; scheduled_number_ < lane.stages[stage_].size(); ++scheduled_number_) {
        const ScheduledOp& scheduled = lane.stages[stage_][scheduled_number_];
        if (scheduled.input_stage == kNoInput || at(scheduled.input_stage) == stage_) continue;
        for (std::size_t r = 0; r < ranks_; ++r) {
          const TaskId from = end_of_[lane_][at(scheduled.input_stage)][at(scheduled.input_op) * ranks_ + r];
          // A pair begins when both have their input.
          const std::size_t issued =
              ends_pair(lane.stages[stage_], scheduled_number_) ? scheduled_number_ - 1 : scheduled_number_;
          const TaskId to = begin_of_[lane_][stage_][issued * ranks_ + r];
          const Picoseconds duration = lane.transfers[at(scheduled.transfer) + r / at(program_.tensor)];
          const TaskId transfer = builder_.add_transfer(from, to, duration);
          inputs[scheduled_number_ * ranks_ + r] = transfer;
          add(transfer, OpName::pp_send, Stream::pp, r);
          origin_[transfer].from_stage = scheduled.input_stage;
          if (!lane.transfer_bytes.empty())
            origin_[transfer].bytes = lane.transfer_bytes[at(scheduled.transfer) + r / at(program_.tensor)];
          // A blocking sender continues when its transfer has arrived.
          const std::vector<TaskId>& begins = begin_of_[lane_][at(scheduled.input_stage)];
          const ScheduledOp& sender = lane.stages[at(scheduled.input_stage)][at(scheduled.input_op)];
          const auto next = (at(scheduled.input_op) + (sender.op.with_next ? 2 : 1)) * ranks_ + r;
          if (sender.blocking_send != kNoTransfer && next < begins.size())
            builder_.add_dependency(transfer, begins[next]);
        }
      }
    }
  }

  void join_barrier_groups() {
    std::vector<int> groups;
    for (const OpLane& lane : program_.lanes) groups.push_back(lane.barrier_group);
    std::sort(groups.begin(), groups.end());
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
    for (std::size_t g = 0; g + 1 < groups.size(); ++g) {
      const TaskId barrier = builder_.add_task(builder_.add_stream(-1), 0);
      origin_.resize(std::size_t{barrier} + 1);
      origin_[barrier].marker = true;
      for (std::size_t l = 0; l < program_.lanes.size(); ++l) {
        if (program_.lanes[l].barrier_group == groups[g])
          for (const auto& stage : end_of_[l])
            for (const TaskId task : stage) builder_.add_dependency(task, barrier);
        if (program_.lanes[l].barrier_group == groups[g + 1])
          for (const auto& stage : begin_of_[l])
            for (const TaskId task : stage) builder_.add_dependency(barrier, task);
      }
    }
  }

  [[nodiscard]] std::vector<std::size_t> bucket_order(std::size_t stage, std::size_t t) const {
    const auto& buckets = result_.buckets[stage * at(program_.tensor) + t];
    std::vector<std::size_t> order(buckets.size());
    for (std::size_t k = 0; k < order.size(); ++k) order[k] = k;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return buckets[a].filled < buckets[b].filled; });
    return order;
  }

  void lower_stage_end(std::size_t stage) {
    const StageEnd& end = program_.ends[stage];
    lane_ = static_cast<std::size_t>(-1);
    stage_ = stage;
    scheduled_number_ = static_cast<std::size_t>(-1);
    for (std::size_t t = 0; t < at(program_.tensor); ++t) {
      const StreamId stream = builder_.add_stream(static_cast<int>(t));
      const auto depend_on_lanes = [&](TaskId task, auto&& tails_of) {
        for (std::size_t l = 0; l < program_.lanes.size(); ++l) {
          if (program_.lanes[l].stages[stage].empty()) continue;
          const std::size_t ranks = at(program_.lanes[l].context) * at(program_.tensor);
          for (std::size_t r = t; r < ranks; r += at(program_.tensor)) tails_of(l, r, ranks, task);
        }
      };
      LoweredProgram::End& of_end = out_.ends[stage * at(program_.tensor) + t];
      of_end.buckets.assign(result_.buckets[stage * at(program_.tensor) + t].size(), kNoTask);
      const std::vector<std::size_t> order = bucket_order(stage, t);
      for (const std::size_t k : order) {
        const OpResult::Bucket& bucket_run = result_.buckets[stage * at(program_.tensor) + t][k];
        const TaskId task = builder_.add_task(stream, bucket_run.end - bucket_run.start);
        of_end.buckets[k] = task;
        add(task, OpName::dp_reduce, Stream::dp, t);
        if (!end.bucket_bytes.empty()) origin_[task].bytes = end.bucket_bytes[k];
        TaskId full = task;
        if (end.lost > 0 && k == order.back() && bucket_run.last_lane >= 0) {
          full = builder_.add_task(builder_.add_stream(static_cast<int>(t)), end.lost);
          add(full, OpName::taken_sms, Stream::compute, t, true);
          builder_.add_dependency(full, task);
        }
        depend_on_lanes(full, [&](std::size_t l, std::size_t r, std::size_t, TaskId waits) {
          depend(filled_[l][stage][k][r], waits);
        });
      }
      const TaskId border = builder_.add_task(stream, 0);
      of_end.border = border;
      add(border, OpName::optimizer, Stream::compute, t, true);
      depend_on_lanes(border, [&](std::size_t l, std::size_t r, std::size_t ranks, TaskId task) {
        builder_.add_dependency(end_of_[l][stage][end_of_[l][stage].size() - ranks + r], task);
      });
      for (std::size_t i = 0; i < end.steps.size(); ++i) {
        of_end.steps.push_back(builder_.add_task(stream, end.durations[i]));
        add(of_end.steps.back(), end.steps[i], t);
      }
    }
  }

  const OpProgram& program_;
  const OpOptions& options_;
  const OpResult& result_;
  TaskGraphBuilder builder_;
  std::vector<LoweredTask> origin_;
  LoweredProgram out_;
  // The place in lowering: the lane, the stage and the scheduled op.
  std::size_t lane_ = 0;
  std::size_t stage_ = 0;
  std::size_t scheduled_number_ = 0;
  const ScheduledOp* scheduled_ = nullptr;
  bool of_second_ = false;         // whether the block belongs to a pair's second op
  std::optional<RowNumber> rows_;  // in the scheduled op
  std::size_t ranks_ = 1;
  std::vector<std::vector<StreamId>> streams_;  // [stage][rank * kStreams + stream]
  std::vector<Tail> tail_;                      // by rank
  std::vector<OpenExchange> exchange_;          // by rank
  std::vector<TaskId> background_;              // by TP coordinate: the stage's latest background op
  std::map<std::array<int, 4>, TaskId>
      synchronizations_;                    // by lockstep group, stage, scheduled op and number in it
  std::vector<Picoseconds> row_, partner_;  // by rank
  // By lane and stage.
  std::vector<std::vector<std::vector<TaskId>>> begin_of_, end_of_;  // [scheduled op * ranks + rank]
  std::vector<std::vector<std::vector<std::vector<Tail>>>> filled_;  // [bucket][rank]
};

}  // namespace

RowNumber::RowNumber(const OpLane& lane, const ScheduledOp& scheduled) : before_run_(1, 0) {
  for (std::uint32_t r = 0; r < scheduled.run_count; ++r) {
    const BlockRun& run = lane.runs[scheduled.first_run + r];
    steps_.push_back(lane.blocks[run.block].steps.size());
    before_run_.push_back(before_run_.back() + run.repeat * steps_.back());
  }
}

LoweredProgram lower(const OpProgram& program, const OpOptions& options, const OpResult& result) {
  return Lowering(program, options, result).lower();
}

}  // namespace equipoise
