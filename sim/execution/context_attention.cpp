#include "sim/execution/context_attention.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <tuple>

#include "sim/cost/context_exchange/context_form.h"
#include "sim/execution/disaggregated_attention.h"
#include "sim/execution/gathered_attention.h"
#include "sim/execution/group_cast_attention.h"
#include "sim/execution/ring_attention.h"
#include "sim/execution/stage_attention.h"
#include "sim/execution/ulysses_attention.h"

namespace equipoise::execution {

static MicroBatchRows lay_out(const MicroBatch& micro_batch, const Sharding& sharding,
                              std::span<const int> placement) {
  MicroBatchRows out;
  out.ranks.resize(static_cast<std::size_t>(sharding.ranks()));
  out.slice_key.assign(micro_batch.slices.size(), 0);
  out.slice_keys.assign(micro_batch.slices.size(), 0);
  const auto is_local = [&](const Segment& s) {
    return !placement.empty() && placement[at(s.slice)] != kDistributed;
  };
  for (const Segment& s : sharding.segments) {
    if (is_local(s)) continue;
    std::int64_t& keys = out.slice_keys[at(s.slice)];
    keys = std::max(keys, s.keys());
  }
  for (std::size_t i = 0; i < out.slice_keys.size(); ++i) {
    out.slice_key[i] = out.keys;
    out.keys += out.slice_keys[i];
  }
  if (micro_batch.chunk.count > 1 && !micro_batch.slices.empty())
    out.earlier = micro_batch.slices.front().begin - micro_batch.chunk.group_begin;

  for (std::size_t r = 0; r < out.ranks.size(); ++r) {
    RankRows& rank = out.ranks[r];
    for (const Segment& s : sharding.of_rank(static_cast<int>(r)))
      (is_local(s) ? rank.local : rank.shared).push_back({s, 0, 0});
    for (std::vector<RowRun>* runs : {&rank.local, &rank.shared}) {
      std::ranges::sort(*runs, {},
                        [](const RowRun& run) { return std::tie(run.segment.slice, run.segment.q_begin); });
      for (RowRun& run : *runs) {
        run.row = rank.rows;
        run.key = out.slice_key[at(run.segment.slice)] + run.segment.q_begin - run.segment.kv_begin;
        rank.rows += run.count();
      }
      if (runs == &rank.local) rank.local_rows = rank.rows;
    }
    out.any_local = out.any_local || rank.local_rows > 0;
    out.shared_tokens += rank.shared_rows();
    out.most_rows = std::max(out.most_rows, rank.rows);
  }
  return out;
}

MicroBatchRows rows_of(const MicroBatch& micro_batch, const Sharding& sharding) {
  return lay_out(micro_batch, sharding,
                 sharding.placement.empty() ? micro_batch.placement : sharding.placement);
}

std::vector<kernels::Piece> pieces_over_keys(const MicroBatchRows& rows, std::span<const RowRun> runs,
                                             std::int64_t first_row) {
  std::vector<kernels::Piece> pieces;
  for (const RowRun& run : runs)
    pieces.push_back(
        {run.row - first_row, run.count(), rows.slice_key[at(run.segment.slice)], run.segment.keys()});
  return pieces;
}

std::vector<kernels::Piece> pieces_among(std::span<const RowRun> runs, std::int64_t first_row) {
  std::vector<kernels::Piece> pieces;
  std::size_t first_of_slice = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].segment.slice != runs[first_of_slice].segment.slice) first_of_slice = i;
    const std::int64_t first_key = runs[first_of_slice].row;
    pieces.push_back({runs[i].row - first_row, runs[i].count(), first_key - first_row,
                      runs[i].row - first_key + runs[i].count()});
  }
  return pieces;
}

// --- What all forms share

void AttentionForm::put(const Travelling& to, const void* data, bool floats) const {
  if (to.adds)
    rank_.add(to.data, data, to.count);
  else
    rank_.backend.copy(to.data, data, at(to.count) * (floats ? sizeof(float) : rank_.element_bytes()));
}

