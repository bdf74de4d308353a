// Attention tasks away from their tokens' owners: by hand, by a plain reference, and laws.
#include <doctest/doctest.h>

#include <map>
#include <set>

#include "policies/base/index.h"
#include "policies/base/random.h"
#include "policies/sharding/disaggregation.h"

using namespace equipoise;

namespace {

MicroBatch documents(std::initializer_list<std::int64_t> lengths) {
  MicroBatch micro_batch;
  for (const std::int64_t n : lengths)
    micro_batch.slices.push_back({static_cast<std::int64_t>(micro_batch.slices.size()), 0, n});
  return micro_batch;
}

// Slice i whole on rank ranks[i].
Sharding whole(const MicroBatch& micro_batch, const std::vector<int>& ranks, int count) {
  Sharding out;
  out.rank_begin = {0};
  for (int r = 0; r < count; ++r) {
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (ranks[i] == r) {
        const Slice& s = micro_batch.slices[i];
        out.segments.push_back({static_cast<std::int32_t>(i), s.begin, s.end, s.begin});
        tokens += s.tokens();
      }
    out.rank_begin.push_back(static_cast<std::uint32_t>(out.segments.size()));
    out.rank_tokens.push_back(tokens);
    out.rank_local_tokens.push_back(0);
  }
  return out;
}

Sharding sharded(const MicroBatch& micro_batch, int ranks, const char* rule) {
  ShardOptions options;
  options.pad = Pad::tail;
  options.block = 8;
  Sharding out;
  sharding_policy(rule).shard(micro_batch, ranks, options, TileAttentionCost(), out);
  return out;
}

AttentionTasks tasks_of(const Sharding& owners, double epsilon, TaskBytes bytes = {}) {
  AttentionTasks out;
  disaggregate(owners, nullptr, epsilon, bytes, out);
  return out;
}

MicroBatch random_documents(SplitMix64& random, std::uint64_t longest) {
  MicroBatch micro_batch;
  const std::uint64_t count = 1 + random.next() % 8;
  for (std::uint64_t d = 0; d < count; ++d)
    micro_batch.slices.push_back(
        {static_cast<std::int64_t>(d), 0, 1 + static_cast<std::int64_t>(random.next() % longest)});
  return micro_batch;
}

// --- The rule in its own words, query by query.

struct PlainTask {
  int rank = 0, owner = 0;
  Segment queries;
};
std::int64_t work_of(const Segment& s, std::int64_t query) {
  return query - s.kv_begin + 1;
}
std::int64_t work_of(const Segment& s) {
  std::int64_t sum = 0;
  for (std::int64_t q = s.q_begin; q < s.q_end; ++q) sum += work_of(s, q);
  return sum;
}

struct PlainMove {
  std::size_t task = 0;
  std::int64_t head = 0, tail = 0;
};

// The queries at both ends that do at most half of `movable` each; all of them where that is all work.
PlainMove plain_strips(const Segment& s, std::int64_t movable) {
  PlainMove move;
  if (movable >= work_of(s)) return {0, s.queries(), 0};
  std::int64_t work = 0;
  while (work + work_of(s, s.q_begin + move.head) <= movable / 2) work += work_of(s, s.q_begin + move.head++);
  work = 0;
  while (work + work_of(s, s.q_end - 1 - move.tail) <= movable / 2)
    work += work_of(s, s.q_end - 1 - move.tail++);
  return move;
}

std::vector<PlainTask> plain_tasks(const Sharding& owners, double epsilon, TaskBytes bytes) {
  std::vector<PlainTask> tasks;
  std::map<std::int32_t, std::int64_t> length;
  for (int r = 0; r < owners.ranks(); ++r)
    for (const Segment& s : owners.of_rank(r)) {
      tasks.push_back({r, r, s});
      length[s.slice] = std::max(length[s.slice], s.keys());
    }
  const auto order = [](const PlainTask& a, const PlainTask& b) {
    return std::tuple(a.rank, a.queries.slice, a.queries.q_begin) <
           std::tuple(b.rank, b.queries.slice, b.queries.q_begin);
  };
  for (;;) {
    std::sort(tasks.begin(), tasks.end(), order);
    std::vector<std::int64_t> load(at(owners.ranks()), 0);
    std::int64_t all = 0;
    for (const PlainTask& t : tasks) load[at(t.rank)] += work_of(t.queries), all += work_of(t.queries);
    const std::int64_t target = all / owners.ranks();
    const auto tolerance = static_cast<std::int64_t>(epsilon * static_cast<double>(target));
    if (std::all_of(load.begin(), load.end(),
                    [&](std::int64_t l) { return std::abs(l - target) <= tolerance; }))
      return tasks;
    const auto taker = static_cast<int>(std::min_element(load.begin(), load.end()) - load.begin());
    double least = 0;
    PlainMove best;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      const std::int64_t movable = std::min(load[at(tasks[i].rank)] - target, target - load[at(taker)]);
      if (movable <= 0) continue;
      PlainMove move = plain_strips(tasks[i].queries, movable);
      if (move.head + move.tail == 0) continue;
      Segment head = tasks[i].queries, tail = head;
      head.q_end = head.q_begin + move.head;
      tail.q_begin = tail.q_end - move.tail;
      const double sent = static_cast<double>(move.head + move.tail) * bytes.query +
                          static_cast<double>(length[head.slice]) * bytes.key_value;
      const double price = sent / static_cast<double>(work_of(head) + work_of(tail));
      if (best.head + best.tail > 0 && price >= least) continue;
      least = price;
      best = {i, move.head, move.tail};
    }
    if (best.head + best.tail == 0) return tasks;
    PlainTask& from = tasks[best.task];
    Segment head = from.queries, tail = from.queries;
    head.q_end = head.q_begin + best.head;
    tail.q_begin = tail.q_end - best.tail;
    const int owner = from.owner;
    from.queries.q_begin = head.q_end;
    from.queries.q_end = tail.q_begin;
    if (from.queries.queries() == 0) tasks.erase(tasks.begin() + static_cast<std::ptrdiff_t>(best.task));
    if (head.queries() > 0) tasks.push_back({taker, owner, head});
    if (tail.queries() > 0) tasks.push_back({taker, owner, tail});
  }
}

