// Disaggregated attention: queries go to the ranks that the simulator's plan gives them to, with the keys
// that they see; the output comes home. A rank that computes keeps nothing for the backward but log-sums: Q,
// K, V, the output and its gradient are sent again, and owners add up the gradients of K and V.
//
// A rank lays the queries of its tasks one after the other, and the keys of each of their slices from the
// first one to the last that a task sees. Where nothing travels, there are no exchanges and all is copied;
// where only keys do, the output does not.
#include <algorithm>
#include <initializer_list>
#include <map>

#include "policies/base/index.h"
#include "policies/sharding/disaggregation.h"
#include "sim/execution/context_attention.h"

namespace equipoise::execution {
namespace {

// Rows of one rank that another one computes with, or the same.
struct MovedRows {
  int owner = 0, rank = 0;
  std::int64_t row = 0, place = 0, count = 0;  // of the owner, and where they lie on the rank that computes
};

class DisaggregatedAttention final : public AttentionForm {
 public:
  DisaggregatedAttention(const RankContext& rank, const AttentionRows& rows, int index, ChunkStates& chunks)
      : AttentionForm(rank, rows, index, chunks), call_(rank.backend, shape_, plan()) {}

  void begin_forward(AttentionRun& run, int layer) override {
    begin(run, layer);
    run.out = rank_.elements(rows_.padded_rows * query_width_);
    rank_.zero(run.out.data(), rows_.padded_rows * query_width_);
    run.of_heads = std::make_shared<AttentionRun>();
    if (!travels_) bring_inputs();
  }
  void forward_sync(int sync) override { sync == 0 ? bring_inputs() : bring_output_home(); }
  void forward_attend(int) override {
    attend();
    if (!queries_travel_) bring_output_home();
  }

  void begin_backward(AttentionRun& run, AttentionGradient& gradient, int layer, bool again) override {
    begin(run, layer);
    begin_gradients(gradient, again);
    if (!travels_) send_again();
  }
  void backward_sync(int sync) override { sync == 0 ? send_again() : bring_gradients_home(); }
  void backward_attend(int) override {
    if (again_) attend();
    found_.query = rank_.elements(task_rows_ * query_width_);
    found_.keys = rank_.elements(2 * key_rows_ * key_width_);
    call_.backward(task_.query.data(), task_.keys.data(), value_row(task_.keys, 0, key_rows_),
                   task_.out.data(), run_->of_heads->log_sum.floats(), found_.out.data(),
                   {found_.query.data(), found_.keys.data(), value_row(found_.keys, 0, key_rows_)});
    if (!travels_) bring_gradients_home();
  }
  void end_backward() override {
    task_ = {};
    found_ = {};
  }

 private:
  // Tasks of all ranks, by the simulator's rule; the attention of this one's.
  std::vector<kernels::Piece> plan() {
    const MicroBatchRows& all = rows_.rows;
    Sharding owners;
    owners.rank_begin = {0};
    for (const RankRows& held : all.ranks) {
      for (const auto* runs : {&held.local, &held.shared})
        for (const RowRun& run : *runs) owners.segments.push_back(run.segment);
      owners.rank_begin.push_back(static_cast<std::uint32_t>(owners.segments.size()));
      owners.rank_tokens.push_back(held.rows);
    }
    AttentionTasks tasks;
    disaggregate(owners, nullptr, rank_.layout.epsilon,
                 {static_cast<double>(query_width_), static_cast<double>(2 * key_width_)}, tasks);
    travels_ = tasks.travels();
    for (const TaskTraffic& t : tasks.traffic) queries_travel_ = queries_travel_ || t.queries_sent > 0;
    std::vector<kernels::Piece> pieces;
    for (int r = 0; r < static_cast<int>(all.ranks.size()); ++r) {
      std::vector<kernels::Piece> of_rank = lay_out(tasks, r);
      if (r == rows_.rank) pieces = std::move(of_rank);
    }
    return pieces;
  }

