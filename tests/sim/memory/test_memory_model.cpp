// Bytes of a GPU by hand, and that what follows from the model fits what the model says.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "sim/schedule/schedule.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

// A layer has Q, K, V and output of 64 x 64, gate, up and down of 64 x 128 and two norms of 64:
// 16,384 + 24,576 + 128 = 41,088 parameters. Embedding and head: 256 x 64 = 16,384 each.
ModelShape small_model() {
  return model_of(4);
}

constexpr double kStage0 = 2 * 41088 + 16384;       // two layers and the embedding
constexpr double kStage1 = 2 * 41088 + 16384 + 64;  // two layers, the head and its norm
// Bytes that a token keeps in a layer: bf16 of both norms' inputs and outputs (4 x 64), Q (64), K and V
// (128), the attention output (64), gate, up and their product (3 x 128), and a fp32 softmax statistic for 4
// heads.
constexpr double kKept = 2 * (256 + 64 + 128 + 64 + 384) + 4 * 2;
constexpr double kInput = 2 * 64;  // of a layer, or of the stage
constexpr double kKv = 2 * 128;    // of one layer
constexpr double kLogits = 256 * (4 + 2);

Layout layout_of(int pipeline, int data, int zero) {
  Layout layout;
  layout.pipeline = pipeline;
  layout.data = data;
  layout.zero = zero;
  layout.recompute = Recompute::none;
  return layout;
}

MemoryPeak peak_of(const Models& models, const char* schedule, const std::vector<std::int32_t>& groups,
                   int keep, std::int64_t rank_tokens, std::int64_t gathered = 0,
                   int recompute_layers = kStudyRecompute, bool recompute_ahead = false) {
  std::vector<MicroBatch> micro_batches;
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (int i = 0; i < groups[g]; ++i) {
      MicroBatch micro_batch;
      micro_batch.chunk.sequence = static_cast<std::int64_t>(g);
      micro_batch.chunk.index = i;
      micro_batch.chunk.count = groups[g];
      micro_batch.recompute_layers = recompute_layers;
      micro_batches.push_back(micro_batch);
    }
  const Schedule made =
      schedule_policy(schedule).make({models.layout.pipeline, models.layout.virtual_pipeline, groups, keep});
  const std::vector<std::int64_t> tokens(micro_batches.size(), rank_tokens),
      all(micro_batches.size(), gathered);
  return models.memory.lane_peak(made, {micro_batches, tokens, all, models.layout.context, recompute_ahead});
}

}  // namespace

TEST_CASE("States of a stage under ZeRO 0 to 3, by hand") {
  // bf16 parameters (2), fp32 gradients (4), fp32 master weight and two moments (12); two replicas.
  const struct {
    int zero;
    double parameters, gradients, optimizer;
  } cases[] = {{0, 2, 4, 12}, {1, 2, 4, 6}, {2, 2, 2, 6}};
  for (const auto& c : cases) {
    CAPTURE(c.zero);
    const Models models(small_model(), layout_of(2, 2, c.zero));
    for (const int stage : {0, 1}) {
      const double held = stage == 0 ? kStage0 : kStage1;
      const MemoryParts parts = models.memory.fixed(stage);
      CHECK(parts.parameters == c.parameters * held);
      CHECK(parts.gradients == c.gradients * held);
      CHECK(parts.optimizer == c.optimizer * held);
      CHECK(parts.activations == 0);
      CHECK(parts.reserve == models.profile.device().reserve_bytes);
    }
  }
  Layout offloaded = layout_of(2, 2, 1);
  offloaded.optimizer_offload = 0.75;  // a quarter stays
  CHECK(Models(small_model(), offloaded).memory.fixed(0).optimizer == 0.25 * 6 * kStage0);
  const Models sharded(small_model(), layout_of(1, 2, 3));
  const double all = 4 * 41088 + 2 * 16384 + 64;
  const MemoryParts parts = sharded.memory.fixed(0);
  CHECK(parts.parameters == 2 * all / 2);
  CHECK(parts.gradients == 4 * all / 2);
  CHECK(parts.optimizer == 12 * all / 2);
  CHECK(parts.buffers == 2 * 2 * 41088);  // the layer at work and the next one, gathered
  ModelShape many_words = small_model();
  many_words.vocab = 1024;  // the head, 1024 x 64 and its norm, is larger than a layer
  const Models ends(many_words, layout_of(1, 2, 3));
  CHECK(ends.memory.fixed(0).buffers == 2 * (41088 + 65536 + 64));
}