void AttentionForm::exchange(const TravellingOf& outgoing, const TravellingOf& incoming, bool floats) const {
  kernels::Communicator& group = floats ? *rows_.group.floats : *rows_.group.elements;
  const auto message_of = [&](std::int64_t count) {
    return floats ? rank_.floats(count) : rank_.elements(count);
  };
  const std::size_t bytes = floats ? sizeof(float) : rank_.element_bytes();
  std::vector<Memory> messages;
  std::vector<std::vector<float>> on_host;  // for communicators of floats
  std::vector<std::unique_ptr<kernels::Pending>> pending;
  const auto ranks = static_cast<unsigned>(group.size());
  for (unsigned round = 1; round < std::bit_ceil(ranks); ++round) {
    const unsigned partner = static_cast<unsigned>(group.rank()) ^ round;
    if (partner >= ranks) continue;
    const auto peer = static_cast<int>(partner);
    const std::vector<Travelling> sent = outgoing(peer), received = incoming(peer);
    if (const std::int64_t count = sum_of(sent, &Travelling::count); count > 0) {
      messages.push_back(message_of(count));
      const void* data = messages.back().data();
      auto* place = static_cast<char*>(messages.back().data());
      for (const Travelling& one : sent) {
        rank_.backend.copy(place, one.data, at(one.count) * bytes);
        place += at(one.count) * bytes;
      }
      if (floats) {
        std::vector<float>& values = on_host.emplace_back(at(count));
        rank_.backend.to_host(values.data(), data, values.size() * sizeof(float));
        data = values.data();
      }
      pending.push_back(group.start_send(data, count, peer));
    }
    if (const std::int64_t count = sum_of(received, &Travelling::count); count > 0) {
      const Memory message = message_of(count);
      std::vector<float> values(floats ? at(count) : 0);
      group.receive(floats ? values.data() : message.data(), count, peer);
      if (floats) rank_.backend.to_device(message.data(), values.data(), values.size() * sizeof(float));
      const auto* place = static_cast<const char*>(message.data());
      for (const Travelling& one : received) {
        put(one, place, floats);
        place += at(one.count) * bytes;
      }
    }
  }
  for (const auto& message : pending) message->wait();
}

AttentionForm::KeyRows AttentionForm::gradients_at(std::size_t chunk, std::int64_t row) const {
  const bool own = chunk + 1 == chain_.size();
  Memory& to = own ? gradient_->keys : chunks_.state(rows_.earlier[chunk], layer_).gradients;
  const std::int64_t capacity = chain_[chunk]->capacity;
  if (!to) to = zeroed_keys(capacity);
  return keys_at(to, row, capacity);
}

// --- What the forms share that attend block by block

std::int64_t BlockwiseAttention::rows_in_block(int rank) const {
  std::int64_t sum = 0;
  for (const AttentionRows* chunk : chain_) sum += chunk->rows.ranks[at(rank)].rows;
  return sum;
}

// Keys of a slice are contiguous in the block, in order of position, so those before a run of queries come
// first. A rank's own block ends with the queries themselves.
std::vector<kernels::Piece> BlockwiseAttention::pieces_over_rows(int rank, int owner) const {
  std::vector<kernels::Piece> pieces;
  const RankRows& own = rows_.rows.ranks[at(rank)];
  for (const auto* runs : {&own.local, &own.shared})
    for (const RowRun& queries : *runs) {
      std::int64_t first = -1, keys = 0;
      for_runs(owner, [&](std::size_t j, const RowRun& run, std::int64_t row) {
        if (!sees(queries.segment, j, run.segment)) return;
        if (first < 0) first = row;
        keys += run.count();
      });
      if (keys == 0) continue;
      kernels::Piece piece{queries.row, queries.count(), first, keys};
      piece.full = owner != rank;
      pieces.push_back(piece);
    }
  return pieces;
}

