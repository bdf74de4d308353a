// Named parts that a backward repeats, and grouped products of experts.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/kept_bytes.h"
#include "sim/cost/least_costs.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

struct Lists {
  OpList before, after;
};

Lists backward(const LayerCosts& costs, LayerKind kind) {
  Lists lists;
  RangeUse use;
  costs.layers.backward(kind, 4096, lists.before, lists.after, use);
  return lists;
}

// "rms_norm expert_gemm": what a list repeats of its forward.
std::string repeated(const OpList& list) {
  std::string text;
  for (const Op& op : list.ops())
    if (op.again) text.append(text.empty() ? "" : " ").append(name_of(op.name));
  return text;
}

Layout repeating(RecomputeModules modules) {
  Layout layout;
  layout.data = layout.expert = 8;
  layout.recompute = Recompute::modules;
  layout.recompute_modules = modules;
  return layout;
}

std::string repeated(RecomputeModule module, LayerKind kind) {
  const Models models(builtin_model("deepseek-v2"), repeating(module_bit(module)));
  const Lists lists = backward(models.costs, kind);
  return repeated(lists.before) + " | " + repeated(lists.after);
}

}  // namespace

TEST_CASE("A backward repeats the named parts of its forward, before what needs them") {
  constexpr LayerKind kMoe = LayerKind::moe, kDense = LayerKind::dense;
  CHECK(repeated(RecomputeModule::layernorm, kMoe) == "rms_norm | rms_norm");
  CHECK(repeated(RecomputeModule::moe_act, kMoe) == "activation | ");
  CHECK(repeated(RecomputeModule::moe_act, kDense) == " | ");
  CHECK(repeated(RecomputeModule::mla_up_proj, kMoe) == "qkv_gemm qkv_gemm rope | ");
  CHECK(repeated(RecomputeModule::mlp, kDense) == "gate_up_gemm activation down_gemm | ");
  CHECK(repeated(RecomputeModule::mlp, kMoe) == " | ");
  CHECK(repeated(RecomputeModule::shared_experts, kMoe) == "gate_up_gemm activation down_gemm | ");
  CHECK(
      repeated(RecomputeModule::moe, kMoe) ==
      "router permute ep_all_to_all permute expert_gemm activation expert_gemm permute ep_all_to_all permute "
      "gate_up_gemm activation down_gemm | ");
  CHECK(repeated(RecomputeModule::core_attn, kMoe) == " | ");  // no local op: the attention of a backward
}

TEST_CASE("What is repeated takes as long as in the forward, counts as recompute, and frees memory") {
  const ModelShape& model = builtin_model("deepseek-v2");
  const Models none(model, repeating(0));
  const MicroBatch micro_batch = documents({4096});
  const ShardRule rule = shard_by("per-document");
  const auto cost_of = [&](const Models& models) {
    MicroBatchCost cost;
    MicroBatchCoster(models.costs, rule).cost(micro_batch, 1, cost);
    return cost;
  };
  const MicroBatchCost plain = cost_of(none);
  const auto kMoe = static_cast<std::size_t>(LayerKind::moe);
  CHECK(plain.recomputed[kMoe] == 0);
  for (std::size_t m = 0; m < std::size(kRecomputeModuleNames); ++m) {
    const auto module = static_cast<RecomputeModule>(m);
    if (module == RecomputeModule::per_op) continue;  // of dense models
    CAPTURE(m);
    const Models models(model, repeating(module_bit(module)));
    const MicroBatchCost cost = cost_of(models);
    for (const std::size_t k : {static_cast<std::size_t>(LayerKind::dense), kMoe}) {
      CHECK(cost.backward[k].local[0] - plain.backward[k].local[0] == cost.recomputed[k]);
      CHECK(cost.forward[k] == plain.forward[k]);
    }
    // With FlashAttention core_attn frees nothing.
    if (module == RecomputeModule::core_attn)
      CHECK(models.memory.kept_per_token() == none.memory.kept_per_token());
    else
      CHECK(models.memory.kept_per_token() < none.memory.kept_per_token());
  }
  // A repeated expert layer exchanges four times in a backward.
  const Models moe(model, repeating(module_bit(RecomputeModule::moe)));
  CHECK(cost_of(moe).backward[kMoe].exchanges.size() == 4);
  CHECK(plain.backward[kMoe].exchanges.size() == 2);
}

