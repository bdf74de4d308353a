#include "sim/execution/group_cast_attention.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "policies/base/index.h"
#include "sim/cost/context_exchange/context_form.h"

namespace equipoise::execution {
namespace {

// Rows of one chunk of the chain that one rank sends to another.
struct CastRows {
  int from = 0;
  std::size_t chunk = 0;
  int stage = 0;
  Segment keys;
  std::int64_t row = 0;    // in the sender's chunk, or in what it received to pass on
  std::int64_t place = 0;  // among all rows that the receiver gets in the stage
  int through = 0;         // the rank that hands them over

  [[nodiscard]] std::int64_t count() const { return keys.queries(); }
};

class GroupCastAttention final : public BlockwiseAttention {
 public:
  GroupCastAttention(const RankContext& rank, const AttentionRows& rows, int index, ChunkStates& chunks)
      : BlockwiseAttention(rank, rows, index, chunks),
        own_rows_(rows_in_block(rows.rank)),
        own_(rank.backend, shape_, pieces_over_rows(rows.rank, rows.rank)),
        stages_(at(rank.layout.cast_stages)),
        node_ranks_(cast_node_ranks(rank.layout, *rank.grid, static_cast<int>(rows.rows.ranks.size()))) {
    find_casts();
  }

  void forward_sync(int sync) override { cast(stages_[at(sync)]); }
  void forward_attend(int call) override { attend_call(call, run_->out, run_->log_sum); }

  // During the attention of one stage the next arrives, and the gradients of the one before it return.
  void backward_sync(int sync) override {
    const std::size_t number = at(sync), delay = stages_.size() == 1 ? 1 : 2;
    if (number < stages_.size()) cast(stages_[number]);
    if (number >= delay) reduce(stages_[number - delay]);
  }
  void backward_attend(int call) override {
    if (again_) attend_call(call, again_out_, again_log_sum_);
    if (call == 0) {
      spread(differentiate(own_, block_, own_rows_), own_rows_);
      return;
    }
    Stage& stage = *attended_[at(call - 1)];
    stage.gradients = differentiate(*stage.call, stage.arrived, stage.rows);
  }
  void end_backward() override {
    for (Stage& stage : stages_) stage.arrived.reset();
    for (Memory* memory : {&block_, &again_out_, &again_log_sum_}) memory->reset();
    add_later_chunks();
  }

 private:
  struct Stage {
    std::vector<CastRows> received;           // by place
    std::vector<std::vector<CastRows>> sent;  // what this rank hands over, by receiver (which may be itself)
    std::int64_t rows = 0;                    // received
    // What several ranks of a node need, by the rank that passes it on, and what this rank passes on.
    std::vector<std::vector<CastRows>> to_node;
    std::vector<CastRows> passed;
    std::int64_t passed_rows = 0;
    std::unique_ptr<AttentionCall> call;
    Memory arrived, gradients;
  };

  // Plans what every rank receives, and the attention of this rank to what it receives.
  void find_casts() {
    const MicroBatchRows& all = rows_.rows;
    Sharding shared;
    shared.rank_begin = {0};
    for (const RankRows& held : all.ranks) {
      for (const RowRun& run : held.shared) shared.segments.push_back(run.segment);
      shared.rank_begin.push_back(static_cast<std::uint32_t>(shared.segments.size()));
      shared.rank_tokens.push_back(held.shared_rows());
    }
    CastBlocks blocks;
    blocks.prepare(shared, {}, 0, rank_.layout.block, rank_.layout.cast_stages);
    for (Stage& stage : stages_) {
      stage.sent.resize(all.ranks.size());
      stage.to_node.resize(all.ranks.size());
    }
    std::vector<bool> attends(stages_.size(), false);  // if any rank attends, the program has the call
    for (std::size_t to = 0; to < all.ranks.size(); ++to) {
      const auto rank = static_cast<int>(to);
      const std::vector<CastRows> casts = casts_to(rank, blocks);
      for (const CastRows& rows : casts) {
        Stage& stage = stages_[at(rows.stage)];
        const bool far = rows.through != rows.from;
        if (far && rows.from == rows_.rank) stage.to_node[at(rows.through)].push_back(rows);
        if (far && rows.through == rows_.rank) stage.passed.push_back(rows);
        if (rows.through == rows_.rank) stage.sent[to].push_back(rows);
        if (rank == rows_.rank) stage.received.push_back(rows);
        if (rank == rows_.rank) stage.rows += rows.count();
      }
      for (std::size_t s = 0; s < stages_.size(); ++s) {
        std::vector<kernels::Piece> pieces = pieces_over_stage(rank, static_cast<int>(s), casts);
        // The program counts a share of the earlier chunks on every rank, even on one without any of them.
        const bool reads = s == 0 && all.earlier > 0 && all.ranks[to].shared_rows() > 0;
        attends[s] = attends[s] || reads || !pieces.empty();
        if (rank == rows_.rank)
          stages_[s].call = std::make_unique<AttentionCall>(rank_.backend, shape_, std::move(pieces));
      }
    }
    for (std::size_t s = 0; s < stages_.size(); ++s)
      if (attends[s]) attended_.push_back(&stages_[s]);
    for (Stage& stage : stages_) find_passed(stage);
  }

