#include "sim/execution/disaggregated_attention.h"

#include <algorithm>
#include <initializer_list>
#include <map>

#include "policies/base/index.h"
#include "policies/make_plan.h"
#include "policies/sharding/disaggregation.h"

namespace equipoise::execution {
namespace {

// Rows of one rank that another rank, or the same one, computes with.
struct MovedRows {
  int owner = 0, rank = 0;
  std::int64_t row = 0, place = 0, count = 0;  // rows of the owner, and their place on the rank that computes
};

class DisaggregatedAttention final : public AttentionForm {
 public:
  DisaggregatedAttention(const RankContext& rank, const AttentionRows& rows, int index, ChunkStates& chunks)
      : AttentionForm(rank, rows, index, chunks) {}

  void begin_forward(AttentionRun& run, int layer) override {
    begin(run, layer);
    run.out = rank_.elements(rows_.padded_rows * query_width_);
    rank_.zero(run.out.data(), rows_.padded_rows * query_width_);
    run.log_sum = rank_.floats(rows_.padded_rows * shape_.query_heads);
    if (!plan_->travels) bring_inputs();
  }
  void forward_sync(int sync) override { sync == 0 ? bring_inputs() : bring_output_home(); }
  void forward_attend(int) override {
    attend();
    if (!plan_->queries_travel) bring_output_home();
  }

  void begin_backward(AttentionRun& run, AttentionGradient& gradient, int layer, bool again) override {
    begin(run, layer);
    begin_gradients(gradient, again);
    if (!plan_->travels) send_again();
  }
  void backward_sync(int sync) override { sync == 0 ? send_again() : bring_gradients_home(); }
  void backward_attend(int) override {
    if (again_) attend();
    found_.query = rank_.elements(plan_->task_rows * query_width_);
    found_.keys = rank_.elements(2 * plan_->key_rows * key_width_);
    call_->backward(task_.query.data(), task_.keys.data(), value_row(task_.keys, 0, plan_->key_rows),
                    task_.out.data(), task_.log_sum.floats(), found_.out.data(),
                    {found_.query.data(), found_.keys.data(), value_row(found_.keys, 0, plan_->key_rows)});
    if (!plan_->travels) bring_gradients_home();
  }
  void end_backward() override {
    task_ = {};
    found_ = {};
  }

 private:
  // The ranks that share attention, and what each computes.
  struct Plan {
    std::vector<RankRows> ranks;
    int self = 0;
    bool travels = false, queries_travel = false;
    std::vector<MovedRows> queries, keys;      // rows that this rank owns or computes with
    std::int64_t task_rows = 0, key_rows = 0;  // rows of this rank's tasks
    std::vector<kernels::Piece> pieces = {};
  };

  void begin(AttentionRun& run, int layer) override {
    AttentionForm::begin(run, layer);
    const StageTick* const tick = rank_.evens_out_stages ? rank_.tick : nullptr;
    const auto [known, is_new] = plans_.try_emplace(tick);
    plan_ = &known->second.first;
    if (is_new) {
      make_plan(tick, known->second.first);
      known->second.second = std::make_unique<AttentionCall>(rank_.backend, shape_, plan_->pieces);
    }
    call_ = known->second.second.get();
  }

  // Lists the CP ranks of this micro-batch, or of all stages of a tick with their slices in a row.
  void list_ranks(const StageTick* tick, Plan& plan) {
    if (tick == nullptr) {
      plan.ranks = rows_.rows.ranks;
      plan.self = rows_.rank;
      return;
    }
    const std::size_t context = rows_.rows.ranks.size();
    std::int32_t slices = 0;
    for (const std::int32_t micro_batch : tick->pool) {
      if (micro_batch == kIdle) {
        plan.ranks.resize(plan.ranks.size() + context);
        continue;
      }
      const MicroBatchRows& of_stage = chunks_.rows(micro_batch).rows;
      for (RankRows rank : of_stage.ranks) {
        for (auto* runs : {&rank.local, &rank.shared})
          for (RowRun& run : *runs) run.segment.slice += slices;
        plan.ranks.push_back(std::move(rank));
      }
      slices += static_cast<std::int32_t>(of_stage.slice_keys.size());
    }
    plan.self = rank_.place.stage * static_cast<int>(context) + rows_.rank;
  }