using Token = std::pair<std::int32_t, std::int64_t>;

// Token by token: who sends whom which queries, and each key once.
std::vector<TaskTraffic> plain_traffic(const Sharding& owners, const AttentionTasks& tasks) {
  std::map<Token, int> owner;
  for (int r = 0; r < owners.ranks(); ++r)
    for (const Segment& s : owners.of_rank(r))
      for (std::int64_t t = s.q_begin; t < s.q_end; ++t) owner[{s.slice, t}] = r;
  std::vector<std::set<Token>> keys(at(owners.ranks()));
  std::vector<TaskTraffic> traffic(at(owners.ranks()));
  for (const AttentionTask& task : tasks.tasks)
    for (std::int64_t q = task.queries.q_begin; q < task.queries.q_end; ++q) {
      REQUIRE(owner.at({task.queries.slice, q}) == task.owner);
      if (task.owner != task.rank) {
        ++traffic[at(task.owner)].queries_sent;
        ++traffic[at(task.rank)].queries_received;
      }
      for (std::int64_t k = task.queries.kv_begin; k <= q; ++k)
        keys[at(task.rank)].insert({task.queries.slice, k});
    }
  for (std::size_t r = 0; r < keys.size(); ++r)
    for (const Token& key : keys[r]) {
      const int from = owner.at(key);
      if (from == static_cast<int>(r)) continue;
      ++traffic[at(from)].keys_sent;
      ++traffic[r].keys_received;
    }
  return traffic;
}

constexpr const char* kRules[] = {"contiguous", "per-document", "per-sequence", "heap-dispatch", "snake"};

}  // namespace

TEST_CASE("Disaggregation by hand: a strip at each end, of equal work at most") {
  // A of 8 tokens on rank 0 has 36 pairs, B of 2 on rank 1 has 3: the target is 39 / 2 = 19, epsilon
  // leaves 1. Rank 1 lacks 16, rank 0 has 17 too many. Half of 16 is 8: from A's head 1 + 2 + 3 = 6, from its
  // tail 8. Then 22 and 17: rank 1 lacks 2, and neither query 3 (4 pairs) nor query 6 (7 pairs) is within
  // half of it.
  const MicroBatch micro_batch = documents({8, 2});
  const AttentionTasks tasks = tasks_of(whole(micro_batch, {0, 1}, 2), 0.1);
  CHECK(tasks.tasks == std::vector<AttentionTask>{{{0, 3, 7, 0}, 0, 0, 22},
                                                  {{0, 0, 3, 0}, 0, 1, 6},
                                                  {{0, 7, 8, 0}, 0, 1, 8},
                                                  {{1, 0, 2, 0}, 1, 1, 3}});
  CHECK(tasks.pairs == std::vector<std::int64_t>{22, 17});
  // Four queries go, and all keys of A: its last query sees them.
  CHECK(tasks.traffic == std::vector<TaskTraffic>{{4, 0, 8, 0}, {0, 4, 0, 8}});
}

