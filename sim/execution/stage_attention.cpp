#include "sim/execution/stage_attention.h"

#include <algorithm>
#include <map>
#include <memory>

#include "policies/base/index.h"
#include "sim/cost/context_exchange/context_form.h"

namespace equipoise::execution {
namespace {

// A part of a micro-batch on its stage: some rows of queries, and the rows of keys that they see there.
struct Part {
  std::int64_t row = 0, rows = 0, key = 0, keys = 0;
  std::vector<kernels::Piece> pieces;  // counted from `row` and `key`
};

class StageAttention final : public BlockwiseAttention {
 public:
  StageAttention(const RankContext& rank, const AttentionRows& rows, int index, ChunkStates& chunks)
      : BlockwiseAttention(rank, rows, index, chunks), block_rows_(rows_in_block(0)) {}

  void forward_sync(int) override {
    const Tick& tick = tick_of(0);
    for (const auto& share : tick.shares) send_out(*share, false);
    travel(tick, true, &Share::sent);
  }
  void forward_attend(int) override {
    Tick& tick = tick_of(0);
    attend(tick.home, block_, block_rows_, run_->out, run_->log_sum);
    for (const auto& share : tick.shares) compute(*share);
    bring_output_home(tick);
    for (const auto& share : tick.shares) share->forget();
  }

  void backward_sync(int) override {
    const Tick& tick = tick_of(1);
    for (const auto& share : tick.shares) send_out(*share, true);
    travel(tick, true, &Share::sent);
    travel(tick, true, &Share::sent_floats, true);
  }
  void backward_attend(int) override {
    Tick& tick = tick_of(1);
    if (again_) attend(tick.home, block_, block_rows_, again_out_, again_log_sum_);
    const Memory found = differentiate(tick.home, block_, block_rows_);
    for (const auto& share : tick.shares) differentiate_share(*share);
    travel(tick, false, &Share::sent);
    for (const auto& share : tick.shares) add_found(*share, found);
    spread(found, block_rows_);
    for (const auto& share : tick.shares) share->forget();
  }
  void end_backward() override {
    for (Memory* memory : {&block_, &again_out_, &again_log_sum_}) memory->reset();
    add_later_chunks();
  }

 private:
  // What one stage does for another in a tick: what travels, and its inputs on the stage that computes.
  struct Share {
    StageMove move;
    Part part;
    AttentionCall call;  // on the stage that computes
    std::vector<Travelling> sent, sent_floats;
    AttentionRun run;
    AttentionGradient gradient;

    void forget() {
      sent.clear();
      sent_floats.clear();
      run = {};
      gradient = {};
    }
  };
  struct Tick {
    AttentionCall home;
    std::vector<std::unique_ptr<Share>> shares;  // shares that this stage owns or computes
  };

  [[nodiscard]] int stage() const { return rank_.place.stage; }
  [[nodiscard]] bool owns(const Share& share) const { return share.move.from == stage(); }

  void begin(AttentionRun& run, int layer) override {
    AttentionForm::begin(run, layer);
    block_ = own_block(block_rows_);
  }

  // What the running op moves in a pass, prepared on first use.
  Tick& tick_of(std::size_t pass) {
    const std::vector<StageMove>& moves = rank_.tick->moves[pass];
    const auto found = ticks_.find(&moves);
    if (found != ticks_.end()) return found->second;
    std::int64_t given = 0;
    bool keys = false;
    std::vector<std::unique_ptr<Share>> shares;
    for (const StageMove& move : moves) {
      if (move.from != stage() && move.to != stage()) continue;
      // all moves are of one kind
      if (move.from == stage()) given = std::max(given, move.end), keys = move.keys;
      StageAttention owner(rank_, chunks_.rows(move.micro_batch), move.micro_batch, chunks_);
      Part part = owner.part_of(move);
      AttentionCall call(rank_.backend, shape_, part.pieces);
      shares.push_back(
          std::make_unique<Share>(Share{move, std::move(part), std::move(call), {}, {}, {}, {}}));
    }
    AttentionCall home(rank_.backend, shape_, pieces_left(given, keys));
    return ticks_.emplace(&moves, Tick{std::move(home), std::move(shares)}).first->second;
  }

