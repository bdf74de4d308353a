// What a step trains: frozen weights, LoRA's adapters and multi-token prediction, in parameters, ops, FLOPs
// and memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "policies/base/random.h"
#include "sim/workload/stage_layers.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

using Names = std::vector<std::string>;

ModelShape with_lora(ModelShape model, std::int64_t dim, WeightSet adapted = kAdaptable) {
  model.training = {kAllWeights, adapted, dim};
  return model;
}

ModelShape frozen(ModelShape model, WeightSet weights) {
  model.training.frozen = weights;
  return model;
}

Layout tensor_parallel(int t) {
  Layout layout;
  layout.tensor = t;
  layout.recompute = Recompute::none;
  return layout;
}

struct Pass {
  OpList before, after;
  [[nodiscard]] double flops() const {
    double sum = 0;
    for (const OpList* list : {&before, &after})
      for (const Op& op : list->ops()) sum += op.flops;
    return sum;
  }
};

Pass pass_of(const Models& models, bool backward, std::int64_t tokens, LayerKind kind = LayerKind::dense) {
  Pass pass;
  RangeUse use;
  if (backward)
    models.costs.layers.backward(kind, tokens, pass.before, pass.after, use);
  else
    models.costs.layers.forward(kind, tokens, pass.before, pass.after, use);
  return pass;
}

Names names_of(const OpList& list) {
  Names names;
  for (const Op& op : list.ops()) names.emplace_back(name_of(op.name));
  return names;
}

// One layer of model_of: QKV 64 x 192, output 64 x 64, gate and up 64 x 256, down 128 x 64, two norms of 64.
constexpr std::int64_t kLinear = 12288 + 4096 + 16384 + 8192;
constexpr std::int64_t kAdapters = 8 * (64 + 192 + 64 + 64 + 64 + 256 + 128 + 64);  // of dim 8: 7,168

}  // namespace

TEST_CASE("Where nothing is frozen a step trains all there is, of every built-in model") {
  for (const ModelShape& model : builtin_models()) {
    CAPTURE(model.name);
    CHECK(model.trained_parameters() == model.parameters());
    for (int layer = 0; layer < model.layers; ++layer) {
      REQUIRE(model.trained_parameters(layer, true) == model.routed_parameters(layer));
      REQUIRE(model.trained_parameters(layer, false) + model.routed_parameters(layer) ==
              model.layer_parameters(layer));
    }
    for (const int pipeline : {1, 2}) {
      Layout layout;
      layout.pipeline = pipeline;
      const PartSizes all = part_sizes(model, layout), trained = trained_sizes(model, layout);
      for (std::size_t part = 0; part < kModelParts; ++part) {
        CHECK(all[part].dense == trained[part].dense);
        CHECK(all[part].routed == trained[part].routed);
      }
    }
  }
}

TEST_CASE("LoRA of rank 16 on every linear layer of llama3.1-8b trains 35,651,584 parameters") {
  // Q, K, V in one product: 4,096 to 6,144; output 4,096 to 4,096; gate and up to 28,672; down from 14,336.
  const std::int64_t layer = 16 * (4096 + 6144 + 4096 + 4096 + 4096 + 28672 + 14336 + 4096);
  CHECK(layer == 1'114'112);
  const ModelShape model = with_lora(builtin_model("llama3.1-8b"), 16);
  CHECK(model.trained_parameters() == 35'651'584);
  // 128 experts of 2,048 to 1,536 and 768 to 2,048, each with a pair of its own; no shared expert.
  const ModelShape sparse = with_lora(builtin_model("qwen3-30b-a3b"), 8, bit_of(WeightKind::fc1));
  CHECK(sparse.trained_parameters(0, true) == 128 * 8 * (2048 + 1536));
  CHECK(sparse.trained_parameters(0, false) == 0);
}

