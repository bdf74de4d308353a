#include "sim/timeline/timeline.h"

#include <cmath>
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

// Memory during layer `i` of an op, interpolated in equal steps from its first to its last layer.
static MemoryParts during(const OpMemory& op, int i) {
  if (op.layers < 2) return op.first;
  const double share = static_cast<double>(i) / (op.layers - 1);
  MemoryParts parts;
  for (const MemoryPartName& part : kMemoryParts)
    parts.*part.bytes = op.first.*part.bytes + share * (op.last.*part.bytes - op.first.*part.bytes);
  return parts;
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
  void on_repetition(std::uint32_t, std::uint32_t) override {}

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

RankCounters::RankCounters(PerfettoWriter& writer, TrackId parent, CounterSelection selection)
    : writer_(writer), parent_(parent), selection_(selection) {}

void RankCounters::show(Counter& counter, const char* name, const char* unit, std::int64_t value,
                        Picoseconds when) {
  if (value == counter.shown) return;
  if (counter.track == 0) counter.track = writer_.add_counter(name, unit, parent_);
  writer_.count(counter.track, when, counter.shown = value);
}

void RankCounters::show(const MemoryParts& parts, Picoseconds when) {
  show(total_, "memory", "bytes", std::llround(parts.total()), when);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const std::string name = std::string("memory: ") + kMemoryParts[i].key;
    show(parts_[i], name.c_str(), "bytes", std::llround(parts.*kMemoryParts[i].bytes), when);
  }
}

void RankCounters::begin_step(RankLoad load, Picoseconds now) {
  load_ = std::move(load);
  in_flight_ = 0;
  memory_.reset();
  if (load_.memory == nullptr || !selection_.memory) return;
  memory_.emplace(*load_.memory,
                  LaneLoad{load_.micro_batches, load_.rank_tokens, load_.gathered_tokens, load_.context,
                           load_.recompute_ahead},
                  load_.stage, load_.splits_backward);
  show(load_.memory->fixed(load_.stage), now);
}

void RankCounters::op(const ScheduleOp& op, Picoseconds start, Picoseconds end,
                      std::span<const Picoseconds> layer_starts) {
  const auto j = static_cast<std::size_t>(op.micro_batch);
  if (j >= load_.micro_batches.size()) return;  // the op only keeps the lane in step with others
  if (selection_.tokens) {
    const bool frees = op.kind == (load_.splits_backward ? OpKind::W : OpKind::B);
    if (op.kind == OpKind::F || op.kind == OpKind::R) in_flight_ += load_.rank_tokens[j];
    show(tokens_, "tokens in flight", "tokens", in_flight_, start);
    if (frees) in_flight_ -= load_.rank_tokens[j];
    show(tokens_, "tokens in flight", "tokens", in_flight_, end);
  }
  if (!memory_) return;
  const OpMemory& held = memory_->next(op);
  if (layer_starts.size() == static_cast<std::size_t>(held.layers))
    for (int i = 0; i < held.layers; ++i) show(during(held, i), i == 0 ? start : layer_starts[at(i)]);
  else
    show(held.last.total() > held.first.total() ? held.last : held.first, start);
  show(held.after, end);
}

}  // namespace equipoise
