// What real execution is built from, by hand: rows, steps, shards, memory; and a second optimizer step.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "policies/base/random.h"
#include "policies/sharding/rules.h"
#include "sim/execution/context_attention.h"
#include "sim/execution/rank_context.h"
#include "tests/execution/equivalence_case.h"
#include "tests/execution/tiny_model.h"
#include "tests/kernels/wrapped_backend.h"

using namespace equipoise;
using namespace equipoise::execution;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

MicroBatch micro_batch_of(const std::vector<std::int64_t>& lengths) {
  MicroBatch out;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    out.slices.push_back({static_cast<std::int64_t>(i), 0, lengths[i]});
  return out;
}

Sharding per_document(const MicroBatch& micro_batch, int ranks) {
  Sharding out;
  shard_per_document(micro_batch, ranks, {}, TileAttentionCost{}, out);
  return out;
}

using Pieces = std::vector<std::vector<std::int64_t>>;  // query begin, queries, key begin, keys
Pieces numbers(const std::vector<kernels::Piece>& pieces) {
  Pieces out;
  for (const kernels::Piece& p : pieces) {
    CHECK_FALSE(p.full);
    out.push_back({p.query_begin, p.queries, p.key_begin, p.keys});
  }
  return out;
}
// First row, rows, place in the gathered keys.
Pieces places(const std::vector<RowRun>& runs) {
  Pieces out;
  for (const RowRun& run : runs) out.push_back({run.row, run.count(), run.key});
  return out;
}

}  // namespace

TEST_CASE("rows of a rank follow each other slice by slice, keys of a slice lie together") {
  // Documents of 8 and 4 tokens on two ranks: chunks of 2 and of 1, rank 0 has the first and the last.
  const MicroBatch micro_batch = micro_batch_of({8, 4});
  const MicroBatchRows rows = rows_of(micro_batch, per_document(micro_batch, 2));
  CHECK(places(rows.ranks[0].shared) == Pieces{{0, 2, 0}, {2, 2, 6}, {4, 1, 8}, {5, 1, 11}});
  CHECK(places(rows.ranks[1].shared) == Pieces{{0, 2, 2}, {2, 2, 4}, {4, 1, 9}, {5, 1, 10}});
  CHECK(rows.slice_key == std::vector<std::int64_t>{0, 8});
  CHECK(rows.slice_keys == std::vector<std::int64_t>{8, 4});
  CHECK(rows.keys == 12);
  CHECK(rows.most_rows == 6);
  CHECK(rows.exchanges());
  // Each run sees its document from the begin to its own last token.
  CHECK(numbers(pieces_over_keys(rows, rows.ranks[1].shared, 0)) ==
        Pieces{{0, 2, 0, 4}, {2, 2, 0, 6}, {4, 1, 8, 2}, {5, 1, 8, 3}});
}

TEST_CASE("documents that stay whole on a rank come first and attend to its own rows") {
  MicroBatch micro_batch = micro_batch_of({8, 4, 2});
  micro_batch.placement = {kDistributed, 1, 1};
  const MicroBatchRows rows = rows_of(micro_batch, per_document(micro_batch, 2));
  CHECK(rows.ranks[0].local.empty());
  CHECK(rows.ranks[0].rows == 4);
  CHECK(rows.ranks[1].local_rows == 6);
  CHECK(rows.ranks[1].rows == 10);
  CHECK(rows.any_local);
  CHECK(rows.shared_tokens == 8);
  CHECK(rows.keys == 8);  // of the distributed one only
  std::int64_t queries = 0;
  for (const kernels::Piece& piece : pieces_among(rows.ranks[1].local, 0)) {
    queries += piece.queries;
    CHECK(piece.key_begin == (piece.query_begin < 4 ? 0 : 4));                 // its document's first row
    CHECK(piece.key_begin + piece.keys == piece.query_begin + piece.queries);  // up to itself
  }
  CHECK(queries == 6);
}