  // Plans what goes to a node once, and where this rank finds the rows that it passes on.
  void find_passed(Stage& stage) const {
    for (std::vector<CastRows>& rows : stage.to_node) join_shared(rows);
    join_shared(stage.passed);
    for (CastRows& rows : stage.passed) {
      rows.place = stage.passed_rows;
      stage.passed_rows += rows.count();
    }
    for (std::vector<CastRows>& of_receiver : stage.sent)
      for (CastRows& rows : of_receiver) {
        if (rows.from == rows_.rank) continue;
        const auto whole = std::ranges::find_if(stage.passed, [&](const CastRows& all) {
          return all.from == rows.from && all.chunk == rows.chunk && all.row <= rows.row &&
                 rows.row + rows.count() <= all.row + all.count();
        });
        rows.row += whole->place - whole->row;
      }
  }
  // Keeps one copy of the rows that several ranks need.
  static void join_shared(std::vector<CastRows>& rows) {
    std::ranges::sort(rows, {}, [](const CastRows& r) { return std::tie(r.from, r.chunk, r.row); });
    std::vector<CastRows> joined;
    for (const CastRows& r : rows) {
      CastRows* last = joined.empty() ? nullptr : &joined.back();
      if (last != nullptr && last->from == r.from && last->chunk == r.chunk &&
          r.row <= last->row + last->count())
        last->keys.q_end += std::max<std::int64_t>(0, r.row + r.count() - last->row - last->count());
      else
        joined.push_back(r);
    }
    rows = std::move(joined);
  }

  [[nodiscard]] std::vector<kernels::Piece> pieces_over_stage(int rank, int stage,
                                                              const std::vector<CastRows>& casts) const {
    std::vector<kernels::Piece> pieces;
    for (const RowRun& queries : rows_.rows.ranks[at(rank)].shared) {
      kernels::Piece piece{queries.row, queries.count(), 0, 0, true};
      for (const CastRows& rows : casts) {
        if (rows.stage != stage || !sees(queries.segment, rows.chunk, rows.keys)) continue;
        if (piece.keys == 0) piece.key_begin = rows.place;
        piece.keys += rows.count();
      }
      if (piece.keys > 0) pieces.push_back(piece);
    }
    return pieces;
  }

  // Rows are sorted by chunk, slice and position; earlier chunks come in the first stage.
  [[nodiscard]] std::vector<CastRows> casts_to(int rank, CastBlocks& blocks) const {
    std::vector<CastRows> casts;
    const bool reads = rows_.rows.ranks[at(rank)].shared_rows() > 0;
    for (std::size_t j = 0; reads && j + 1 < chain_.size(); ++j)
      for (std::size_t from = 0; from < rows_.rows.ranks.size(); ++from)
        if (from != at(rank))
          for (const RowRun& run : chain_[j]->rows.ranks[from].shared)
            casts.push_back({static_cast<int>(from), j, 0, run.segment, run.row, 0});
    for (const CastPiece& piece : blocks.pieces_to(rank)) {
      const auto& held = rows_.rows.ranks[at(piece.from)].shared;
      const auto run = std::find_if(held.begin(), held.end(), [&](const RowRun& r) {
        return r.segment.slice == piece.slice && r.segment.q_begin <= piece.begin &&
               piece.end <= r.segment.q_end;
      });
      casts.push_back({piece.from,
                       chain_.size() - 1,
                       piece.stage,
                       {piece.slice, piece.begin, piece.end, 0},
                       run->row + piece.begin - run->segment.q_begin,
                       0});
    }
    std::ranges::sort(casts, {},
                      [](const CastRows& c) { return std::tie(c.chunk, c.keys.slice, c.keys.q_begin); });
    std::array<std::int64_t, kMostCastStages> rows{};
    for (CastRows& cast : casts) {
      cast.place = rows[at(cast.stage)];
      cast.through = cast_through(cast.from, rank, node_ranks_);
      rows[at(cast.stage)] += cast.count();
    }
    return casts;
  }

