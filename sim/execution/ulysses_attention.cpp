// Ulysses: an all-to-all turns a share of the rows of all heads into all rows of a share of the heads,
// attention sees whole documents, and a second one turns its output back. Where there are fewer KV heads than
// ranks, several ranks get the same one, and its gradients are added up where they return.
#include <algorithm>

#include "policies/base/index.h"
#include "sim/execution/context_attention.h"

namespace equipoise::execution {
namespace {

class UlyssesAttention final : public AttentionForm {
 public:
  UlyssesAttention(const RankContext& rank, const AttentionRows& rows, const MicroBatchRows& all, int index,
                   ChunkStates& chunks)
      : AttentionForm(rank, rows, index, chunks, local_shape(rank, static_cast<int>(rows.rows.ranks.size()))),
        ranks_(static_cast<int>(rows.rows.ranks.size())),
        earlier_(all.earlier),
        tokens_(all.keys - all.earlier),
        call_(rank.backend, shape_, pieces_of(all)) {
    for (std::size_t r = 0; r < all.ranks.size(); ++r) {
      places_.emplace_back();
      // Runs of `all` are those of the rank's rows in another order: each finds its row by what it holds.
      const RankRows& held = rows.rows.ranks[r];
      for (const auto* runs : {&held.local, &held.shared})
        for (const RowRun& run : *runs) {
          const auto slice = static_cast<std::size_t>(run.segment.slice);
          const std::int64_t key = all.slice_key[slice] + run.segment.q_begin - run.segment.kv_begin;
          places_.back().push_back({run.row, key - all.earlier, run.count()});
        }
    }
  }

  void begin_forward(AttentionRun& run, int layer) override {
    run_ = &run;
    layer_ = layer;
    const std::int64_t width = std::int64_t{rank_.heads.query} * rank_.model.head_dim;
    run.out = rank_.elements(rows_.padded_rows * width);
    rank_.zero(rank_.at(run.out, rows_.own().rows * width), (rows_.padded_rows - rows_.own().rows) * width);
  }
  void forward_sync(int sync) override {
    if (sync == 0)
      bring_queries_and_keys();
    else
      return_rows(run_->all_out, run_->out);
  }
  void forward_attend(int) override {
    run_->all_out = rank_.elements(tokens_ * query_width_);
    run_->all_log_sum = rank_.floats(tokens_ * shape_.query_heads);
    attend();
  }

  void begin_backward(AttentionRun& run, AttentionGradient& gradient, int layer, bool again) override {
    run_ = &run;
    gradient_ = &gradient;
    layer_ = layer;
    again_ = again;
  }
  void backward_sync(int sync) override {
    if (sync == 0) {
      all_out_gradient_ = rank_.elements(tokens_ * query_width_);
      bring(gradient_->out.data(), rank_.heads.query, all_out_gradient_.data(), query_width_);
    } else {
      return_gradients();
    }
  }
  void backward_attend(int) override {
    if (again_) attend();
    const std::int64_t keys = earlier_ + tokens_;
    const Memory assembled = assembled_keys();
    found_query_ = rank_.elements(tokens_ * query_width_);
    found_keys_ = zeroed_keys(keys);
    call_.backward(run_->all_query.data(), assembled.data(), rank_.at(assembled, keys * key_width_),
                   run_->all_out.data(), run_->all_log_sum.floats(), all_out_gradient_.data(),
                   {found_query_.data(), found_keys_.data(), rank_.at(found_keys_, keys * key_width_)});
    keep_for_earlier_chunks();
  }
  void end_backward() override {
    for (Memory* memory : {&all_out_gradient_, &found_query_, &found_keys_}) memory->reset();
  }

 private:
  struct Place {
    std::int64_t row = 0, token = 0, count = 0;
  };

  static kernels::AttentionShape local_shape(const RankContext& rank, int ranks) {
    return {rank.model.head_dim, rank.heads.query / ranks, std::max(1, rank.heads.kv / ranks)};
  }
  // Whole slices, their keys with those of the chunks before.
  static std::vector<kernels::Piece> pieces_of(const MicroBatchRows& all) {
    std::vector<kernels::Piece> pieces;
    for (std::size_t i = 0; i < all.slice_key.size(); ++i) {
      const std::int64_t queries = all.slice_keys[i] - all.earlier;
      if (queries > 0) pieces.push_back({all.slice_key[i], queries, all.slice_key[i], all.slice_keys[i]});
    }
    return pieces;
  }

