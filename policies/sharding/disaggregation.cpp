#include "policies/sharding/disaggregation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>

#include "policies/base/index.h"

namespace equipoise {
namespace {

// The most queries from the head of a task with at most `pairs` pairs: q p + q (q + 1) / 2 with p keys
// before.
std::int64_t head_queries(const Segment& s, std::int64_t pairs) {
  const double before = static_cast<double>(2 * (s.q_begin - s.kv_begin) + 1);
  auto q =
      static_cast<std::int64_t>((std::sqrt(before * before + 8.0 * static_cast<double>(pairs)) - before) / 2);
  const auto work = [&](std::int64_t n) { return n * (s.q_begin - s.kv_begin) + n * (n + 1) / 2; };
  while (q > 0 && work(q) > pairs) --q;
  while (q < s.queries() && work(q + 1) <= pairs) ++q;
  return std::min(q, s.queries());
}

// The same number from the tail: q K - q (q - 1) / 2 pairs if the last query sees K keys.
std::int64_t tail_queries(const Segment& s, std::int64_t pairs) {
  const double twice = static_cast<double>(2 * s.keys() + 1);
  const double root = twice * twice - 8.0 * static_cast<double>(pairs);
  auto q = root > 0 ? static_cast<std::int64_t>((twice - std::sqrt(root)) / 2) : s.queries();
  q = std::min(q, s.queries());
  const auto work = [&](std::int64_t n) { return n * s.keys() - n * (n - 1) / 2; };
  while (q > 0 && work(q) > pairs) --q;
  while (q < s.queries() && work(q + 1) <= pairs) ++q;
  return q;
}

struct Strips {
  std::int64_t head = 0, tail = 0;  // queries
  [[nodiscard]] std::int64_t queries() const { return head + tail; }
};

Strips strips_of(const AttentionTask& task, std::int64_t movable) {
  if (movable >= task.pairs) return {task.queries.queries(), 0};
  return {head_queries(task.queries, movable / 2), tail_queries(task.queries, movable / 2)};
}

class Planner {
 public:
  Planner(double epsilon, TaskBytes bytes, AttentionTasks& out) : bytes_(bytes), out_(out) {
    std::int64_t all = 0;
    for (const std::int64_t pairs : out.pairs) all += pairs;
    target_ = all / static_cast<std::int64_t>(out.pairs.size());
    tolerance_ = static_cast<std::int64_t>(epsilon * static_cast<double>(target_));
  }

  void run() {
    while (out_of_tolerance()) {
      const auto taker =
          static_cast<int>(std::min_element(out_.pairs.begin(), out_.pairs.end()) - out_.pairs.begin());
      const std::size_t best = best_task(taker);
      if (best == out_.tasks.size())
        return;  // no work can move to the rank with the largest deficit, nor to others
      move(best, taker);
    }
  }

 private:
  [[nodiscard]] bool out_of_tolerance() const {
    return std::any_of(out_.pairs.begin(), out_.pairs.end(),
                       [&](std::int64_t pairs) { return std::abs(pairs - target_) > tolerance_; });
  }
  [[nodiscard]] Strips movable(const AttentionTask& task, int taker) const {
    const std::int64_t surplus = out_.pairs[at(task.rank)] - target_;
    const std::int64_t deficit = target_ - out_.pairs[at(taker)];
    return surplus > 0 && deficit > 0 ? strips_of(task, std::min(surplus, deficit)) : Strips{};
  }
  // Tasks are ordered by rank, slice and query, except those that moved, which are not moved again.
  [[nodiscard]] std::size_t best_task(int taker) const {
    std::size_t best = out_.tasks.size();
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < out_.tasks.size(); ++i) {
      const AttentionTask& task = out_.tasks[i];
      const Strips strips = movable(task, taker);
      if (strips.queries() == 0) continue;
      const double bytes = static_cast<double>(strips.queries()) * bytes_.query +
                           static_cast<double>(out_.slice_keys[at(task.queries.slice)]) * bytes_.key_value;
      const double price = bytes / static_cast<double>(pairs_of(task, strips));
      if (price < least) {
        least = price;
        best = i;
      }
    }
    return best;
  }
  static Segment head_of(const AttentionTask& task, Strips strips) {
    Segment head = task.queries;
    head.q_end = head.q_begin + strips.head;
    return head;
  }
  static Segment tail_of(const AttentionTask& task, Strips strips) {
    Segment tail = task.queries;
    tail.q_begin = tail.q_end - strips.tail;
    return tail;
  }
  static std::int64_t pairs_of(const AttentionTask& task, Strips strips) {
    return head_of(task, strips).pairs() + tail_of(task, strips).pairs();
  }
  void move(std::size_t index, int taker) {
    const AttentionTask task = out_.tasks[index];
    const Strips strips = movable(task, taker);
    for (const Segment& strip : {head_of(task, strips), tail_of(task, strips)}) {
      if (strip.queries() == 0) continue;
      out_.tasks.push_back({strip, task.owner, taker, strip.pairs()});
      out_.pairs[at(task.rank)] -= strip.pairs();
      out_.pairs[at(taker)] += strip.pairs();
    }
    AttentionTask& left = out_.tasks[index];
    left.queries.q_begin += strips.head;
    left.queries.q_end -= strips.tail;
    left.pairs = left.queries.pairs();
    if (left.queries.queries() == 0)
      out_.tasks.erase(out_.tasks.begin() + static_cast<std::ptrdiff_t>(index));
  }

