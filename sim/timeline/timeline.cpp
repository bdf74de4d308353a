#include "sim/timeline/timeline.h"

#include <array>
#include <optional>
#include <utility>

#include "policies/base/index.h"

namespace equipoise {

constexpr std::size_t kDocumentsNamed = 8;

static std::string op_text(const ScheduleOp& op) {
  const std::string text = std::string(letter_of(op.kind)) + std::to_string(op.micro_batch);
  return op.virtual_stage > 0 ? text + "." + std::to_string(op.virtual_stage) : text;
}

// Ops beyond the plan's micro-batches have no documents: they keep a lane in step with others.
static const MicroBatch& micro_batch_of(const Step& step, int lane, int number) {
  static const MicroBatch kEmpty;
  const auto& micro_batches = step.lanes[at(lane)].micro_batches;
  return at(number) < micro_batches.size() ? micro_batches[at(number)] : kEmpty;
}

std::string documents_text(const MicroBatch& micro_batch) {
  std::string text;
  for (std::size_t i = 0; i < std::min(micro_batch.slices.size(), kDocumentsNamed); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(micro_batch.slices[i].document);
  }
  return micro_batch.slices.size() > kDocumentsNamed ? text + ", ..." : text;
}

// When each layer of a scheduled op begins on each rank. A repetition of a block is a layer if it has
// attention, which the embedding and the head do not.
class LayerStarts {
 public:
  explicit LayerStarts(std::size_t ranks) : ranks_(ranks) {}
  void clear() {
    for (Rank& rank : ranks_) {
      rank.any = false;
      rank.starts.clear();
    }
  }
  void note(std::size_t rank, std::uint32_t run, std::uint32_t repetition, OpName name, Picoseconds start) {
    Rank& r = ranks_[rank];
    if (!r.any || r.run != run || r.repetition != repetition) {
      r.any = true;
      r.run = run;
      r.repetition = repetition;
      r.start = start;
      r.counted = false;
    }
    if (name != OpName::attention || r.counted) return;
    r.counted = true;
    r.starts.push_back(r.start);
  }
  [[nodiscard]] std::span<const Picoseconds> of(std::size_t rank) const { return ranks_[rank].starts; }

 private:
  struct Rank {
    bool any = false;
    std::uint32_t run = 0, repetition = 0;  // of the current layer
    Picoseconds start = 0;                  // when the repetition began
    bool counted = false;
    std::vector<Picoseconds> starts;
  };
  std::vector<Rank> ranks_;
};

// The data that the ops of a scheduled op work on.
struct OpLoad {
  std::string documents;
  std::span<const std::int64_t> rank_tokens;  // by CP rank; empty if unknown
};

// Writes the ops of one scheduled op on the selected ranks. The first op of a pair has the ops of both.
// Kernels and collectives that work on tokens name them.
class ScheduledOpSlices final : public OpSink {
 public:
  ScheduledOpSlices(Timeline& timeline, const OpProgram& program, int lane, int stage,
                    const ScheduledOp& scheduled, OpLoad own, OpLoad second, LayerStarts& layers)
      : timeline_(timeline),
        program_(program),
        lane_(lane),
        stage_(stage),
        scheduled_(scheduled),
        own_(std::move(own)),
        second_(std::move(second)),
        layers_(layers),
        documents_(timeline.writer_.argument_name("documents")),
        tokens_(timeline.writer_.argument_name("tokens")),
        waited_(timeline.writer_.argument_name("waited_ns")),
        bytes_(timeline.writer_.argument_name("bytes")),
        flops_(timeline.writer_.argument_name("flops")) {}

