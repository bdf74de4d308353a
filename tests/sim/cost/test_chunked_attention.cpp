// Attention in chunks (Llama 4): a query of three layers in four sees its own chunk of its document.
#include <doctest/doctest.h>

#include <algorithm>

#include "policies/base/random.h"
#include "sim/cost/context_exchange/context_form.h"
#include "sim/cost/policy_costs.h"
#include "tests/policies/sharding_cases.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

// Pairs of queries [begin, end) of a document, one by one.
double counted(std::int64_t begin, std::int64_t end, std::int64_t chunk) {
  double pairs = 0;
  for (std::int64_t q = begin; q < end; ++q) pairs += static_cast<double>(q % chunk + 1);
  return pairs;
}

ModelShape chunked(int layers, std::int64_t chunk) {
  ModelShape m = model_of(layers);
  m.sliding_window = chunk;
  m.chunked = true;
  return m;
}

Layout context_of(int context) {
  Layout layout;
  layout.context = context;
  return layout;
}

}  // namespace

TEST_CASE("Pairs in chunks: 10 tokens in chunks of 4 see 10, 10 and 3 keys") {
  CHECK(causal_pairs(10, 0, Reach{4, true}) == 10 + 10 + 3);
  CHECK(causal_pairs(3, 3, Reach{4, true}) == 4 + 1 + 2);    // queries 3, 4 and 5
  CHECK(causal_pairs(10, 0, Reach{4, false}) == 10 + 6 * 4);  // the last four keys of each
  CHECK(causal_pairs(10, 0, Reach{}) == 55);
  SplitMix64 random(5);
  for (int i = 0; i < 200; ++i) {
    const auto begin = static_cast<std::int64_t>(random.next() % 100), more = static_cast<std::int64_t>(random.next() % 100);
    const auto chunk = static_cast<std::int64_t>(random.next() % 40) + 1;
    REQUIRE(causal_pairs(as_double(more), as_double(begin), Reach{chunk, true}) == counted(begin, begin + more, chunk));
  }
}

TEST_CASE("Ranks that share heads are joined within chunks: pairs stay, under every rule") {
  constexpr std::int64_t kChunk = 48;
  const MicroBatch packed = test::micro_batch_of({500, 37, 220});
  const auto pairs = [](const Sharding& sharding) {
    double sum = 0;
    for (const Segment& s : sharding.segments)
      sum += causal_pairs(as_double(s.queries()), as_double(s.q_begin - s.kv_begin), Reach{});
    return sum;
  };
  for (const ShardPolicy& rule : sharding_policies()) {
    CAPTURE(rule.name);
    if (rule.deals_tokens) continue;  // single tokens are no chunk's queries
    Sharding whole, cut, joined;
    ShardOptions options;
    options.pad = Pad::tail;
    const QuadraticWorkload workload;  // dacp places documents by their work, in buckets
    options.workload = &workload;
    options.bucket_size = packed.tokens();
    rule.shard(packed, 4, options, TileAttentionCost(1), whole);
    cut_into_chunks(whole, kChunk, cut);
    merge_inner_ranks(cut, 2, joined);
    // A document that dacp leaves whole has nothing to join.
    if (rule.name != "dacp") CHECK(joined.segments.size() < cut.segments.size());
    CHECK(pairs(joined) == pairs(cut));
  }
}

TEST_CASE("A segment is cut where chunks of its document end, and its queries stay") {
  const Segment segments[] = {{0, 3, 10, 0}, {1, 100, 104, 100}, {2, 57, 58, 50}};
  std::vector<Segment> cut;
  cut_into_chunks(segments, 4, cut);
  CHECK(cut == std::vector<Segment>{{0, 3, 4, 0}, {0, 4, 8, 4}, {0, 8, 10, 8}, {1, 100, 104, 100}, {2, 57, 58, 54}});
  SplitMix64 random(7);
  for (int i = 0; i < 200; ++i) {
    const auto kv = static_cast<std::int64_t>(random.next() % 50), begin = kv + static_cast<std::int64_t>(random.next() % 90);
    const Segment whole[] = {{0, begin, begin + 1 + static_cast<std::int64_t>(random.next() % 200), kv}};
    const auto chunk = static_cast<std::int64_t>(random.next() % 60) + 1;
    cut.clear();
    cut_into_chunks(whole, chunk, cut);
    double pairs = 0;
    std::int64_t queries = 0;
    for (const Segment& s : cut) {
      pairs += static_cast<double>(s.pairs());
      queries += s.queries();
      REQUIRE(s.keys() <= chunk);
    }
    REQUIRE(queries == whole[0].queries());
    REQUIRE(pairs == counted(begin - kv, whole[0].q_end - kv, chunk));
  }
}

TEST_CASE("A document of chunks costs what its chunks cost as documents, on one rank and on several") {
  for (const int context : {1, 2, 4}) {
    const Models models(chunked(1, 4096), context_of(context)), plain(model_of(1), context_of(context));
    const ShardRule rule = shard_by("per-sequence");
    MicroBatchCoster coster(models.costs, rule), other(plain.costs, rule);
    MicroBatchCost one, apart;
    coster.cost(documents({4 * 4096}), context, one);
    // Per-sequence cuts 2 x context ranges of the packed sequence alike, whatever documents are in it.
    other.cost(documents({4096, 4096, 4096, 4096}), context, apart);
    CHECK(one.attention_forward[1] == apart.attention_forward[0]);
    CHECK(one.attention_backward[1] == apart.attention_backward[0]);
    coster.cost(documents({4096}), context, one);
    other.cost(documents({4096}), context, apart);
    CHECK(one.attention_forward[1] == apart.attention_forward[0]);  // up to a chunk nothing is cut
  }
}

TEST_CASE("What packers weigh a document by grows with its length beyond a chunk, not with the square") {
  const Models models(chunked(1, 4096), Layout()), slides([] {
    ModelShape m = model_of(1);
    m.sliding_window = 4096;
    return m;
  }(), Layout());
  const ProfiledWorkload chunks(models.costs, 65536), window(slides.costs, 65536);
  const double one = chunks.attention_seconds(4096), many = chunks.attention_seconds(16 * 4096);
  CHECK(many == doctest::Approx(16 * one).epsilon(0.02));
  CHECK(many < window.attention_seconds(16 * 4096));  // a window of as many tokens sees twice the keys
}
