// Group-cast: which blocks travel, what that takes, and what runs meanwhile.
#include <doctest/doctest.h>

#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "policies/base/random.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

constexpr const char* kShards[] = {"per-sequence",  "per-document", "contiguous",     "striped",
                                   "heap-dispatch", "snake",        "block-placement"};

Layout grouped(int context, ContextComm form, std::int64_t block = 512) {
  Layout layout;
  layout.context = context;
  layout.context_comm = form;
  layout.block = block;
  return layout;
}

Sharding sharded(const MicroBatch& micro_batch, int ranks, const char* rule, std::int64_t query_block = 128) {
  ShardRule shard = shard_by(rule);
  shard.options.block = query_block;
  Sharding out;
  shard.fixed->shard(micro_batch, ranks, shard.options, TileAttentionCost(), out);
  return out;
}

MicroBatch random_documents(SplitMix64& random, std::uint64_t longest) {
  MicroBatch micro_batch;
  const std::uint64_t count = 1 + random.next() % 6;
  for (std::uint64_t d = 0; d < count; ++d)
    micro_batch.slices.push_back(
        {static_cast<std::int64_t>(d), 0, 1 + static_cast<std::int64_t>(random.next() % longest)});
  return micro_batch;
}

using Token = std::pair<std::int32_t, std::int64_t>;  // slice and place in it

// Token by token: what a rank's queries see of others, and all that others hold of the blocks that it lies
// in.
std::vector<std::set<Token>> received_plainly(const Sharding& sharding, std::int64_t window,
                                              std::int64_t block) {
  std::map<Token, int> owner;
  for (int r = 0; r < sharding.ranks(); ++r)
    for (const Segment& s : sharding.of_rank(r))
      for (std::int64_t t = s.q_begin; t < s.q_end; ++t) owner[{s.slice, t}] = r;
  std::map<Token, std::int64_t> place;  // in the packed sequence
  for (const auto& [token, rank] : owner) place.emplace(token, static_cast<std::int64_t>(place.size()));
  std::vector<std::set<Token>> received;
  for (int r = 0; r < sharding.ranks(); ++r) {
    std::set<std::int64_t> blocks;
    for (const Segment& s : sharding.of_rank(r))
      for (std::int64_t t = s.q_begin; t < s.q_end; ++t)
        for (std::int64_t key = window > 0 ? std::max(s.kv_begin, t - window + 1) : s.kv_begin; key <= t;
             ++key)
          if (owner.at({s.slice, key}) != r) blocks.insert(place.at({s.slice, key}) / block);
    std::set<Token>& got = received.emplace_back();
    for (const auto& [token, rank] : owner)
      if (rank != r && blocks.contains(place.at(token) / block)) got.insert(token);
  }
  return received;
}

// What a stage's sets say when they are counted one by one, each token once to a node of `node_ranks` ranks.
struct PlainCast {
  std::int64_t across = 0, inside = 0, passed_on = 0;  // of the rank with the most
  std::map<int, std::int64_t> for_others;              // by rank: passed on, not needed
  std::int64_t network = 0, network_each = 0;          // tokens in all, and where each rank is sent its own
};
PlainCast cast_plainly(const std::map<int, std::set<std::pair<Token, int>>>& needed, int ranks,
                       int node_ranks) {
  std::set<std::tuple<Token, int, int>> across;          // token, owner, node
  std::map<std::pair<int, bool>, std::int64_t> network;  // by rank, sent or received
  std::map<std::pair<int, bool>, std::int64_t> inside, passed_on;
  PlainCast plain;
  for (const auto& [rank, tokens] : needed)
    for (const auto& [token, owner] : tokens) {
      const int node = rank / node_ranks;
      if (owner / node_ranks == node) {
        ++inside[{owner, true}];
        ++inside[{rank, false}];
        continue;
      }
      ++plain.network_each;
      across.insert({token, owner, node});
      const int hands = node * node_ranks + owner % node_ranks;
      if (hands == rank) continue;
      ++passed_on[{hands, true}];
      ++passed_on[{rank, false}];
    }
  for (const auto& [token, owner, node] : across) {
    const int hands = node * node_ranks + owner % node_ranks;
    ++plain.network;
    ++network[{owner, true}];
    ++network[{hands, false}];
    const auto own = needed.find(hands);
    if (own == needed.end() || !own->second.contains({token, owner})) ++plain.for_others[hands];
  }
  for (int r = 0; r < ranks; ++r)
    for (const bool sent : {true, false}) {
      plain.across = std::max(plain.across, network[{r, sent}]);
      plain.inside = std::max(plain.inside, inside[{r, sent}]);
      plain.passed_on = std::max(plain.passed_on, passed_on[{r, sent}]);
    }
  return plain;
}

