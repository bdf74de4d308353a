// Timelines at stage fidelity: a track per CP rank with the schedule's ops, and rows of their transfers.
#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include "sim/timeline/timeline.h"

namespace equipoise {
namespace {

// Identifies an op's input: micro-batch, virtual stage of the sender, and which of its results.
using Sender = std::tuple<int, int, OpKind>;

// What an op sends, if anything. A micro-batch has an F, or a D and later an R, so no two of its ops on a
// stage send the same.
std::optional<Sender> sends(const ScheduleOp& op, int virtual_stage) {
  if (op.kind == OpKind::W) return std::nullopt;
  return Sender{op.micro_batch, virtual_stage, op.kind == OpKind::D ? OpKind::F : op.kind};
}

std::optional<Sender> input_of(const ScheduleOp& op, int virtual_stage, const VirtualStages& order) {
  const bool from_next = op.kind == OpKind::B;
  if (op.kind == OpKind::W || (from_next ? order.is_last(virtual_stage) : order.is_first(virtual_stage)))
    return std::nullopt;
  return Sender{op.micro_batch, order.further(virtual_stage, from_next ? 1 : -1),
                op.kind == OpKind::D ? OpKind::F : op.kind};
}

}  // namespace

// The ops of one lane, one row per stage in order of time, and the place in its row of each input's sender.
struct Timeline::LaneRows {
  std::map<int, std::vector<const StageOp*>> by_stage;
  std::map<Sender, std::pair<int, int>> senders;  // stage, and place in its row
  int stages = 1;
  VirtualStages order;

  explicit LaneRows(const std::vector<const StageOp*>& ops) {
    for (const StageOp* op : ops) {
      by_stage[op->stage].push_back(op);
      stages = std::max(stages, op->stage + 1);
    }
    order = order_of(ops);
    for (auto& [stage, row] : by_stage) {
      std::ranges::stable_sort(row, [](const StageOp* a, const StageOp* b) { return a->start < b->start; });
      for (std::size_t i = 0; i < row.size(); ++i)
        if (const auto what = sends(row[i]->op, virtual_stage(*row[i])))
          senders[*what] = {stage, static_cast<int>(i)};
    }
  }
  // The direction of a micro-batch that goes through one of two model chunks of each rank.
  [[nodiscard]] VirtualStages order_of(const std::vector<const StageOp*>& ops) const {
    int chunks = 1;
    bool first_in_second = false;
    for (const StageOp* op : ops) {
      chunks = std::max(chunks, op->op.virtual_stage + 1);
      first_in_second = first_in_second || (op->op.micro_batch == 0 && op->op.virtual_stage == 1);
    }
    const bool both_ends = chunks == 2 && !first_in_second;
    return {stages, both_ends ? stages : stages * chunks, both_ends};
  }
  [[nodiscard]] int virtual_stage(const StageOp& op) const { return op.op.virtual_stage * stages + op.stage; }
};

// Draws two ops that run as one (DualPipe's pairs) one after the other; `free` is when the rank's row is.
void Timeline::write_rank_op(const Step& step, const LaneRows& rows, const StageOp& op, int place, int rank,
                             Picoseconds& free) {
  const RankOp& own = op.ranks[at(rank)];
  if (own.transfer.end > own.transfer.start)
    write_transfer(rank_track(op.lane, op.stage, rank, 0), op.op, own.transfer);
  const std::array<std::uint64_t, 1> leaving = {flow_of(op.lane, op.stage, place, rank)};
  std::vector<std::uint64_t> arriving;
  if (const auto input = input_of(op.op, rows.virtual_stage(op), rows.order)) {
    const auto sender = rows.senders.find(*input);
    if (sender != rows.senders.end() && selects(selection_.stages, sender->second.first))
      arriving.push_back(flow_of(op.lane, sender->second.first, sender->second.second, rank));
  }
  const TrackId track = stream_track(op.lane, op.stage, rank, 0, Stream::compute);
  const Picoseconds start = std::max(free, own.op.start);
  begin_op(track, start, step, op.lane, op.op, leaving, arriving);
  end_slice(track, free = std::max(start, own.op.end));
}

// Draws ops without times by rank from the first rank's begin to the last rank's end.
void Timeline::write_stage_ops(const Step& step, const std::vector<const StageOp*>& row) {
  Picoseconds free = 0;
  for (const StageOp* op : row) {
    const Picoseconds start = std::max(free, op->start);
    const TrackId track = stage_track(op->lane, op->stage);
    begin_op(track, start, step, op->lane, op->op, {}, {});
    end_slice(track, free = std::max(start, op->end));
  }
}

void Timeline::write_stage_row(const Step& step, const StepLoads& loads, const LaneRows& rows,
                               const std::vector<const StageOp*>& row) {
  const int lane = row.front()->lane, stage = row.front()->stage;
  if (row.front()->ranks.empty()) write_stage_ops(step, row);
  const bool splits = std::ranges::any_of(row, [](const StageOp* op) { return op->op.kind == OpKind::W; });
  const int fullest = fullest_rank(step, loads, lane);
  for (int c = 0; c < step.lanes[at(lane)].context; ++c) {
    if (!selects(selection_.ranks, c)) continue;
    RankCounters* counters = selection_.ranks.empty() && c != fullest
                                 ? nullptr
                                 : begin_counters(step, loads, lane, stage, c, splits);
    Picoseconds free = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const StageOp& op = *row[i];
      const bool alone = op.ranks.empty();
      if (!alone) write_rank_op(step, rows, op, static_cast<int>(i), c, free);
      const TimeSpan own = alone ? TimeSpan{op.start, op.end} : op.ranks[at(c)].op;
      if (counters != nullptr) counters->op(op.op, offset_ + own.start, offset_ + own.end);
    }
  }
}

void Timeline::add(const Step& step, const StepTimes& times, const StepLoads& loads) {
  std::map<int, std::vector<const StageOp*>> lanes;
  for (const StageOp& op : times.ops)
    if (selects(selection_.lanes, op.lane)) lanes[op.lane].push_back(&op);
  for (const auto& [lane, ops] : lanes) {
    const LaneRows rows(ops);
    for (const auto& [stage, row] : rows.by_stage)
      if (selects(selection_.stages, stage)) write_stage_row(step, loads, rows, row);
  }
  const TrackId end = track({kNone, kNone, kNone, kEnd}, "gradients, optimizer", 0, 1 << 20);
  if (times.makespan > times.pipeline) {
    writer_.begin(end, offset_ + times.pipeline, writer_.slice_name("end of step"));
    end_slice(end, times.makespan);
  }
  offset_ += times.makespan;
  ++step_number_;
}

}  // namespace equipoise