TEST_CASE("FP8 as Transformer Engine keeps it, by hand: a byte of linear layers' inputs, cached weights") {
  const Models models(small_model(), layout_of(2, 2, 1));
  Layout layout = layout_of(2, 2, 1);
  layout.precision = Precision::fp8;
  FrameworkOptions framework;
  const auto memory = [&](const ModelShape& model) {
    return MemoryModel(model, layout, models.profile, framework);
  };
  // bf16: the norms' inputs (2 x 64), Q, K and V (192), gate and up (256). A byte: the norms' outputs (2 x
  // 64), the product (128). Attention's output (64): bf16 for its own backward, a byte for the next layer.
  CHECK(memory(small_model()).kept_per_token() == 2 * (128 + 192 + 256) + 128 + 128 + 3 * 64 + 4 * 2);
  // Two bytes more of every weight but embedding and head, of which no GEMM is in FP8.
  CHECK(memory(small_model()).fixed(0).parameters == 2 * kStage0 + 2 * (2 * 41088));
  CHECK(memory(small_model()).fixed(1).parameters == 2 * kStage1 + 2 * (2 * 41088));
  // FP8 weights in bf16's place, bf16 kept of inputs and cast again: as without FP8.
  framework.fp8_input_bytes = framework.fp8_attention_bytes = 2;
  framework.fp8_weight_bytes = 0;
  CHECK(memory(small_model()).kept_per_token() == kKept);
  CHECK(memory(small_model()).fixed(0).parameters == 2 * kStage0);
  // Frozen weights of layers are there in FP8 alone; those of a layer that trains keep bf16, too.
  framework = {};
  framework.fp8_frozen_weight_bytes = 1;
  CHECK(memory(small_model()).fixed(0).parameters == 2 * kStage0 + 2 * (2 * 41088));
  ModelShape adapted = small_model();
  adapted.training.frozen = kAllWeights;
  CHECK(memory(adapted).fixed(0).parameters == 2 * (kStage0 - 2 * 41088) + 2 * 41088);
  layout.precision = Precision::bf16;
  CHECK(memory(adapted).fixed(0).parameters == 2 * kStage0);
  layout.precision = Precision::fp8;
  // Experts, 2 active of 8, 64 wide: the router keeps the second norm's output in bf16, the shared expert its
  // own byte of it; copies of the input (2 x 64) are in FP8 where they arrive.
  framework = {};
  ModelShape sparse = small_model();
  sparse.moe = MoeShape{8, 2, 0, 64};
  const double routed = 2 * (128 + 192) + 64 + 2 * 64 + 3 * 64 + 4 * 2 + 2 * (2 * 2 * 64 + 64) + 2 * 64;
  CHECK(memory(sparse).kept_per_token() == routed);
  sparse.moe->shared = 1;
  CHECK(memory(sparse).kept_per_token() == routed + 64 + 2 * 2 * 64 + 64);
  // Moments in bf16: 4 + 2 + 2 bytes, over two replicas.
  framework.optimizer_bytes = 8;
  CHECK(memory(small_model()).fixed(0).optimizer == 8 * kStage0 / 2);
}

TEST_CASE(
    "What an allocator holds in addition to tensors: whole outputs of a forward's reductions, and its "
    "slack") {
  Layout layout = layout_of(2, 2, 1);
  layout.tensor = 2;
  FrameworkOptions framework;
  const auto parts = [&] {
    return peak_of(Models(small_model(), layout, framework), "1f1b", {1, 1, 1, 1}, 1, 100).parts;
  };
  const MemoryParts tight = parts();
  framework.records_streams = true;
  // Two bf16 outputs of 64 a token in each of the stage's two layers, undivided.
  const MemoryParts streams = parts();
  CHECK(streams.buffers - tight.buffers == doctest::Approx(100 * 2 * 2 * 64 * 2));
  CHECK(streams.activations == tight.activations);
  framework.allocator_slack = 0.25;
  const MemoryParts loose = parts();
  CHECK(loose.activations == doctest::Approx(1.25 * tight.activations));
  CHECK(loose.logits == doctest::Approx(1.25 * tight.logits));
  CHECK(loose.buffers == doctest::Approx(1.25 * streams.buffers));
  CHECK(loose.parameters == tight.parameters);
  layout.tensor = 1;  // nothing is reduced
  CHECK(parts().buffers == doctest::Approx(1.25 * 2 * 100 * kInput));
}