  // Deals all ranks' tasks by the simulator's rule, and plans the attention of this rank's tasks.
  void make_plan(const StageTick* tick, Plan& plan) {
    list_ranks(tick, plan);
    Sharding owners;
    owners.rank_begin = {0};
    for (const RankRows& held : plan.ranks) {
      for (const auto* runs : {&held.local, &held.shared})
        for (const RowRun& run : *runs) owners.segments.push_back(run.segment);
      owners.rank_begin.push_back(static_cast<std::uint32_t>(owners.segments.size()));
      owners.rank_tokens.push_back(held.rows);
    }
    AttentionTasks tasks;
    disaggregate(owners, nullptr, rank_.layout.epsilon,
                 {static_cast<double>(query_width_), static_cast<double>(2 * key_width_)}, tasks);
    plan.travels = tasks.travels();
    for (const TaskTraffic& t : tasks.traffic)
      plan.queries_travel = plan.queries_travel || t.queries_sent > 0;
    for (int r = 0; r < static_cast<int>(plan.ranks.size()); ++r) {
      std::vector<kernels::Piece> of_rank = lay_out(tasks, r, plan);
      if (r == plan.self) plan.pieces = std::move(of_rank);
    }
  }

  std::vector<kernels::Piece> lay_out(const AttentionTasks& tasks, int rank, Plan& plan) const {
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
    const auto add = [&](std::vector<MovedRows>& moved, const MovedRows& rows) {
      if (rows.owner == plan.self || rows.rank == plan.self) moved.push_back(rows);
    };
    std::int64_t keys = 0, queries = 0;
    for (auto& [slice, of_slice] : slices) {
      of_slice.place = keys;
      keys += of_slice.last - of_slice.first;
      for (int owner = 0; owner < static_cast<int>(plan.ranks.size()); ++owner)
        for_runs(
            plan.ranks[at(owner)], slice, of_slice.last,
            [&, first = of_slice](const RowRun& run, std::int64_t count) {
              add(plan.keys, {owner, rank, run.row, first.place + run.segment.q_begin - first.first, count});
            });
    }
    std::vector<kernels::Piece> pieces;
    for (const AttentionTask& task : tasks.tasks) {
      if (task.rank != rank) continue;
      const Segment& s = task.queries;
      for_runs(plan.ranks[at(task.owner)], s.slice, s.q_end, [&](const RowRun& run, std::int64_t) {
        if (run.segment.q_begin <= s.q_begin && s.q_end <= run.segment.q_end)
          add(plan.queries,
              {task.owner, rank, run.row + s.q_begin - run.segment.q_begin, queries, s.queries()});
      });
      pieces.push_back({queries, s.queries(), slices[s.slice].place, s.keys()});
      queries += s.queries();
    }
    if (rank == plan.self) {
      plan.task_rows = queries;
      plan.key_rows = keys;
    }
    return pieces;
  }
  // Visits a rank's runs that begin before a token of a slice, with the number of their rows before it.
  template <class Visit>
  static void for_runs(const RankRows& held, std::int32_t slice, std::int64_t end, const Visit& visit) {
    for (const auto* runs : {&held.local, &held.shared})
      for (const RowRun& run : *runs)
        if (run.segment.slice == slice && run.segment.q_begin < end)
          visit(run, std::min(end, run.segment.q_end) - run.segment.q_begin);
  }