  TaskBytes bytes_;
  AttentionTasks& out_;
  std::int64_t target_ = 0, tolerance_ = 0;
};

// A rank needs the keys of a slice up to its last query in it.
void count_traffic(AttentionTasks& out) {
  out.traffic.assign(out.pairs.size(), {});
  for (std::size_t i = 0; i < out.tasks.size();) {
    const int rank = out.tasks[i].rank;
    const std::int32_t slice = out.tasks[i].queries.slice;
    std::int64_t last = 0;
    for (; i < out.tasks.size() && out.tasks[i].rank == rank && out.tasks[i].queries.slice == slice; ++i) {
      const AttentionTask& task = out.tasks[i];
      last = std::max(last, task.queries.q_end);
      if (task.owner == rank) continue;
      out.traffic[at(task.owner)].queries_sent += task.queries.queries();
      out.traffic[at(rank)].queries_received += task.queries.queries();
    }
    const auto first = std::ranges::lower_bound(out.held, slice, {}, &Segment::slice);
    for (auto s = first; s != out.held.end() && s->slice == slice && s->q_begin < last; ++s) {
      const int owner = out.held_by[at(s - out.held.begin())];
      if (owner == rank) continue;
      const std::int64_t keys = std::min(s->q_end, last) - s->q_begin;
      out.traffic[at(owner)].keys_sent += keys;
      out.traffic[at(rank)].keys_received += keys;
    }
  }
}

}  // namespace

bool AttentionTasks::travels() const {
  return std::any_of(traffic.begin(), traffic.end(), [](const TaskTraffic& t) { return t != TaskTraffic{}; });
}

void disaggregate(const Sharding& owners, const NanoBatch* only, double epsilon, TaskBytes bytes,
                  AttentionTasks& out) {
  out.tasks.clear();
  out.pairs.assign(at(owners.ranks()), 0);
  out.slice_keys.clear();
  for (int r = 0; r < owners.ranks(); ++r)
    for (const Segment& s : owners.of_rank(r)) out.tasks.push_back({s, r, r, s.pairs()});
  const auto by_slice = [](const AttentionTask& a, const AttentionTask& b) {
    return std::tie(a.queries.slice, a.queries.q_begin) < std::tie(b.queries.slice, b.queries.q_begin);
  };
  const auto by_rank = [](const AttentionTask& a, const AttentionTask& b) {
    return std::tie(a.rank, a.queries.slice, a.queries.q_begin) <
           std::tie(b.rank, b.queries.slice, b.queries.q_begin);
  };
  std::sort(out.tasks.begin(), out.tasks.end(), by_slice);
  out.held.clear();
  out.held_by.clear();
  for (const AttentionTask& task : out.tasks) {
    out.held.push_back(task.queries);
    out.held_by.push_back(task.owner);
    out.slice_keys.resize(at(task.queries.slice) + 1, 0);
    std::int64_t& keys = out.slice_keys.back();
    keys = std::max(keys, task.queries.keys());
  }
  if (only != nullptr)
    std::erase_if(out.tasks, [&](const AttentionTask& t) { return !only->has(t.queries); });
  for (const AttentionTask& task : out.tasks) out.pairs[at(task.rank)] += task.pairs;
  std::sort(out.tasks.begin(), out.tasks.end(), by_rank);
  Planner(epsilon, bytes, out).run();
  std::sort(out.tasks.begin(), out.tasks.end(), by_rank);
  count_traffic(out);
}