  // The runs of rows with what they see of the block, and the number of the micro-batch's tokens before each.
  // Rows beyond a slice's end are padding.
  template <class Visit>
  void for_pieces(const Visit& visit) const {
    const std::vector<kernels::Piece> pieces = pieces_over_rows(0, 0);
    std::size_t i = 0;
    for (const auto* runs : {&rows_.own().local, &rows_.own().shared})
      for (const RowRun& run : *runs) {
        std::int64_t before = 0;
        for (std::int32_t s = 0; s < run.segment.slice; ++s)
          before += rows_.micro_batch->slices[at(s)].tokens();
        const Slice& slice = rows_.micro_batch->slices[at(run.segment.slice)];
        visit(pieces[i++], before + run.segment.q_begin - slice.begin,
              std::max<std::int64_t>(0, std::min(run.count(), slice.end - run.segment.q_begin)));
      }
  }

  [[nodiscard]] Part part_of(const StageMove& move) const {
    Part part;
    std::int64_t last_row = 0, last_key = 0;
    for_pieces([&](kernels::Piece piece, std::int64_t token, std::int64_t tokens) {
      if (move.keys) {
        piece.key_begin += move.begin;
        piece.keys = move.end - move.begin;
        piece.full = true;
      } else {
        const std::int64_t begin = std::clamp(move.begin - token, std::int64_t{0}, tokens);
        const std::int64_t end = std::clamp(move.end - token, std::int64_t{0}, tokens);
        piece.query_begin += begin;
        piece.keys -= piece.queries - end;
        piece.queries = end - begin;
      }
      if (piece.queries == 0) return;
      if (part.pieces.empty()) {
        part.row = piece.query_begin;
        part.key = piece.key_begin;
      }
      last_row = piece.query_begin + piece.queries;
      last_key = std::max(last_key, piece.key_begin + piece.keys);
      piece.query_begin -= part.row;
      piece.key_begin -= part.key;
      part.pieces.push_back(piece);
    });
    part.rows = last_row - part.row;
    part.keys = last_key - part.key;
    return part;
  }
  // What stays here if the first `given` keys or queries of this micro-batch go.
  [[nodiscard]] std::vector<kernels::Piece> pieces_left(std::int64_t given, bool keys) const {
    std::vector<kernels::Piece> left;
    for_pieces([&](kernels::Piece piece, std::int64_t token, std::int64_t tokens) {
      const std::int64_t gone = keys ? 0 : std::clamp(given - token, std::int64_t{0}, tokens);
      if (keys) {
        piece.key_begin += given;
        piece.keys -= given;
      }
      piece.query_begin += gone;
      piece.queries -= gone;
      if (piece.queries > 0) left.push_back(piece);
    });
    return left;
  }

  // Sends to the stages that compute, or back home. Both stages of a share hold it, so they agree on its
  // rows.
  void travel(const Tick& tick, bool out, std::vector<Travelling> Share::*rows, bool floats = false) {
    const auto listed = [&](int peer, bool sends) {
      std::vector<Travelling> list;
      for (const auto& share : tick.shares)
        if (owns(*share) == (sends == out) && (owns(*share) ? share->move.to : share->move.from) == peer)
          list.insert(list.end(), ((*share).*rows).begin(), ((*share).*rows).end());
      return list;
    };
    exchange([&](int peer) { return listed(peer, true); }, [&](int peer) { return listed(peer, false); },
             floats);
  }

  [[nodiscard]] Travelling queries(const Share& share, const Memory& of) const {
    return {owns(share) ? rank_.at(of, share.part.row * query_width_) : of.data(),
            share.part.rows * query_width_};
  }
  [[nodiscard]] Travelling log_sums(const Share& share, const Memory& of) const {
    return {of.floats() + (owns(share) ? share.part.row * shape_.query_heads : 0),
            share.part.rows * shape_.query_heads};
  }
  void add_keys(const Share& share, const Memory& of, std::vector<Travelling>& to) const {
    const KeyRows keys =
        owns(share) ? keys_at(of, share.part.key, block_rows_) : keys_at(of, 0, share.part.keys);
    for (void* const data : {keys.key, keys.value}) to.push_back({data, share.part.keys * key_width_});
  }