TEST_CASE("An adapter is two thin products behind its layer, and four before it in the backward") {
  const Models models(with_lora(model_of(1), 8), tensor_parallel(1));
  const Pass forward = pass_of(models, false, 4096), backward = pass_of(models, true, 4096);
  CHECK(names_of(forward.before) ==
        Names{"rms_norm", "qkv_gemm", "qkv_gemm", "qkv_gemm", "residual", "rope"});
  CHECK(names_of(forward.after) == Names{"out_gemm", "out_gemm", "out_gemm", "residual", "residual",
                                         "rms_norm", "gate_up_gemm", "gate_up_gemm", "gate_up_gemm",
                                         "residual", "activation", "down_gemm", "down_gemm", "down_gemm",
                                         "residual", "residual"});
  const Names one = {"residual",       "input_gradient",  "weight_gradient",
                     "input_gradient", "weight_gradient", "input_gradient"};
  Names expected = one;  // down; then gate and up, and the output's
  expected.emplace_back("activation");
  expected.insert(expected.end(), one.begin(), one.end());
  expected.insert(expected.end(), {"rms_norm", "residual"});
  expected.insert(expected.end(), one.begin(), one.end());
  CHECK(names_of(backward.before) == expected);
  // Forward: every weight once a token. Backward: frozen ones once more, adapters twice.
  CHECK(forward.flops() == 2.0 * 4096 * (kLinear + kAdapters));
  CHECK(backward.flops() == 2.0 * 4096 * (kLinear + 2 * kAdapters));
  // MFU counts the same, and the logits' matrix, which is frozen too.
  CHECK(models.costs.model().training_flops(4096, 0) ==
        forward.flops() + backward.flops() + 4.0 * 4096 * 64 * 256);
}

TEST_CASE(
    "With tensor parallelism A x is gathered or summed up, and a row-parallel layer's adapter gathered") {
  const Models models(with_lora(model_of(1), 8, bit_of(WeightKind::qkv) | bit_of(WeightKind::proj)),
                      tensor_parallel(2), [] {
                        FrameworkOptions apart;
                        apart.tp_overlap_forward = false;
                        return apart;
                      }());
  const auto tp_bytes = [](const OpList& list) {
    std::vector<double> bytes;
    for (const Op& op : list.ops())
      if (op.stream == Stream::tp) bytes.push_back(op.bytes);
    return bytes;
  };
  constexpr double kInput = 4096 * 64 * 2, kThin = 4096 * 8 * 2;
  const Pass forward = pass_of(models, false, 4096), backward = pass_of(models, true, 4096);
  CHECK(tp_bytes(forward.before) == std::vector<double>{kInput, kThin});
  // The output's reduce-scatter, its adapter's sum and gather; then the FFN's two, which has none.
  CHECK(tp_bytes(forward.after) == std::vector<double>{kInput, kThin, kInput, kInput, kInput});
  // No frozen layer's backward gathers an input: down's output gradient, the input's gradients of gate and
  // up; the output's adapter (gathered, summed up) and its own.
  CHECK(tp_bytes(backward.before) == std::vector<double>{kInput, kInput, kInput, kThin, kInput});
  CHECK(tp_bytes(backward.after) == std::vector<double>{kThin, kInput});
  // A's four rows on this rank, and B's 96 of Q, K and V: 32 each of 64.
  const auto ops = forward.before.ops();
  CHECK(ops[3].flops == 2.0 * 4096 * 64 * 4);
  CHECK(ops[5].flops == 2.0 * 4096 * 8 * 96);
}

TEST_CASE("A frozen layer has no product for its own gradient, and nothing else changes") {
  for (const WeightKind of : {WeightKind::qkv, WeightKind::proj, WeightKind::fc1, WeightKind::fc2}) {
    CAPTURE(kWeightNames[at(of)]);
    const Models all(model_of(1), tensor_parallel(1)),
        less(frozen(model_of(1), bit_of(of)), tensor_parallel(1));
    CHECK(pass_of(all, false, 512).flops() == pass_of(less, false, 512).flops());
    std::int64_t weights = 0;
    for (const LinearLayer& l : all.costs.model().linear_layers(0))
      if (l.weights == of) weights += l.in * l.out;
    CHECK(pass_of(all, true, 512).flops() - pass_of(less, true, 512).flops() ==
          2.0 * 512 * static_cast<double>(weights));
  }
  RangeUse use;
  OpList ops;
  const Models ends(frozen(model_of(1), bit_of(WeightKind::embedding) | bit_of(WeightKind::head)),
                    tensor_parallel(1));
  ends.costs.ends.embedding(512, true, ops, use);
  CHECK(ops.size() == 0);
  ends.costs.ends.head_backward(512, ops, use);
  CHECK(names_of(ops) == Names{"cross_entropy", "input_gradient", "rms_norm"});
}

