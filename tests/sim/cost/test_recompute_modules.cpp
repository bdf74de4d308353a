// Named parts that a backward repeats, and grouped products of experts.
#include <doctest/doctest.h>

#include <string_view>

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
  costs.backward_ops(kind, 4096, lists.before, lists.after, use);
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
  CHECK(repeated(RecomputeModule::moe, kMoe) ==
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
    CHECK(seconds(m, 8) < 8 * seconds(m, 1));       // one launch, and the last waves are shared
    CHECK(seconds(m, 8) >= seconds(8 * m, 1));      // each group reads weights of its own
    CHECK(seconds(m, 16) > seconds(m, 8));
  }
  CHECK(seconds(100, 8) > 1.02 * seconds(800, 1));  // 8 x 1 rows of tiles of 128 instead of 7
}