  std::vector<kernels::Piece> lay_out(const AttentionTasks& tasks, int rank) {
    struct SliceKeys {
      std::int64_t first = 0, last = 0, place = 0;
    };
    std::map<std::int32_t, SliceKeys> slices;
    for (const AttentionTask& task : tasks.tasks)
      if (task.rank == rank) {
        SliceKeys& keys = slices[task.queries.slice];
        keys.first = task.queries.kv_begin;
        keys.last = std::max(keys.last, task.queries.q_end);
      }
    std::int64_t keys = 0, queries = 0;
    for (auto& [slice, of_slice] : slices) {
      of_slice.place = keys;
      keys += of_slice.last - of_slice.first;
      for (int owner = 0; owner < static_cast<int>(rows_.rows.ranks.size()); ++owner)
        for_runs(owner, slice, of_slice.last, [&, first = of_slice](const RowRun& run, std::int64_t count) {
          add(keys_, {owner, rank, run.row, first.place + run.segment.q_begin - first.first, count});
        });
    }
    std::vector<kernels::Piece> pieces;
    for (const AttentionTask& task : tasks.tasks) {
      if (task.rank != rank) continue;
      const Segment& s = task.queries;
      for_runs(task.owner, s.slice, s.q_end, [&](const RowRun& run, std::int64_t) {
        if (run.segment.q_begin <= s.q_begin && s.q_end <= run.segment.q_end)
          add(queries_, {task.owner, rank, run.row + s.q_begin - run.segment.q_begin, queries, s.queries()});
      });
      pieces.push_back({queries, s.queries(), slices[s.slice].place, s.keys()});
      queries += s.queries();
    }
    if (rank == rows_.rank) {
      task_rows_ = queries;
      key_rows_ = keys;
    }
    return pieces;
  }
  // Runs of a rank that begin before a token of a slice, and how many of their rows lie before it.
  template <class Visit>
  void for_runs(int rank, std::int32_t slice, std::int64_t end, const Visit& visit) const {
    const RankRows& held = rows_.rows.ranks[at(rank)];
    for (const auto* runs : {&held.local, &held.shared})
      for (const RowRun& run : *runs)
        if (run.segment.slice == slice && run.segment.q_begin < end)
          visit(run, std::min(end, run.segment.q_end) - run.segment.q_begin);
  }
  void add(std::vector<MovedRows>& moved, const MovedRows& rows) const {
    if (rows.owner == rows_.rank || rows.rank == rows_.rank) moved.push_back(rows);
  }

  // Rows of one kind, on their owner and on the rank that computes with them.
  struct Field {
    const std::vector<MovedRows>& moved;
    void* owned = nullptr;
    void* placed = nullptr;
    std::int64_t width = 0;
    bool adds = false;  // where they come home
  };
  // Visits what goes from `owner` to `rank`: (rows at the owner, rows where they are placed, elements,
  // field).
  template <class Visit>
  void for_rows(std::initializer_list<Field> fields, int owner, int rank, const Visit& visit) const {
    for (const Field& field : fields)
      for (const MovedRows& rows : field.moved)
        if (rows.owner == owner && rows.rank == rank)
          visit(owner == rows_.rank ? rank_.at(field.owned, rows.row * field.width) : nullptr,
                rank == rows_.rank ? rank_.at(field.placed, rows.place * field.width) : nullptr,
                rows.count * field.width, field.adds);
  }
  void travel(std::initializer_list<Field> fields, bool home) {
    const int self = rows_.rank;
    const auto take = [&](void* to, const void* from, std::int64_t count, bool adds) {
      if (home && adds)
        rank_.add(to, from, count);
      else
        rank_.copy(to, from, count);
    };
    for_rows(fields, self, self, [&](void* owned, void* placed, std::int64_t count, bool adds) {
      take(home ? owned : placed, home ? placed : owned, count, adds);
    });
    // A rank sends as an owner on the way out, and as the one that computed on the way home.
    const auto with = [&](int peer, bool sends, const auto& visit) {
      const bool owns = sends != home;
      for_rows(fields, owns ? self : peer, owns ? peer : self, visit);
    };
    const auto elements = [&](int peer, bool sends) {
      std::int64_t sum = 0;
      with(peer, sends, [&](void*, void*, std::int64_t count, bool) { sum += count; });
      return sum;
    };
    exchange_messages([&](int to) { return elements(to, true); },
                      [&](int from) { return elements(from, false); },
                      [&](int to, const Memory& message) {
                        std::int64_t begin = 0;
                        with(to, true, [&](void* owned, void* placed, std::int64_t count, bool) {
                          rank_.copy(rank_.at(message, begin), home ? placed : owned, count);
                          begin += count;
                        });
                      },
                      [&](int from, const Memory& message) {
                        std::int64_t begin = 0;
                        with(from, false, [&](void* owned, void* placed, std::int64_t count, bool adds) {
                          take(home ? owned : placed, rank_.at(message, begin), count, adds);
                          begin += count;
                        });
                      });
  }

