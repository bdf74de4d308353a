#include "sim/execution/ulysses_attention.h"

#include <algorithm>

#include "policies/base/index.h"
#include "sim/execution/gathered_attention.h"
#include "sim/execution/ring_attention.h"

namespace equipoise::execution {
namespace {

// The chunks of a group as inner groups of ranks hold them.
class InnerChunks final : public ChunkStates {
 public:
  explicit InnerChunks(ChunkStates& chunks) : chunks_(chunks) {}
  const AttentionRows& rows(int micro_batch) override { return chunks_.inner_rows(micro_batch); }
  const AttentionRows& inner_rows(int micro_batch) override { return chunks_.inner_rows(micro_batch); }
  ChunkState& state(int micro_batch, int layer) override { return chunks_.state(micro_batch, layer); }

 private:
  ChunkStates& chunks_;
};

// The rank as part of its inner group, with a share of the heads.
RankContext with_share(const RankContext& rank, int shares) {
  RankContext out = rank;
  out.heads.query /= shares;
  out.heads.kv = std::max(1, rank.heads.kv / shares);
  return out;
}

// How many exchanges across inner groups a pass has in the program.
int exchanges_across(bool ring, int ranks, bool backward) {
  if (ranks == 1) return 0;
  if (!ring) return backward ? 2 : 1;
  return backward ? (ranks == 2 ? 2 : ranks + 1) : ranks - 1;
}

class UlyssesAttention final : public ContextAttention {
 public:
  UlyssesAttention(const RankContext& rank, const AttentionRows& rows, int index, ChunkStates& chunks)
      : all_heads_(rank),
        rows_(rows),
        merged_(chunks.inner_rows(index)),
        ranks_(rows.inner.size()),
        rank_(with_share(rank, ranks_)),
        chunks_(chunks) {
    const auto across = static_cast<int>(merged_.rows.ranks.size());
    const bool ring = across > 1 && rank.layout.acting_facts().run == ContextRun::blocks;
    last_forward_ = exchanges_across(ring, across, false) + 1;
    last_backward_ = exchanges_across(ring, across, true) + 1;
    attention_ = ring ? make_ring_attention(rank_, merged_, index, chunks_)
                      : make_gathered_attention(rank_, merged_, index, chunks_);
    const int first = merged_.rank * ranks_;
    for (int r = first; r < first + ranks_; ++r) places_.push_back(places_of(rows.rows.ranks[at(r)]));
  }

  void begin_forward(AttentionRun& run, int layer) override {
    run_ = &run;
    layer_ = layer;
    run.out = cleared_rows(all_heads_.heads.query);
  }
  void forward_sync(int sync) override {
    if (sync == 0) {
      bring_queries_and_keys();
      attention_->begin_forward(*run_->of_heads, layer_);
    } else if (sync == last_forward_) {
      const Field field{
          run_->out.data(), all_heads_.heads.query, run_->of_heads->out.data(), query_width(), false, false};
      exchange_to_rows({&field, 1});
    } else {
      attention_->forward_sync(sync - 1);
    }
  }
  void forward_attend(int call) override { attention_->forward_attend(call); }

  void begin_backward(AttentionRun& run, AttentionGradient& gradient, int layer, bool again) override {
    run_ = &run;
    gradient_ = &gradient;
    layer_ = layer;
    again_ = again;
  }
  void backward_sync(int sync) override {
    if (sync == 0) {
      of_heads_.out = rank_.elements(merged_.padded_rows * query_width());
      const Field field{
          gradient_->out.data(), all_heads_.heads.query, of_heads_.out.data(), query_width(), false, false};
      exchange_to_heads({&field, 1});
      attention_->begin_backward(*run_->of_heads, of_heads_, layer_, again_);
    } else if (sync == last_backward_) {
      attention_->end_backward();
      return_gradients();
      of_heads_ = {};
    } else {
      attention_->backward_sync(sync - 1);
    }
  }
  void backward_attend(int call) override { attention_->backward_attend(call); }
  void end_backward() override {}

