#include "sim/execution/rank_executor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "sim/cost/context_exchange/context_form.h"
#include "sim/execution/disaggregated_attention.h"
#include "sim/execution/parameters.h"
#include "sim/execution/rank_context.h"

namespace equipoise::execution {
namespace {

// What an op of the schedule passes on: activations, those of a recomputing forward, or gradients.
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
  // The TP ranks that hold the same KV head.
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
    // The lanes of a later barrier group start together when all earlier ones have ended.
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

// Computes attention for other stages, of which one runs this op, in the same passes.
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
  // The other stage may have no queries of its own, so what is computed here follows the first exchange.
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
  Memory input;  // input of a layer that its backward recomputes
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
    run.chunk[at(layer)] = {};  // the backwards of all later chunks have run
  } else {
    end_ops_.end();
    if (kind == OpKind::D) run.head = {};
  }
}

// The input comes from another rank, or from an earlier op of this rank for a neighbouring virtual stage.
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

// --- What a rank prepares before a step's clock starts, as a data loader does: rows, tokens, the chunks of a
// group, the CP groups of its lanes.

namespace {

template <class T>
Memory on_device(const RankContext& rank, const std::vector<T>& values) {
  Memory memory = rank.pool.take(values.size() * sizeof(T));
  rank.backend.to_device(memory.data(), values.data(), values.size() * sizeof(T));
  return memory;
}

// The inner groups of ranks that share heads, each as one rank. `rows` belongs to the ranks.
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
  // Rows of a study may differ in their CP form, and then also in the groups inside a lane.
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
        if (position >= text.end) continue;  // padding is computed and belongs to no document
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

// --- The end of the step: gradients are reduced over the replicas, part by part, the optimizer updates what
// the rank owns, and parameters are gathered again (ZeRO-1). Then values for checks are gathered.

namespace {

constexpr float kBeta1 = 0.9F, kBeta2 = 0.95F, kEpsilon = 1e-8F, kLearningRate = 1e-4F;

}  // namespace

void RankExecutor::run_end(const ExecutableStep& step, StepRecord& record, Gathered* gathered) {
  const StageEnd& end = step.program.ends[at(rank_.place.stage)];
  std::vector<Part*> buckets;
  for (auto& stage : parts_)
    for (Part& part : stage) buckets.push_back(&part);
  std::size_t reduced = 0;
  for (std::size_t i = 0; i < end.steps.size(); ++i) {
    const OpName name = end.steps[i].name;
    RecordedOp op;
    op.step = static_cast<std::int32_t>(i);
    op.name = static_cast<std::int32_t>(name);
    if (name == OpName::optimizer && gathered != nullptr) gather_gradients(gathered->gradients);
    begin_op(setup_.progress, name);
    op.begin_ns = now_ns();
    if (name == OpName::dp_reduce)
      reduce(*buckets.at(reduced++));
    else if (name == OpName::optimizer)
      for (Part* part : buckets) optimize(*part);
    else if (name == OpName::dp_all_gather)
      for (Part* part : buckets) gather_parameters(*part);
    else
      throw EngineError("real execution: the step ends with an op that no rank can run: ", name_of(name));
    if (setup_.times_ops) setup_.backend.synchronize();
    op.end_ns = now_ns();
    record.ops.push_back(op);
  }
  if (reduced != buckets.size()) throw EngineError("real execution: a part's gradients are reduced by no op");
}

void RankExecutor::reduce(Part& part) {
  for (std::size_t shard = 0; shard < part.tensors.size(); ++shard)
    if (part.touched[shard] == 0) {
      if (part.tensors[shard].offset >= part.first_norm && part.norm_elements > 0)
        norm_gradient_to_add_to(rank_, part, shard);
      else
        gradient_to_add_to(rank_, part, shard);
    }
  add_over_tensor_ranks(part);
  if (setup_.model.tied_embeddings && setup_.layout.pipeline > 1 && !is_layer(part.kind)) share_tied(part);
  part.reduced.reset();
  if (rank_.replica_count == 1) return;
  part.reduced = rank_.elements(part.owned);
  if (setup_.layout.zero >= 1)
    rank_.replicas.elements->reduce_scatter(part.gradients.data(), part.reduced.data(), part.owned);
  else
    rank_.replicas.elements->all_reduce(part.gradients.data(), part.reduced.data(), part.elements);
}

// Adds up gradients over TP ranks: each had other rows for its norms, and other queries for a KV head that
// several ranks hold.
void RankExecutor::add_over_tensor_ranks(Part& part) {
  const bool f32 = setup_.backend.element_type() == kernels::ElementType::f32;
  if (part.norm_elements > 0) {
    void* norms = f32 ? rank_.at(part.gradients, part.first_norm) : part.norm_gradients.data();
    std::vector<float> mine(static_cast<std::size_t>(part.norm_elements)), sum(mine.size());
    setup_.backend.to_host(mine.data(), norms, mine.size() * sizeof(float));
    if (rank_.tensor.size() > 1)
      rank_.tensor.floats->all_reduce(mine.data(), sum.data(), part.norm_elements);
    else
      sum = mine;
    if (rank_.tensor.size() > 1 || !f32)
      write_elements(setup_.backend, rank_.at(part.gradients, part.first_norm), sum);
  }
  if (same_kv_->size() == 1) return;
  for (const TensorShard& shard : part.tensors) {
    if (!shard.everywhere || shard.offset >= part.first_norm) continue;
    const Memory sum = rank_.elements(shard.elements());
    same_kv_->all_reduce(rank_.at(part.gradients, shard.offset), sum.data(), shard.elements());
    rank_.copy(rank_.at(part.gradients, shard.offset), sum.data(), shard.elements());
  }
}

// A tied head and its embedding on different stages add each other's gradients.
void RankExecutor::share_tied(Part& part) {
  const int last = setup_.layout.pipeline - 1;
  const int other = part.kind == ModelPart::head ? 0 : last;
  const std::int64_t count = part.tensors[0].elements();
  const Memory incoming = rank_.elements(count);
  const int peer = world_rank(other, rank_.place.replica, rank_.place.tensor);
  setup_.elements.send_receive(part.gradients.data(), peer, incoming.data(), peer, count);
  rank_.add(part.gradients.data(), incoming.data(), count);
}

void* RankExecutor::owned_gradients(Part& part) const {
  return part.reduced ? part.reduced.data() : rank_.at(part.gradients, part.first_owned);
}

// Adam, with the corrections for its first steps in its rates.
void RankExecutor::optimize(Part& part) {
  const auto step = static_cast<float>(steps_done_ + 1);
  const float first = 1 - std::pow(kBeta1, step), second = std::sqrt(1 - std::pow(kBeta2, step));
  kernels::Adam call;
  call.step = {part.owned, kBeta1, kBeta2, kEpsilon * second, kLearningRate * second / first};
  call.gradient = owned_gradients(part);
  call.master = part.master.floats();
  call.mean = part.mean.floats();
  call.square = part.square.floats();
  call.weights = rank_.at(part.weights, part.first_owned);
  setup_.backend.run(call);
}

void RankExecutor::gather_parameters(Part& part) {
  if (setup_.layout.zero == 0 || rank_.replica_count == 1) return;
  const Memory own = rank_.elements(part.owned);
  rank_.copy(own.data(), rank_.at(part.weights, part.first_owned), part.owned);
  rank_.replicas.elements->all_gather(own.data(), part.weights.data(), part.owned);
}

std::vector<float> RankExecutor::whole_gradients(Part& part) {
  Memory whole;
  const void* from = owned_gradients(part);
  if (part.owned < part.elements) {
    whole = rank_.elements(part.elements);
    rank_.replicas.elements->all_gather(from, whole.data(), part.owned);
    from = whole.data();
  }
  std::vector<float> values(static_cast<std::size_t>(part.elements));
  read_elements(setup_.backend, from, values);
  return values;
}

void RankExecutor::gather_gradients(std::vector<std::vector<float>>& out) {
  gather_tensors([this](Part& part) { return whole_gradients(part); }, out);
}

std::vector<std::vector<float>> RankExecutor::gather_weights() {
  std::vector<std::vector<float>> out;
  gather_tensors(
      [this](Part& part) {
        std::vector<float> values(static_cast<std::size_t>(part.elements));
        read_elements(setup_.backend, part.weights.data(), values);
        return values;
      },
      out);
  return out;
}

// The first replica of every stage and TP rank sends its parts to rank 0, which assembles whole tensors.
void RankExecutor::gather_tensors(const std::function<std::vector<float>(Part&)>& values_of,
                                  std::vector<std::vector<float>>& out) {
  const bool assembles = setup_.floats.rank() == 0;
  const std::vector<Tensor> tensors = inventory(setup_.model);
  if (assembles)
    for (const Tensor& tensor : tensors) out.emplace_back(static_cast<std::size_t>(tensor.elements()), 0.0F);
  std::vector<std::vector<float>> mine;
  for (auto& stage : parts_)
    for (Part& part : stage) mine.push_back(values_of(part));
  if (!assembles && rank_.place.replica == 0)
    for (const std::vector<float>& values : mine)
      setup_.floats.send(values.data(), static_cast<std::int64_t>(values.size()), 0);
  if (!assembles) return;
  for (int s = 0; s < setup_.layout.pipeline; ++s)
    for (int t = 0; t < setup_.layout.tensor; ++t) {
      const int from = world_rank(s, 0, t);
      std::size_t number = 0;
      for (int local = 0; local < setup_.layout.virtual_pipeline; ++local)
        for (const Part& part : part_shapes(setup_.model, setup_.layout, local * setup_.layout.pipeline + s,
                                            {rank_.replica_count, 0, t, setup_.seed})) {
          std::vector<float> values(static_cast<std::size_t>(part.elements));
          if (from == 0)
            values = mine[number];
          else
            setup_.floats.receive(values.data(), part.elements, from);
          ++number;
          for (const TensorShard& shard : part.tensors)
            put_shard(tensors[shard.tensor], shard, values, out[shard.tensor]);
        }
    }
}

void RankExecutor::gather_losses(const ExecutableStep& step, Gathered& out) {
  std::vector<double> mine;
  for (std::size_t l = 0; l < step.step.lanes.size(); ++l)
    for (std::size_t j = 0; j < step.step.lanes[l].micro_batches.size(); ++j) {
      const std::size_t slices = step.step.lanes[l].micro_batches[j].slices.size();
      for (std::size_t i = 0; i < slices; ++i)
        mine.push_back(runs_[l].empty() ? 0 : runs_[l][j].slice_losses[i]);
    }
  // Doubles travel as pairs of floats, bit by bit.
  const auto count = static_cast<std::int64_t>(2 * mine.size());
  std::vector<double> all(mine.size() * static_cast<std::size_t>(setup_.floats.size()));
  setup_.floats.all_gather(mine.data(), all.data(), count);
  if (setup_.floats.rank() != 0) return;
  for (std::size_t i = mine.size(); i < all.size(); ++i) all[i % mine.size()] += all[i];
  std::size_t next = 0;
  for (const Lane& lane : step.step.lanes) {
    auto& of_lane = out.losses.emplace_back();
    for (const MicroBatch& micro_batch : lane.micro_batches) {
      auto& of_slices = of_lane.emplace_back();
      for (std::size_t i = 0; i < micro_batch.slices.size(); ++i) of_slices.push_back(all[next++]);
    }
  }
}

}  // namespace equipoise::execution