TEST_CASE("Experts: frozen routers, frozen products and adapters of their own, whatever is recomputed") {
  SplitMix64 random(3);
  for (int i = 0; i < 40; ++i) {
    const auto draw = [&](std::uint64_t below) { return static_cast<int>(random.next() % below); };
    Layout layout = tensor_parallel(1 << draw(3));
    layout.expert = layout.data = 1 << draw(3);
    layout.expert_tensor = draw(2) == 0 ? 0 : 1;
    if (draw(2) == 0) {
      layout.recompute = Recompute::modules;
      layout.recompute_modules = module_bit(RecomputeModule::moe) | module_bit(RecomputeModule::layernorm);
    }
    if (static_cast<std::int64_t>(layout.data) * layout.tensor / layout.expert_tensor_size() %
            layout.expert !=
        0)
      continue;
    FrameworkOptions framework;
    framework.expert_overlap = static_cast<ExpertOverlap>(draw(4));
    const ModelShape& base = builtin_model(draw(2) == 0 ? "deepseek-v2" : "qwen3-30b-a3b");
    const Models all(base, layout, framework), lora(with_lora(base, 8), layout, framework);
    const double tokens = 4096;
    const auto kind = LayerKind::moe;
    // Adapters add products in proportion to their parameters: a thousandth or so.
    const double forward = pass_of(all, false, 4096, kind).flops();
    CHECK(pass_of(lora, false, 4096, kind).flops() > forward);
    CHECK(pass_of(lora, false, 4096, kind).flops() < 1.05 * forward);
    CHECK(pass_of(lora, true, 4096, kind).flops() < pass_of(all, true, 4096, kind).flops());
    const Models router(frozen(base, bit_of(WeightKind::router)), layout, framework);
    const double rows = (tokens + layout.tensor - 1) / layout.tensor;
    CHECK(pass_of(all, true, 4096, kind).flops() - pass_of(router, true, 4096, kind).flops() ==
          doctest::Approx(2 * std::floor(rows) * as_double(base.hidden) * base.moe->experts));
  }
}

TEST_CASE("A frozen layer keeps no input, an adapter its own: bytes a token of one layer by hand") {
  const auto kept = [](const ModelShape& model, int t) {
    return Models(model, tensor_parallel(t)).memory.kept_per_token();
  };
  // Norm inputs 2 x 128, their outputs 2 x 128; Q, K, V 384; attention's output 128 and 8 of its softmax;
  // gate and up 512, their product 256.
  CHECK(kept(model_of(1), 1) == 256 + 256 + 384 + 128 + 8 + 512 + 256);
  // Only the first norm's output stays, which QKV's adapter reads; and A x, 8 in bf16.
  const ModelShape attention = with_lora(model_of(1), 8, bit_of(WeightKind::qkv));
  CHECK(kept(attention, 1) == 256 + 128 + 384 + 128 + 8 + 512 + 16);
  // Half of all on each of two ranks, but the adapter's input, which is gathered, and A x.
  CHECK(kept(attention, 2) == 128 + 128 + 192 + 64 + 4 + 256 + 16);
  // Everything frozen but the output projection: attention's output is kept for its own backward anyway.
  CHECK(kept(frozen(model_of(1), kAllWeights & ~bit_of(WeightKind::proj)), 1) == 256 + 384 + 128 + 8 + 512);
}

