// Core attention disaggregation (DistCA, arXiv 2510.18121): any rank of the group computes any query's
// attention (policies/sharding/disaggregation.h plans it).
//
// One all-to-all takes Q, K and V to the ranks that compute, one brings the output with its log-sums home.
// The ranks that compute keep nothing: a backward sends Q, K, V, the output and its gradient, and the
// gradients of Q, K and V come home, those of K and V added up before they are sent. With
// framework.keep_gathered_kv they keep all of it, and only the output's gradient is sent.
//
// With two nano-batches a layer of a forward is, while x travels | what runs meanwhile:
//   A's projections; Q, K, V of A | B's projections; Q, K, V of B | A's attention; output of A | B's
//   attention; output of B | the rest of A's layer; the rest of B's layer.
// A backward goes through B first, since B's queries add to the gradients of A's keys. The authors
// overlap the last exchange with A's next layer, too; here a layer ends with its exchanges.
//
// The time of an exchange is that of the all-to-all in which every rank moves as much as the one here that
// moves most.
//
// Stages of a pipeline share out the attention of one tick where a row asks for it (SlimPipe, arXiv
// 2504.14519). What moves takes as long there as at home, and the exchange may run during all of the tick's
// attention: keys can leave before their tick, as the authors send them.
#include "sim/cost/context_exchange/disaggregated.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "policies/base/index.h"
#include "sim/cost/context_exchange/context_form.h"