TEST_CASE("keys of a dependent chunk begin with those of the chunks before it") {
  MicroBatch chunk;
  chunk.slices = {{0, 16, 24}};
  chunk.chunk = {0, 1, 2, 12};  // the group begins at token 12 of the document
  const MicroBatchRows rows = rows_of(chunk, per_document(chunk, 2));
  CHECK(rows.earlier == 4);
  CHECK(rows.keys == 12);
  CHECK(places(rows.ranks[0].shared) == Pieces{{0, 2, 4}, {2, 2, 10}});
  CHECK(numbers(pieces_over_keys(rows, rows.ranks[0].shared, 0)) == Pieces{{0, 2, 0, 6}, {2, 2, 0, 12}});
}

TEST_CASE("a program made sequential overlaps nothing and reduces gradients after the last backward") {
  OpProgram program;
  OpLane& lane = program.lanes.emplace_back();
  lane.blocks.push_back({{{OpName::tp_all_gather}, {OpName::qkv_gemm}}, {1, 2}});
  lane.blocks[0].steps[0].with_next = true;
  lane.runs = {{0, 2, 0}, {0, 1, 2}};
  program.ends.push_back({{5, 7, 9}, {{OpName::optimizer}}, {11}});
  const OpProgram plain = sequential(program);
  CHECK_FALSE(plain.lanes[0].blocks[0].steps[0].with_next);
  for (const BlockRun& run : plain.lanes[0].runs) CHECK(run.bucket == kNoBucket);
  const StageEnd& end = plain.ends[0];
  CHECK(end.buckets.empty());
  CHECK(end.durations == std::vector<Picoseconds>{5, 7, 9, 11});
  std::vector<OpName> names;
  for (const OpStep& step : end.steps) names.push_back(step.name);
  CHECK(names ==
        std::vector<OpName>{OpName::dp_reduce, OpName::dp_reduce, OpName::dp_reduce, OpName::optimizer});
}

namespace {

using Weights = std::vector<std::vector<std::vector<double>>>;
void check_weights(const Weights& found, const Weights& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t l = 0; l < found.size(); ++l) {
    REQUIRE(found[l].size() == expected[l].size());
    for (std::size_t j = 0; j < found[l].size(); ++j) {
      REQUIRE(found[l][j].size() == expected[l][j].size());
      for (std::size_t i = 0; i < found[l][j].size(); ++i)
        CHECK(found[l][j][i] == doctest::Approx(expected[l][j][i]).epsilon(1e-14));
    }
  }
}

}  // namespace

TEST_CASE("what a token's loss counts, by each normaliser") {
  // Lane 0 has samples of 3 and 1 tokens in a micro-batch, lane 1 one of 4: 8 tokens, 3 samples.
  Step step;
  step.lanes.resize(2);
  step.lanes[0].micro_batches = {micro_batch_of({3, 1})};
  step.lanes[1].micro_batches = {micro_batch_of({4})};
  const auto weights = [&](LossNormalizer n) { return loss_weights(step, n); };
  check_weights(weights(LossNormalizer::token), {{{1.0 / 8, 1.0 / 8}}, {{1.0 / 8}}});
  check_weights(weights(LossNormalizer::sample), {{{1.0 / 9, 1.0 / 3}}, {{1.0 / 12}}});
  check_weights(weights(LossNormalizer::sum), {{{1, 1}}, {{1}}});
  // A lane's loss is its sum over samples x 8/3 tokens, the step's the mean of the lanes': (1 / (2 x 8/3))
  // / 2.
  check_weights(weights(LossNormalizer::stable), {{{3.0 / 32, 3.0 / 32}}, {{3.0 / 16}}});

  // The sample of 4 tokens as two dependent chunks is one sample still.
  MicroBatch first, second;
  first.slices = {{0, 0, 3}};
  first.chunk = {0, 0, 2, 0};
  second.slices = {{0, 3, 4}};
  second.chunk = {0, 1, 2, 0};
  step.lanes[1].micro_batches = {first, second};
  check_weights(weights(LossNormalizer::token), {{{1.0 / 8, 1.0 / 8}}, {{1.0 / 8}, {1.0 / 8}}});
  check_weights(weights(LossNormalizer::sample), {{{1.0 / 9, 1.0 / 3}}, {{1.0 / 12}, {1.0 / 12}}});
  check_weights(weights(LossNormalizer::stable), {{{3.0 / 32, 3.0 / 32}}, {{3.0 / 16}, {3.0 / 16}}});
}