TEST_CASE("Disaggregation by hand: what costs least bytes for its work goes first") {
  // Both of 8 (36 pairs) and 4 (10) are on rank 0; the target is 23, epsilon leaves 2.
  // 1. Rank 1 lacks 23. The one of 8: 4 queries of the head (10 <= 11) and 1 of the tail (8): (5 + 8) bytes
  //    for 18 pairs. The one of 4 whole: (4 + 4) for 10. The first goes: 28 and 18.
  // 2. It lacks 5. Of 8, queries 4 and 6 have 5 and 7, more than 2. Of 4, the head's first: 27 and 19.
  // 3. It lacks 4: query 1 of the one of 4, with 2: 25 and 21.
  const MicroBatch micro_batch = documents({8, 4});
  const AttentionTasks tasks = tasks_of(whole(micro_batch, {0, 0}, 2), 0.1);
  CHECK(tasks.tasks == std::vector<AttentionTask>{{{0, 4, 7, 0}, 0, 0, 18},
                                                  {{1, 2, 4, 0}, 0, 0, 7},
                                                  {{0, 0, 4, 0}, 0, 1, 10},
                                                  {{0, 7, 8, 0}, 0, 1, 8},
                                                  {{1, 0, 1, 0}, 0, 1, 1},
                                                  {{1, 1, 2, 0}, 0, 1, 2}});
  // With queries of no bytes, 4 for 10 pairs are less than 8 for 18: the one of 4 goes first. Then rank 1
  // lacks 13: three queries of the head (6 <= 6), none of the tail (8). Then 7: no query is within half of
  // it.
  CHECK(tasks_of(whole(micro_batch, {0, 0}, 2), 0.1, {0, 1}).tasks ==
        std::vector<AttentionTask>{
            {{0, 3, 8, 0}, 0, 0, 30}, {{0, 0, 3, 0}, 0, 1, 6}, {{1, 0, 4, 0}, 0, 1, 10}});
  // Nothing moves where all are within epsilon.
  CHECK(tasks_of(whole(micro_batch, {0, 0}, 2), 1).tasks.size() == 2);
  CHECK_FALSE(tasks_of(whole(micro_batch, {0, 0}, 2), 1).travels());
}

TEST_CASE("Disaggregation does what its rule says query by query, and counts what travels token by token") {
  SplitMix64 random(5);
  for (int round = 0; round < 120; ++round)
    for (const char* rule : kRules) {
      CAPTURE(round);
      CAPTURE(rule);
      const MicroBatch micro_batch = random_documents(random, 70);
      const int ranks = 1 + static_cast<int>(random.next() % 5);
      const double epsilon = round % 4 * 0.1;
      const TaskBytes bytes{static_cast<double>(1 + random.next() % 8),
                            static_cast<double>(1 + random.next() % 3)};
      const Sharding owners = sharded(micro_batch, ranks, rule);
      const AttentionTasks tasks = tasks_of(owners, epsilon, bytes);
      std::vector<AttentionTask> expected;
      for (const PlainTask& t : plain_tasks(owners, epsilon, bytes))
        expected.push_back({t.queries, t.owner, t.rank, work_of(t.queries)});
      REQUIRE(tasks.tasks == expected);
      REQUIRE(tasks.traffic == plain_traffic(owners, tasks));
    }
}