  void on_op(const OpEvent& op) override {
    const auto [start, end] = std::pair(op.start, op.end);
    const OpStep& what = step_of(op.run, op.step);
    if (what.waits) return;
    if (!what.background)
      layers_.note(at(op.rank), op.run, op.repetition, what.name, timeline_.offset_ + start);
    if (start == end) return;
    const int c = op.rank / program_.tensor;
    const int t = op.rank % program_.tensor;
    if (!TimelineSelection::selects(timeline_.selection_.ranks, c) ||
        (t > 0 && !timeline_.selection_.all_tensor_ranks))
      return;
    // The SMs that an exchange takes from compute are drawn where the compute runs, not along the exchange.
    const Stream stream = what.name == OpName::taken_sms ? Stream::compute : what.stream;
    const TrackId track = timeline_.stream_track(lane_, stage_, c, t, stream);
    arguments_.clear();
    if (start > op.arrived) arguments_.push_back({waited_, (start - op.arrived) / 1000});
    const OpLoad& load = what.of_second || block_of_second(scheduled_, block_of(op.run)) ? second_ : own_;
    const bool of_tokens = what.flops > 0 || (what.stream != Stream::compute && what.stream != Stream::dp);
    if (of_tokens && !load.rank_tokens.empty()) arguments_.push_back({tokens_, load.rank_tokens[at(c)]});
    if ((what.name == OpName::attention || what.stream == Stream::cp) && !load.documents.empty())
      arguments_.push_back({documents_, std::string_view(load.documents)});
    const RankWork own = block_of(op.run).work(what, at(c));
    if (own.bytes > 0) arguments_.push_back({bytes_, static_cast<std::int64_t>(own.bytes)});
    if (own.flops > 0) arguments_.push_back({flops_, own.flops});
    timeline_.writer_.begin(track, timeline_.offset_ + start,
                            timeline_.writer_.slice_name(name_of(what.name)), arguments_);
    timeline_.end_slice(track, end);
  }

 private:
  [[nodiscard]] const OpBlock& block_of(std::uint32_t run) const {
    const OpLane& lane = program_.lanes[at(lane_)];
    return lane.blocks[lane.runs[scheduled_.first_run + run].block];
  }
  [[nodiscard]] const OpStep& step_of(std::uint32_t run, std::uint32_t step) const {
    return block_of(run).steps[step];
  }