CastTokens cast_of(const MicroBatch& micro_batch, const Sharding& sharding, std::int64_t block) {
  return cast_tokens(micro_batch, sharding, 0, grouped(sharding.ranks(), ContextComm::group_cast, block), 0);
}

}  // namespace

TEST_CASE("Group-cast by hand: 8 tokens in one document on 2 ranks, zig-zag") {
  // Rank 0 has 0, 1, 6 and 7, rank 1 has 2 to 5. Query 7 sees 2 to 5; query 5 sees 0 and 1, and nobody on
  // rank 1 sees 6 or 7.
  const MicroBatch micro_batch = documents({8});
  const Sharding sharding = sharded(micro_batch, 2, "per-sequence");
  CastBlocks blocks;
  blocks.prepare(sharding, {}, 0, 1, 1);
  const auto only = [&](int rank) {
    const std::vector<CastPiece> pieces = blocks.pieces_to(rank);
    std::vector<std::int64_t> tokens;
    for (const CastPiece& p : pieces) {
      CHECK(p.from == 1 - rank);
      for (std::int64_t t = p.begin; t < p.end; ++t) tokens.push_back(t);
    }
    return tokens;
  };
  CHECK(only(0) == std::vector<std::int64_t>{2, 3, 4, 5});
  CHECK(only(1) == std::vector<std::int64_t>{0, 1});
  for (const std::int64_t block : {1, 4, 8}) {
    const CastTokens cast = cast_of(micro_batch, sharding, block);
    CHECK(cast.received == (block == 8 ? 8 : 6));  // a block of all eight brings rank 1 also 6 and 7
    CHECK(cast.most[0] == 4);
    CHECK(cast.held == 8);
  }
}

TEST_CASE("Group-cast: what is received is what a search token by token finds, for every rule and block") {
  SplitMix64 random(3);
  for (int round = 0; round < 20; ++round)
    for (const char* rule : kShards)
      for (const std::int64_t block : {1, 5, 16})
        for (const std::int64_t window : {0, 7}) {
          CAPTURE(rule);
          CAPTURE(block);
          CAPTURE(window);
          const MicroBatch micro_batch = random_documents(random, 60);
          const int ranks = 2 + static_cast<int>(random.next() % 4);
          const Sharding sharding = sharded(micro_batch, ranks, rule, 16);
          const std::vector<std::set<Token>> expected = received_plainly(sharding, window, block);
          Layout layout = grouped(ranks, ContextComm::group_cast, block);
          layout.cast_stages = window > 0 ? 1 : 1 + round % 3;
          CastBlocks blocks;
          blocks.prepare(sharding, {}, window, block, layout.cast_stages);
          std::map<std::pair<int, int>, std::int64_t> sent, received;  // by stage and rank
          for (int r = 0; r < ranks; ++r) {
            std::set<Token> got;
            for (const CastPiece& piece : blocks.pieces_to(r)) {
              sent[{piece.stage, piece.from}] += piece.end - piece.begin;
              received[{piece.stage, r}] += piece.end - piece.begin;
              for (std::int64_t t = piece.begin; t < piece.end; ++t) {
                const bool is_new = got.insert({piece.slice, t}).second;
                REQUIRE(is_new);
              }
            }
            REQUIRE(got == expected[at(r)]);
          }
          const CastTokens cast = cast_tokens(micro_batch, sharding, window, layout, 0);
          for (int stage = 0; stage < layout.cast_stages; ++stage) {
            std::int64_t most = 0;
            for (int r = 0; r < ranks; ++r) most = std::max({most, sent[{stage, r}], received[{stage, r}]});
            REQUIRE(cast.most[at(stage)] == most);
          }
        }
}

