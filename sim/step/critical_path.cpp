#include "sim/step/critical_path.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <optional>
#include <string>

#include "policies/base/index.h"

namespace equipoise {
namespace {

// Records all ops of one scheduled op, by rank and in order.
class OpRecord final : public OpSink {
 public:
  using Entry = OpEvent;
  explicit OpRecord(std::size_t ranks) : of_rank(ranks) {}
  void on_op(const OpEvent& op) override { of_rank[at(op.rank)].push_back(op); }

  std::vector<std::vector<Entry>> of_rank;
};

class PathTracer {
 public:
  PathTracer(const OpProgram& program, const OpOptions& options, const OpResult& result)
      : program_(program), options_(options), result_(result) {}

  std::vector<PathSegment> trace() {
    time_ = result_.makespan;
    if (result_.makespan > 0) {
      if (result_.makespan > result_.pipeline_end || !program_.ends.empty())
        trace_end();
      else
        enter_last_op(result_.pipeline_end);
      while (lane_ >= 0) trace_scheduled_op();
    }
    std::reverse(path_.begin(), path_.end());
    return std::move(path_);
  }

 private:
  // A path with a gap would be a wrong answer: nothing explains why the op started when it did.
  [[noreturn]] void lost() const {
    throw EngineError("critical path: no op ends at ", time_, " ps on lane ", lane_, ", stage ", stage_,
                      ", rank ", rank_);
  }

  void push(Picoseconds start, OpName name, Stream stream, std::int32_t micro_batch = -1,
            OpKind kind = OpKind::F) {
    assert(start <= time_);
    if (start < time_) path_.push_back({start, time_, name, stream, lane_, stage_, micro_batch, rank_, kind});
    time_ = start;
  }

  // Traces optimizer, parameter gather and gradient buckets of the stage that ends last.
  void trace_end() {
    const int tensor = program_.tensor;
    for (int s = 0; s < program_.stages; ++s)
      for (int t = 0; t < tensor; ++t) {
        const StageEnd& end = program_.ends[at(s)];
        const auto& buckets = result_.buckets[at(s) * at(tensor) + at(t)];
        std::vector<Picoseconds> times = {stage_end(s, t)};  // before each step, and after the last
        for (std::size_t i = 0; i < end.steps.size(); ++i)
          times.push_back(result_.recorded != nullptr
                              ? result_.recorded->steps_end[at(s) * at(tensor) + at(t)][i]
                              : times.back() + end.durations[i]);
        if (times.back() != result_.makespan) continue;
        stage_ = s;
        rank_ = t;
        for (std::size_t i = end.steps.size(); i-- > 0;)
          push(times[i], end.steps[i].name, end.steps[i].stream);
        // Goes back over buckets that followed each other without a gap.
        const OpResult::Bucket* bucket = ending_at(buckets, time_, end.lost);
        while (bucket != nullptr) {
          const Picoseconds filled = bucket->filled;
          push(bucket->start, OpName::dp_reduce, Stream::dp);
          if (time_ == filled + end.lost) push(filled, OpName::taken_sms, Stream::compute);
          if (time_ == filled) return enter_filler(s, *bucket);
          bucket = ending_at(buckets, time_, end.lost);
        }
        return enter_op_of_stage(s, t);
      }
    enter_last_op(result_.pipeline_end);
  }

  // A bucket that takes time, or that started by `lost` after it was full.
  static const OpResult::Bucket* ending_at(const std::vector<OpResult::Bucket>& buckets, Picoseconds time,
                                           Picoseconds lost) {
    for (const OpResult::Bucket& b : buckets)
      if (b.end == time && (b.start < b.end || (lost > 0 && b.last_lane >= 0 && b.start == b.filled + lost)))
        return &b;
    return nullptr;
  }