TEST_CASE("Tensor parallelism divides states, tied embeddings are held once") {
  Layout layout = layout_of(1, 1, 0);
  layout.tensor = 2;
  const Models half(small_model(), layout);
  CHECK(half.memory.fixed(0).parameters == 2 * (4 * 41088 + 2 * 16384 + 64) / 2.0);
  ModelShape tied = small_model();
  tied.tied_embeddings = true;
  const Models once(tied, layout_of(1, 1, 0));
  CHECK(once.memory.fixed(0).parameters == 2.0 * static_cast<double>(tied.parameters()));
}

TEST_CASE("Experts of their own tensor parallelism are held whole, and shared with fewer or more replicas") {
  // 8 experts of 3 x 64 x 64 = 98,304 parameters a layer, 4 layers, TP 2 x DP 4.
  ModelShape model = small_model();
  model.moe = MoeShape{8, 2, 0, 64};
  constexpr double kExperts = 4 * 98304;
  Layout layout = layout_of(1, 4, 1);
  layout.tensor = 2;
  layout.expert = 4;
  const auto states = [&] {
    const MemoryParts parts = Models(model, layout).memory.fixed(0);
    return std::pair{parts.parameters, parts.optimizer};
  };
  const auto [split, split_states] = states();  // etp 2, ep 4: an eighth, on one replica each
  layout.expert_tensor = 1;
  const auto [folded, folded_states] = states();  // etp 1, ep 4: a quarter, on two replicas each
  CHECK(folded - split == 2 * kExperts * (1.0 / 4 - 1.0 / 8));
  CHECK(folded_states == split_states);  // ZeRO leaves each of the 8 GPUs an eighth
  layout.expert = 8;
  const auto [spread, spread_states] = states();
  CHECK(spread == split);
  CHECK(spread_states == split_states);
}

TEST_CASE("1f1b: the first stage holds P micro-batches, the last one and its logits") {
  const Models models(small_model(), layout_of(2, 1, 0));
  CHECK(models.memory.kept_per_token() == kKept);
  const MemoryPeak peak = peak_of(models, "1f1b", {1, 1, 1, 1}, 1, 10);
  // Stage 0, with 2 layers and the embedding's output in each: 2 x 10 x (2 kept + input). Stage 1 would need
  // 10 x (2 kept + logits), which is less.
  CHECK(peak.stage == 0);
  CHECK(peak.micro_batch == 1);
  CHECK(peak.parts.activations == 2 * 10 * (2 * kKept + kInput));
  CHECK(peak.parts.kv_state == 0);
  CHECK(peak.parts.buffers == 10 * 2 * kInput);  // what arrives and what is sent
  CHECK(peak.parts.parameters == 2 * kStage0);
  // One micro-batch: now the last stage has more.
  const MemoryPeak one = peak_of(models, "1f1b", {1}, 1, 10);
  CHECK(one.stage == 1);
  CHECK(one.parts.activations == 10 * 2 * kKept);
  CHECK(one.parts.buffers == 10 * 2 * kInput);
  CHECK(one.parts.logits == 10 * kLogits);
}

TEST_CASE("A dependent group keeps K and V of all its chunks, activations of K only") {
  // D1 D2 F3 B3 R2 B2 R1 B1 on one stage of 4 layers, 10 tokens a chunk; A: a chunk's activations, U: its K
  // and V. B3 starts with A and 3 U, and its first of 4 layers adds a quarter of the gradients of the two
  // earlier chunks: A + 3.5 U. With B3, chunk 3 is gone and those gradients are whole: R2 ends, and B2
  // starts, with A + 2 U + 2 U, the most.
  const Models models(small_model(), layout_of(1, 1, 0));
  const double a = 10 * (4 * kKept + kInput), u = 10 * 4 * kKv;
  const MemoryPeak one = peak_of(models, "state-aware-1f1b", {3}, 1, 10);
  CHECK(one.parts.activations == a);
  CHECK(one.parts.kv_state == 2 * u);
  CHECK(one.parts.kv_gradients == 2 * u);
  CHECK(one.micro_batch == 1);
  CHECK(one.op == OpKind::R);
  CHECK(one.op_index == 4);
  CHECK(one.at_end);
  // K = 3: F1 F2 F3 B3 ..., all activations are there when B3 starts.
  const MemoryPeak all = peak_of(models, "state-aware-1f1b", {3}, 3, 10);
  CHECK(all.parts.activations == 3 * a);
  CHECK(all.parts.kv_state == 3 * u);
  CHECK(all.parts.kv_gradients == 2 * u / 4);
  CHECK(all.op == OpKind::B);
  CHECK_FALSE(all.at_end);
  // Standalone chunks have no K and V to keep in addition to their activations.
  CHECK(peak_of(models, "state-aware-1f1b", {1, 1, 1}, 1, 10).parts.kv_state == 0);
}