TEST_CASE("By operator, K's, the output's and up's products run again, and all between products") {
  Layout layout = repeating(module_bit(RecomputeModule::per_op));
  layout.data = layout.expert = 1;
  const auto repeats = [&] {
    const Models models(builtin_model("llama3.1-8b"), layout);
    const Lists lists = backward(models.costs, LayerKind::dense);
    return repeated(lists.before) + " | " + repeated(lists.after);
  };
  CHECK(repeats() == "rms_norm qkv_gemm rope out_gemm residual rms_norm gate_up_gemm activation | ");
  // Input, Q, V, attention's output and gate in bf16, and 32 heads' statistics.
  CHECK(kept_bytes(builtin_model("llama3.1-8b"), layout, {}, LayerKind::dense) ==
        2 * (4096 + 4096 + 1024 + 4096 + 14336) + 4 * 32);
  layout.tensor = 8;  // what a reduce-scatter gave is kept
  CHECK(repeats() ==
        "rms_norm tp_all_gather qkv_gemm rope residual rms_norm tp_all_gather gate_up_gemm activation | ");
}

TEST_CASE("A recomputation that stops early ends before the FFN's last product, and takes so much less") {
  Layout layout;
  layout.zero = 3;
  FrameworkOptions framework;
  framework.tp_overlap_forward = false;
  framework.early_stop = true;
  const auto omitted = [&] {  // of a forward
    const Models models(builtin_model("llama3.1-8b"), layout, framework);
    OpList before, after;
    RangeUse use;
    models.costs.layers.forward(LayerKind::dense, 4096, before, after, use);
    std::string text;
    Picoseconds time = 0;
    for (const OpList* list : {&before, &after})
      for (const Op& op : list->ops())
        if (op.once) text.append(text.empty() ? "" : " ").append(name_of(op.name)), time += op.duration;
    MicroBatchCost cost;
    const ShardRule rule = shard_by("per-document");
    MicroBatchCoster(models.costs, rule).cost(documents({4096}), 1, cost);
    CHECK(cost.forward[0].local[0] - cost.again[0].local[0] == time);
    CHECK(cost.full[0].local[0] == cost.again[0].local[0] + cost.backward[0].local[0]);
    CHECK(cost.compute_forward[0][0] - cost.compute_again[0][0] <= time);  // TP's is no compute
    CHECK(least_costs(models.costs, 0.98).layer.again_token <=
          least_costs(models.costs, 0.98).layer.forward_token);
    return text;
  };
  CHECK(omitted() == "down_gemm residual");
  layout.precision = Precision::fp8;  // Transformer Engine's cast is what its weight gradient reads
  CHECK(omitted() == "down_gemm residual");
  framework.linear_layers = LinearLayers::torch;  // FSDP's copy stays, and the backward casts
  CHECK(omitted() == "permute quantize down_gemm residual");
  layout.tensor = 8;
  CHECK(omitted() == "permute quantize down_gemm tp_reduce_scatter residual");
  framework.early_stop = false;
  CHECK(omitted() == "permute");
  framework.linear_layers = LinearLayers::fused;
  CHECK(omitted().empty());
}