  // Sends or receives Q, K and V, and what else a backward needs.
  void send_out(Share& share, bool backward) {
    const std::int64_t rows = share.part.rows;
    if (!owns(share)) {
      share.run.query = rank_.elements(rows * query_width_);
      share.run.keys = rank_.elements(2 * share.part.keys * key_width_);
      share.run.log_sum = empty_log_sums(rows);
      share.run.out = rank_.elements(rows * query_width_);
      if (backward) share.gradient.out = rank_.elements(rows * query_width_);
    }
    const AttentionRun& run = owns(share) ? *run_ : share.run;
    share.sent = {queries(share, run.query)};
    add_keys(share, owns(share) ? block_ : share.run.keys, share.sent);
    if (!backward) return;
    share.sent.push_back(queries(share, run.out));
    share.sent.push_back(queries(share, owns(share) ? gradient_->out : share.gradient.out));
    share.sent_floats = {log_sums(share, run.log_sum)};
  }

  // The owner makes room for the output, which the other stage computes.
  void compute(Share& share) {
    if (owns(share)) {
      share.run.out = rank_.elements(rows_.padded_rows * query_width_);
      share.run.log_sum = empty_log_sums(rows_.padded_rows);
    } else {
      forward(share, share.run.out, share.run.log_sum);
    }
    share.sent = {queries(share, share.run.out)};
    share.sent_floats = {log_sums(share, share.run.log_sum)};
  }
  void forward(Share& share, const Memory& out, const Memory& log_sum) const {
    share.call.forward(share.run.query.data(), share.run.keys.data(),
                       value_row(share.run.keys, 0, share.part.keys), out.data(), log_sum.floats());
  }
  void bring_output_home(const Tick& tick) {
    travel(tick, false, &Share::sent);
    travel(tick, false, &Share::sent_floats, true);
    for (const auto& share : tick.shares)
      if (owns(*share))
        rank_.backend.run(kernels::AttentionMerge{rows_.padded_rows, shape_.query_heads, shape_.head_dim,
                                                  run_->out.data(), run_->log_sum.floats(),
                                                  share->run.out.data(), share->run.log_sum.floats()});
  }

  void differentiate_share(Share& share) {
    AttentionGradient& gradient = share.gradient;
    const std::int64_t rows = share.part.rows, keys = share.part.keys;
    gradient.query = rank_.elements(rows * query_width_);
    gradient.keys = zeroed_keys(keys);
    if (!owns(share)) {
      rank_.zero(gradient.query.data(), rows * query_width_);
      if (again_)
        forward(share, rank_.elements(rows * query_width_), rank_.floats(rows * shape_.query_heads));
      share.call.backward(share.run.query.data(), share.run.keys.data(), value_row(share.run.keys, 0, keys),
                          share.run.out.data(), share.run.log_sum.floats(), gradient.out.data(),
                          {gradient.query.data(), gradient.keys.data(), value_row(gradient.keys, 0, keys)});
    }
    share.sent = {{gradient.query.data(), rows * query_width_},
                  {gradient.keys.data(), 2 * keys * key_width_}};
  }
  void add_found(Share& share, const Memory& found) const {
    if (!owns(share)) return;
    const Travelling to = queries(share, gradient_->query);
    rank_.add(to.data, share.gradient.query.data(), to.count);
    add_rows(keys_at(found, share.part.key, block_rows_), keys_at(share.gradient.keys, 0, share.part.keys),
             share.part.keys);
  }

  std::int64_t block_rows_;
  Memory block_;                                         // K and V of this micro-batch and the earlier chunks
  std::map<const std::vector<StageMove>*, Tick> ticks_;  // by the moves that it runs
};

}  // namespace

std::unique_ptr<ContextAttention> make_stage_attention(const RankContext& rank, const AttentionRows& rows,
                                                       int index, ChunkStates& chunks) {
  return std::make_unique<StageAttention>(rank, rows, index, chunks);
}

}  // namespace equipoise::execution