Memory BlockwiseAttention::own_block(std::int64_t rows) const {
  Memory block = rank_.elements(2 * rows * key_width_);
  for_runs(rows_.rank, [&](std::size_t j, const RowRun& part, std::int64_t row) {
    copy_rows(keys_at(block, row, rows), keys_at(keys_of(j), part.row, chain_[j]->capacity), part.count());
  });
  return block;
}

void BlockwiseAttention::begin_output(Memory& out, Memory& log_sum) const {
  out = rank_.elements(rows_.padded_rows * query_width_);
  log_sum = empty_log_sums(rows_.padded_rows);
  rank_.zero(out.data(), rows_.padded_rows * query_width_);
}

Memory BlockwiseAttention::empty_log_sums(std::int64_t rows) const {
  const std::int64_t count = rows * shape_.query_heads;
  Memory log_sums = rank_.floats(count);
  const std::vector<float> none(at(count), -std::numeric_limits<float>::infinity());
  rank_.backend.to_device(log_sums.data(), none.data(), none.size() * sizeof(float));
  return log_sums;
}

void BlockwiseAttention::attend(AttentionCall& call, const Memory& block, std::int64_t rows,
                                const Memory& out, const Memory& log_sum) const {
  if (call.empty()) return;
  const Memory part = rank_.elements(rows_.padded_rows * query_width_);
  const Memory part_log_sum = empty_log_sums(rows_.padded_rows);
  call.forward(run_->query.data(), block.data(), value_row(block, 0, rows), part.data(),
               part_log_sum.floats());
  rank_.backend.run(kernels::AttentionMerge{rows_.padded_rows, shape_.query_heads, shape_.head_dim,
                                            out.data(), log_sum.floats(), part.data(),
                                            part_log_sum.floats()});
}

Memory BlockwiseAttention::differentiate(AttentionCall& call, const Memory& block, std::int64_t rows) const {
  Memory keys = zeroed_keys(rows);
  if (call.empty()) return keys;
  const Memory query = rank_.elements(rows_.padded_rows * query_width_);
  call.backward(run_->query.data(), block.data(), value_row(block, 0, rows), run_->out.data(),
                run_->log_sum.floats(), gradient_->out.data(),
                {query.data(), keys.data(), value_row(keys, 0, rows)});
  rank_.add(gradient_->query.data(), query.data(), call.query_rows() * query_width_);
  return keys;
}

void BlockwiseAttention::spread(const Memory& found, std::int64_t rows) {
  for_runs(rows_.rank, [&](std::size_t j, const RowRun& run, std::int64_t row) {
    add_rows(gradients_at(j, run.row), keys_at(found, row, rows), run.count());
  });
}

int head_shares(const Layout& layout, int context) {
  return context_form(layout).head_shares(layout, context);
}

std::unique_ptr<ContextAttention> make_context_attention(const RankContext& rank, const AttentionRows& rows,
                                                         int index, ChunkStates& chunks) {
  const auto ranks = static_cast<int>(rows.rows.ranks.size());
  if (ranks > 1) {
    const ContextRun run = rank.layout.acting_facts().run;
    const bool shares = head_shares(rank.layout, ranks) > 1;
    // A ring has its steps even if no slice is shared; the other forms then have nothing to exchange.
    if (!shares && run == ContextRun::blocks) return make_ring_attention(rank, rows, index, chunks);
    if (run == ContextRun::tasks) return make_disaggregated_attention(rank, rows, index, chunks);
    if (run == ContextRun::cast) return make_group_cast_attention(rank, rows, index, chunks);
    if (shares && rows.rows.exchanges()) return make_ulysses_attention(rank, rows, index, chunks);
  }
  if (rank.evens_out_stages) return make_stage_attention(rank, rows, index, chunks);
  return make_gathered_attention(rank, rows, index, chunks);
}

}  // namespace equipoise::execution