  [[nodiscard]] Field queries(const Memory& owned, const Memory& placed) const {
    return {queries_, owned.data(), placed.data(), query_width_, false};
  }
  // K and V, or their gradients.
  [[nodiscard]] Field first_keys(const Memory& owned, const Memory& placed) const {
    return {keys_, owned.data(), placed.data(), key_width_, true};
  }
  [[nodiscard]] Field values(const Memory& owned, const Memory& placed) const {
    return {keys_, value_row(owned, 0, rows_.capacity), value_row(placed, 0, key_rows_), key_width_, true};
  }

  void bring_inputs() {
    task_.query = rank_.elements(task_rows_ * query_width_);
    task_.keys = rank_.elements(2 * key_rows_ * key_width_);
    travel({queries(run_->query, task_.query), first_keys(run_->keys, task_.keys),
            values(run_->keys, task_.keys)},
           false);
  }
  void attend() {
    task_.out = rank_.elements(task_rows_ * query_width_);
    run_->of_heads->log_sum = rank_.floats(task_rows_ * shape_.query_heads);
    call_.forward(task_.query.data(), task_.keys.data(), value_row(task_.keys, 0, key_rows_),
                  task_.out.data(), run_->of_heads->log_sum.floats());
  }
  void bring_output_home() {
    travel({queries(run_->out, task_.out)}, true);
    task_ = {};
  }
  void send_again() {
    task_.query = rank_.elements(task_rows_ * query_width_);
    task_.keys = rank_.elements(2 * key_rows_ * key_width_);
    task_.out = rank_.elements(task_rows_ * query_width_);
    found_.out = rank_.elements(task_rows_ * query_width_);
    travel(
        {queries(run_->query, task_.query), first_keys(run_->keys, task_.keys),
         values(run_->keys, task_.keys), queries(run_->out, task_.out), queries(gradient_->out, found_.out)},
        false);
  }
  void bring_gradients_home() {
    travel({queries(gradient_->query, found_.query), first_keys(gradient_->keys, found_.keys),
            values(gradient_->keys, found_.keys)},
           true);
  }

  bool travels_ = false, queries_travel_ = false;
  std::vector<MovedRows> queries_, keys_;      // that this rank owns or computes with
  std::int64_t task_rows_ = 0, key_rows_ = 0;  // of this rank's tasks
  AttentionCall call_;                         // behind what plan() fills
  AttentionRun task_;                          // of its tasks: inputs and output
  AttentionGradient found_;                    // their gradients
};

}  // namespace

std::unique_ptr<ContextAttention> make_disaggregated_attention(const RankContext& rank,
                                                               const AttentionRows& rows, int index,
                                                               ChunkStates& chunks) {
  return std::make_unique<DisaggregatedAttention>(rank, rows, index, chunks);
}

}  // namespace equipoise::execution