  [[nodiscard]] int first_query_head(int rank) const { return rank * shape_.query_heads; }
  [[nodiscard]] int first_kv_head(int rank) const {
    return rank_.heads.kv >= ranks_ ? rank * shape_.kv_heads : rank * rank_.heads.kv / ranks_;
  }
  [[nodiscard]] std::int64_t most_rows() const { return rows_.rows.most_rows; }

  // Rows of all heads, `source`, to all tokens of some heads: each rank's part of a row is `width` wide and
  // begins at the head that `first` says.
  struct Field {
    void* memory = nullptr;  // (rows, heads): of this rank's rows
    std::int64_t heads = 0;  // of a row
    void* all = nullptr;     // (tokens, width)
    std::int64_t width = 0;
    bool kv = false;
    bool add = false;  // where rows return: several ranks have a part of the same head
  };

  [[nodiscard]] std::int64_t offset_of(const Field& field, int rank) const {
    return std::int64_t{field.kv ? first_kv_head(rank) : first_query_head(rank)} * rank_.model.head_dim;
  }

  // A message holds the fields one after the other, `most_rows` rows each, and messages lie by rank. Calls
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

  // Every rank's rows, cut by heads, arrive as all rows of this rank's heads.
  void exchange_to_heads(std::span<const Field> fields) const {
    const std::int64_t part = message_elements(fields);
    const Memory send = rank_.elements(ranks_ * part), receive = rank_.elements(ranks_ * part);
    for_parts(fields, [&](int r, const Field& field, std::int64_t begin) {
      copy_rows(rank_.at(send, begin), field.width, rank_.at(field.memory, offset_of(field, r)),
                row_width(field), field.width, rows_.own().rows);
    });
    rows_.group.elements->all_to_all(send.data(), receive.data(), part);
    for_parts(fields, [&](int r, const Field& field, std::int64_t begin) {
      for (const Place& place : places_[at(r)])
        rank_.copy(rank_.at(field.all, place.token * field.width),
                   rank_.at(receive, begin + place.row * field.width), place.count * field.width);
    });
  }
  // The way back: rows of all heads, put together from what every rank has of them.
  void exchange_to_rows(std::span<const Field> fields) const {
    const std::int64_t part = message_elements(fields);
    const Memory send = rank_.elements(ranks_ * part), receive = rank_.elements(ranks_ * part);
    for_parts(fields, [&](int r, const Field& field, std::int64_t begin) {
      for (const Place& place : places_[at(r)])
        rank_.copy(rank_.at(send, begin + place.row * field.width),
                   rank_.at(field.all, place.token * field.width), place.count * field.width);
    });
    rows_.group.elements->all_to_all(send.data(), receive.data(), part);
    for_parts(fields, [&](int r, const Field& field, std::int64_t begin) {
      void* to = rank_.at(field.memory, offset_of(field, r));
      if (field.add && r > 0 && first_kv_head(r) == first_kv_head(r - 1))
        add_rows(to, row_width(field), rank_.at(receive, begin), field.width);
      else
        copy_rows(to, row_width(field), rank_.at(receive, begin), field.width, field.width, rows_.own().rows);
    });
  }
  [[nodiscard]] std::int64_t row_width(const Field& field) const {
    return field.heads * rank_.model.head_dim;
  }
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

  void bring(void* rows, int heads, void* all, std::int64_t width) const {
    const Field field{rows, heads, all, width, false, false};
    exchange_to_heads({&field, 1});
  }
  void return_rows(const Memory& all, const Memory& rows) const {
    const Field field{rows.data(), rank_.heads.query, all.data(), query_width_, false, false};
    exchange_to_rows({&field, 1});
  }