namespace equipoise {
namespace {

constexpr double kLogSumBytes = 4;  // per query and head

// The bytes of a token on one TP rank.
struct TokenBytes {
  double query = 0, output = 0, log_sum = 0, key_value = 0;
};
TokenBytes token_bytes(const LayerCosts& costs) {
  const ModelShape& model = costs.model();
  const double heads = model.heads / costs.layout().tensor;
  const double element_bytes = costs.profile().device().element_bytes;
  return {heads * model.head_dim * element_bytes, heads * model.value_dim() * element_bytes,
          heads * kLogSumBytes, as_double(costs.kv_bytes_per_token())};
}

PlannedTasks::Bytes most_bytes(const AttentionTasks& tasks, const TokenBytes& of, bool kept) {
  PlannedTasks::Bytes most;
  for (const TaskTraffic& t : tasks.traffic) {
    const auto raise = [&](double& to, double of_query, double of_key) {
      to = std::max({to, as_double(t.queries_sent) * of_query + as_double(t.keys_sent) * of_key,
                     as_double(t.queries_received) * of_query + as_double(t.keys_received) * of_key});
    };
    raise(most.inputs, of.query, of.key_value);
    raise(most.output, of.output + of.log_sum, 0);
    if (kept)
      raise(most.resent, of.output, 0);
    else
      raise(most.resent, of.query + 2 * of.output + of.log_sum, of.key_value);
    raise(most.gradients, of.query, of.key_value);
  }
  return most;
}

void exchange_tasks(const LayerCosts& costs, const ExchangedTokens& tokens, const ContextGroup& group,
                    ContextExchanges& out, RangeUse& use) {
  out.clear();
  const PlannedTasks& planned = *tokens.tasks;
  const auto send = [&](double bytes) {
    const Op nothing{OpName::cp_all_to_all, Stream::cp};
    return bytes > 0 ? uneven_all_to_all(costs, bytes, group, use) : nothing;
  };
  const PlannedTasks::Bytes &a = planned.most[0], &b = planned.most[1];
  if (planned.nano_batches == 2) {
    out.forward = {send(a.inputs), send(b.inputs), send(a.output), send(b.output)};
    out.backward = {send(b.resent), send(a.resent), send(b.gradients), send(a.gradients)};
  } else if (!a.none()) {
    out.forward = {send(a.inputs)};
    if (a.output > 0) out.forward.push_back(send(a.output));
    if (a.resent > 0) out.backward.push_back(send(a.resent));
    out.backward.push_back(send(a.gradients));
  }
}

void attend_tasks(const ContextCase& of, ContextPasses& out, RangeUse& use) {
  const PlannedTasks& planned = *of.tokens.tasks;
  const bool pair = planned.nano_batches == 2;
  // If no query moves, its rank already has the output, and what was kept for a backward.
  const std::size_t comes = planned.most[0].output > 0 ? 1 : 0, goes = planned.most[0].resent > 0 ? 1 : 0;
  out.forward.reset(of.context, pair ? 4 : 1 + comes);
  out.backward.reset(of.context, pair ? 4 : goes + 1);
  thread_local std::vector<QueryKeys> pieces;
  for (std::size_t n = 0; n < at(planned.nano_batches); ++n) {
    const std::vector<AttentionTask>& tasks = planned.parts[n].tasks;
    for (std::size_t i = 0; i < tasks.size();) {
      const int rank = tasks[i].rank;
      pieces.clear();
      for (; i < tasks.size() && tasks[i].rank == rank; ++i)
        pieces.push_back({tasks[i].queries.queries(), tasks[i].queries.keys()});
      const AttentionTimes times = of.costs.attention.times(pieces, use);
      if (pair) {
        out.forward.add_under(1 + n, at(rank), times.forward);
        out.backward.add_under(2 - n, at(rank), of.backward(times));
      } else {
        out.forward.add_run(1, at(rank), times.forward);
        out.backward.add_run(goes, at(rank), of.backward(times));
      }
    }
  }
}

void check_tasks(const MicroBatch& micro_batch, const Sharding& sharding, bool halves,
                 const LayerCosts& costs) {
  const std::string form = "parallel.context_comm: disaggregated with ";
  if (halves && costs.model().moe)
    throw UserError(form, "two nano-batches of a model with experts; allowed: nano_batches 1");
  if (micro_batch.chunk.count > 1)
    throw UserError(form, "dependent chunks; allowed: micro-batches of whole slices");
  if (sharding.pieces.strided)
    throw UserError(form, "striped sharding; allowed: rules that leave runs of tokens");
}

}  // namespace

// `cut`: of the slices of `owners`, in two nano-batches.
static void plan_tasks(const Sharding& owners, std::span<const std::int64_t> cut, const LayerCosts& costs,
                       PlannedTasks& planned) {
  const TokenBytes of = token_bytes(costs);
  for (int n = 0; n < planned.nano_batches; ++n) {
    AttentionTasks& tasks = planned.parts[at(n)];
    const NanoBatch half{cut, n};
    disaggregate(owners, planned.nano_batches == 2 ? &half : nullptr, costs.layout().epsilon,
                 {of.query, of.key_value}, tasks);
    planned.most[at(n)] = most_bytes(tasks, of, costs.framework().keep_gathered_kv);
  }
}

// Counts what the ranks from `first` on hold, which own the segments of `sharding`.
static void count_held(const Sharding& sharding, std::size_t first, const TokenBytes& of,
                       PlannedTasks& planned) {
  planned.held = planned.received = 0;
  for (std::size_t r = 0; r < sharding.rank_tokens.size(); ++r) {
    double held = as_double(sharding.rank_tokens[r]);  // because both nano-batches are active
    for (int n = 0; n < planned.nano_batches; ++n) {
      const TaskTraffic& t = planned.parts[at(n)].traffic[first + r];
      planned.received += t.keys_received;
      held +=
          as_double(t.keys_received) + as_double(t.queries_received) * (of.query + of.output) / of.key_value;
    }
    planned.held = std::max(planned.held, static_cast<std::int64_t>(held));
  }
}

const PlannedTasks& planned_tasks(const MicroBatch& micro_batch, const Sharding& sharding,
                                  const LayerCosts& costs) {
  thread_local PlannedTasks planned;
  thread_local std::vector<std::int64_t> cut;
  planned.nano_batches = costs.layout().nano_batches_of(sharding.ranks());
  cut.clear();
  if (planned.nano_batches == 2)
    append_cut(nano_cut(micro_batch, sharding.ranks()), micro_batch.slices.size(), cut);
  plan_tasks(sharding, cut, costs, planned);
  count_held(sharding, 0, token_bytes(costs), planned);
  return planned;
}

Sharding pooled_sharding(std::span<const PooledTokens> stages) {
  Sharding all;
  all.rank_begin = {0};
  std::int32_t slices = 0;
  for (const PooledTokens& stage : stages) {
    const Sharding& own = *stage.sharding;
    const auto first = static_cast<std::uint32_t>(all.segments.size());
    for (Segment s : own.segments) {
      s.slice += slices;
      all.segments.push_back(s);
    }
    for (std::size_t r = 1; r < own.rank_begin.size(); ++r)
      all.rank_begin.push_back(first + own.rank_begin[r]);
    all.rank_tokens.insert(all.rank_tokens.end(), own.rank_tokens.begin(), own.rank_tokens.end());
    slices += static_cast<std::int32_t>(stage.micro_batch->slices.size());
  }
  return all;
}

std::vector<PlannedTasks> pooled_tasks(std::span<const PooledTokens> stages, const LayerCosts& costs) {
  const int ranks = stages.front().sharding->ranks();
  PlannedTasks pool;
  pool.nano_batches = costs.layout().nano_batches_of(ranks);
  std::vector<std::int64_t> cut;
  for (const PooledTokens& stage : stages)
    append_cut(nano_cut(*stage.micro_batch, ranks), stage.micro_batch->slices.size(), cut);
  plan_tasks(pooled_sharding(stages), cut, costs, pool);
  std::vector<PlannedTasks> out(stages.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const int first = static_cast<int>(s) * ranks;
    count_held(*stages[s].sharding, at(first), token_bytes(costs), pool);
    out[s].nano_batches = pool.nano_batches;
    out[s].most = pool.most;
    out[s].held = pool.held;
    out[s].received = pool.received;
    for (std::size_t n = 0; n < at(pool.nano_batches); ++n) {
      out[s].parts[n].pairs.assign(pool.parts[n].pairs.begin() + first,
                                   pool.parts[n].pairs.begin() + first + ranks);
      for (AttentionTask task : pool.parts[n].tasks) {
        task.rank -= first;
        if (task.rank >= 0 && task.rank < ranks) out[s].parts[n].tasks.push_back(task);
      }
    }
  }
  return out;
}

namespace {

// The attention of a micro-batch on one rank, as something to cut: queries from the first on, or keys of
// earlier chunks from the first on. Shares refer to its visible pairs.
class AttentionCut {
 public:
  explicit AttentionCut(const MicroBatch& micro_batch)
      : micro_batch_(micro_batch), earlier_(earlier_tokens(micro_batch, 0)) {
    for (const Slice& slice : micro_batch.slices) pairs_ += pairs_of(slice.tokens());
  }