TEST_CASE("TP ranks take the vocabulary by rows, the last ones fewer") {
  const ModelShape model = tiny_llama();  // 17 tokens: 5 + 5 + 5 + 2
  std::vector<std::int64_t> first, count;
  for (int rank = 0; rank < 4; ++rank) {
    const LocalVocabulary part = local_vocabulary(model, 4, rank);
    first.push_back(part.first);
    count.push_back(part.count);
  }
  CHECK(first == std::vector<std::int64_t>{0, 5, 10, 15});
  CHECK(count == std::vector<std::int64_t>{5, 5, 5, 2});
}

TEST_CASE("shards of all ranks cover every element once, or as often as it is replicated") {
  for (const bool tied : {false, true})
    for (const int kv_heads : {1, 2, 4})
      for (const int tensor : {1, 2, 4})
        for (const int pipeline : {1, 2}) {
          CAPTURE(tied);
          CAPTURE(kv_heads);
          CAPTURE(tensor);
          CAPTURE(pipeline);
          ModelShape model = tiny_llama(tied);
          model.kv_heads = kv_heads;
          model.ffn = 12;
          Layout layout;
          layout.tensor = tensor;
          layout.pipeline = pipeline;
          const std::vector<Tensor> tensors = inventory(model);
          std::vector<std::vector<float>> held(tensors.size());
          for (std::size_t i = 0; i < tensors.size(); ++i)
            held[i].assign(static_cast<std::size_t>(tensors[i].elements()), 0.0F);
          for (int stage = 0; stage < pipeline; ++stage)
            for (int rank = 0; rank < tensor; ++rank)
              for (const Part& part : part_shapes(model, layout, stage, {1, 0, rank, 0}))
                for (const TensorShard& shard : part.tensors) {
                  // Adds one to what the shard covers.
                  std::vector<float>& whole = held[shard.tensor];
                  std::vector<float> ones(static_cast<std::size_t>(part.elements), 1.0F);
                  std::vector<float> covered(whole.size(), 0.0F);
                  put_shard(tensors[shard.tensor], shard, ones, covered);
                  for (std::size_t i = 0; i < whole.size(); ++i) whole[i] += covered[i];
                }
          for (std::size_t i = 0; i < tensors.size(); ++i) {
            CAPTURE(tensors[i].name);
            const bool kv = tensors[i].name.find("k_proj") != std::string::npos ||
                            tensors[i].name.find("v_proj") != std::string::npos;
            int times = 1;
            if (tensors[i].norm) times = tensor;
            if (kv && kv_heads < tensor) times = tensor / kv_heads;
            if (tied && pipeline > 1 && i == kEmbeddingIndex) times = 2;  // on the head's stage, too
            bool all = true;
            for (const float count : held[i]) all = all && count == static_cast<float>(times);
            CHECK(all);
          }
        }
}

TEST_CASE("replicas share out a part's optimizer states evenly") {
  const ModelShape model = tiny_llama();
  Layout layout;
  layout.data = 5;
  for (std::size_t p = 0; p < part_shapes(model, layout, 0, {5, 0, 0, 0}).size(); ++p) {
    std::int64_t next = 0;
    for (int replica = 0; replica < 5; ++replica) {
      const Part part = part_shapes(model, layout, 0, {5, replica, 0, 0})[p];
      CHECK(part.first_owned == next);
      next += part.owned;
      const std::int64_t used = part.tensors.back().offset + part.tensors.back().elements();
      CHECK(part.elements >= used);
      CHECK(part.elements < used + 5);
      if (replica == 4) CHECK(next == part.elements);
    }
  }
  layout.zero = 0;
  const Part whole = part_shapes(model, layout, 0, {5, 3, 0, 0})[0];
  CHECK(whole.first_owned == 0);
  CHECK(whole.owned == whole.elements);
}

namespace {

class CountingBackend final : public kernels::WrappedBackend {
 public:
  void* allocate(std::size_t bytes) override {
    sizes.push_back(bytes);
    return WrappedBackend::allocate(bytes);
  }
  void release(void* device) noexcept override {
    ++released;
    WrappedBackend::release(device);
  }
  std::vector<std::size_t> sizes;
  int released = 0;
};

}  // namespace

