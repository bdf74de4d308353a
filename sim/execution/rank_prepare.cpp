// What a rank gets ready before a step's clock starts, as a data loader does: rows, tokens, the chunks of a
// group, the CP groups of its lanes.
#include <algorithm>

#include "policies/base/index.h"
#include "sim/execution/rank_executor.h"
#include "sim/execution/tokens.h"

namespace equipoise::execution {
namespace {

template <class T>
Memory on_device(const RankContext& rank, const std::vector<T>& values) {
  Memory memory = rank.pool.take(values.size() * sizeof(T));
  rank.backend.to_device(memory.data(), values.data(), values.size() * sizeof(T));
  return memory;
}

}  // namespace

void RankExecutor::prepare(const ExecutableStep& step) {
  for (auto& stage : parts_)
    for (Part& part : stage) std::fill(part.touched.begin(), part.touched.end(), char{0});
  rank_.repeats_attention = step.repeats_attention;
  runs_.clear();
  runs_.resize(step.program.lanes.size());
  int last_group = 0;
  for (const OpLane& lane : step.program.lanes) last_group = std::max(last_group, lane.barrier_group);
  for (int group = 0; group <= last_group; ++group) {
    kernels::Communicator& context = context_group(step.program, group);
    for (std::size_t l = 0; l < step.program.lanes.size(); ++l) {
      const OpLane& lane = step.program.lanes[l];
      const int place = rank_.place.replica - lane.first_replica;
      if (lane.barrier_group == group && place >= 0 && place < lane.context)
        prepare_lane(step, static_cast<int>(l), {&context, &context});
    }
  }
}

// The CP group of this rank's lane among those of a barrier group; a rank without a lane is alone.
kernels::Communicator& RankExecutor::context_group(const OpProgram& program, int barrier_group) {
  std::vector<std::pair<int, int>> lanes;
  int color = -1;
  for (const OpLane& lane : program.lanes) {
    if (lane.barrier_group != barrier_group) continue;
    const int place = rank_.place.replica - lane.first_replica;
    if (place >= 0 && place < lane.context) color = static_cast<int>(lanes.size());
    lanes.emplace_back(lane.first_replica, lane.context);
  }
  auto& group = context_groups_[lanes];
  if (!group) {
    const int alone = static_cast<int>(lanes.size()) + rank_.place.replica;
    group = rank_.replicas.elements->split(color >= 0 ? color : alone, rank_.place.replica);
  }
  return *group;
}

void RankExecutor::prepare_lane(const ExecutableStep& step, int lane, Group context) {
  const std::vector<MicroBatch>& micro_batches = step.step.lanes[at(lane)].micro_batches;
  std::vector<MicroBatchRun>& runs = runs_[at(lane)];
  lane_ = lane;
  runs.resize(micro_batches.size());
  for (std::size_t j = 0; j < runs.size(); ++j) {
    MicroBatchRun& run = runs[j];
    run.micro_batch = &micro_batches[j];
    run.index = static_cast<int>(j);
    run.rows.group = context;
    run.rows.rank = rank_.place.replica - step.program.lanes[at(lane)].first_replica;
    const Chunk& chunk = micro_batches[j].chunk;
    run.rows.in_group = chunk.count > 1;
    for (std::size_t i = 0; i < j && chunk.count > 1; ++i) {
      const Chunk& other = micro_batches[i].chunk;
      if (other.count > 1 && other.sequence == chunk.sequence && other.group_begin == chunk.group_begin)
        run.rows.earlier.push_back(static_cast<int>(i));
    }
    prepare_micro_batch(step.sharding[at(lane)][j], step.weights[at(lane)][j], step.documents, run);
  }
  for (MicroBatchRun& run : runs)
    run.attention = make_context_attention(rank_, run.rows, run.all_rows, run.index, *this);
}

void RankExecutor::prepare_micro_batch(const Sharding& sharding, const std::vector<double>& slice_weights,
                                       const DocumentLengths& documents, MicroBatchRun& run) {
  const std::int64_t t = setup_.layout.tensor;
  const auto round_up = [t](std::int64_t rows) { return (rows + t - 1) / t * t; };
  run.rows.rows = rows_of(*run.micro_batch, sharding);
  run.all_rows = all_shared(*run.micro_batch, sharding);
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