TEST_CASE("Group-cast never sends more than all-gather, and larger blocks never send less") {
  SplitMix64 random(11);
  for (int round = 0; round < 60; ++round)
    for (const char* rule : kShards) {
      CAPTURE(rule);
      const MicroBatch micro_batch = random_documents(random, 4000);
      const int ranks = 1 + static_cast<int>(random.next() % 8);
      const Sharding sharding = sharded(micro_batch, ranks, rule);
      const std::int64_t all =
          std::accumulate(sharding.rank_tokens.begin(), sharding.rank_tokens.end(), std::int64_t{0});
      std::int64_t before = 0;
      for (const std::int64_t block : {1, 4, 64, 512, 1 << 20}) {
        const CastTokens cast = cast_of(micro_batch, sharding, block);
        CHECK(cast.received >= before);
        CHECK(cast.received <= (ranks - 1) * all);
        CHECK(cast.held <= all);
        CHECK(ranks * cast.most[0] >= cast.received);
        before = cast.received;
      }
      if (ranks == 1) CHECK(before == 0);
    }
}

TEST_CASE(
    "Group-cast by blocks of one token sends what is seen, no more, and as much is seen as by all-gather") {
  SplitMix64 random(17);
  for (const std::int64_t window : {0, 700}) {
    ModelShape model = builtin_model("wlb-550m");
    model.sliding_window = window;
    const Models narrow(model, grouped(4, ContextComm::group_cast, 1));
    const Models wide(model, grouped(4, ContextComm::group_cast));
    const Models gather(model, grouped(4, ContextComm::all_gather));
    for (int round = 0; round < 12; ++round)
      for (const char* rule : kShards) {
        CAPTURE(rule);
        const MicroBatch micro_batch = random_documents(random, 3000);
        const MicroBatchCost exact = cost_of(narrow, micro_batch, rule);
        const MicroBatchCost blocks = cost_of(wide, micro_batch, rule);
        const MicroBatchCost all = cost_of(gather, micro_batch, rule);
        CHECK(exact.kv_sent_tokens == exact.kv_useful_tokens);
        CHECK(exact.kv_useful_tokens == all.kv_useful_tokens);
        CHECK(blocks.kv_sent_tokens >= blocks.kv_useful_tokens);
        CHECK(blocks.kv_sent_tokens <= all.kv_sent_tokens);
      }
  }
}

TEST_CASE(
    "Group-cast of one document on zig-zag saves a quarter on four ranks; whole documents travel nowhere") {
  // Rank r has runs r and 7 - r of eight, and sees runs 0 to 7 - r: 6, 5, 4 and 3 of others instead of 6
  // each. MagiAttention prints 25 % of a ring's transfers as redundant under one causal mask.
  const Models models(builtin_model("wlb-550m"), grouped(4, ContextComm::group_cast));
  const MicroBatchCost one = cost_of(models, documents({8192}), "per-document");
  CHECK(one.kv_sent_tokens == 18 * 1024);
  CHECK(one.cast_tokens == 8192);  // rank 0 has all of it
  const MicroBatchCost whole = cost_of(models, documents({2048, 2048, 2048, 2048}), "contiguous");
  CHECK(whole.kv_sent_tokens == 0);
  CHECK(whole.forward[0].syncs() == 0);
  CHECK(whole.backward[0].syncs() == 0);
  CHECK(whole.cast_tokens == 2048);
  // Runs of 2,048: a document is cut at each border, 512, 512 and 1,536 tokens before it.
  const MicroBatchCost cut = cost_of(models, documents({1536, 1024, 1024, 1024, 3584}), "contiguous");
  CHECK(cut.kv_sent_tokens == 512 + 512 + 1536);
  const Models alone(builtin_model("wlb-550m"), grouped(1, ContextComm::group_cast));
  CHECK(cost_of(alone, documents({8192}), "per-document") ==
        cost_of(Models(builtin_model("wlb-550m"), grouped(1, ContextComm::all_gather)), documents({8192}),
                "per-document"));
}