 private:
  // Rows of a rank, and their place among those of its inner group.
  struct Place {
    std::int64_t row = 0, shared_row = 0, count = 0;
  };
  [[nodiscard]] std::vector<Place> places_of(const RankRows& held) const {
    std::vector<Place> places;
    const RankRows& all = merged_.own();
    for (const auto* runs : {&held.local, &held.shared})
      for (const RowRun& run : *runs)
        for (const auto* targets : {&all.local, &all.shared})
          for (const RowRun& target : *targets)
            if (target.segment.slice == run.segment.slice && target.segment.q_begin <= run.segment.q_begin &&
                run.segment.q_begin < target.segment.q_end)
              places.push_back(
                  {run.row, target.row + run.segment.q_begin - target.segment.q_begin, run.count()});
    return places;
  }

  [[nodiscard]] std::int64_t head_dim() const { return rank_.model.head_dim; }
  [[nodiscard]] std::int64_t query_width() const { return rank_.heads.query * head_dim(); }
  [[nodiscard]] std::int64_t key_width() const { return rank_.heads.kv * head_dim(); }
  [[nodiscard]] int first_query_head(int rank) const { return rank * rank_.heads.query; }
  [[nodiscard]] int first_kv_head(int rank) const {
    const int all = all_heads_.heads.kv;
    return all >= ranks_ ? rank * rank_.heads.kv : rank * all / ranks_;
  }
  [[nodiscard]] std::int64_t most_rows() const { return rows_.rows.most_rows; }
  // Rows of this rank, with zeros in those that no token fills.
  [[nodiscard]] Memory cleared_rows(int heads) const {
    Memory memory = rank_.elements(rows_.padded_rows * heads * head_dim());
    rank_.zero(memory.data(), rows_.padded_rows * heads * head_dim());
    return memory;
  }

  // This rank's rows with all heads, and all rows with some heads. Each rank's part of a row is `width` wide
  // and begins at the first of its heads.
  struct Field {
    void* memory = nullptr;  // (rows, heads), with this rank's rows
    std::int64_t heads = 0;  // of a row
    void* all = nullptr;     // (rows of the inner group, width)
    std::int64_t width = 0;
    bool kv = false;
    bool add = false;  // adds on return, because several ranks have a part of the same head
  };

  [[nodiscard]] std::int64_t offset_of(const Field& field, int rank) const {
    return std::int64_t{field.kv ? first_kv_head(rank) : first_query_head(rank)} * head_dim();
  }

  // A message holds the fields in a row, `most_rows` rows each, and messages are in the order of ranks. Calls
  // visit(rank, field, where its part begins); returns the elements of a message.
  template <class Visit>
  std::int64_t for_parts(std::span<const Field> fields, const Visit& visit) const {
    std::int64_t begin = 0;
    for (int r = 0; r < ranks_; ++r)
      for (const Field& field : fields) {
        visit(r, field, begin);
        begin += most_rows() * field.width;
      }
    return begin / ranks_;
  }
  [[nodiscard]] std::int64_t message_elements(std::span<const Field> fields) const {
    return for_parts(fields, [](int, const Field&, std::int64_t) {});
  }