  Timeline& timeline_;
  const OpProgram& program_;
  int lane_, stage_;
  const ScheduledOp& scheduled_;
  OpLoad own_, second_;
  LayerStarts& layers_;
  NameId documents_, tokens_;
  NameId waited_, bytes_, flops_;
  std::vector<TraceArgument> arguments_;
};

Timeline::Timeline(const std::string& path, TimelineSelection selection)
    : writer_(path), selection_(std::move(selection)) {}

TrackId Timeline::track(const TrackKey& key, const std::string& name, TrackId parent, int order) {
  const auto [it, is_new] = tracks_.try_emplace(key, 0);
  if (is_new) it->second = writer_.add_track(name, parent, order);
  return it->second;
}

TrackId Timeline::stage_track(int lane, int stage) {
  const TrackId parent = track({lane, kNone, kNone, kLane}, "lane " + std::to_string(lane), 0, lane);
  return track({lane, stage, kNone, kStage}, "stage " + std::to_string(stage), parent, stage);
}

TrackId Timeline::rank_track(int lane, int stage, int rank, int tensor) {
  const auto found = tracks_.find({lane, stage, (rank << 8) + tensor, kRank});
  if (found != tracks_.end()) return found->second;
  std::string name = "cp " + std::to_string(rank);
  if (selection_.all_tensor_ranks) name += " tp " + std::to_string(tensor);
  return track({lane, stage, (rank << 8) + tensor, kRank}, name, stage_track(lane, stage),
               (rank << 8) + tensor);
}

TrackId Timeline::stream_track(int lane, int stage, int rank, int tensor, Stream stream) {
  const TrackKey key{lane, stage, (rank << 8) + tensor, static_cast<int>(stream)};
  const auto found = tracks_.find(key);
  if (found != tracks_.end()) return found->second;
  return track(key, name_of(stream), rank_track(lane, stage, rank, tensor), static_cast<int>(stream));
}

void Timeline::end_slice(TrackId track, Picoseconds when) {
  writer_.end(track, offset_ + when);
  ++slices_;
}

// Unique for up to 4,096 steps of 131,072 lanes, 512 stages, 32,768 ops per stage and 2,048 ranks per lane; 0
// is no flow.
std::uint64_t Timeline::flow_of(int lane, int stage, int index, int rank) const {
  std::uint64_t flow = step_number_;
  flow = flow << 17 | static_cast<std::uint64_t>(lane);
  flow = flow << 9 | static_cast<std::uint64_t>(stage);
  flow = flow << 15 | static_cast<std::uint64_t>(index);
  return (flow << 11 | static_cast<std::uint64_t>(rank)) + 1;
}

void Timeline::begin_op(TrackId track, Picoseconds when, const Step& step, int lane, const ScheduleOp& op,
                        std::span<const std::uint64_t> flows, std::span<const std::uint64_t> arriving) {
  const MicroBatch& micro_batch = micro_batch_of(step, lane, op.micro_batch);
  const std::string documents = documents_text(micro_batch);
  std::int64_t longest = 0;
  for (const Slice& slice : micro_batch.slices) longest = std::max(longest, slice.tokens());
  const std::array<TraceArgument, 5> arguments = {{
      {writer_.argument_name("micro_batch"), std::int64_t{op.micro_batch}},
      {writer_.argument_name("tokens"), micro_batch.tokens()},
      {writer_.argument_name("slices"), static_cast<std::int64_t>(micro_batch.slices.size())},
      {writer_.argument_name("longest"), longest},
      {writer_.argument_name("documents"), std::string_view(documents)},
  }};
  writer_.begin(track, offset_ + when, writer_.slice_name(op_text(op)), arguments, flows, arriving);
}

void Timeline::write_scheduled_op(const Step& step, const OpProgram& program, const OpOptions& options,
                                  const OpResult& result, const StepLoads& loads, int lane, int stage,
                                  int index, LayerStarts& layers) {
  const OpLane& l = program.lanes[at(lane)];
  const ScheduledOp& what = l.stages[at(stage)][at(index)];
  const std::size_t ranks = at(l.context) * at(program.tensor);
  const auto each_rank = [&](auto&& act) {
    for (std::size_t r = 0; r < ranks; ++r) {
      const int c = static_cast<int>(r) / program.tensor;
      const int t = static_cast<int>(r) % program.tensor;
      if (selects(selection_.ranks, c) && (t == 0 || selection_.all_tensor_ranks))
        act(r, stream_track(lane, stage, c, t, Stream::compute));
    }
  };
  each_rank([&](std::size_t r, TrackId track) {
    const std::array<std::uint64_t, 1> leaving = {flow_of(lane, stage, index, static_cast<int>(r))};
    std::vector<std::uint64_t> arriving;
    if (what.input_stage != kNoInput && what.input_stage != stage &&
        selects(selection_.stages, what.input_stage))
      arriving.push_back(flow_of(lane, what.input_stage, what.input_op, static_cast<int>(r)));
    begin_op(track, result.lanes[at(lane)].start[at(stage)][at(index) * ranks + r], step, lane, what.op,
             leaving, arriving);
  });
  const auto load_of = [&](const ScheduleOp& op) {
    OpLoad load{documents_text(micro_batch_of(step, lane, op.micro_batch)), {}};
    const auto first = at(op.micro_batch) * at(l.context);
    if (loads.lanes != nullptr && at(lane) < loads.lanes->size() &&
        first + at(l.context) <= (*loads.lanes)[at(lane)].rank_tokens.size())
      load.rank_tokens = std::span((*loads.lanes)[at(lane)].rank_tokens).subspan(first, at(l.context));
    return load;
  };
  ScheduledOpSlices slices(*this, program, lane, stage, what, load_of(what.op),
                           what.op.with_next ? load_of(l.stages[at(stage)][at(index + 1)].op) : OpLoad{},
                           layers);
  replay_scheduled_op(program, options, result, lane, stage, index, slices);
  each_rank([&](std::size_t r, TrackId track) {
    end_slice(track, result.lanes[at(lane)].end[at(stage)][at(index) * ranks + r]);
  });
}

// Writes transfers to this scheduled op at the receiver; overlapping ones are on separate rows.
void Timeline::write_transfers(const OpProgram& program, const OpResult& result, int lane, int stage,
                               int index) {
  const OpLane& l = program.lanes[at(lane)];
  const ScheduledOp& what = l.stages[at(stage)][at(index)];
  if (what.input_stage == kNoInput || what.input_stage == stage) return;
  const std::size_t ranks = at(l.context) * at(program.tensor);
  for (std::size_t r = 0; r < ranks; ++r) {
    const int c = static_cast<int>(r) / program.tensor;
    const int t = static_cast<int>(r) % program.tensor;
    if (!selects(selection_.ranks, c) || (t > 0 && !selection_.all_tensor_ranks)) continue;
    const Picoseconds start = result.lanes[at(lane)].end[at(what.input_stage)][at(what.input_op) * ranks + r];
    const Picoseconds duration =
        result.recorded != nullptr
            ? result.recorded->lanes[at(lane)][at(stage)].input_end[at(index) * ranks + r] - start
            : l.transfers[at(what.transfer) + at(c)];
    if (duration == 0) continue;
    write_transfer(rank_track(lane, stage, c, t), what.op, {start, start + duration});
  }
}

void Timeline::write_transfer(TrackId parent, const ScheduleOp& op, const TimeSpan& span) {
  auto& rows = transfer_rows_[{parent, op.kind == OpKind::B ? 1 : 0}];
  auto row = std::ranges::find_if(rows, [&](const auto& one) { return one.second <= offset_ + span.start; });
  if (row == rows.end()) {
    const std::string name = std::string("pp ") + (op.kind == OpKind::B ? "gradients in" : "activations in");
    rows.emplace_back(writer_.add_track(name, parent, 50), 0);
    row = rows.end() - 1;
  }
  writer_.begin(row->first, offset_ + span.start, writer_.slice_name("transfer of " + op_text(op)));
  end_slice(row->first, span.end);
  row->second = offset_ + span.end;
}

void Timeline::write_end(const OpProgram& program, const OpResult& result, int stage) {
  if (program.ends.empty()) return;
  const StageEnd& end = program.ends[at(stage)];
  const TrackId parent = track({kNone, kNone, kNone, kEnd}, "all lanes", 0, 1 << 20);
  const TrackId row = track({kNone, stage, kNone, kEnd},
                            "stage " + std::to_string(stage) + ": gradients, optimizer", parent, stage);
  std::vector<OpResult::Bucket> buckets = result.buckets[at(stage) * at(program.tensor)];
  std::ranges::stable_sort(buckets, {}, [](const auto& x) { return x.start; });
  for (const OpResult::Bucket& bucket : buckets) {
    if (bucket.start == bucket.end) continue;
    writer_.begin(row, offset_ + bucket.start, writer_.slice_name(name_of(OpName::dp_reduce)));
    end_slice(row, bucket.end);
  }
  Picoseconds time = result.end_begins[at(stage) * at(program.tensor)];
  for (std::size_t i = 0; i < end.steps.size(); ++i) {
    const Picoseconds ends = result.recorded != nullptr
                                 ? result.recorded->steps_end[at(stage) * at(program.tensor)][i]
                                 : time + end.durations[i];
    if (ends > time) {
      writer_.begin(row, offset_ + time, writer_.slice_name(name_of(end.steps[i].name)));
      end_slice(row, ends);
    }
    time = ends;
  }
}

// The CP rank with the most tokens in the step; at a tie the lowest.
int Timeline::fullest_rank(const Step& step, const StepLoads& loads, int lane) {
  const auto context = at(step.lanes[at(lane)].context);
  std::vector<std::int64_t> tokens(context, 0);
  if (loads.lanes != nullptr && at(lane) < loads.lanes->size()) {
    const std::vector<std::int64_t>& all = (*loads.lanes)[at(lane)].rank_tokens;
    for (std::size_t i = 0; i < all.size(); ++i) tokens[i % context] += all[i];
  }
  return static_cast<int>(std::max_element(tokens.begin(), tokens.end()) - tokens.begin());
}

RankCounters* Timeline::begin_counters(const Step& step, const StepLoads& loads, int lane, int stage,
                                       int rank, bool splits_backward) {
  if (!selection_.counters.memory && !selection_.counters.tokens) return nullptr;
  auto& counters = counters_[{lane, stage, rank, kRank}];
  if (!counters)
    counters = std::make_unique<RankCounters>(writer_, rank_track(lane, stage, rank, 0), selection_.counters);
  const Lane& what = step.lanes[at(lane)];
  RankLoad load;
  load.micro_batches = what.micro_batches;
  load.context = what.context;
  load.stage = stage;
  load.recompute_ahead = loads.recompute_ahead;
  load.splits_backward = splits_backward;
  const bool known =
      loads.lanes != nullptr && at(lane) < loads.lanes->size() && !(*loads.lanes)[at(lane)].gathered.empty();
  if (known) {
    const LaneTokens& tokens = (*loads.lanes)[at(lane)];
    load.memory = loads.memory;
    load.gathered_tokens = tokens.gathered;
    for (std::size_t j = 0; j < what.micro_batches.size(); ++j)
      load.rank_tokens.push_back(tokens.rank_tokens[j * at(what.context) + at(rank)]);
  } else {
    for (const MicroBatch& micro_batch : what.micro_batches)
      load.rank_tokens.push_back(micro_batch.tokens() / what.context);
  }
  counters->begin_step(std::move(load), offset_);
  return counters.get();
}

void Timeline::add(const Step& step, const OpProgram& program, const OpOptions& options,
                   const OpResult& result, const StepLoads& loads) {
  for (int lane = 0; lane < static_cast<int>(program.lanes.size()); ++lane) {
    if (!selects(selection_.lanes, lane)) continue;
    const std::size_t ranks = at(program.lanes[at(lane)].context) * at(program.tensor);
    for (int stage = 0; stage < program.stages; ++stage) {
      if (!selects(selection_.stages, stage)) continue;
      const auto& scheduled_ops = program.lanes[at(lane)].stages[at(stage)];
      const bool splits = std::ranges::any_of(
          scheduled_ops, [](const ScheduledOp& scheduled) { return scheduled.op.kind == OpKind::W; });
      std::vector<RankCounters*> counters;  // by CP rank
      for (int c = 0; c < program.lanes[at(lane)].context; ++c)
        counters.push_back(selects(selection_.ranks, c) ? begin_counters(step, loads, lane, stage, c, splits)
                                                        : nullptr);
      LayerStarts layers(ranks);
      for (int index = 0; index < static_cast<int>(scheduled_ops.size()); ++index) {
        write_transfers(program, result, lane, stage, index);
        layers.clear();
        write_scheduled_op(step, program, options, result, loads, lane, stage, index, layers);
        for (std::size_t c = 0; c < counters.size(); ++c) {
          if (counters[c] == nullptr) continue;
          const std::size_t r = c * at(program.tensor);
          const std::size_t slot = at(index) * ranks + r;
          counters[c]->op(scheduled_ops[at(index)].op,
                          offset_ + result.lanes[at(lane)].start[at(stage)][slot],
                          offset_ + result.lanes[at(lane)].end[at(stage)][slot], layers.of(r));
        }
      }
    }
  }
  for (int stage = 0; stage < program.stages; ++stage)
    if (selects(selection_.stages, stage)) write_end(program, result, stage);
  offset_ += result.makespan;
  ++step_number_;
}

// --- Stage fidelity: a track per CP rank with the schedule's ops, and rows of their transfers.

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