  [[nodiscard]] Picoseconds stage_end(int s, int t) const {
    Picoseconds done = 0;
    for (const OpResult::Bucket& b : result_.buckets[at(s) * at(program_.tensor) + at(t)])
      done = std::max(done, b.end);
    for (std::size_t l = 0; l < program_.lanes.size(); ++l) done = std::max(done, last_end(l, s, t));
    return done;
  }

  // When the ranks of TP coordinate t end their last scheduled op of the stage; t < 0 means all ranks.
  [[nodiscard]] Picoseconds last_end(std::size_t l, int s, int t) const {
    const auto& ends = result_.lanes[l].end[at(s)];
    const std::size_t ranks = at(program_.lanes[l].context) * at(program_.tensor);
    Picoseconds done = 0;
    for (std::size_t r = t < 0 ? 0 : at(t); r < ranks && !ends.empty(); r += t < 0 ? 1 : at(program_.tensor))
      done = std::max(done, ends[ends.size() - ranks + r]);
    return done;
  }

  // Enters the rank that ends its last scheduled op of the stage at time_.
  void enter_op_of_stage(int s, int t) {
    for (std::size_t l = 0; l < program_.lanes.size(); ++l)
      if (!program_.lanes[l].stages[at(s)].empty() && last_end(l, s, t) == time_)
        return enter(static_cast<int>(l), s, last_op(l, s), t);
    assert(time_ == 0);
    lane_ = -1;
  }

  void enter_last_op(Picoseconds time) {
    for (int s = 0; s < program_.stages; ++s)
      for (std::size_t l = 0; l < program_.lanes.size(); ++l)
        if (!program_.lanes[l].stages[at(s)].empty() && last_end(l, s, -1) == time)
          return enter(static_cast<int>(l), s, last_op(l, s), -1);
    lane_ = -1;
  }

  [[nodiscard]] int last_op(std::size_t lane, int s) const {
    return static_cast<int>(program_.lanes[lane].stages[at(s)].size()) - 1;
  }

  // Enters the lowest rank (of TP coordinate t, if t >= 0) whose scheduled op ends at time_.
  void enter(int lane, int stage, int scheduled, int t) {
    lane_ = lane;
    stage_ = stage;
    scheduled_ = scheduled;
    ranks_ = at(program_.lanes[at(lane)].context) * at(program_.tensor);
    const Picoseconds* const ends = result_.lanes[at(lane)].end[at(stage)].data() + at(scheduled) * ranks_;
    for (std::size_t r = t < 0 ? 0 : at(t); r < ranks_; r += t < 0 ? 1 : at(program_.tensor))
      if (ends[r] == time_) {
        rank_ = static_cast<int>(r);
        return;
      }
    lost();
  }

  void enter_filler(int s, const OpResult::Bucket& bucket) {
    lane_ = bucket.last_lane;
    stage_ = s;
    rank_ = bucket.last_rank;
    ranks_ = at(program_.lanes[at(lane_)].context) * at(program_.tensor);
    const auto& scheduled_ops = program_.lanes[at(lane_)].stages[at(s)];
    // The scheduled op that ran at this time filled the bucket.
    for (scheduled_ = 0; scheduled_ + 1 < static_cast<int>(scheduled_ops.size()); ++scheduled_)
      if (result_.lanes[at(lane_)].end[at(s)][at(scheduled_) * ranks_ + at(rank_)] >= time_) break;
  }