  // Which way moves fewer bytes for this share: some of the queries with all keys that they see, or all
  // queries with some keys.
  [[nodiscard]] bool takes_keys(double share, const TokenBytes& of) const {
    const std::int64_t rows = queries(share), part = keys(share);
    return part <= earlier_ && bytes(micro_batch_.tokens(), part, of) < bytes(rows, keys_seen(0, rows), of);
  }
  [[nodiscard]] std::int64_t keys(double share) const {
    return std::llround(share * pairs_ / as_double(std::max<std::int64_t>(1, micro_batch_.tokens())));
  }
  [[nodiscard]] std::int64_t queries(double share) const {
    double left = share * pairs_;
    std::int64_t before = 0;
    for (const Slice& slice : micro_batch_.slices) {
      const double of_slice = pairs_of(slice.tokens());
      if (left < of_slice) {
        const double linear = as_double(2 * earlier_ + 1);
        return before + std::llround((std::sqrt(linear * linear + 8 * left) - linear) / 2);
      }
      left -= of_slice;
      before += slice.tokens();
    }
    return before;
  }
  [[nodiscard]] std::int64_t keys_seen(std::int64_t begin, std::int64_t end) const {
    std::int64_t before = 0;
    for (const Slice& slice : micro_batch_.slices) {
      if (before + slice.tokens() > begin) break;
      before += slice.tokens();
    }
    return earlier_ + end - before;
  }

 private:
  [[nodiscard]] double pairs_of(std::int64_t tokens) const {
    return as_double(tokens) * (as_double(earlier_) + as_double(tokens + 1) / 2);
  }
  static double bytes(std::int64_t queries, std::int64_t keys, const TokenBytes& of) {
    return as_double(queries) * (of.query + of.output) + as_double(keys) * of.key_value;
  }

