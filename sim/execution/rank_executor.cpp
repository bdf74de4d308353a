#include "sim/execution/rank_executor.h"

#include <algorithm>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "sim/cost/context_exchange/context_form.h"
#include "sim/execution/parameters.h"

namespace equipoise::execution {
namespace {

// What an op of the schedule hands on: activations, those of a recomputing forward, or gradients.
enum Way { kForward, kAgain, kBackward };
Way way_of(OpKind kind) {
  return kind == OpKind::B ? kBackward : kind == OpKind::R ? kAgain : kForward;
}

bool is_layer(BlockRole role) {
  return role == BlockRole::layer_forward || role == BlockRole::layer_backward ||
         role == BlockRole::layer_input_gradient || role == BlockRole::layer_weight_gradient;
}

}  // namespace

RankExecutor::RankExecutor(const RankSetup& setup)
    : setup_(setup),
      pool_(setup.backend),
      rank_{setup.model,
            setup.layout,
            setup.backend,
            pool_,
            place_of(setup.grid, setup.elements.rank()),
            {},
            {},
            0,
            {},
            {},
            {},
            setup.seed,
            &setup.grid},
      layer_ops_(rank_),
      end_ops_(rank_) {
  const int tensor = setup.layout.tensor;
  rank_.heads = local_heads(setup.model, tensor, rank_.place.tensor);
  rank_.vocabulary = local_vocabulary(setup.model, tensor, rank_.place.tensor);
  rank_.ffn = setup.model.ffn / tensor;
  rank_.replica_count = setup.layout.data * setup.layout.context;
  join_groups();
  make_parameters();
  std::vector<float> table(static_cast<std::size_t>(setup.longest_slice * setup.model.head_dim));
  kernels::fill_rope_table(table, setup.model.head_dim, kRopeBase);
  rope_ = pool_.take(table.size() * sizeof(float));
  setup.backend.to_device(rope_.data(), table.data(), table.size() * sizeof(float));
  layer_ops_.set_rope(rope_.floats());
}

void RankExecutor::join_groups() {
  const RankPlace& place = rank_.place;
  const bool apart = &setup_.elements != &setup_.floats;
  const auto join = [&](int color, int key, Groups& groups) {
    groups.elements = setup_.elements.split(color, key);
    if (apart) groups.floats = setup_.floats.split(color, key);
    return Group{groups.elements.get(), apart ? groups.floats.get() : groups.elements.get()};
  };
  rank_.tensor = join(place.stage * rank_.replica_count + place.replica, place.tensor, tensor_);
  rank_.replicas = join(place.stage * setup_.layout.tensor + place.tensor, place.replica, replicas_);
  if (setup_.layout.pipeline > 1)
    rank_.stages = join(place.replica / setup_.layout.context * setup_.layout.tensor + place.tensor,
                        place.stage * setup_.layout.context + place.replica % setup_.layout.context, stages_);
  // TP ranks that hold the same KV head.
  same_kv_ = rank_.tensor.elements->split(rank_.heads.first_kv, place.tensor);
}

void RankExecutor::make_parameters() {
  const PartsOptions options{rank_.replica_count, rank_.place.replica, rank_.place.tensor, setup_.seed};
  for (int local = 0; local < setup_.layout.virtual_pipeline; ++local)
    parts_.push_back(make_parts(setup_.model, setup_.layout,
                                local * setup_.layout.pipeline + rank_.place.stage, options, setup_.backend,
                                pool_));
}

void RankExecutor::reset() {
  for (auto& stage : parts_) initialise_parts(setup_.model, setup_.seed, setup_.backend, stage);
  steps_done_ = 0;
}

int RankExecutor::world_rank(int stage, int replica, int tensor) const {
  const int first = setup_.grid.gpu({tensor, 0, 0, stage});
  return setup_.grid.data_context_group(first)[at(replica)];
}

Part& RankExecutor::part_of_layer(int layer) {
  for (auto& stage : parts_)
    for (Part& part : stage)
      if (part.layer == layer) return part;
  throw EngineError("real execution: layer ", layer, " is not on stage ", rank_.place.stage);
}

EndParts RankExecutor::end_parts() {
  EndParts ends;
  for (auto& stage : parts_)
    for (Part& part : stage) {
      if (part.kind == ModelPart::embedding) ends.embedding = &part;
      if (part.kind == ModelPart::head) ends.head = &part;
    }
  return ends;
}

Gathered RankExecutor::run(const ExecutableStep& step, bool gather_gradients, StepRecord& record) {
  Gathered gathered;
  prepare(step);
  setup_.floats.barrier();
  record.begin_ns = now_ns();
  const std::int64_t cpu = thread_cpu_ns();
  int group = 0;
  for (std::size_t l = 0; l < step.program.lanes.size(); ++l) {
    // Lanes of a later barrier group start together when all before have ended.
    for (; group < step.program.lanes[l].barrier_group; ++group) setup_.floats.barrier();
    if (!runs_[l].empty()) run_lane(step, static_cast<int>(l), record);
  }
  run_end(step, record, gather_gradients ? &gathered : nullptr);
  setup_.backend.synchronize();
  record.cpu_ns = thread_cpu_ns() - cpu;
  record.end_ns = now_ns();
  ++steps_done_;
  gather_losses(step, gathered);
  runs_.clear();
  return gathered;
}

void RankExecutor::run_lane(const ExecutableStep& step, int lane, StepRecord& record) {
  lane_ = lane;
  const OpLane& ops = step.program.lanes[at(lane)];
  const auto& stage = ops.stages[at(rank_.place.stage)];
  recomputes_.assign(runs_[at(lane)].size(), std::vector<bool>(at(setup_.model.layers), false));
  for (const ScheduledOp& scheduled : stage) {
    if (scheduled.op.kind != OpKind::B) continue;
    for (std::uint32_t r = 0; r < scheduled.run_count; ++r) {
      const BlockRun& run = ops.runs[scheduled.first_run + r];
      if (ops.blocks[run.block].role == BlockRole::layer_forward)
        recomputes_[at(scheduled.op.micro_batch)][at(run.layer)] = true;
    }
  }
  if (rank_.evens_out_stages)
    run_ticks(step, record);
  else
    for (std::size_t i = 0; i < stage.size(); ++i) run_scheduled(step, i, record);
  for (Message& message : sent_) message.pending->wait();
  sent_.clear();
  kept_.clear();
}

void RankExecutor::run_ticks(const ExecutableStep& step, StepRecord& record) {
  const LaneTicks& lane = step.ticks[at(lane_)];
  for (const TickPlace& place : lane.stages[at(rank_.place.stage)]) {
    rank_.tick = &lane.ticks[place.tick];
    if (place.op == kIdle)
      serve(step, lane.first[place.tick]);
    else
      run_scheduled(step, at(place.op), record);
  }
}

// Computes attention for other stages, of which one runs this op, pass by pass as they do.
void RankExecutor::serve(const ExecutableStep& step, const TickOp& with) {
  AttentionRows rows;
  rows.rows.ranks.resize(at(setup_.layout.context));
  rows.rank = rank_.place.replica % setup_.layout.context;
  rows.group = rank_.stages;
  const std::unique_ptr<ContextAttention> attention = make_disaggregated_attention(rank_, rows, kIdle, *this);
  const OpLane& lane = step.program.lanes[at(lane_)];
  const ScheduledOp& scheduled = lane.stages[with.stage][with.position];
  for (std::uint32_t r = 0; r < scheduled.run_count; ++r) {
    const BlockRun& run = lane.runs[scheduled.first_run + r];
    const OpBlock& block = lane.blocks[run.block];
    if (!is_layer(block.role)) continue;
    for (std::uint32_t i = 0; i < run.repeat; ++i) serve_layer(block, *attention);
  }
}

void RankExecutor::serve_layer(const OpBlock& block, ContextAttention& attention) {
  const bool forward = block.role == BlockRole::layer_forward;
  AttentionRun run;
  AttentionGradient gradient;
  run.query = run.keys = run.out = gradient.out = rank_.elements(0);
  if (forward)
    attention.begin_forward(run, 0);
  else
    attention.begin_backward(run, gradient, 0, rank_.repeats_attention);
  // The other stage may have nothing to attend to itself: what is computed here comes behind the first
  // exchange.
  int syncs = 0;
  for (const OpStep& op : block.steps) {
    if (op.name != OpName::cp_all_to_all) continue;
    begin_op(setup_.progress, OpName::cp_all_to_all);
    forward ? attention.forward_sync(syncs) : attention.backward_sync(syncs);
    begin_op(setup_.progress, OpName::attention);
    if (syncs++ == 0) forward ? attention.forward_attend(0) : attention.backward_attend(0);
  }
  if (!forward) attention.end_backward();
}

void RankExecutor::run_scheduled(const ExecutableStep& step, std::size_t number, StepRecord& record) {
  const OpLane& lane = step.program.lanes[at(lane_)];
  const ScheduledOp& scheduled = lane.stages[at(rank_.place.stage)][number];
  RecordedOp op;
  op.lane = lane_;
  op.scheduled = static_cast<std::int32_t>(number);
  Memory hidden;
  receive_input(scheduled, hidden, op, record);
  for (std::uint32_t r = 0; r < scheduled.run_count; ++r) {
    const BlockRun& run = lane.runs[scheduled.first_run + r];
    const OpBlock& block = lane.blocks[run.block];
    op.run = static_cast<std::int32_t>(r);
    for (std::uint32_t i = 0; i < run.repeat; ++i) {
      const bool down = is_layer(block.role) && block.role != BlockRole::layer_forward;
      op.repetition = static_cast<std::int32_t>(i);
      run_block(block, run.layer + (down ? -op.repetition : op.repetition), scheduled, hidden, op, record);
    }
  }
  pass_on(scheduled, hidden);
}

void RankExecutor::run_block(const OpBlock& block, int layer, const ScheduledOp& scheduled, Memory& hidden,
                             RecordedOp at_op, StepRecord& record) {
  if (block.role == BlockRole::none) return;
  MicroBatchRun& run = runs_[at(lane_)][at(scheduled.op.micro_batch)];
  const OpKind kind = scheduled.op.kind;
  const bool again = kind == OpKind::B && block.role == BlockRole::layer_forward;
  Memory input;  // of a layer that is recomputed within its backward
  if (again) input = run.layers[at(layer)].input;

  if (block.role == BlockRole::layer_forward)
    layer_ops_.begin_forward(run, layer, part_of_layer(layer), again ? input : hidden);
  else if (block.role == BlockRole::layer_weight_gradient)
    layer_ops_.begin_weight_gradients(run, layer, part_of_layer(layer));
  else if (is_layer(block.role))
    layer_ops_.begin_backward(run, layer, part_of_layer(layer), hidden);
  else
    end_ops_.begin(block.role, run, end_parts(), hidden, kind == OpKind::F || kind == OpKind::R);

  for (std::size_t s = 0; s < block.steps.size(); ++s) {
    const OpName name = block.steps[s].name;
    begin_op(setup_.progress, name);
    at_op.begin_ns = now_ns();
    if (block.role == BlockRole::layer_forward)
      layer_ops_.forward(name);
    else if (is_layer(block.role))
      layer_ops_.backward(name);
    else
      end_ops_.run(name);
    if (setup_.times_ops) setup_.backend.synchronize();
    at_op.end_ns = now_ns();
    at_op.step = static_cast<std::int32_t>(s);
    at_op.name = static_cast<std::int32_t>(name);
    record.ops.push_back(at_op);
  }

  if (block.role == BlockRole::layer_forward) {
    layer_ops_.end_forward();
    LayerRun& made = run.layers[at(layer)];
    if (kind == OpKind::D) made = {};
    if ((kind == OpKind::F || kind == OpKind::R) && recomputes_[at(scheduled.op.micro_batch)][at(layer)]) {
      Memory kept = made.input;
      made = {};
      made.input = kept;
    }
  } else if (block.role == BlockRole::layer_weight_gradient) {
    run.layers[at(layer)] = {};
  } else if (is_layer(block.role)) {
    layer_ops_.end_backward();
    run.chunk[at(layer)] = {};  // all later chunks have had their backward
  } else {
    end_ops_.end();
    if (kind == OpKind::D) run.head = {};
  }
}

// From another rank, or from this one's earlier op where the same rank has the neighbouring virtual stage.
void RankExecutor::receive_input(const ScheduledOp& scheduled, Memory& hidden, RecordedOp op,
                                 StepRecord& record) {
  if (scheduled.input_stage == kNoInput) return;
  const Way way = way_of(scheduled.op.kind);
  const int v = virtual_stage(scheduled.op);
  if (scheduled.input_stage == rank_.place.stage) {
    const auto found = kept_.find({way, v, scheduled.op.micro_batch});
    if (found == kept_.end()) throw EngineError("real execution: an op's input was not made on its rank");
    hidden = found->second;
    kept_.erase(found);
    return;
  }
  const MicroBatchRun& run = runs_[at(lane_)][at(scheduled.op.micro_batch)];
  const std::int64_t count = run.sequence_rows * setup_.model.hidden;
  hidden = rank_.elements(count);
  begin_op(setup_.progress, OpName::pp_send);
  op.name = static_cast<std::int32_t>(OpName::pp_send);
  op.begin_ns = now_ns();
  if (count > 0)
    setup_.elements.receive(hidden.data(), count,
                            world_rank(scheduled.input_stage, rank_.place.replica, rank_.place.tensor),
                            tag_of(way, v, scheduled.op.micro_batch));
  op.end_ns = now_ns();
  record.ops.push_back(op);
}

void RankExecutor::pass_on(const ScheduledOp& scheduled, const Memory& hidden) {
  if (scheduled.op.kind == OpKind::W) return;
  const int to = virtual_stage(scheduled.op) + (scheduled.op.kind == OpKind::B ? -1 : 1);
  if (to < 0 || to >= setup_.layout.virtual_stages()) return;
  const Way way = way_of(scheduled.op.kind);
  const int stage = to % setup_.layout.pipeline;
  if (stage == rank_.place.stage) {
    kept_[{way, to, scheduled.op.micro_batch}] = hidden;
    return;
  }
  const std::int64_t count =
      runs_[at(lane_)][at(scheduled.op.micro_batch)].sequence_rows * setup_.model.hidden;
  if (count == 0) return;
  sent_.push_back(
      {hidden, setup_.elements.start_send(hidden.data(), count,
                                          world_rank(stage, rank_.place.replica, rank_.place.tensor),
                                          tag_of(way, to, scheduled.op.micro_batch))});
}

int RankExecutor::tag_of(int way, int v, int micro_batch) const {
  const auto micro_batches = static_cast<int>(runs_[at(lane_)].size());
  return (way * setup_.layout.virtual_stages() + v) * micro_batches + micro_batch;
}

// --- What a rank gets ready before a step's clock starts, as a data loader does: rows, tokens, the chunks of
// a group, the CP groups of its lanes.

namespace {

template <class T>
Memory on_device(const RankContext& rank, const std::vector<T>& values) {
  Memory memory = rank.pool.take(values.size() * sizeof(T));
  rank.backend.to_device(memory.data(), values.data(), values.size() * sizeof(T));
  return memory;
}

// The inner groups of ranks that share out heads, each as one rank. `rows`: of the ranks.
AttentionRows inner_groups(const MicroBatch& micro_batch, const Sharding& sharding, const AttentionRows& rows,
                           int shares) {
  Sharding merged;
  merge_inner_ranks(sharding, shares, merged);
  AttentionRows inner;
  inner.rows = rows_of(micro_batch, merged);
  inner.rank = rows.rank / shares;
  inner.earlier = rows.earlier;
  inner.in_group = rows.in_group;
  inner.padded_rows = inner.own().rows;
  inner.capacity = inner.rows.most_rows;
  return inner;
}

}  // namespace

void RankExecutor::prepare(const ExecutableStep& step) {
  for (auto& stage : parts_)
    for (Part& part : stage) std::fill(part.touched.begin(), part.touched.end(), char{0});
  rank_.layout = step.layout;
  rank_.repeats_attention = step.repeats_attention;
  rank_.evens_out_stages = !step.ticks.empty();
  runs_.clear();
  runs_.resize(step.program.lanes.size());
  int last_group = 0;
  for (const OpLane& lane : step.program.lanes) last_group = std::max(last_group, lane.barrier_group);
  for (int group = 0; group <= last_group; ++group) {
    const ContextGroups& context = context_groups(step.program, group);
    for (std::size_t l = 0; l < step.program.lanes.size(); ++l) {
      const OpLane& lane = step.program.lanes[l];
      const int place = rank_.place.replica - lane.first_replica;
      if (lane.barrier_group == group && place >= 0 && place < lane.context)
        prepare_lane(step, static_cast<int>(l), context);
    }
  }
}

// The CP group of this rank's lane among those of a barrier group; a rank without a lane is alone.
const RankExecutor::ContextGroups& RankExecutor::context_groups(const OpProgram& program, int barrier_group) {
  std::vector<std::pair<int, int>> lanes;
  int color = -1, rank = 0, shares = 1;
  for (const OpLane& lane : program.lanes) {
    if (lane.barrier_group != barrier_group) continue;
    const int place = rank_.place.replica - lane.first_replica;
    if (place >= 0 && place < lane.context) {
      color = static_cast<int>(lanes.size());
      rank = place;
      shares = head_shares(rank_.layout, lane.context);
    }
    lanes.emplace_back(lane.first_replica, lane.context);
  }
  // Rows may differ in their form, and with it in the groups inside a lane.
  lanes.emplace_back(-1 - static_cast<int>(rank_.layout.acting_form()), rank_.layout.context_inner);
  ContextGroups& groups = context_groups_[lanes];
  if (!groups.all) {
    const int alone = static_cast<int>(lanes.size()) + rank_.place.replica;
    groups.all = rank_.replicas.elements->split(color >= 0 ? color : alone, rank_.place.replica);
    if (&setup_.elements != &setup_.floats)
      groups.floats = rank_.replicas.floats->split(color >= 0 ? color : alone, rank_.place.replica);
    if (shares > 1) {
      groups.inner = groups.all->split(rank / shares, rank);
      groups.across = groups.all->split(rank % shares, rank);
    }
  }
  return groups;
}

void RankExecutor::prepare_lane(const ExecutableStep& step, int lane, const ContextGroups& context) {
  const std::vector<MicroBatch>& micro_batches = step.step.lanes[at(lane)].micro_batches;
  std::vector<MicroBatchRun>& runs = runs_[at(lane)];
  lane_ = lane;
  runs.resize(micro_batches.size());
  for (std::size_t j = 0; j < runs.size(); ++j) {
    MicroBatchRun& run = runs[j];
    run.micro_batch = &micro_batches[j];
    run.index = static_cast<int>(j);
    const auto group_of = [](const auto& group) { return Group{group.get(), group.get()}; };
    const int ranks = step.program.lanes[at(lane)].context;
    run.rows.micro_batch = run.micro_batch;
    run.rows.group = group_of(context.all);
    if (context.floats) run.rows.group.floats = context.floats.get();
    if (rank_.evens_out_stages) run.rows.group = rank_.stages;
    run.rows.inner = group_of(context.inner);
    run.rows.rank = rank_.place.replica - step.program.lanes[at(lane)].first_replica;
    const Chunk& chunk = micro_batches[j].chunk;
    run.rows.in_group = chunk.count > 1;
    for (std::size_t i = 0; i < j && chunk.count > 1; ++i) {
      const Chunk& other = micro_batches[i].chunk;
      if (other.count > 1 && other.sequence == chunk.sequence && other.group_begin == chunk.group_begin)
        run.rows.earlier.push_back(static_cast<int>(i));
    }
    prepare_micro_batch(step.sharding[at(lane)][j], step.weights[at(lane)][j], step.documents, run);
    if (const int shares = head_shares(rank_.layout, ranks); shares > 1) {
      run.inner_rows = inner_groups(*run.micro_batch, step.sharding[at(lane)][j], run.rows, shares);
      run.inner_rows.group = group_of(context.across);
    }
  }
  for (MicroBatchRun& run : runs) run.attention = make_context_attention(rank_, run.rows, run.index, *this);
}

void RankExecutor::prepare_micro_batch(const Sharding& sharding, const std::vector<double>& slice_weights,
                                       const DocumentLengths& documents, MicroBatchRun& run) {
  const std::int64_t t = setup_.layout.tensor;
  const auto round_up = [t](std::int64_t rows) { return (rows + t - 1) / t * t; };
  run.rows.rows = rows_of(*run.micro_batch, sharding);
  run.sequence_rows = rank_.sequence_rows(run.rows.own().rows);
  run.padded_rows = run.rows.padded_rows = run.sequence_rows * t;
  run.rows.capacity = round_up(run.rows.rows.most_rows);
  run.layers.resize(at(setup_.model.layers));
  run.chunk.resize(at(setup_.model.layers));
  run.slice_losses.assign(run.micro_batch->slices.size(), 0);

  const auto rows = static_cast<std::size_t>(run.padded_rows);
  std::vector<std::int32_t> tokens(rows, 0), targets(rows, 0), positions(rows, 0);
  std::vector<float> weights(rows, 0);
  run.slice_of_row.assign(rows, -1);
  for (const auto* runs : {&run.rows.own().local, &run.rows.own().shared})
    for (const RowRun& held : *runs) {
      const auto slice = static_cast<std::size_t>(held.segment.slice);
      const Slice& text = run.micro_batch->slices[slice];
      for (std::int64_t i = 0; i < held.count(); ++i) {
        const auto row = static_cast<std::size_t>(held.row + i);
        const std::int64_t position = held.segment.q_begin + i;
        positions[row] = static_cast<std::int32_t>(position - held.segment.kv_begin);
        if (position >= text.end) continue;  // padding: computed, and nobody's
        tokens[row] =
            static_cast<std::int32_t>(token_at(setup_.seed, text.document, position, setup_.model.vocab));
        targets[row] = static_cast<std::int32_t>(
            target_at(setup_.seed, text.document, position, documents.of(text.document), setup_.model.vocab));
        weights[row] = static_cast<float>(slice_weights[slice]);
        run.slice_of_row[row] = held.segment.slice;
      }
    }
  run.tokens = on_device(rank_, tokens);
  run.targets = on_device(rank_, targets);
  run.positions = on_device(rank_, positions);
  run.weights = on_device(rank_, weights);
}

}  // namespace equipoise::execution