  // Goes from (rank_, time_) back to the begin of the scheduled op, then to what the scheduled op waited for.
  void trace_scheduled_op() {
    const OpLane& lane = program_.lanes[at(lane_)];
    scheduled_ = issued_with(scheduled_);
    const ScheduledOp& scheduled = lane.stages[at(stage_)][at(scheduled_)];
    OpRecord record(ranks_);
    replay_scheduled_op(program_, options_, result_, lane_, stage_, scheduled_, record);
    const auto begin_of = [&](int rank) {
      return result_.lanes[at(lane_)].start[at(stage_)][at(scheduled_) * ranks_ + at(rank)];
    };

    while (time_ > begin_of(rank_)) {
      // The op of this rank that ended at time_; ops that take no time end where they start and are passed
      // over.
      const auto& ops = record.of_rank[at(rank_)];
      const OpRecord::Entry* found = nullptr;
      for (const OpRecord::Entry& e : ops)
        if (e.end == time_ && e.arrived < time_ && !step_of(e, scheduled).background &&
            ends_its_exchange(e, scheduled)) {
          // In a pair the kernel, the rank's own work, comes before the communication.
          const bool own = step_of(e, scheduled).stream == Stream::compute;
          if (found == nullptr || own) found = &e;
        }
      if (found == nullptr) lost();
      const OpStep& step = step_of(*found, scheduled);
      if (step.waits) {
        found = trace_background(ops, found, scheduled);
        if (found == nullptr) return trace_background_before();
      } else {
        push_op(*found, scheduled, step);
      }
      rank_ = found->last_rank;
      if (found->last_lane >= 0 && found->last_lane != lane_) return enter_lane(found->last_lane);
    }
    leave_scheduled_op(lane, scheduled);
  }

  // The first op of the pair whose second is `scheduled`; else `scheduled` itself.
  [[nodiscard]] int issued_with(int scheduled) const {
    return ends_pair(program_.lanes[at(lane_)].stages[at(stage_)], at(scheduled)) ? scheduled - 1 : scheduled;
  }

  // Appends an op of scheduled op number scheduled_, or of the second of its pair.
  void push_op(const OpRecord::Entry& e, const ScheduledOp& scheduled, const OpStep& step) {
    const OpLane& lane = program_.lanes[at(lane_)];
    const OpBlock& block = lane.blocks[lane.runs[scheduled.first_run + e.run].block];
    const bool of_second = step.of_second || block_of_second(scheduled, block);
    const ScheduleOp& op = of_second ? lane.stages[at(stage_)][at(scheduled_ + 1)].op : scheduled.op;
    push(e.start, step.name, step.stream, op.micro_batch, op.kind);
  }

  [[nodiscard]] const OpStep& step_of(const OpRecord::Entry& e, const ScheduledOp& scheduled) const {
    const OpLane& lane = program_.lanes[at(lane_)];
    return lane.blocks[lane.runs[scheduled.first_run + e.run].block].steps[e.step];
  }

  // Whether the rank's next op waits for this one. Of an exchange of experts and the ops under it, only the
  // last to end holds up what follows. Entries of a rank are in the order of the steps.
  [[nodiscard]] bool ends_its_exchange(const OpRecord::Entry& e, const ScheduledOp& scheduled) const {
    const OpRecord::Entry* const under = &e + 1;
    for (std::uint32_t i = 0; i < step_of(e, scheduled).over; ++i)
      if (under[i].end > e.end) return false;
    return true;
  }

  // Goes back over background ops that followed each other, until `wait`. Returns the first of them, or null
  // if the scheduled op has none before it.
  const OpRecord::Entry* trace_background(const std::vector<OpRecord::Entry>& ops,
                                          const OpRecord::Entry* wait, const ScheduledOp& scheduled) {
    const auto& synchronizations = result_.lockstep_groups[at(program_.lanes[at(lane_)].lockstep)]
                                       .scheduled_ops[at(stage_)][at(scheduled_)];
    const OpRecord::Entry* first = nullptr;
    for (const OpRecord::Entry* e = wait; e-- > ops.data();) {
      const OpStep& step = step_of(*e, scheduled);
      if (!step.background || e->end != time_) continue;
      push_op(*e, scheduled, step);
      first = e;
      if (synchronizations[at(e->synchronization)].arrived == e->start) break;
    }
    return first;
  }