  const MicroBatch& micro_batch_;
  std::int64_t earlier_;
  double pairs_ = 0;
};

struct MovedWork {
  std::vector<StageMove> moves;
  AttentionTasks tasks;  // the traffic
};

// Moves attention above `mean` from the heaviest stage to the lightest, until all are even. O(stages^2).
MovedWork moved_work(std::span<const StageAttention> stages, std::size_t pass, double mean,
                     const TokenBytes& of) {
  MovedWork out;
  out.tasks.traffic.resize(stages.size());
  std::vector<double> above, all, given(stages.size(), 0);  // sums over each stage's layers
  for (const StageAttention& s : stages) {
    all.push_back(s.layers[pass] * as_double(s.attention[pass]));
    above.push_back(all.back() - s.layers[pass] * mean);
  }
  const std::vector<double> to_give = above;
  for (;;) {
    const auto [to, from] = std::ranges::minmax_element(above);
    const double moves = std::min(*from, -*to);
    if (moves < 1) return out;
    const std::size_t giver = at(from - above.begin()), taker = at(to - above.begin());
    *from -= moves;
    *to += moves;
    const MicroBatch& micro_batch = *stages[giver].micro_batch;
    const AttentionCut cut(micro_batch);
    StageMove move{stages[giver].stage, stages[taker].stage, stages[giver].number,
                   cut.takes_keys(to_give[giver] / all[giver], of)};
    const auto place = [&](double share) { return move.keys ? cut.keys(share) : cut.queries(share); };
    move.begin = place(given[giver] / all[giver]);
    given[giver] += moves;
    move.end = place(given[giver] / all[giver]);
    if (move.begin == move.end) continue;
    const std::int64_t queries = move.keys ? micro_batch.tokens() : move.end - move.begin;
    const std::int64_t keys = move.keys ? move.end - move.begin : cut.keys_seen(move.begin, move.end);
    out.moves.push_back(move);
    out.tasks.traffic[giver].queries_sent += queries;
    out.tasks.traffic[giver].keys_sent += keys;
    out.tasks.traffic[taker].queries_received += queries;
    out.tasks.traffic[taker].keys_received += keys;
  }
}

}  // namespace

EvenedAttention even_out(std::span<const StageAttention> stages, const LayerCosts& costs, RangeUse& use) {
  if (stages.size() < 2) return {};
  const TokenBytes of = token_bytes(costs);
  const ContextGroup group{costs.layout().pipeline, costs.grid().shape(Axis::pipeline), of.key_value};
  EvenedAttention out;
  for (std::size_t pass = 0; pass < out.size(); ++pass) {
    double sum = 0, layers = 0;
    for (const StageAttention& s : stages) {
      sum += s.layers[pass] * as_double(s.attention[pass]);
      layers += s.layers[pass];
    }
    const double mean = sum / std::max(1.0, layers);
    MovedWork moved = moved_work(stages, pass, mean, of);
    const PlannedTasks::Bytes most = most_bytes(moved.tasks, of, false);
    if (most.none()) continue;
    EvenedPass even{std::llround(mean),
                    uneven_all_to_all(costs, pass == 0 ? most.inputs : most.resent, group, use),
                    std::llround((most.inputs + most.output) / of.key_value), std::move(moved.moves)};
    const Op back = uneven_all_to_all(costs, pass == 0 ? most.output : most.gradients, group, use);
    even.exchange.duration += back.duration;
    even.exchange.bytes += back.bytes;
    if (even.exchange.duration <= even.attention) out[pass] = std::move(even);
  }
  return out;
}

void take_evened(const EvenedAttention& evened, ContextPasses& passes, ContextExchanges& exchanges) {
  const auto take = [](const EvenedPass& even, ContextPass& pass, std::vector<Op>& exchange) {
    if (even.attention == 0) return;
    exchange = {even.exchange};
    pass.reset(1, 1);
    pass.add_under(0, 0, even.attention);
  };
  take(evened[0], passes.forward, exchanges.forward);
  take(evened[1], passes.backward, exchanges.backward);
}

constinit const ContextForm kDisaggregatedForm = {
    .held_tokens = [](std::int64_t, std::int64_t group_tokens, int) { return group_tokens; },
    .check = check_tasks,
    .count =
        [](const TokensCase& of, ExchangedTokens& tokens) {
          if (of.costs != nullptr && of.sharding.ranks() > 1)
            tokens.tasks = &planned_tasks(of.micro_batch, of.sharding, *of.costs);
        },
    .exchange = exchange_tasks,
    .attend = attend_tasks,
};

}  // namespace equipoise