  void begin(AttentionRun& run, int layer) override {
    AttentionForm::begin(run, layer);
    block_ = own_block(own_rows_);
  }
  // A rank attends first to its own rows, then to those of each stage.
  void attend_call(int call, const Memory& out, const Memory& log_sum) {
    if (call == 0) {
      attend(own_, block_, own_rows_, out, log_sum);
      return;
    }
    const Stage& stage = *attended_[at(call - 1)];
    attend(*stage.call, stage.arrived, stage.rows, out, log_sum);
  }

  static std::vector<CastRows> of_rank(int rank, int CastRows::*who, const std::vector<CastRows>& all) {
    std::vector<CastRows> rows;
    for (const CastRows& of : all)
      if (of.*who == rank) rows.push_back(of);
    return rows;
  }
  // K and V of these rows, which `keys(rows)` finds.
  template <class Keys>
  std::vector<Travelling> travelling(const std::vector<CastRows>& all, const Keys& keys,
                                     bool adds = false) const {
    std::vector<Travelling> list;
    for (const CastRows& rows : all) {
      const KeyRows found = keys(rows);
      for (void* const data : {found.key, found.value})
        list.push_back({data, rows.count() * key_width_, adds});
    }
    return list;
  }

  // Messages go to the ranks that pass rows on, which may be the sender itself.
  void cast(Stage& stage) {
    stage.arrived = rank_.elements(2 * stage.rows * key_width_);
    const Memory passed = rank_.elements(2 * stage.passed_rows * key_width_);
    const auto held = [&](const CastRows& rows) {
      return rows.from == rows_.rank ? keys_at(keys_of(rows.chunk), rows.row, chain_[rows.chunk]->capacity)
                                     : keys_at(passed, rows.row, stage.passed_rows);
    };
    const auto arrived = [&](const CastRows& rows) { return keys_at(stage.arrived, rows.place, stage.rows); };
    const auto relayed = [&](const CastRows& rows) { return keys_at(passed, rows.place, stage.passed_rows); };
    exchange([&](int to) { return travelling(stage.to_node[at(to)], held); },
             [&](int from) { return travelling(of_rank(from, &CastRows::from, stage.passed), relayed); });
    exchange(
        [&](int to) { return travelling(stage.sent[at(to)], held); },
        [&](int from) { return travelling(of_rank(from, &CastRows::through, stage.received), arrived); });
    for (const CastRows& rows : stage.sent[at(rows_.rank)])
      copy_rows(arrived(rows), held(rows), rows.count());
  }
  // Blocks that came without a visible key have gradients of zero.
  void reduce(Stage& stage) {
    if (!stage.gradients) stage.gradients = zeroed_keys(stage.rows);
    const Memory passed = zeroed_keys(stage.passed_rows);
    const auto found = [&](const CastRows& rows) { return keys_at(stage.gradients, rows.place, stage.rows); };
    const auto relayed = [&](const CastRows& rows) { return keys_at(passed, rows.place, stage.passed_rows); };
    const auto sums = [&](const CastRows& rows) {
      return rows.from == rows_.rank ? gradients_at(rows.chunk, rows.row)
                                     : keys_at(passed, rows.row, stage.passed_rows);
    };
    exchange([&](int to) { return travelling(of_rank(to, &CastRows::through, stage.received), found); },
             [&](int from) { return travelling(stage.sent[at(from)], sums, true); });
    for (const CastRows& rows : stage.sent[at(rows_.rank)]) add_rows(sums(rows), found(rows), rows.count());
    exchange([&](int to) { return travelling(of_rank(to, &CastRows::from, stage.passed), relayed); },
             [&](int from) { return travelling(stage.to_node[at(from)], sums, true); });
    stage.gradients.reset();
  }

  std::int64_t own_rows_ = 0;
  AttentionCall own_;
  std::vector<Stage> stages_;
  std::vector<Stage*> attended_;  // stages of which some rank sees a key, in order
  int node_ranks_ = 0;            // CastTokens::node_ranks
  Memory block_;
};

}  // namespace

std::unique_ptr<ContextAttention> make_group_cast_attention(const RankContext& rank,
                                                            const AttentionRows& rows, int index,
                                                            ChunkStates& chunks) {
  return std::make_unique<GroupCastAttention>(rank, rows, index, chunks);
}

}  // namespace equipoise::execution