  // Does the same for a scheduled op that begins by waiting for background ops of the one before it.
  void trace_background_before() {
    if (scheduled_ == 0) lost();
    scheduled_ = issued_with(scheduled_ - 1);
    const ScheduledOp& scheduled = program_.lanes[at(lane_)].stages[at(stage_)][at(scheduled_)];
    OpRecord record(ranks_);
    replay_scheduled_op(program_, options_, result_, lane_, stage_, scheduled_, record);
    const auto& ops = record.of_rank[at(rank_)];
    const OpRecord::Entry* const first = trace_background(ops, ops.data() + ops.size(), scheduled);
    if (first == nullptr) lost();
    rank_ = first->last_rank;
    if (first->last_lane >= 0 && first->last_lane != lane_) enter_lane(first->last_lane);
  }

  // Continues at the same scheduled op of another lane of the lockstep group, at rank_ and time_.
  void enter_lane(int lane) {
    lane_ = lane;
    ranks_ = at(program_.lanes[at(lane)].context) * at(program_.tensor);
  }

  void leave_scheduled_op(const OpLane& lane, const ScheduledOp& scheduled) {
    const auto& ends = result_.lanes[at(lane_)].end[at(stage_)];
    const std::vector<ScheduledOp>& ops = lane.stages[at(stage_)];
    if (scheduled_ > 0) {
      const Picoseconds free = ends[at(scheduled_ - 1) * ranks_ + at(rank_)];
      if (free == time_) {
        --scheduled_;
        return;
      }
      for (int before = issued_with(scheduled_ - 1); before < scheduled_; ++before) {
        const ScheduledOp& previous = ops[at(before)];
        if (previous.blocking_send == kNoTransfer || sent_arrives(lane, before, free) != time_) continue;
        push(free, OpName::pp_send, Stream::pp, previous.op.micro_batch, previous.op.kind);
        --scheduled_;
        return;
      }
    }
    if (follow_input(lane, scheduled)) return;
    if (scheduled.op.with_next && follow_input(lane, ops[at(scheduled_ + 1)])) return;
    // The step, or the barrier group, begins here: the group before ended now.
    lane_ = -1;
    if (time_ > 0) enter_last_op(time_);
  }

  [[nodiscard]] int number_of(const OpLane& lane, const ScheduledOp& scheduled) const {
    return static_cast<int>(&scheduled - lane.stages[at(stage_)].data());
  }
  // When a scheduled op has its input, which the rank of the same number on another stage sent at `sent`.
  [[nodiscard]] Picoseconds arrives(int stage, int scheduled, Picoseconds sent) const {
    const OpLane& lane = program_.lanes[at(lane_)];
    if (result_.recorded != nullptr)
      return result_.recorded->lanes[at(lane_)][at(stage)].input_end[at(scheduled) * ranks_ + at(rank_)];
    const ScheduledOp& op = lane.stages[at(stage)][at(scheduled)];
    return sent + lane.transfers[at(op.transfer) + at(rank_) / at(program_.tensor)];
  }
  // When the result that a scheduled op of this stage sent with a blocking send has arrived.
  [[nodiscard]] Picoseconds sent_arrives(const OpLane& lane, int scheduled, Picoseconds sent) const {
    if (result_.recorded == nullptr)
      return sent + lane.transfers[at(lane.stages[at(stage_)][at(scheduled)].blocking_send) +
                                   at(rank_) / at(program_.tensor)];
    Picoseconds latest = 0;
    for (int s = 0; s < program_.stages; ++s)
      for (int i = 0; i < static_cast<int>(lane.stages[at(s)].size()); ++i)
        if (const ScheduledOp& op = lane.stages[at(s)][at(i)];
            s != stage_ && op.input_stage == stage_ && op.input_op == scheduled)
          latest = std::max(latest, arrives(s, i, sent));
    return latest;
  }

  // Goes to the sender of the op's input if that arrived now.
  bool follow_input(const OpLane& lane, const ScheduledOp& scheduled) {
    if (scheduled.input_stage == kNoInput || scheduled.input_stage == stage_) return false;
    const Picoseconds sent =
        result_.lanes[at(lane_)].end[at(scheduled.input_stage)][at(scheduled.input_op) * ranks_ + at(rank_)];
    if (arrives(stage_, number_of(lane, scheduled), sent) != time_) return false;
    push(sent, OpName::pp_send, Stream::pp, scheduled.op.micro_batch, scheduled.op.kind);
    stage_ = scheduled.input_stage;
    scheduled_ = scheduled.input_op;
    return true;
  }