TEST_CASE("Gradients and optimizer states are those of what is trained, parameters of all") {
  const Models models(with_lora(model_of(2), 8), tensor_parallel(1));
  const MemoryParts fixed = models.memory.fixed(0);
  const double layer = kLinear + 128 + kAdapters;
  CHECK(fixed.parameters == 2 * (2 * layer + 2 * 64 * 256 + 64));
  CHECK(fixed.gradients == 4 * 2 * kAdapters);
  CHECK(fixed.optimizer == 12 * 2 * kAdapters);
  // Adapters with an embedding and a head that are trained whole, as long contexts need them (LongLoRA).
  ModelShape ends = with_lora(model_of(2), 8);
  ends.training.frozen &=
      ~(bit_of(WeightKind::embedding) | bit_of(WeightKind::head) | bit_of(WeightKind::norms));
  CHECK(Models(ends, tensor_parallel(1)).memory.fixed(0).gradients ==
        4.0 * (2 * (kAdapters + 128) + 2 * 64 * 256 + 64));
}

TEST_CASE(
    "Below the first trained layer there is no gradient, no state, nothing kept and no backward: by hand") {
  const auto first = [](int layers) {
    ModelShape model = frozen(model_of(2), bit_of(WeightKind::embedding));
    model.training.frozen_layers = layers;
    return model;
  };
  CHECK(first(0).trained_parameters() == 2 * (kLinear + 128) + 64 * 256 + 64);
  CHECK(first(1).trained_parameters() == kLinear + 128 + 64 * 256 + 64);
  CHECK(first(2).trained_parameters() == 64 * 256 + 64);  // the head and its norm
  // There are 10 tokens with 55 pairs, whose Q, K and V have 32 numbers in 2 heads: six products of a weight,
  // or two; three of attention, or one.
  const double attention = 2.0 * (32 + 32) * 2 * 55;
  CHECK(first(0).training_flops(10, 55) ==
        doctest::Approx(10 * 6.0 * (2 * kLinear + 64 * 256) + 6 * attention));
  CHECK(first(1).training_flops(10, 55) ==
        doctest::Approx(10 * (8.0 * kLinear + 6.0 * 64 * 256) + 4 * attention));
  CHECK(first(2).training_flops(10, 55) ==
        doctest::Approx(10 * (4.0 * kLinear + 6.0 * 64 * 256) + 2 * attention));

  Layout layout = tensor_parallel(1);
  layout.pipeline = 2;
  CHECK(backward_layers(first(1), layout) == std::vector<int>{0, 1});
  const Models models(first(1), layout);
  CHECK(models.memory.fixed(0).parameters == 2 * (kLinear + 128 + 64 * 256));
  CHECK(models.memory.fixed(0).gradients + models.memory.fixed(0).optimizer == 0);
  CHECK(models.memory.fixed(1).gradients == 4 * (kLinear + 128 + 64 * 256 + 64));
  const std::vector<MicroBatch> micro_batches = {documents({1000})};
  const std::vector<std::int64_t> tokens = {1000}, gathered = {0};
  const LaneLoad load{micro_batches, tokens, gathered};
  CHECK(models.memory.footprint(0, load, 0).activations == 0);
  CHECK(models.memory.footprint(0, load, 0).buffers >= 1800 * 1000);  // a layer at work holds what it makes
  CHECK(models.memory.footprint(1, load, 0).activations ==
        Models(first(0), layout).memory.footprint(1, load, 0).activations);
  // The first layers of the model, and of a stage, are those that are recomputed; frozen ones need not be.
  layout.pipeline = 1;
  layout.recompute = Recompute::layers;
  for (layout.recompute_layers = 0; layout.recompute_layers <= 2; ++layout.recompute_layers)
    CHECK(RecomputedLayers(first(1), layout).of_stage(0, kStudyRecompute) ==
          std::max(0, layout.recompute_layers - 1));
}

