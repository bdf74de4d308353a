// Context parallelism in two dimensions: an all-to-all inside groups of ranks, a ring or a gather across.
#include <doctest/doctest.h>

#include "policies/base/random.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

// Eight CP ranks of TP 4, two to a node of 8 GPUs; a TP rank has 8 query heads and 2 KV heads of 128.
Layout nested(ContextComm form, int inner, ContextPlacement placement = ContextPlacement::inner_first) {
  Layout layout;
  layout.tensor = 4;
  layout.context = 8;
  layout.context_comm = form;
  layout.context_inner = inner;
  layout.context_placement = placement;
  return layout;
}

MicroBatchCost cost_of(const Models& models, const MicroBatch& micro_batch, const char* shard, int context) {
  const ShardRule rule = shard_by(shard);
  MicroBatchCoster coster(models.costs, rule);
  MicroBatchCost cost;
  coster.cost(micro_batch, context, cost);
  return cost;
}

ContextExchanges exchanges_of(const Models& models) {
  // 16,384 tokens, 2,048 a rank and 8,192 an inner group of four.
  const ExchangedTokens tokens{16384, 0, 0, 2048, 8192};
  ContextExchanges exchanges;
  RangeUse use;
  context_form(models.costs).exchange(models.costs, tokens, context_group(models.costs, 8), exchanges, use);
  return exchanges;
}

void check_op(const Models& models, const Op& op, OpName name, Collective kind, double bytes,
              GroupShape shape, std::initializer_list<double> copies = {}) {
  RangeUse use;
  CHECK(op.name == name);
  CHECK(op.bytes == bytes);
  Picoseconds duration = to_picoseconds(models.costs.kernels.collectives().seconds(kind, bytes, shape, use));
  for (const double each : copies)
    duration += models.costs.kernels.moves(name, Elementwise::copy, each * bytes, use).duration;
  CHECK(op.duration == duration);
}

// By hand: a token has 8 query heads of 256 bytes, and 2 KV heads that four ranks share out: each gets a copy
// of one, 512 bytes of K and V.
constexpr double kInputs = 2048.0 * (8 * 256 + 4 * 512), kOutput = 2048.0 * 8 * 256;
constexpr double kBlock = 8192.0 * 512;

}  // namespace

TEST_CASE("Two dimensions, a ring across: all-to-all, a block of an inner group's heads, all-to-all") {
  for (const auto placement : {ContextPlacement::inner_first, ContextPlacement::outer_first}) {
    // An inner group lies on 2 nodes and a ring crosses them; or on 4, and a ring stays in one.
    const bool apart = placement == ContextPlacement::outer_first;
    const GroupShape inside{4, apart ? 1 : 2}, hop{2, apart ? 2 : 1};
    const Models models(builtin_model("llama3.1-8b"), nested(ContextComm::ulysses_ring, 4, placement));
    const ContextExchanges exchanges = exchanges_of(models);
    REQUIRE(exchanges.forward.size() == 3);
    REQUIRE(exchanges.backward.size() == 4);  // and the gradients of the block come home
    const auto all_to_all = [&](const Op& op, double bytes) {
      check_op(models, op, OpName::cp_all_to_all, Collective::all_to_all, bytes, inside);
    };
    const auto block = [&](const Op& op) {
      check_op(models, op, OpName::cp_ring_step, Collective::send_recv, kBlock, hop);
    };
    all_to_all(exchanges.forward[0], kInputs);
    block(exchanges.forward[1]);
    all_to_all(exchanges.forward[2], kOutput);
    all_to_all(exchanges.backward[0], kOutput);
    block(exchanges.backward[1]);
    block(exchanges.backward[2]);
    all_to_all(exchanges.backward[3], kInputs);
  }
}

TEST_CASE("Two dimensions, a gather across: every rank gathers its heads of all tokens") {
  const Models models(builtin_model("llama3.1-8b"), nested(ContextComm::ulysses_all_gather, 4));
  const ContextExchanges exchanges = exchanges_of(models);
  REQUIRE(exchanges.forward.size() == 3);
  REQUIRE(exchanges.backward.size() == 4);
  const GroupShape across{2, 1};
  check_op(models, exchanges.forward[1], OpName::cp_all_gather, Collective::all_gather, 2 * kBlock, across,
           {2});
  check_op(models, exchanges.backward[1], OpName::cp_all_gather, Collective::all_gather, 2 * kBlock, across,
           {2});
  check_op(models, exchanges.backward[2], OpName::cp_reduce_scatter, Collective::reduce_scatter, 2 * kBlock,
           across, {2, 4});
}