TEST_CASE("Asynchronous TP: a product for each rank's rows, and what no piece hides") {
  Layout layout;
  layout.tensor = 8;
  FrameworkOptions framework;
  framework.linear_layers = LinearLayers::torch;
  const auto after_of = [&] {
    const Models models(builtin_model("llama3.1-8b"), layout, framework);
    OpList before, after;
    RangeUse use;
    models.costs.layers.forward(LayerKind::dense, 65536, before, after, use);
    return std::vector<Op>(after.ops().begin(), after.ops().end());
  };
  const std::vector<Op> fused = after_of();
  framework.tp_overlap_forward = false;
  const std::vector<Op> apart = after_of();
  const auto named = [](const std::vector<Op>& ops, OpName name) {
    return *std::ranges::find(ops, name, &Op::name);
  };
  const Op product = named(fused, OpName::out_gemm), scatter = named(fused, OpName::tp_reduce_scatter);
  CHECK(scatter.with_next);
  CHECK(product.launches == 8);
  CHECK(product.flops == named(apart, OpName::out_gemm).flops);
  // The last copy waits for the last piece. Without NCCL nothing is put in order: read and written there.
  const Picoseconds moved =
      named(apart, OpName::tp_reduce_scatter).duration - (scatter.duration - product.duration / 8);
  CHECK(moved > 0);
  // Eight parts of a rank's rows are read and their sum is written: an eighth. A gather copies a rank's rows.
  const double whole = 2 * 65536.0 * 4096;
  CHECK(fused[0].name == OpName::permute);
  CHECK(fused[0].bytes == whole + whole / 8);
  CHECK(named(fused, OpName::tp_all_gather).with_next);
  const auto up = std::ranges::find(fused, OpName::tp_all_gather, &Op::name);
  CHECK((up - 1)->name == OpName::permute);
  CHECK((up - 1)->bytes == 2 * whole / 8);
}

TEST_CASE("torchao casts operands by kernels of their own, and what it gathers travels in FP8") {
  Layout layout;
  layout.precision = Precision::fp8;
  FrameworkOptions framework;
  framework.linear_layers = LinearLayers::torch;
  const auto both = [&](bool back, OpName name) {
    const Models models(builtin_model("llama3.1-8b"), layout, framework);
    double bytes = 0;
    for (const Op& op : ops_of_pass(models, LayerKind::dense, 1000, back, name)) bytes += op.bytes;
    return bytes;
  };
  // 5 bytes of each element, 7 where no row op has found its largest value: attention's output and weights.
  const double weights = 4096.0 * (4096 + 2 * 1024 + 4096 + 3 * 14336);
  const double inputs = 5.0 * (2 * 4096 + 14336) + 7.0 * 4096;
  CHECK(both(false, OpName::quantize) == 1000 * inputs + 7 * weights);
  const double gradients = 5.0 * (4096 + 2 * 14336 + 4096 + 6144);
  CHECK(both(true, OpName::quantize) == 1000 * gradients);
  layout.recompute = Recompute::modules;  // casts again, with the largest values at hand
  layout.recompute_modules = module_bit(RecomputeModule::per_op);
  CHECK(both(true, OpName::quantize) == 1000 * (gradients + inputs) + 5 * weights);
  layout.recompute = Recompute::none;
  framework.fp8_param_gather = true;  // the other order alone, for the backward
  CHECK(both(false, OpName::quantize) == 1000 * inputs);
  CHECK(both(true, OpName::quantize) == 1000 * gradients + 2 * weights);
  // Two gathers of 4,096 in one byte; backward those of both row-parallel gradients, and none of an input.
  layout.tensor = 8;
  CHECK(both(false, OpName::tp_all_gather) == 1000 * 2 * 4096.0);
  CHECK(both(true, OpName::tp_all_gather) == 1000 * 2 * 4096.0);
}

TEST_CASE("A grouped product fills waves with the tiles of all groups, but no tile with rows of two") {
  const Profile profile = shipped_profile();
  const GemmModel gemm(profile, Precision::bf16);
  RangeUse use;
  const auto seconds = [&](std::int64_t m, std::int64_t groups) {
    return gemm.seconds(m, 4096, 2048, use, GemmRole::forward, groups);
  };
  for (const std::int64_t m : {16, 100, 256, 1000}) {
    CAPTURE(m);
    CHECK(seconds(m, 1) == gemm.seconds(m, 4096, 2048, use));
    CHECK(seconds(m, 8) < 8 * seconds(m, 1));   // one launch, and the last waves are shared
    CHECK(seconds(m, 8) >= seconds(8 * m, 1));  // each group reads weights of its own
    CHECK(seconds(m, 16) > seconds(m, 8));
  }
  CHECK(seconds(100, 8) > 1.02 * seconds(800, 1));  // 8 x 1 rows of tiles of 128 instead of 7
}