TEST_CASE(
    "A module of multi-token prediction is a layer more, a projection and a second pass through the head") {
  ModelShape model = model_of(2);
  const ModelShape alone = model;
  model.mtp_layers = 1;
  // A layer of 40,960 and two norms; the projection 128 x 64; three norms of 64. Logits: 64 x 256.
  CHECK(model.parameters() - alone.parameters() == kLinear + 2 * 64 + 128 * 64 + 3 * 64);
  CHECK(model.trained_parameters() == model.parameters());
  CHECK(model.active_matmul_parameters() - alone.active_matmul_parameters() == kLinear + 128 * 64 + 64 * 256);
  CHECK(model.training_flops(10, 55) - alone.training_flops(10, 55) ==
        6.0 * 10 * (kLinear + 128 * 64 + 64 * 256) + 3.0 * 2 * (32 + 32) * 2 * 55);

  const Models one(model, tensor_parallel(1)), two(model, tensor_parallel(2));
  OpList forward, backward, split;
  RangeUse use;
  one.costs.ends.head_forward(4096, forward, use);
  one.costs.ends.head_backward(4096, backward, use);
  two.costs.ends.head_forward(4096, split, use);
  CHECK(names_of(forward) == Names{"embedding", "rms_norm", "residual", "mtp_projection", "rms_norm",
                                   "logits_gemm", "cross_entropy", "rms_norm", "logits_gemm",
                                   "cross_entropy"});
  CHECK(names_of(split) == Names{"embedding", "tp_reduce_scatter", "rms_norm", "residual", "tp_all_gather",
                                 "mtp_projection", "tp_all_gather", "rms_norm", "tp_all_gather",
                                 "logits_gemm", "cross_entropy", "tp_reduce_scatter", "rms_norm",
                                 "tp_all_gather", "logits_gemm", "cross_entropy", "tp_reduce_scatter"});
  const auto flops = [](const OpList& list) {
    double sum = 0;
    for (const Op& op : list.ops()) sum += op.flops;
    return sum;
  };
  CHECK(flops(forward) == 2.0 * 4096 * (128 * 64 + 2 * 64 * 256));
  CHECK(flops(backward) == 2 * flops(forward));
}

TEST_CASE(
    "The last stage holds modules of multi-token prediction, with a copy of the embedding where it has "
    "none") {
  ModelShape model = model_of(2);
  model.mtp_layers = 2;
  Layout layout = tensor_parallel(1);
  layout.pipeline = 2;
  CHECK(layers_of_stages(model, layout) == std::vector<int>{1, 3});
  const std::int64_t own = 2 * (128 * 64 + 3 * 64);
  const auto head = [&] { return part_sizes(model, layout)[at(ModelPart::head)].dense; };
  CHECK(head() == 2 * 64 * 256 + 64 + own);
  model.tied_embeddings = true;  // the logits' matrix is the copy
  CHECK(head() == 64 * 256 + 64 + own);
  layout.pipeline = 1;
  CHECK(head() == 64 + own);
  model.tied_embeddings = false;
  CHECK(head() == 64 * 256 + 64 + own);
  model.training.frozen = bit_of(WeightKind::head);
  CHECK(trained_sizes(model, layout)[at(ModelPart::head)].dense == 64 + 2 * 3 * 64);

  // A token keeps, of each module, two norms' inputs and both their outputs, 64 numbers each, in addition to
  // a layer's 1,800 bytes; and the softmax of its 256 logits.
  model.training.frozen = 0;
  ModelShape alone = model;
  alone.mtp_layers = 0;
  const Models more(model, layout), less(alone, layout);
  const std::vector<MicroBatch> micro_batches = {documents({1000})};
  const std::vector<std::int64_t> tokens = {1000}, gathered = {0};
  const LaneLoad load{micro_batches, tokens, gathered};
  const Footprint with = more.memory.footprint(0, load, 0), without = less.memory.footprint(0, load, 0);
  CHECK(with.activations - without.activations == doctest::Approx(1000.0 * 2 * (1800 + 4 * 64 * 2)));
  CHECK(with.softmax == doctest::Approx(3 * without.softmax));
  CHECK(with.logits - without.logits == doctest::Approx(2 * without.softmax));
}