TEST_CASE("Recomputing ahead holds K + 1 chunks, and no more than there are") {
  // n = 3, K = 1: R2 is there when B3 starts (2 A + 3.5 U), R1 when B2 does (2 A + 2 U + 2 U).
  const Models models(small_model(), layout_of(1, 1, 0));
  const double a = 10 * (4 * kKept + kInput), u = 10 * 4 * kKv;
  const auto ahead = [&](const std::vector<std::int32_t>& groups, int keep) {
    return peak_of(models, "state-aware-1f1b", groups, keep, 10, 0, kStudyRecompute, true);
  };
  const MemoryPeak peak = ahead({3}, 1);
  CHECK(peak.parts.activations == 2 * a);
  CHECK(peak.parts.kv_state == 2 * u);
  CHECK(peak.parts.kv_gradients == 2 * u);
  CHECK(peak.op == OpKind::B);
  CHECK(peak.micro_batch == 1);
  // Two chunks wait with their softmax (4 of the 6 bytes), one of them at work with all of its logits.
  CHECK(peak.parts.logits == doctest::Approx(10 * kLogits / 6 * (6 + 4)));
  for (int n = 1; n <= 6; ++n)
    for (int keep = 1; keep <= 6; ++keep) {
      CAPTURE(n);
      CAPTURE(keep);
      CHECK(ahead({1, n, 2}, keep).parts.activations ==
            std::max(std::min(n, keep + 1), std::min(2, keep + 1)) * a);
      CHECK(peak_of(models, "state-aware-1f1b", {1, n, 2}, keep, 10).parts.activations ==
            std::max(std::min(n, keep), std::min(2, keep)) * a);
    }
}

TEST_CASE("Micro-batches that wait for their backward on the last stage keep their softmax") {
  // gpipe, F1 F2 F3 B3 B2 B1 on one stage: F3 runs with 6 bytes a logit, F1 and F2 wait with 4.
  const Models models(small_model(), layout_of(1, 1, 0));
  const MemoryPeak peak = peak_of(models, "gpipe", {1, 1, 1}, 1, 10);
  CHECK(peak.parts.logits == doctest::Approx(10 * kLogits / 6 * (6 + 2 * 4)));
  CHECK(peak_of(models, "1f1b", {1, 1, 1}, 1, 10).parts.logits == 10 * kLogits);
}

TEST_CASE("A chunked loss holds the bf16 logits of a chunk, and nothing of them for the backward") {
  // 256 columns are 4 times 64: of 10 tokens a chunk takes the power of two from 10 / 4 on.
  FrameworkOptions framework;
  framework.loss = LossKind::chunked;
  const Models models(small_model(), layout_of(1, 1, 0), framework);
  CHECK(peak_of(models, "gpipe", {1, 1, 1}, 1, 10).parts.logits == 4 * 256 * 2);
}

TEST_CASE("Activations are held as long as the schedule says: until B, or W where backwards are split") {
  const Models models(small_model(), layout_of(4, 1, 0));
  const std::vector<std::int32_t> groups(8, 1);
  for (const char* name : {"gpipe", "1f1b", "zb-h1"}) {
    CAPTURE(name);
    const MemoryPeak peak = peak_of(models, name, groups, 1, 1000);
    const int kept =
        peak_kept(schedule_policy(name).make({4, 1, groups, 1}))[static_cast<std::size_t>(peak.stage)];
    CHECK(peak.parts.activations == kept * 1000 * (kKept + (peak.stage == 0 ? kInput : 0)));
  }
}