TEST_CASE("memory given back is taken again by what fits its size class") {
  CountingBackend backend;
  {
    MemoryPool pool(backend);
    Memory first = pool.take(1000);  // between 512 and 1024 in steps of 128: 1024
    const void* where = first.data();
    Memory second = first;  // both hold it
    first.reset();
    CHECK(second.data() == where);
    const Memory other = pool.take(1000);
    CHECK(other.data() != where);
    second.reset();
    CHECK_FALSE(second);
    const Memory again = pool.take(900);  // 1024, too
    CHECK(again.data() == where);
    const Memory small = pool.take(1);
    CHECK(backend.sizes == std::vector<std::size_t>{1024, 1024, 256});
    CHECK(pool.held_bytes() == 2304);
    CHECK(backend.released == 0);
  }
  CHECK(backend.released == 3);
}

namespace {

struct TwoSteps {
  std::vector<std::vector<float>> weights;  // after both
  double first_loss = 0, second_loss = 0;
};

double loss_of(const ExecutableStep& step, const Gathered& gathered) {
  double sum = 0;
  for (std::size_t l = 0; l < gathered.losses.size(); ++l)
    for (std::size_t j = 0; j < gathered.losses[l].size(); ++j)
      for (std::size_t i = 0; i < gathered.losses[l][j].size(); ++i)
        sum += step.weights[l][j][i] * gathered.losses[l][j][i];
  return sum;
}

TwoSteps two_steps(const json& parallel, const char* schedule = "1f1b") {
  const json study = tiny_study(parallel, {{"name", "plain"}, {"schedule", schedule}},
                                {{"sequences_per_step", 4}}, {40, 88, 1, 100, 27, 256});
  const PreparedStep prepared = prepare_step(study);
  REQUIRE(prepared.refused == "");
  TwoSteps out;
  run_ranks(prepared, {}, [&](RankExecutor& rank, kernels::Communicator& world) {
    StepRecord record;
    const Gathered first = rank.run(prepared.step, false, record);
    const Gathered second = rank.run(prepared.step, false, record);
    std::vector<std::vector<float>> weights = rank.gather_weights();
    if (world.rank() != 0) return;
    out = {std::move(weights), loss_of(prepared.step, first), loss_of(prepared.step, second)};
  });
  return out;
}

// The part of what two steps changed that is not the same: relative, over all tensors.
double distance(const TwoSteps& found, const TwoSteps& expected) {
  const ModelShape model = prepare_step(tiny_study(json::object(), {{"name", "plain"}})).model;
  const std::vector<Tensor> tensors = inventory(model);
  REQUIRE(found.weights.size() == tensors.size());
  double difference = 0, size = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::vector<float> initial(static_cast<std::size_t>(tensors[t].elements()));
    fill_initial(EquivalenceOptions{}.seed, tensors[t], 0, initial);
    REQUIRE(found.weights[t].size() == initial.size());
    for (std::size_t i = 0; i < initial.size(); ++i) {
      const double apart =
          static_cast<double>(found.weights[t][i]) - static_cast<double>(expected.weights[t][i]);
      const double moved = static_cast<double>(expected.weights[t][i]) - static_cast<double>(initial[i]);
      difference += apart * apart;
      size += moved * moved;
    }
  }
  return std::sqrt(difference / size);
}

}  // namespace

TEST_CASE("two optimizer steps move the weights of every layout alike") {
  const TwoSteps one = two_steps(json::object());
  CHECK(one.second_loss < one.first_loss);
  const std::pair<json, const char*> layouts[] = {
      {{{"tensor", 4}}, "1f1b"},
      {{{"context", 2}, {"context_comm", "ring"}}, "1f1b"},
      {{{"pipeline", 2}}, "zb-h1"},
      {{{"data", 2}, {"zero", 0}}, "1f1b"},
      {{{"data", 2}, {"zero", 1}}, "1f1b"},
      {{{"tensor", 2}, {"context", 2}, {"pipeline", 2}, {"data", 2}, {"recompute", "full"}}, "1f1b"}};
  for (const auto& layout : layouts) {
    CAPTURE(layout.first.dump());
    const TwoSteps several = two_steps(layout.first, layout.second);
    CHECK(several.first_loss == doctest::Approx(one.first_loss).epsilon(1e-6));
    CHECK(several.second_loss == doctest::Approx(one.second_loss).epsilon(1e-6));
    CHECK(distance(several, one) < 1e-4);
  }
}