void append_cut(const NanoCut& cut, std::size_t slices, std::vector<std::int64_t>& out) {
  for (std::size_t i = 0; i < slices; ++i)
    out.push_back(i < at(cut.slice)   ? std::numeric_limits<std::int64_t>::max()
                  : i > at(cut.slice) ? 0
                                      : cut.token);
}

NanoCut nano_cut(const MicroBatch& micro_batch, int ranks) {
  std::int64_t tokens = 0;
  for (const Slice& slice : micro_batch.slices) tokens += std::max(slice.tokens(), micro_batch.pad_each_to);
  const std::int64_t whole = std::int64_t{2} * ranks;
  std::int64_t left = micro_batch.pad_each_to > 0 ? tokens / 2 : (tokens / 2 + whole - 1) / whole * whole;
  for (std::size_t i = 0; i < micro_batch.slices.size(); ++i) {
    const Slice& slice = micro_batch.slices[i];
    const std::int64_t held = std::max(slice.tokens(), micro_batch.pad_each_to);
    if (left < held) return {static_cast<std::int32_t>(i), micro_batch.pad_each_to > 0 ? 0 : left};
    left -= held;
  }
  return {static_cast<std::int32_t>(micro_batch.slices.size()), 0};
}

void shard_in_halves(const ShardPolicy& rule, const MicroBatch& micro_batch, int ranks,
                     const ShardOptions& options, const AttentionCost& cost, Sharding& out) {
  const NanoCut cut = nano_cut(micro_batch, ranks);
  thread_local std::array<MicroBatch, 2> halves;
  thread_local std::array<Sharding, 2> parts;
  for (MicroBatch& half : halves) {
    half = micro_batch;
    half.slices.clear();
    half.placement.clear();
  }
  const auto cut_slice = at(cut.slice);
  const bool inside = cut_slice < micro_batch.slices.size() && cut.token > 0;
  for (std::size_t i = 0; i < micro_batch.slices.size(); ++i) {
    Slice slice = micro_batch.slices[i];
    const auto add = [&](std::size_t half, Slice piece) {
      halves[half].slices.push_back(piece);
      if (!micro_batch.placement.empty()) halves[half].placement.push_back(micro_batch.placement[i]);
    };
    if (i == cut_slice && inside) {
      add(0, {slice.document, slice.begin, slice.begin + cut.token});
      slice.begin += cut.token;
    }
    add(i < cut_slice ? 0 : 1, slice);
  }
  ShardOptions of_half = options;  // one bucket limits the tokens of both halves
  of_half.bucket_size = options.bucket_size / 2;
  for (std::size_t h = 0; h < 2; ++h) rule.shard(halves[h], ranks, of_half, cost, parts[h]);
  // Indices of slices in the second half count from the slice that contains the cut or begins at it.
  for (Segment& s : parts[1].segments) {
    s.slice += cut.slice;
    if (s.slice == cut.slice && inside) s.kv_begin = micro_batch.slices[cut_slice].begin;
  }
  out.segments.clear();
  out.rank_begin.assign(1, 0);
  out.rank_tokens.assign(at(ranks), 0);
  out.rank_local_tokens.assign(at(ranks), 0);
  for (int r = 0; r < ranks; ++r) {
    for (const Sharding& part : parts) {
      const auto segments = part.of_rank(r);
      out.segments.insert(out.segments.end(), segments.begin(), segments.end());
      out.rank_tokens[at(r)] += part.rank_tokens[at(r)];
      out.rank_local_tokens[at(r)] += part.rank_local_tokens[at(r)];
    }
    out.rank_begin.push_back(static_cast<std::uint32_t>(out.segments.size()));
  }
  out.padding_tokens = parts[0].padding_tokens + parts[1].padding_tokens;
  out.chosen = parts[0].chosen;
  out.placement.clear();
  out.fits = parts[0].fits && parts[1].fits;
  out.pieces = parts[0].pieces;
}

}  // namespace equipoise