TEST_CASE(
    "Group-cast is an all-to-all of the fullest rank's bytes, twice forward and backward, and once back") {
  for (const bool keeps : {false, true}) {
    FrameworkOptions framework;
    framework.keep_gathered_kv = keeps;
    const Models models(builtin_model("wlb-550m"), grouped(4, ContextComm::group_cast), framework);
    const MicroBatch micro_batch = documents({8192});
    const Sharding sharding = sharded(micro_batch, 4, "per-document");
    const ExchangedTokens tokens = exchanged_tokens(micro_batch, sharding, 0, models.layout);
    // Rank 0 receives 6 runs of 1,024; rank 0's first run goes to three ranks and its last to none, rank 1's
    // to three and one, rank 2's to three and two, rank 3's to three and three: as many as rank 0 receives.
    CHECK(tokens.cast.most[0] == 6 * 1024);
    ContextExchanges exchanges;
    RangeUse use;
    const ContextGroup group = context_group(models.costs, 4);
    context_form(models.costs).exchange(models.costs, tokens, group, exchanges, use);
    const double bytes = 6 * 1024 * group.kv_bytes_per_token * 4 / 3;  // a quarter of a send buffer stays
    REQUIRE(exchanges.forward.size() == 1);
    REQUIRE(exchanges.backward.size() == (keeps ? 1 : 2));
    for (const auto* pass : {&exchanges.forward, &exchanges.backward})
      for (const Op& op : *pass) {
        CHECK(op.name == OpName::cp_all_to_all);
        CHECK(op.bytes == bytes);
        CHECK(op.duration == to_picoseconds(models.costs.kernels.collectives().seconds(
                                 Collective::all_to_all, bytes, group.shape, use)));
      }
  }
}

TEST_CASE("Group-cast: a rank attends to its own keys during the exchange, and to the others' behind it") {
  const Models models(builtin_model("wlb-550m"), grouped(2, ContextComm::group_cast));
  const MicroBatchCost cost = cost_of(models, documents({8192}), "per-document");
  // Rank 0 has runs 0 and 3 of four of 2,048: both causal over its own keys, and 2,048 queries that all see
  // the 4,096 of rank 1. A causal call that ends at 4,096 + 1,024 keys has as many pairs, and half a pair a
  // query more.
  RangeUse use;
  const auto times = [&](std::initializer_list<QueryKeys> pieces) {
    return models.costs.attention.times(std::vector<QueryKeys>(pieces), use, 0);
  };
  const auto own = times({{2048, 2048}, {2048, 4096}}), remote = times({{2048, 5120}});
  CHECK(cost.forward[0].overlap[0] == own.forward);
  CHECK(cost.backward[0].overlap[0] == own.backward);
  CHECK(cost.backward[0].overlap[2] == 0);  // nothing runs while the gradients go back
  CHECK(cost.attention_forward[0][0] == own.forward + remote.forward);
  CHECK(cost.attention_backward[0][0] == own.backward + remote.backward);
  // Rank 1 has runs 1 and 2, whose queries see run 0.
  CHECK(cost.attention_forward[0][1] ==
        times({{2048, 2048}, {2048, 4096}}).forward + times({{2048, 3072}, {2048, 3072}}).forward);
}

TEST_CASE(
    "Group-cast in two stages: half of what each rank needs, and the next half during the attention to it") {
  Layout layout = grouped(2, ContextComm::group_cast);
  layout.cast_stages = 2;
  const Models models(builtin_model("wlb-550m"), layout);
  const MicroBatch micro_batch = documents({8192});
  const MicroBatchCost cost = cost_of(models, micro_batch, "per-document");
  REQUIRE(cost.forward[0].syncs() == 2);
  REQUIRE(cost.backward[0].syncs() == 4);
  // Rank 0 gets 4,096 tokens, rank 1 2,048; a stage is 2,048 and 1,024 of them.
  const CastTokens cast =
      exchanged_tokens(micro_batch, sharded(micro_batch, 2, "per-document"), 0, layout).cast;
  CHECK(cast.most[0] == 2048);
  CHECK(cast.most[1] == 2048);
  CHECK(cost.kv_sent_tokens == 4096 + 2048);
  RangeUse use;
  const auto times = [&](std::initializer_list<QueryKeys> pieces) {
    return models.costs.attention.times(std::vector<QueryKeys>(pieces), use, 0);
  };
  const auto own = times({{2048, 2048}, {2048, 4096}});
  const auto first = times({{2048, 3072}});  // the last run of rank 0: 2,048 keys in each stage
  const auto second = times({{2048, 2048}, {2048, 2048}});  // both runs of rank 1: 1,024 keys
  const auto& forward = cost.forward[0].overlap;
  CHECK(forward == std::vector<Picoseconds>{own.forward, own.forward, first.forward, second.forward});
  const auto& backward = cost.backward[0].overlap;
  CHECK(backward == std::vector<Picoseconds>{own.backward, own.backward, first.backward, second.backward,
                                             first.backward, second.backward, 0, 0});
  CHECK(cost.attention_forward[0][0] == own.forward + 2 * first.forward);
  // During the last stage the gradients of the first go home.
  CHECK(cost.backward[0].comm[1] == cost.forward[0].comm[1]);
  CHECK(cost.backward[0].comm[2] == cost.forward[0].comm[0]);
  CHECK(cost.backward[0].comm[3] == cost.forward[0].comm[1]);
}