namespace {

// Elements of all messages between nodes of two ranks, in a step of four ranks.
struct Crossing {
  std::int64_t elements = 0;
  bool between_equals_only = true;  // the first ranks of the nodes, or the second ones
};
Crossing crossing_of(bool once, const char* shard, const std::vector<std::int64_t>& lengths) {
  json study = tiny_study(
      {{"context", 4}, {"context_comm", "group-cast"}, {"block", 1}, {"cast_once_per_node", once}},
      {{"name", "plain"}, {"shard", shard}}, {{"context_window", 128}, {"sequences_per_step", 1}}, lengths);
  study["cluster"]["gpus_per_node"] = 2;
  Crossing crossing;
  EquivalenceOptions options;
  options.told = [&](const NcclRecord& record) {
    for (std::size_t from = 0; from < record.calls.size(); ++from)
      for (const NcclCall& call : record.calls[from]) {
        if (call.kind != NcclCall::started_send) continue;
        const int to = record.members[at(call.communicator)][at(call.to)], sender = static_cast<int>(from);
        if (to / 2 == sender / 2) continue;
        crossing.elements += call.count;
        crossing.between_equals_only = crossing.between_equals_only && to % 2 == sender % 2;
      }
  };
  const EquivalenceResult result = run_equivalence(study, options);
  REQUIRE(result.refused == "");
  CHECK(result.nccl_fault == "");
  CHECK(result.equivalence.holds());
  return crossing;
}

}  // namespace

TEST_CASE("a group-cast once a node sends through the rank of the sender's number, and less to other nodes") {
  // A token crosses forward, once more backward, and its gradients come back: K and V of two heads of 16, in
  // each of four layers. Of one document in eight runs of 16, 12 runs cross to each rank that needs them, or
  // 6 to nodes.
  constexpr std::int64_t kToken = 3 * 2 * 2 * 16 * 4;
  const Crossing each = crossing_of(false, "per-document", {128});
  CHECK(each.elements == 12 * 16 * kToken);
  CHECK_FALSE(each.between_equals_only);
  const Crossing once = crossing_of(true, "per-document", {128});
  CHECK(once.elements == 6 * 16 * kToken);
  CHECK(once.between_equals_only);
  // Runs of 32, one a rank: rank 2 alone needs 12 tokens of rank 1.
  for (const bool flag : {false, true})
    CHECK(crossing_of(flag, "contiguous", {52, 44, 32}).elements == 12 * kToken);
}

TEST_CASE("a group-cast once a node sends no more to other nodes, whatever the documents") {
  SplitMix64 random(5);
  for (int round = 0; round < 8; ++round) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t left = 128; left > 0; left -= lengths.back())
      lengths.push_back(std::min<std::int64_t>(left, 1 + static_cast<std::int64_t>(random.next() % 90)));
    for (const char* shard : {"per-sequence", "per-document", "contiguous", "striped"}) {
      CAPTURE(shard);
      CHECK(crossing_of(true, shard, lengths).elements <= crossing_of(false, shard, lengths).elements);
    }
  }
}

TEST_CASE("Idle stages of a pool compute alongside a stage that has nothing to attend to") {
  // So few tokens that not every rank gets a task.
  for (std::int64_t tokens = 4; tokens < 28; ++tokens) {
    CAPTURE(tokens);
    json study = tiny_study(
        {{"pipeline", 4}, {"context", 2}, {"context_comm", "disaggregated"}},
        {{"name", "lpt"}, {"schedule", "seq1f1b"}, {"stage_attention_exchange", true}, {"micro_batches", 4}},
        json::object(), {tokens, tokens / 2, tokens / 3});
    study["batch"].erase("sequences_per_step");
    study["batch"]["documents_per_step"] = 3;
    const EquivalenceResult result = run_equivalence(study);
    REQUIRE(result.refused == "");
    CHECK(result.equivalence.holds());
  }
}