  void bring_queries_and_keys() {
    run_->all_query = rank_.elements(tokens_ * query_width_);
    run_->all_keys = rank_.elements(2 * tokens_ * key_width_);
    const Field fields[] = {
        {run_->query.data(), rank_.heads.query, run_->all_query.data(), query_width_, false, false},
        {run_->keys.data(), rank_.heads.kv, run_->all_keys.data(), key_width_, true, false},
        {value_rows(run_->keys), rank_.heads.kv, rank_.at(run_->all_keys, tokens_ * key_width_), key_width_,
         true, false}};
    exchange_to_heads(fields);
    if (!rows_.in_group) return;
    ChunkState& state = chunks_.state(index_, layer_);
    state.keys = run_->all_keys;
    state.capacity = tokens_;
  }
  void* value_rows(const Memory& keys) const {
    return rank_.at(keys, rows_.capacity * rank_.heads.kv * rank_.model.head_dim);
  }
  void return_gradients() {
    // What later chunks found for this one's keys.
    ChunkState& state = chunks_.state(index_, layer_);
    const std::int64_t keys = earlier_ + tokens_;
    void* key = rank_.at(found_keys_, earlier_ * key_width_);
    void* value = rank_.at(found_keys_, (keys + earlier_) * key_width_);
    if (state.gradients) {
      rank_.add(key, state.gradients.data(), tokens_ * key_width_);
      rank_.add(value, rank_.at(state.gradients, tokens_ * key_width_), tokens_ * key_width_);
      state.gradients.reset();
    }
    const std::int64_t q = std::int64_t{rank_.heads.query} * rank_.model.head_dim;
    const std::int64_t k = std::int64_t{rank_.heads.kv} * rank_.model.head_dim;
    gradient_->query = rank_.elements(rows_.padded_rows * q);
    gradient_->keys = rank_.elements(2 * rows_.capacity * k);
    rank_.zero(gradient_->query.data(), rows_.padded_rows * q);
    rank_.zero(gradient_->keys.data(), 2 * rows_.capacity * k);
    const Field fields[] = {
        {gradient_->query.data(), rank_.heads.query, found_query_.data(), query_width_, false, false},
        {gradient_->keys.data(), rank_.heads.kv, key, key_width_, true, true},
        {value_rows(gradient_->keys), rank_.heads.kv, value, key_width_, true, true}};
    exchange_to_rows(fields);
  }

  // K and V of the chunks before and of this one, all tokens of this rank's heads.
  [[nodiscard]] Memory assembled_keys() const {
    if (earlier_ == 0) return run_->all_keys;
    const std::int64_t keys = earlier_ + tokens_;
    Memory assembled = rank_.elements(2 * keys * key_width_);
    std::int64_t at = 0;
    const auto append = [&](const Memory& from, std::int64_t tokens) {
      rank_.copy(rank_.at(assembled, at * key_width_), from.data(), tokens * key_width_);
      rank_.copy(rank_.at(assembled, (keys + at) * key_width_), rank_.at(from, tokens * key_width_),
                 tokens * key_width_);
      at += tokens;
    };
    for (const int chunk : rows_.earlier)
      append(chunks_.state(chunk, layer_).keys, chunks_.state(chunk, layer_).capacity);
    append(run_->all_keys, tokens_);
    return assembled;
  }
  void attend() const {
    const Memory assembled = assembled_keys();
    call_.forward(run_->all_query.data(), assembled.data(),
                  rank_.at(assembled, (earlier_ + tokens_) * key_width_), run_->all_out.data(),
                  run_->all_log_sum.floats());
  }
  void keep_for_earlier_chunks() {
    const std::int64_t keys = earlier_ + tokens_;
    std::int64_t at = 0;
    for (const int chunk : rows_.earlier) {
      ChunkState& state = chunks_.state(chunk, layer_);
      const std::int64_t count = state.capacity * key_width_;
      if (!state.gradients) state.gradients = zeroed_keys(state.capacity);
      rank_.add(state.gradients.data(), rank_.at(found_keys_, at * key_width_), count);
      rank_.add(rank_.at(state.gradients, count), rank_.at(found_keys_, (keys + at) * key_width_), count);
      at += state.capacity;
    }
  }

  int ranks_;
  std::int64_t earlier_, tokens_;  // of the chunks before; of all ranks
  mutable AttentionCall call_;
  std::vector<std::vector<Place>> places_;  // by rank
  Memory all_out_gradient_, found_query_, found_keys_;
};

}  // namespace

std::unique_ptr<ContextAttention> make_ulysses_attention(const RankContext& rank, const AttentionRows& rows,
                                                         const MicroBatchRows& all, int index,
                                                         ChunkStates& chunks) {
  return std::make_unique<UlyssesAttention>(rank, rows, all, index, chunks);
}

}  // namespace equipoise::execution