  // Sends every rank's rows, cut by heads; they arrive as all rows of this rank's heads.
  void exchange_to_heads(std::span<const Field> fields) const {
    const std::int64_t part = message_elements(fields);
    const Memory send = rank_.elements(ranks_ * part), receive = rank_.elements(ranks_ * part);
    for_parts(fields, [&](int r, const Field& field, std::int64_t begin) {
      copy_rows(rank_.at(send, begin), field.width, rank_.at(field.memory, offset_of(field, r)),
                row_width(field), field.width, rows_.own().rows);
    });
    rows_.inner.elements->all_to_all(send.data(), receive.data(), part);
    for_parts(fields, [&](int r, const Field& field, std::int64_t begin) {
      for (const Place& place : places_[at(r)])
        rank_.copy(rank_.at(field.all, place.shared_row * field.width),
                   rank_.at(receive, begin + place.row * field.width), place.count * field.width);
    });
  }
  // Sends rows back, where they are put together from every rank's heads.
  void exchange_to_rows(std::span<const Field> fields) const {
    const std::int64_t part = message_elements(fields);
    const Memory send = rank_.elements(ranks_ * part), receive = rank_.elements(ranks_ * part);
    for_parts(fields, [&](int r, const Field& field, std::int64_t begin) {
      for (const Place& place : places_[at(r)])
        rank_.copy(rank_.at(send, begin + place.row * field.width),
                   rank_.at(field.all, place.shared_row * field.width), place.count * field.width);
    });
    rows_.inner.elements->all_to_all(send.data(), receive.data(), part);
    for_parts(fields, [&](int r, const Field& field, std::int64_t begin) {
      void* to = rank_.at(field.memory, offset_of(field, r));
      if (field.add && r > 0 && first_kv_head(r) == first_kv_head(r - 1))
        add_rows(to, row_width(field), rank_.at(receive, begin), field.width);
      else
        copy_rows(to, row_width(field), rank_.at(receive, begin), field.width, field.width, rows_.own().rows);
    });
  }
  [[nodiscard]] std::int64_t row_width(const Field& field) const { return field.heads * head_dim(); }
  void copy_rows(void* target, std::int64_t target_width, const void* source, std::int64_t source_width,
                 std::int64_t width, std::int64_t rows) const {
    for (std::int64_t row = 0; row < rows; ++row)
      rank_.copy(rank_.at(target, row * target_width),
                 rank_.at(const_cast<void*>(source), row * source_width), width);
  }
  void add_rows(void* target, std::int64_t target_width, void* source, std::int64_t width) const {
    for (std::int64_t row = 0; row < rows_.own().rows; ++row)
      rank_.add(rank_.at(target, row * target_width), rank_.at(source, row * width), width);
  }

  // The V rows of this rank, and those of its inner group.
  [[nodiscard]] void* values(const Memory& keys) const {
    return rank_.at(keys, rows_.capacity * all_heads_.heads.kv * head_dim());
  }
  [[nodiscard]] void* merged_values(const Memory& keys) const {
    return rank_.at(keys, merged_.capacity * key_width());
  }

  void bring_queries_and_keys() {
    run_->of_heads = std::make_shared<AttentionRun>();
    AttentionRun& to = *run_->of_heads;
    to.query = rank_.elements(merged_.padded_rows * query_width());
    to.keys = rank_.elements(2 * merged_.capacity * key_width());
    rank_.zero(to.keys.data(), 2 * merged_.capacity * key_width());
    const LocalHeads& heads = all_heads_.heads;
    const Field fields[] = {{run_->query.data(), heads.query, to.query.data(), query_width(), false, false},
                            {run_->keys.data(), heads.kv, to.keys.data(), key_width(), true, false},
                            {values(run_->keys), heads.kv, merged_values(to.keys), key_width(), true, false}};
    exchange_to_heads(fields);
  }
  void return_gradients() {
    const LocalHeads& heads = all_heads_.heads;
    gradient_->query = cleared_rows(heads.query);
    const std::int64_t keys = 2 * rows_.capacity * heads.kv * head_dim();
    gradient_->keys = rank_.elements(keys);
    rank_.zero(gradient_->keys.data(), keys);
    const Field fields[] = {
        {gradient_->query.data(), heads.query, of_heads_.query.data(), query_width(), false, false},
        {gradient_->keys.data(), heads.kv, of_heads_.keys.data(), key_width(), true, true},
        {values(gradient_->keys), heads.kv, merged_values(of_heads_.keys), key_width(), true, true}};
    exchange_to_rows(fields);
  }

  const RankContext& all_heads_;
  const AttentionRows& rows_;
  const AttentionRows& merged_;  // inner groups as single ranks
  int ranks_;                    // in an inner group
  RankContext rank_;
  InnerChunks chunks_;
  std::unique_ptr<ContextAttention> attention_;  // attention of inner groups
  int last_forward_ = 0, last_backward_ = 0;     // numbers of the last exchanges, all-to-alls like the first
  std::vector<std::vector<Place>> places_;       // by rank of the inner group
  AttentionRun* run_ = nullptr;
  AttentionGradient* gradient_ = nullptr;
  AttentionGradient of_heads_;
  int layer_ = 0;
  bool again_ = false;
};

}  // namespace

std::unique_ptr<ContextAttention> make_ulysses_attention(const RankContext& rank, const AttentionRows& rows,
                                                         int index, ChunkStates& chunks) {
  return std::make_unique<UlyssesAttention>(rank, rows, index, chunks);
}

}  // namespace equipoise::execution