TEST_CASE("Group-cast in stages cuts what it sends, and sends no more") {
  SplitMix64 random(23);
  for (int round = 0; round < 30; ++round)
    for (const char* rule : kShards) {
      CAPTURE(rule);
      const MicroBatch micro_batch = random_documents(random, 3000);
      Layout layout = grouped(2 + static_cast<int>(random.next() % 5), ContextComm::group_cast, 64);
      const Sharding sharding = sharded(micro_batch, layout.context, rule);
      const CastTokens one = cast_tokens(micro_batch, sharding, 0, layout, 0);
      for (int stages = 2; stages <= kMostCastStages; ++stages) {
        layout.cast_stages = stages;
        const CastTokens cast = cast_tokens(micro_batch, sharding, 0, layout, 0);
        CHECK(cast.received == one.received);
        CHECK(cast.held == one.held);
        std::int64_t sum = 0;
        for (const std::int64_t most : cast.most) {
          CHECK(most <= one.most[0]);
          sum += most;
        }
        CHECK(sum >= one.most[0]);
      }
    }
}

TEST_CASE("Group-cast of a dependent chunk brings the chunks before it to every rank that has queries") {
  const Models models(builtin_model("llama3.1-8b"), grouped(2, ContextComm::group_cast, 1));
  MicroBatch chunk;
  chunk.slices = {{0, 65536, 73728}};
  chunk.chunk = {0, 8, 9, 0};
  const MicroBatchCost cost = cost_of(models, chunk, "per-document");
  // Each rank has half of the 65,536 and needs the other; of the chunk rank 0 needs 4,096 and rank 1 2,048.
  CHECK(cost.kv_sent_tokens == 65536 + 4096 + 2048);
  CHECK(cost.kv_useful_tokens == cost.kv_sent_tokens);
  const ExchangedTokens tokens = exchanged_tokens(chunk, sharded(chunk, 2, "per-document"), 0, models.layout);
  CHECK(tokens.cast.most[0] == 32768 + 4096);
}

TEST_CASE("Group-cast holds what it needs; where nothing is known of the sharding, all of it") {
  const Models models(builtin_model("wlb-550m"), grouped(4, ContextComm::group_cast));
  CHECK(models.memory.gathered_tokens(4, 2048, 8192) == 8192);
  const MicroBatchCost cost = cost_of(models, documents({700, 500, 300, 200, 6492}), "heap-dispatch");
  CHECK(cost.cast_tokens > 0);
  CHECK(cost.cast_tokens <= 8192);
}