TEST_CASE("Two dimensions: an inner group's ranks do the same, and outer ranks are a zig-zag of their own") {
  const Models models(builtin_model("llama3.1-8b"), nested(ContextComm::ulysses_all_gather, 4));
  const MicroBatchCost cost = cost_of(models, documents({16384}), "per-sequence", 8);
  for (std::size_t r = 0; r < 8; ++r)
    CHECK(cost.attention_forward[0][r] == cost.attention_forward[0][r / 4 * 4]);
  // Runs of 4,096 tokens, the first and the last on outer rank 0: it sees the 8,192 of rank 1, which sees the
  // first 4,096 of them. Each of four ranks receives those for its heads, and inside each receives the
  // 6,144 tokens of its group's other ranks, which it all needs.
  CHECK(cost.kv_sent_tokens == 4 * (8192 + 8192) + 8 * 6144);
  CHECK(cost.kv_useful_tokens == 4 * (8192 + 4096) + 8 * 6144);
}

TEST_CASE("Two dimensions: at both ends of the inner degree they are the plain forms, bit for bit") {
  const auto check = [](ContextComm form, int inner, ContextComm plain) {
    const Models two(builtin_model("llama3.1-8b"), nested(form, inner));
    const Models one(builtin_model("llama3.1-8b"), nested(plain, 0));
    SplitMix64 random(5);
    for (const char* shard : {"per-sequence", "per-document", "adaptive", "striped", "contiguous"})
      for (int round = 0; round < 6; ++round) {
        CAPTURE(shard);
        const auto length = [&] { return 1 + static_cast<std::int64_t>(random.next() % 9000); };
        const MicroBatch micro_batch = documents({length(), length(), length()});
        CHECK(cost_of(two, micro_batch, shard, 8) == cost_of(one, micro_batch, shard, 8));
        const std::int64_t tokens = length();
        CHECK(two.memory.gathered_tokens(8, tokens, 9000) == one.memory.gathered_tokens(8, tokens, 9000));
      }
  };
  check(ContextComm::ulysses_ring, 1, ContextComm::ring);
  check(ContextComm::ulysses_all_gather, 1, ContextComm::all_gather);
  check(ContextComm::ulysses_ring, 8, ContextComm::ulysses);
  check(ContextComm::ulysses_all_gather, 8, ContextComm::ulysses);
}

TEST_CASE("Two dimensions: a CP group of an inner group's ranks or fewer is Ulysses") {
  const Models two(builtin_model("llama3.1-8b"), nested(ContextComm::ulysses_ring, 4));
  const Models one(builtin_model("llama3.1-8b"), nested(ContextComm::ulysses, 0));
  for (const int context : {2, 4})
    CHECK(cost_of(two, documents({5000, 900}), "per-document", context) ==
          cost_of(one, documents({5000, 900}), "per-document", context));
}

TEST_CASE("Two dimensions: a rank holds its heads of two blocks or of all tokens, and copies of KV heads") {
  const Models ring(builtin_model("llama3.1-8b"), nested(ContextComm::ulysses_ring, 4));
  const Models gather(builtin_model("llama3.1-8b"), nested(ContextComm::ulysses_all_gather, 4));
  const Models two(builtin_model("llama3.1-8b"), nested(ContextComm::ulysses_all_gather, 2));
  // Four ranks share out two KV heads: each is held twice.
  CHECK(ring.memory.gathered_tokens(8, 2048, 16384) == 2 * 2 * 2048);
  CHECK(gather.memory.gathered_tokens(8, 2048, 16384) == 2 * 16384 / 4);
  CHECK(two.memory.gathered_tokens(8, 2048, 16384) == 16384 / 2);
  const std::int64_t tokens = 2048, gathered = 0;
  const std::vector<MicroBatch> micro_batches = {documents({16384})};
  const LaneLoad load{micro_batches, {&tokens, 1}, {&gathered, 1}, 8};
  // What a backward needs: K and V of the copies, 1,024 bytes a token of each of 32 layers.
  CHECK(gather.memory.footprint(0, load, 0).activations ==
        two.memory.footprint(0, load, 0).activations + 32.0 * 2048 * 1024);
}