TEST_CASE("More slices of a document never keep more activations, cut by tokens or by work") {
  // Six documents of 1,920 tokens, k slices each. Stage 0 of P holds P-1 + k slices. By tokens that is (P-1 +
  // k) / k documents. By work (t^2) first slices hold the most tokens, so it is more, and less the more there
  // are.
  constexpr std::int64_t kTokens = 1920;
  const auto cut = [](int i, int k, bool by_work) {
    const double share = static_cast<double>(i) / k;
    return std::llround(kTokens * (by_work ? std::sqrt(share) : share));
  };
  for (const int stages : {2, 4})
    for (const bool by_work : {false, true}) {
      const Models models(small_model(), layout_of(stages, 1, 0));
      double before = 0;
      for (const int k : {1, 2, 4, 8, 16, 32, 64}) {
        CAPTURE(stages);
        CAPTURE(by_work);
        CAPTURE(k);
        std::vector<MicroBatch> slices;
        std::vector<std::int64_t> tokens;
        for (int d = 0; d < 6; ++d)
          for (int i = 0; i < k; ++i) {
            slices.emplace_back().chunk = {d, i, k, 0};
            tokens.push_back(cut(i + 1, k, by_work) - cut(i, k, by_work));
          }
        const std::vector<std::int32_t> groups(6, k);
        const std::vector<std::int64_t> none(tokens.size(), 0);
        const Schedule made = schedule_policy("seq1f1b").make({.stages = stages, .group_sizes = groups});
        const double kept = models.memory.stage_peak(made, {slices, tokens, none, 1}, 0).parts.activations;
        if (!by_work)
          CHECK(kept == doctest::Approx((stages - 1.0 + k) / k * kTokens * (4 / stages * kKept + kInput)));
        if (k > 1) CHECK(kept < before);
        before = kept;
      }
    }
}

TEST_CASE("Recomputed layers keep their input, and one of them is whole while it is at work") {
  const Models models(small_model(), layout_of(1, 1, 0));
  const MemoryPeak peak = peak_of(models, "1f1b", {1}, 1, 10, 0, 3);
  CHECK(peak.parts.activations == 10 * (1 * kKept + 3 * kInput + kInput));
  CHECK(peak.parts.buffers == 10 * (kKept + 2 * kInput));
  CHECK(peak.parts.logits == 10 * kLogits);
}

TEST_CASE("K and V of the group are gathered, with their gradients, only with context parallelism") {
  Layout layout = layout_of(1, 1, 0);
  layout.context = 2;
  const Models models(small_model(), layout);
  const MemoryPeak peak = peak_of(models, "1f1b", {1}, 1, 10, 20);
  CHECK(peak.parts.gathered_kv == 2 * 20 * kKv);
  CHECK(peak.parts.buffers == 10 * 2 * kInput);
  CHECK(peak.parts.activations == 10 * (4 * kKept + kInput));

  // Kept for the backward, those of the other rank stay in every layer.
  FrameworkOptions framework;
  framework.keep_gathered_kv = true;
  const Models keeping(small_model(), layout, framework);
  CHECK(peak_of(keeping, "1f1b", {1}, 1, 10, 20).parts.activations ==
        peak.parts.activations + 4 * (20 - 10) * kKv);
}

TEST_CASE("DualPipe's ranks hold two blocks of layers and P + 1 activations, by hand") {
  // Two ranks, each with all four layers and both ends; ZeRO-1 shards over two replicas of two copies.
  Layout layout = layout_of(2, 2, 1);
  layout.bidirectional = true;
  const Models models(small_model(), layout);
  for (const int stage : {0, 1}) {
    const MemoryParts parts = models.memory.fixed(stage);
    CHECK(parts.parameters == 2 * (kStage0 + kStage1));
    CHECK(parts.gradients == 4 * (kStage0 + kStage1));
    CHECK(parts.optimizer == 12 * (kStage0 + kStage1) / 4);
  }
  // Four ranks, a layer a block: the inner ones have no end of the model. 100 tokens a micro-batch.
  Layout deep = layout_of(4, 1, 1);
  deep.bidirectional = true;
  const Models of_four(small_model(), deep);
  const std::vector<std::int32_t> groups(8, 1);
  const Schedule schedule = schedule_policy("dualpipe").make({.stages = 4, .group_sizes = groups});
  const std::vector<MicroBatch> micro_batches(8);
  const std::vector<std::int64_t> tokens(8, 100), none(8, 0);
  for (const int stage : {1, 2}) {
    const MemoryPeak peak = of_four.memory.stage_peak(schedule, {micro_batches, tokens, none, 1}, stage);
    CHECK(peak.parts.activations == 5 * 100 * kKept);
    CHECK(peak.parts.logits == 0);
  }
  // The outer ones make logits for half of the micro-batches, and embed the others.
  for (const int stage : {0, 3})
    CHECK(of_four.memory.stage_peak(schedule, {micro_batches, tokens, none, 1}, stage).parts.logits > 0);
}