TEST_CASE("Group-cast once a node by hand: one document, zig-zag on four ranks of two nodes") {
  // Rank r has r and 7 - r of eight runs and needs 0 to 7 - r. In the other node each rank of node 0 needs
  // the four runs 2 to 5, each of node 1 runs 0 and 1: 12 runs cross the network one by one, 6 once a node.
  const MicroBatch micro_batch = documents({8192});
  const Sharding sharding = sharded(micro_batch, 4, "per-document");
  const Layout layout = grouped(4, ContextComm::group_cast);
  const CastTokens cast = cast_tokens(micro_batch, sharding, 0, layout, 0, 2);
  CHECK(cast.most[0] == 2 * 1024);       // rank 2 sends runs 2 and 5, to rank 0
  CHECK(cast.inside[0] == 2 * 1024);     // rank 1 sends 1 and 6 to rank 0
  CHECK(cast.passed_on[0] == 2 * 1024);  // rank 0 passes on 2 and 5 to rank 1, and gets 3 and 4 of it
  CHECK(cast.received == 18 * 1024);     // as without: all ranks of a node need what comes there
  CHECK(cast.held == 8192);
  std::map<int, std::set<std::pair<Token, int>>> needed;
  CastBlocks blocks;
  blocks.prepare(sharding, {}, 0, 512, 1);
  for (int r = 0; r < 4; ++r)
    for (const CastPiece& piece : blocks.pieces_to(r))
      for (std::int64_t t = piece.begin; t < piece.end; ++t) needed[r].insert({{piece.slice, t}, piece.from});
  const PlainCast plain = cast_plainly(needed, 4, 2);
  CHECK(plain.network_each == 12 * 1024);
  CHECK(plain.network == 6 * 1024);
}

TEST_CASE("Group-cast once a node counts what sets of tokens count, and puts no more on the network") {
  SplitMix64 random(31);
  int equal = 0, fewer = 0;
  for (int round = 0; round < 20; ++round)
    for (const char* rule : kShards)
      for (const auto& [ranks, node_ranks] : {std::pair(4, 2), {6, 2}, {6, 3}, {8, 4}}) {
        CAPTURE(rule);
        CAPTURE(ranks);
        const MicroBatch micro_batch = random_documents(random, 80);
        const Sharding sharding = sharded(micro_batch, ranks, rule, 16);
        Layout layout = grouped(ranks, ContextComm::group_cast, round % 2 == 0 ? 1 : 8);
        const std::int64_t window = round % 4 == 3 ? 7 : 0;
        layout.cast_stages = window > 0 ? 1 : 1 + round % 3;
        CastBlocks blocks;
        blocks.prepare(sharding, {}, window, layout.block, layout.cast_stages);
        std::map<int, std::map<int, std::set<std::pair<Token, int>>>> needed;  // by stage and rank
        for (int r = 0; r < ranks; ++r)
          for (const CastPiece& piece : blocks.pieces_to(r))
            for (std::int64_t t = piece.begin; t < piece.end; ++t)
              needed[piece.stage][r].insert({{piece.slice, t}, piece.from});
        const CastTokens each = cast_tokens(micro_batch, sharding, window, layout, 0);
        const CastTokens once = cast_tokens(micro_batch, sharding, window, layout, 0, node_ranks);
        std::int64_t for_others = 0;
        for (int stage = 0; stage < layout.cast_stages; ++stage) {
          const PlainCast plain = cast_plainly(needed[stage], ranks, node_ranks);
          REQUIRE(once.most[at(stage)] == plain.across);
          REQUIRE(once.inside[at(stage)] == plain.inside);
          REQUIRE(once.passed_on[at(stage)] == plain.passed_on);
          for (const auto& [rank, tokens] : plain.for_others) for_others += tokens;
          CHECK(plain.network <= plain.network_each);
          ++(plain.network < plain.network_each ? fewer : equal);
        }
        CHECK(once.received == each.received + for_others);
        CHECK(once.held >= each.held);
      }
  CHECK(equal > 100);  // both kinds came up
  CHECK(fewer > 100);
}

TEST_CASE("Group-cast once a node: a rank holds what it passes on, though it needs none of it") {
  // Runs of 2,048, one a rank. Rank 2 needs the last 512 tokens of rank 1, in the other node, which come
  // through rank 3; rank 3 needs the last 300 of rank 2.
  const MicroBatch micro_batch = documents({2048, 1536, 1024, 1236, 2348});
  const Sharding sharding = sharded(micro_batch, 4, "contiguous");
  const Layout layout = grouped(4, ContextComm::group_cast, 1);
  const CastTokens each = cast_tokens(micro_batch, sharding, 0, layout, 0);
  const CastTokens once = cast_tokens(micro_batch, sharding, 0, layout, 0, 2);
  CHECK(each.received == 512 + 300);
  CHECK(once.received == 2 * 512 + 300);
  CHECK(each.held == 2048 + 512);
  CHECK(once.held == 2048 + 300 + 512);
  CHECK(once.most[0] == 512);
  CHECK(once.inside[0] == 300);
  CHECK(once.passed_on[0] == 512);
}