  const OpProgram& program_;
  const OpOptions& options_;
  const OpResult& result_;
  std::vector<PathSegment> path_;  // from the end
  Picoseconds time_ = 0;
  int lane_ = -1, stage_ = -1, scheduled_ = -1, rank_ = -1;
  std::size_t ranks_ = 1;
};

}  // namespace

std::vector<PathSegment> critical_path(const OpProgram& program, const OpOptions& options,
                                       const OpResult& result) {
  return PathTracer(program, options, result).trace();
}

PathShares share_path(const OpProgram& program, const std::vector<PathSegment>& path) {
  PathShares shares;
  shares.by_stage.assign(at(program.stages), 0);
  for (const OpLane& lane : program.lanes) {
    int most = -1;
    for (const auto& stage : lane.stages)
      for (const ScheduledOp& scheduled : stage) most = std::max(most, scheduled.op.micro_batch);
    shares.by_micro_batch.emplace_back(at(most + 1), 0);
  }
  for (const PathSegment& s : path) {
    const Picoseconds time = s.end - s.start;
    shares.by_stream[at(s.stream)] += time;
    shares.by_stage[at(s.stage)] += time;
    if (s.lane < 0)
      shares.after_pipeline += time;
    else
      shares.by_micro_batch[at(s.lane)][at(s.micro_batch)] += time;
  }
  return shares;
}

std::vector<DocumentShare> share_by_document(const Step& step, const std::vector<PathSegment>& path) {
  std::map<std::int64_t, double> seconds;
  for (const PathSegment& s : path) {
    // Ops without documents only keep the lane in step with others, so they belong to no micro-batch.
    if (s.lane < 0 || at(s.micro_batch) >= step.lanes[at(s.lane)].micro_batches.size()) continue;
    const MicroBatch& micro_batch = step.lanes[at(s.lane)].micro_batches[at(s.micro_batch)];
    const auto weight = [&](const Slice& slice) {
      const auto tokens = static_cast<double>(slice.tokens());
      if (s.name != OpName::attention) return tokens;
      const double before =
          micro_batch.chunk.count > 1 ? static_cast<double>(slice.begin - micro_batch.chunk.group_begin) : 0;
      return tokens * before + tokens * (tokens + 1) / 2;
    };
    double all = 0;
    for (const Slice& slice : micro_batch.slices) all += weight(slice);
    for (const Slice& slice : micro_batch.slices)
      seconds[slice.document] +=
          static_cast<double>(s.end - s.start) / kPicosecondsPerSecond * weight(slice) / all;
  }
  std::vector<DocumentShare> shares;
  for (const auto& [document, time] : seconds) shares.push_back({document, time});
  std::ranges::stable_sort(shares, std::ranges::greater{}, &DocumentShare::seconds);
  return shares;
}

namespace {

// Which ops of a block are dropped.
enum class Drop : std::uint8_t { all, firsts, seconds };

// The block without the dropped ops; what they do in collectives over several lanes stays, in no time.
OpBlock emptied(const OpLane& lane, const OpBlock& block, Drop drop) {
  OpBlock left;
  left.micro_batch = block.micro_batch;
  const std::size_t c = at(lane.context);
  std::size_t exchange = 0, under_end = 0;  // place in `left` of the latest exchange; where it ends
  for (std::size_t s = 0; s < block.steps.size(); ++s) {
    const OpStep& step = block.steps[s];
    const bool dropped = drop == Drop::all || (drop == Drop::seconds) == step.of_second;
    if (dropped && !step.waits && !spans_lanes(step.sync)) {
      if (s < under_end) --left.steps[exchange].over;
      continue;
    }
    if (step.over > 0) {
      exchange = left.steps.size();
      under_end = s + 1 + step.over;
    }
    left.steps.push_back(step);
    for (std::size_t r = 0; r < c; ++r) left.durations.push_back(dropped ? 0 : block.durations[s * c + r]);
  }
  return left;
}

// Which ops of a scheduled op, or of the pair that it begins, are free; nothing if none are.
std::optional<Drop> dropped_of(const Free& free, std::size_t lane, std::size_t stage,
                               std::span<const ScheduledOp> ops, std::size_t index) {
  if (free.stage == static_cast<std::int32_t>(stage)) return Drop::all;
  if (free.lane != static_cast<std::int32_t>(lane)) return std::nullopt;
  const ScheduleOp& op = ops[index].op;
  if (op.micro_batch == free.micro_batch) return op.with_next ? Drop::firsts : Drop::all;
  if (op.with_next && ops[index + 1].op.micro_batch == free.micro_batch) return Drop::seconds;
  return std::nullopt;
}

// Which ops of one of its blocks are free then; nothing if none are.
std::optional<Drop> dropped_of_block(Drop drop, const ScheduledOp& scheduled, const OpBlock& block) {
  if (drop == Drop::all || !scheduled.op.with_next) return Drop::all;
  if (block.micro_batch == kNoMicroBatch) return drop;
  return block_of_second(scheduled, block) == (drop == Drop::seconds) ? std::optional(Drop::all)
                                                                      : std::nullopt;
}

}  // namespace

Picoseconds makespan_without(const OpProgram& program, const OpOptions& options, const Free& free) {
  OpProgram changed = program;
  const auto is_free = [&](Stream stream) { return free.streams[at(stream)]; };
  for (std::size_t l = 0; l < changed.lanes.size(); ++l) {
    OpLane& lane = changed.lanes[l];
    for (OpBlock& block : lane.blocks)
      for (std::size_t s = 0; s < block.steps.size(); ++s)
        if (is_free(block.steps[s].stream))
          std::fill_n(block.durations.begin() + static_cast<std::ptrdiff_t>(s * at(lane.context)),
                      lane.context, Picoseconds{0});
    if (is_free(Stream::pp)) std::fill(lane.transfers.begin(), lane.transfers.end(), Picoseconds{0});
    // A scheduled op that is free runs its blocks emptied of all but their part in collectives over several
    // lanes; buckets are still filled, at once.
    const auto blocks = static_cast<std::uint32_t>(lane.blocks.size());
    for (const Drop drop : {Drop::all, Drop::firsts, Drop::seconds})
      for (std::uint32_t b = 0; b < blocks; ++b) lane.blocks.push_back(emptied(lane, lane.blocks[b], drop));
    for (std::size_t s = 0; s < lane.stages.size(); ++s)
      for (std::size_t i = 0; i < lane.stages[s].size(); ++i) {
        const ScheduledOp& scheduled = lane.stages[s][i];
        const std::optional<Drop> drop = dropped_of(free, l, s, lane.stages[s], i);
        for (std::uint32_t r = 0; drop && r < scheduled.run_count; ++r) {
          std::uint32_t& block = lane.runs[scheduled.first_run + r].block;
          const std::optional<Drop> of_block = dropped_of_block(*drop, scheduled, lane.blocks[block]);
          if (of_block) block += blocks * (1 + static_cast<std::uint32_t>(*of_block));
        }
      }
  }
  for (std::size_t s = 0; s < changed.ends.size(); ++s) {
    StageEnd& end = changed.ends[s];
    const bool freed = free.stage == static_cast<std::int32_t>(s);
    if (freed || is_free(Stream::dp)) {
      std::fill(end.buckets.begin(), end.buckets.end(), Picoseconds{0});
      end.lost = 0;
    }
    for (std::size_t i = 0; i < end.steps.size(); ++i)
      if (freed || is_free(end.steps[i].stream)) end.durations[i] = 0;
  }
  return run(changed, options).makespan;
}

}  // namespace equipoise