TEST_CASE("Disaggregation assigns all work once, and ranks end within epsilon unless nothing can move") {
  SplitMix64 random(29);
  int balanced = 0, all = 0;
  for (int round = 0; round < 300; ++round)
    for (const char* rule : kRules) {
      CAPTURE(rule);
      const MicroBatch micro_batch = random_documents(random, 1 << (3 + round % 12));
      const int ranks = 2 + static_cast<int>(random.next() % 15);
      const Sharding owners = sharded(micro_batch, ranks, rule);
      const AttentionTasks tasks = tasks_of(owners, 0.1);
      std::int64_t queries = 0, pairs = 0, owned = 0;
      for (const Segment& s : owners.segments) owned += s.pairs();
      std::vector<std::int64_t> load(at(ranks), 0);
      for (const AttentionTask& t : tasks.tasks) {
        queries += t.queries.queries();
        pairs += t.pairs;
        load[at(t.rank)] += t.queries.pairs();
      }
      std::int64_t tokens = 0;
      for (const Segment& s : owners.segments) tokens += s.queries();
      REQUIRE(queries == tokens);
      REQUIRE(pairs == owned);
      REQUIRE(load == tasks.pairs);
      const std::int64_t target = owned / ranks;
      const auto tolerance = static_cast<std::int64_t>(0.1 * static_cast<double>(target));
      const bool even = std::all_of(load.begin(), load.end(),
                                    [&](std::int64_t l) { return std::abs(l - target) <= tolerance; });
      const std::int64_t deficit = target - *std::min_element(load.begin(), load.end());
      for (const AttentionTask& t : tasks.tasks) {
        if (even) break;
        const std::int64_t movable = std::min(load[at(t.rank)] - target, deficit);
        if (movable <= 0) continue;
        const PlainMove move = plain_strips(t.queries, movable);
        REQUIRE(move.head + move.tail == 0);
      }
      if (round % 12 < 6) continue;
      balanced += even ? 1 : 0;
      ++all;
    }
  CHECK(balanced >= all * 19 / 20);  // of documents of up to 512 tokens and more
}

TEST_CASE(
    "Two halves hold every token once, in multiples of 2 x ranks, and the second sees the first's keys") {
  // 5 + 21 tokens on 2 ranks: half is 13, the next multiple of 4 is 16: behind 11 of the second document.
  const MicroBatch two = documents({5, 21});
  CHECK(nano_cut(two, 2).slice == 1);
  CHECK(nano_cut(two, 2).token == 11);
  SplitMix64 random(31);
  for (int round = 0; round < 60; ++round)
    for (const char* rule : kRules) {
      CAPTURE(rule);
      MicroBatch micro_batch = random_documents(random, 90);
      if (round % 3 == 0) micro_batch.pad_each_to = 90;
      const int ranks = 2 + static_cast<int>(random.next() % 4);
      ShardOptions options;
      options.pad = Pad::tail;
      options.block = 8;
      Sharding halves;
      shard_in_halves(sharding_policy(rule), micro_batch, ranks, options, TileAttentionCost(), halves);
      const NanoCut cut = nano_cut(micro_batch, ranks);
      MicroBatch moved = micro_batch;
      for (Slice& slice : moved.slices) slice.begin += 1000, slice.end += 1000;
      const NanoCut elsewhere = nano_cut(moved, ranks);
      std::set<Token> seen;
      for (int r = 0; r < ranks; ++r) {
        bool behind = false;
        for (const Segment& s : halves.of_rank(r)) {
          CHECK(s.kv_begin == micro_batch.slices[at(s.slice)].begin);
          CHECK((!behind || cut.behind(s)));  // the first half first
          behind = cut.behind(s);
          for (std::int64_t t = s.q_begin; t < s.q_end; ++t) REQUIRE(seen.insert({s.slice, t}).second);
        }
        // Slices as long elsewhere in their documents: costs of this micro-batch serve them, too.
        CHECK(elsewhere.tokens_before(halves.of_rank(r)) == cut.tokens_before(halves.of_rank(r)));
      }
      std::size_t tokens = 0;
      for (std::size_t i = 0; i < micro_batch.slices.size(); ++i)
        for (std::int64_t t = 0; t < micro_batch.slices[i].tokens(); ++t, ++tokens)
          REQUIRE(seen.contains({static_cast<std::int32_t>(i), t}));
      // The tasks of both halves are all tasks.
      std::int64_t pairs = 0, owned = 0;
      for (const Segment& s : halves.segments) owned += s.pairs();
      for (int n = 0; n < 2; ++n) {
        std::vector<std::int64_t> by_slice;
        append_cut(cut, micro_batch.slices.size(), by_slice);
        const NanoBatch half{by_slice, n};
        AttentionTasks tasks;
        disaggregate(halves, &half, 0.1, {}, tasks);
        for (const AttentionTask& t : tasks.tasks) {
          pairs += t.pairs;
          CHECK(cut.behind(t.queries) == (n == 1));
        }
      }
      CHECK(pairs == owned);
    }
}