TEST_CASE("Group-cast once a node: every rank's share of the chunks before goes once to the other node") {
  const Layout layout = grouped(4, ContextComm::group_cast, 1);
  MicroBatch chunk;
  chunk.slices = {{0, 65536, 73728}};
  chunk.chunk = {0, 8, 9, 0};
  const Sharding sharding = sharded(chunk, 4, "per-document");
  const CastTokens alone = cast_tokens(chunk, sharding, 0, layout, 0, 2);
  const CastTokens once = cast_tokens(chunk, sharding, 0, layout, 65536, 2);
  CHECK(once.most[0] == alone.most[0] + 16384);
  CHECK(once.inside[0] == alone.inside[0] + 16384);
  CHECK(once.passed_on[0] == alone.passed_on[0] + 16384);
}

TEST_CASE(
    "Group-cast once a node: the network at the same time as what stays in a node, then what is passed on") {
  // 16 ranks on two nodes of eight; the last exchange of a backward takes the gradients the same way back.
  Layout layout = grouped(16, ContextComm::group_cast);
  layout.cast_once_per_node = true;
  const Models models(builtin_model("wlb-550m"), layout);
  const MicroBatch micro_batch = documents({32768});
  const Sharding sharding = sharded(micro_batch, 16, "per-document");
  const ExchangedTokens tokens =
      exchanged_tokens(micro_batch, sharding, Mixer::attention, models.costs, nullptr);
  CHECK(tokens.cast.node_ranks == 8);
  const ContextGroup group = context_group(models.costs, 16);
  ContextExchanges exchanges;
  RangeUse use;
  context_form(models.costs).exchange(models.costs, tokens, group, exchanges, use);
  const auto seconds = [&](std::int64_t most, int ranks, int in_node) {
    const double bytes = static_cast<double>(most) * group.kv_bytes_per_token * ranks / (ranks - 1);
    return to_picoseconds(
        models.costs.kernels.collectives().seconds(Collective::all_to_all, bytes, {ranks, in_node}, use));
  };
  const Picoseconds network = seconds(tokens.cast.most[0], 2, 1),
                    inside = seconds(tokens.cast.inside[0], 8, 8);
  REQUIRE(exchanges.forward.size() == 1);
  CHECK(exchanges.forward[0].duration == std::max(network, inside) + seconds(tokens.cast.passed_on[0], 8, 8));
  // An all-to-all of all 16 ranks with that buffer puts half of it on the network.
  CHECK(exchanges.forward[0].bytes / 2 ==
        static_cast<double>(tokens.cast.most[0]) * group.kv_bytes_per_token);
  REQUIRE(exchanges.backward.size() == 2);
  CHECK(exchanges.backward[0] == exchanges.forward[0]);
  CHECK(exchanges.backward[1] == exchanges.forward[0]);
  // Most runs go to several ranks of the other node.
  layout.cast_once_per_node = false;
  const Models each(builtin_model("wlb-550m"), layout);
  CHECK(exchange_time(kGroupCastForm, models.costs, tokens, 16, use) <
        exchange_time(kGroupCastForm, each.costs,
                      exchanged_tokens(micro_batch, sharding, Mixer::attention, each.costs, nullptr), 16,
                      use));
}

TEST_CASE(
    "Group-cast once a node is group-cast, to the byte, where a node has all ranks or one of each group") {
  SplitMix64 random(41);
  for (const auto& [context, tensor] : {std::pair(8, 1), {4, 2}, {4, 8}}) {
    Layout layout = grouped(context, ContextComm::group_cast, 64);
    layout.tensor = tensor;
    layout.cast_stages = 2;
    const Models each(builtin_model("llama3.1-8b"), layout);
    layout.cast_once_per_node = true;
    const Models once(builtin_model("llama3.1-8b"), layout);
    for (int round = 0; round < 5; ++round)
      for (const char* rule : kShards) {
        const MicroBatch micro_batch = random_documents(random, 4000);
        CHECK(cost_of(once, micro_batch, rule) == cost_of(each, micro_batch, rule));
      }
  }
}