  // The rows of one kind, at their owner and at the rank that computes with them.
  struct Field {
    const std::vector<MovedRows>& moved;
    void* owned = nullptr;
    void* placed = nullptr;
    std::int64_t width = 0;
    bool adds = false;  // whether they are added to what is there when they return
  };
  void travel(std::initializer_list<Field> fields, bool home, bool floats = false) {
    const int self = plan_->self;
    const std::size_t bytes = floats ? sizeof(float) : rank_.element_bytes();
    const auto row = [&](void* rows, std::int64_t number, std::int64_t width) -> void* {
      return static_cast<char*>(rows) + at(number * width) * bytes;
    };
    // On the way out the owner sends; on the way home the rank that computed does.
    const auto listed = [&](int peer, bool sends) {
      const bool owns = sends != home;
      std::vector<Travelling> list;
      for (const Field& field : fields)
        for (const MovedRows& rows : field.moved)
          if (rows.owner == (owns ? self : peer) && rows.rank == (owns ? peer : self))
            list.push_back(
                {owns ? row(field.owned, rows.row, field.width) : row(field.placed, rows.place, field.width),
                 rows.count * field.width, home && field.adds});
      return list;
    };
    const std::vector<Travelling> stays = listed(self, true), to = listed(self, false);
    for (std::size_t i = 0; i < to.size(); ++i) put(to[i], stays[i].data, floats);
    exchange([&](int peer) { return listed(peer, true); }, [&](int peer) { return listed(peer, false); },
             floats);
  }

  [[nodiscard]] Field queries(const Memory& owned, const Memory& placed) const {
    return {plan_->queries, owned.data(), placed.data(), query_width_, false};
  }
  [[nodiscard]] Field log_sums() const {
    return {plan_->queries, run_->log_sum.data(), task_.log_sum.data(), shape_.query_heads, false};
  }
  // The fields that hold K and V, or their gradients.
  [[nodiscard]] Field first_keys(const Memory& owned, const Memory& placed) const {
    return {plan_->keys, owned.data(), placed.data(), key_width_, true};
  }
  [[nodiscard]] Field values(const Memory& owned, const Memory& placed) const {
    return {plan_->keys, value_row(owned, 0, rows_.capacity), value_row(placed, 0, plan_->key_rows),
            key_width_, true};
  }

  void bring_inputs() {
    task_.query = rank_.elements(plan_->task_rows * query_width_);
    task_.keys = rank_.elements(2 * plan_->key_rows * key_width_);
    travel({queries(run_->query, task_.query), first_keys(run_->keys, task_.keys),
            values(run_->keys, task_.keys)},
           false);
  }
  void attend() {
    task_.out = rank_.elements(plan_->task_rows * query_width_);
    task_.log_sum = rank_.floats(plan_->task_rows * shape_.query_heads);
    call_->forward(task_.query.data(), task_.keys.data(), value_row(task_.keys, 0, plan_->key_rows),
                   task_.out.data(), task_.log_sum.floats());
  }
  void bring_output_home() {
    travel({queries(run_->out, task_.out)}, true);
    travel({log_sums()}, true, true);
    task_ = {};
  }
  void send_again() {
    task_.query = rank_.elements(plan_->task_rows * query_width_);
    task_.keys = rank_.elements(2 * plan_->key_rows * key_width_);
    task_.out = rank_.elements(plan_->task_rows * query_width_);
    task_.log_sum = rank_.floats(plan_->task_rows * shape_.query_heads);
    found_.out = rank_.elements(plan_->task_rows * query_width_);
    travel(
        {queries(run_->query, task_.query), first_keys(run_->keys, task_.keys),
         values(run_->keys, task_.keys), queries(run_->out, task_.out), queries(gradient_->out, found_.out)},
        false);
    travel({log_sums()}, false, true);
  }
  void bring_gradients_home() {
    travel({queries(gradient_->query, found_.query), first_keys(gradient_->keys, found_.keys),
            values(gradient_->keys, found_.keys)},
           true);
  }

  std::map<const StageTick*, std::pair<Plan, std::unique_ptr<AttentionCall>>> plans_;
  const Plan* plan_ = nullptr;     // for the running op
  AttentionCall* call_ = nullptr;  // attention of its tasks
  AttentionRun task_;              // inputs and output of its tasks
  AttentionGradient found_;        // their gradients
};

}  // namespace

std::unique_ptr<ContextAttention> make_disaggregated_attention(const RankContext& rank,
                                                               const AttentionRows& rows, int index,
                                                               ChunkStates& chunks) {
  return std::make_unique<DisaggregatedAttention>(rank, rows, index, chunks);
}

}  // namespace equipoise::execution
