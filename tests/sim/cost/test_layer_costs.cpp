// The op inventory of a dense layer, and that its GEMMs do the model's arithmetic.
#include <doctest/doctest.h>

#include <algorithm>

#include "sim/cost/kept_bytes.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

using Names = std::vector<std::string>;

Names names_of(const OpList& list) {
  Names names;
  for (const Op& op : list.ops()) names.emplace_back(name_of(op.name));
  return names;
}

Layout tensor_parallel(int t) {
  Layout layout;
  layout.tensor = t;
  layout.recompute = Recompute::none;
  return layout;
}

FrameworkOptions exposed() {  // TP collectives before and after their GEMMs, not under them
  FrameworkOptions framework;
  framework.tp_overlap_forward = false;
  return framework;
}

struct Lists {
  OpList before, after;
};

Lists forward(const LayerCosts& costs, std::int64_t tokens, LayerKind kind = LayerKind::dense) {
  Lists lists;
  RangeUse use;
  costs.layers.forward(kind, tokens, lists.before, lists.after, use);
  return lists;
}

Lists backward(const LayerCosts& costs, std::int64_t tokens, LayerKind kind = LayerKind::dense) {
  Lists lists;
  RangeUse use;
  costs.layers.backward(kind, tokens, lists.before, lists.after, use);
  return lists;
}

double bytes_of(const OpList& list, OpName name) {
  double sum = 0;
  for (const Op& op : list.ops())
    if (op.name == name) sum += op.bytes;
  return sum;
}

double flops(const Lists& lists) {
  double sum = 0;
  for (const OpList* list : {&lists.before, &lists.after})
    for (const Op& op : list->ops()) sum += op.flops;
  return sum;
}

}  // namespace

TEST_CASE("Forward of a dense layer, in order, without and with tensor parallelism") {
  const Models one(builtin_model("llama3.1-8b"), tensor_parallel(1));
  const Lists alone = forward(one.costs, 4096);
  CHECK(names_of(alone.before) == Names{"rms_norm", "qkv_gemm", "rope"});
  CHECK(names_of(alone.after) ==
        Names{"out_gemm", "residual", "rms_norm", "gate_up_gemm", "activation", "down_gemm", "residual"});

  const Models eight(builtin_model("llama3.1-8b"), tensor_parallel(8), exposed());
  const Lists shared = forward(eight.costs, 4096);
  CHECK(names_of(shared.before) == Names{"rms_norm", "tp_all_gather", "qkv_gemm", "rope"});
  CHECK(names_of(shared.after) == Names{"out_gemm", "tp_reduce_scatter", "residual", "rms_norm",
                                        "tp_all_gather", "gate_up_gemm", "activation", "down_gemm",
                                        "tp_reduce_scatter", "residual"});
  // Each TP collective moves n x h in bf16.
  for (const OpList* list : {&shared.before, &shared.after})
    for (const Op& op : list->ops())
      if (op.stream == Stream::tp) CHECK(op.bytes == 4096.0 * 4096 * 2);
}

TEST_CASE("Backward of a dense layer: two GEMMs for each, the dual collectives and the repeated all-gather") {
  const Models one(builtin_model("llama3.1-8b"), tensor_parallel(1));
  const Lists alone = backward(one.costs, 4096);
  CHECK(names_of(alone.before) == Names{"input_gradient", "weight_gradient", "activation", "input_gradient",
                                        "weight_gradient", "rms_norm", "residual", "input_gradient",
                                        "weight_gradient"});
  CHECK(names_of(alone.after) == Names{"rope", "input_gradient", "weight_gradient", "rms_norm", "residual"});

  const Models eight(builtin_model("llama3.1-8b"), tensor_parallel(8), exposed());
  const Lists shared = backward(eight.costs, 4096);
  // down (row-parallel): its output's gradient is gathered; gate and up (column-parallel): the input is
  // gathered again and its gradient reduce-scattered; output projection (row); QKV (column).
  CHECK(names_of(shared.before) == Names{"tp_all_gather", "input_gradient", "weight_gradient", "activation",
                                         "tp_all_gather", "input_gradient", "tp_reduce_scatter",
                                         "weight_gradient", "rms_norm", "residual", "tp_all_gather",
                                         "input_gradient", "weight_gradient"});
  CHECK(names_of(shared.after) == Names{"rope", "tp_all_gather", "input_gradient", "tp_reduce_scatter",
                                        "weight_gradient", "rms_norm", "residual"});
}

TEST_CASE("With TP overlap, a forward collective runs under its GEMM: the pair takes the longer of the two") {
  FrameworkOptions overlapped;
  overlapped.tp_overlap_forward = true;
  const ModelShape& model = builtin_model("llama3.1-8b");
  const Models under(model, tensor_parallel(8), overlapped), apart(model, tensor_parallel(8), exposed());
  const RunTime hidden = run_time(forward(under.costs, 4096).after.ops());
  const Lists plain = forward(apart.costs, 4096);
  // out_gemm with its reduce-scatter, gate/up with its all-gather, down with its reduce-scatter.
  const auto ops = plain.after.ops();
  const Picoseconds saved = std::min(ops[0].duration, ops[1].duration) +
                            std::min(ops[4].duration, ops[5].duration) +
                            std::min(ops[7].duration, ops[8].duration);
  CHECK(hidden.total == run_time(ops).total - saved);
  CHECK(hidden.busy == run_time(ops).busy);
}

TEST_CASE("A rank without tokens launches nothing") {
  const Models models(builtin_model("llama3.1-8b"), tensor_parallel(2));
  CHECK(forward(models.costs, 0).before.ops().empty());
  CHECK(forward(models.costs, 0).after.ops().empty());
  CHECK(backward(models.costs, 0).before.ops().empty());
}

TEST_CASE("GEMM FLOPs of a layer are 2 x parameters x tokens / TP forward, twice that backward") {
  for (const char* name : {"llama2-7b", "llama3.1-8b", "llama3.1-405b", "qwen2.5-32b"})
    for (const int t : {1, 2, 4, 8}) {
      CAPTURE(name);
      CAPTURE(t);
      const ModelShape& model = builtin_model(name);
      const Models models(model, tensor_parallel(t));
      const std::int64_t h = model.hidden, kv = std::int64_t{model.kv_heads} * model.head_dim;
      // Matrices only: Q and output, K and V, gate, up and down.
      const double matrices =
          static_cast<double>(2 * h * model.query_width() + 2 * h * kv + 3 * h * model.ffn);
      const double expected = 2 * matrices * 5000 / t;
      CHECK(flops(forward(models.costs, 5000)) == doctest::Approx(expected).epsilon(1e-12));
      CHECK(flops(backward(models.costs, 5000)) == doctest::Approx(2 * expected).epsilon(1e-12));
    }
}

TEST_CASE("A sparse layer routes, exchanges twice, and runs its active and shared experts") {
  Layout layout = tensor_parallel(1);
  layout.data = 8;
  layout.expert = 8;
  const ModelShape& model = builtin_model("deepseek-v2");
  const Models models(model, layout);
  const Lists lists = forward(models.costs, 4096, LayerKind::moe);
  int exchanges = 0, routers = 0;
  double expert_flops = 0;
  for (const Op& op : lists.after.ops()) {
    exchanges += op.name == OpName::ep_all_to_all;
    routers += op.name == OpName::router;
    if (op.name == OpName::expert_gemm) expert_flops += op.flops;
    if (op.name == OpName::ep_all_to_all) CHECK(op.bytes == 4096.0 * 6 * 5120 * 2);
  }
  CHECK(exchanges == 2);
  CHECK(routers == 1);
  // 4096 x 6 rows over 20 local experts: 1228.8 -> 1229 rows each.
  CHECK(expert_flops == doctest::Approx(2.0 * 20 * 1229 * 3 * 5120 * 1536));
}

TEST_CASE("A TP collective under a product takes SMs: pieces of a scatter forward, half its time backward") {
  FrameworkOptions framework;
  const Models free(builtin_model("llama2-7b"), tensor_parallel(4), framework);
  framework.tp_overlap_sms = 16;  // of 132
  const Models held(builtin_model("llama2-7b"), tensor_parallel(4), framework);
  const Lists before = forward(free.costs, 4096), after = forward(held.costs, 4096);
  int scatters = 0;
  for (std::size_t i = 0, j = 0; i < before.after.size(); ++i, ++j) {
    const Op& was = before.after.ops()[i];
    if (was.name != OpName::tp_reduce_scatter) {
      CHECK(after.after.ops()[j].duration == was.duration);  // gathers go by copy engines
      continue;
    }
    // Three quarters under a product on 116 of 132 SMs, in four launches; the last quarter bare.
    const Op &hidden = after.after.ops()[j], &product = after.after.ops()[j + 1],
             &bare = after.after.ops()[j + 2];
    CHECK(bare.name == OpName::tp_reduce_scatter);
    CHECK(hidden.with_next);
    CHECK_FALSE(bare.with_next);
    CHECK(bare.duration == was.duration / 4);
    CHECK(hidden.duration + bare.duration == was.duration);
    CHECK(hidden.bytes + bare.bytes == was.bytes);
    CHECK(product.duration == before.after.ops()[i + 1].duration * 132 / 116);
    CHECK(product.launches == 4);
    ++scatters, ++i, j += 2;
  }
  CHECK(scatters == 2);
  // Backward: 132 blocks on 116 SMs are two waves, so half of the collective's time is lost.
  const Lists freely = backward(free.costs, 4096), taken = backward(held.costs, 4096);
  int under = 0;
  for (std::size_t i = 2; i < freely.before.size();
       ++i) {  // gather and input's product, scatter and weight's
    const Op* was = &freely.before.ops()[i - 2];
    const Op* now = &taken.before.ops()[i - 2];
    if (!was[2].with_next || was[2].name != OpName::tp_reduce_scatter) continue;
    CHECK(now[1].duration == was[1].duration + was[0].duration / 2);
    CHECK(now[3].duration == was[3].duration + was[2].duration / 2);
    ++under;
  }
  CHECK(under == 1);
}

TEST_CASE("An exchange's SMs are taken from what may run under it: 33 of 132 a quarter of its time") {
  Layout layout = tensor_parallel(1);
  layout.data = layout.expert = 8;
  FrameworkOptions framework;
  framework.exchange_sms = 33;
  // Blocks for each SM: 33 taken, two waves, half of the time lost; 128 of 132, 33 waves on 4 SMs.
  for (const auto& [sms, margin, lost] : {std::tuple{33, true, 0.25}, std::tuple{33, false, 0.5},
                                          std::tuple{128, false, 32.0 / 33}, std::tuple{0, false, 0.0}}) {
    framework.exchange_sms = sms;
    framework.exchange_sm_margin = margin;
    const Models models(builtin_model("deepseek-v2"), layout, framework);
    CHECK(static_cast<double>(models.costs.kernels.taken_sms(33'000'000).duration) ==
          doctest::Approx(lost * 33'000'000).epsilon(1e-12));
  }
  framework.exchange_sms = 33;
  framework.exchange_sm_margin = true;
  for (const ExpertOverlap overlap :
       {ExpertOverlap::none, ExpertOverlap::shared_expert, ExpertOverlap::deepep, ExpertOverlap::dualpipe}) {
    CAPTURE(name_of(overlap));
    framework.expert_overlap = overlap;
    const bool hides = overlap == ExpertOverlap::shared_expert || overlap == ExpertOverlap::dualpipe;
    framework.expert_dispatcher =
        overlap == ExpertOverlap::deepep ? ExpertDispatcher::deepep : ExpertDispatcher::all_to_all;
    const Models models(builtin_model("deepseek-v2"), layout, framework);
    for (const Lists& lists :
         {forward(models.costs, 4096, LayerKind::moe), backward(models.costs, 4096, LayerKind::moe)}) {
      int taken = 0;
      for (const OpList* list : {&lists.before, &lists.after})
        for (std::size_t i = 0; i < list->size(); ++i) {
          if (list->ops()[i].name != OpName::taken_sms) continue;
          ++taken;
          REQUIRE(i > 0);
          const Op& exchange = list->ops()[i - 1];
          CHECK(exchange.name == OpName::ep_all_to_all);
          CHECK(exchange.over >= 1);
          CHECK(list->ops()[i].duration == exchange.duration / 4);
          CHECK(list->ops()[i].launches == 0);
        }
      CHECK(taken == (hides ? 2 : 0));
    }
  }
}

TEST_CASE(
    "A router's small kernels take their launches, on the GPU and on the host; experts their own slowdown") {
  Layout layout = tensor_parallel(1);
  layout.data = layout.expert = 8;
  FrameworkOptions framework;
  const Models plain(builtin_model("deepseek-v2"), layout, framework);
  framework.routing_kernels = 25;
  framework.expert_gemm_slowdown = 1.5;
  const Models models(builtin_model("deepseek-v2"), layout, framework);
  const Lists without = forward(plain.costs, 4096, LayerKind::moe),
              with = forward(models.costs, 4096, LayerKind::moe);
  const HostOptions host;
  CHECK(launches_of(host, with.after.ops(), false).launches ==
        launches_of(host, without.after.ops(), false).launches + 25);
  CHECK(with.after.size() == without.after.size() + 1);
  const auto of = [](const Lists& lists, OpName name) {
    Picoseconds sum = 0;
    for (const Op& op : lists.after.ops()) sum += op.name == name ? op.duration : 0;
    return sum;
  };
  CHECK(of(with, OpName::routing) == to_picoseconds(25 * models.profile.device().launch_seconds));
  CHECK(static_cast<double>(of(with, OpName::expert_gemm)) ==
        doctest::Approx(1.5 * static_cast<double>(of(without, OpName::expert_gemm))).epsilon(1e-9));
  CHECK(of(with, OpName::down_gemm) == of(without, OpName::down_gemm));
}

TEST_CASE(
    "Experts' products on streams: as many at a time share the SMs, ten of their launches are one's time") {
  // 20 local experts, 3 streams: six times three and two together. 4096 x 6 copies: 1229 rows of an expert.
  Layout layout = tensor_parallel(1);
  layout.data = layout.expert = 8;
  FrameworkOptions framework;
  framework.expert_streams = 3;
  framework.gradient_bytes = 4;
  const Models models(builtin_model("deepseek-v2"), layout, framework);
  const GemmModel gemm(models.profile, Precision::bf16);
  RangeUse use;
  const auto together = [&](std::int64_t m, std::int64_t n, std::int64_t k, GemmRole role, double bytes) {
    return 6 * to_picoseconds(gemm.seconds(m, n, k, use, role, 3, bytes)) +
           to_picoseconds(gemm.seconds(m, n, k, use, role, 2, bytes));
  };
  const Lists there = forward(models.costs, 4096, LayerKind::moe),
              back = backward(models.costs, 4096, LayerKind::moe);
  std::vector<Op> products;
  for (const OpList* list : {&there.after, &back.before})
    for (const Op& op : list->ops())
      if (op.launches == 1 + 19 / 10) products.push_back(op);
  REQUIRE(products.size() == 6);
  CHECK(products[0].duration == together(1229, 3072, 5120, GemmRole::forward, 2));
  CHECK(products[1].duration == together(1229, 5120, 1536, GemmRole::forward, 2));
  CHECK(products[2].duration == together(1229, 1536, 5120, GemmRole::input_gradient, 2));
  CHECK(products[3].duration == together(1536, 5120, 1229, GemmRole::weight_gradient, 8));  // added in fp32
  CHECK(products[4].duration == together(1229, 5120, 3072, GemmRole::input_gradient, 2));
  CHECK(products[5].duration == together(5120, 3072, 1229, GemmRole::weight_gradient, 8));
}

TEST_CASE("Unfused kernels move every copy at each step of sorting and bringing back") {
  // 4096 tokens, 6 experts each: 24,576 copies of 5120 bf16 elements, as many arrive. Fused: 7 rows a token.
  // Unfused: 2 a copy there, 5 a copy and 1 a token back; their gradients 8 a copy, 3 a copy and 1 a token.
  Layout layout = tensor_parallel(1);
  layout.data = layout.expert = 8;
  const auto moved = [](const OpList& list) {
    std::vector<double> rows;
    for (const Op& op : list.ops())
      if (op.name == OpName::permute) rows.push_back(op.bytes / (4096 * 5120 * 2));
    return rows;
  };
  for (const bool fused : {true, false}) {
    CAPTURE(fused);
    FrameworkOptions framework;
    framework.permute_fusion = fused;
    const Models models(builtin_model("deepseek-v2"), layout, framework);
    using Rows = std::vector<double>;
    CHECK(moved(forward(models.costs, 4096, LayerKind::moe).after) ==
          (fused ? Rows{7, 12, 12, 7} : Rows{12, 12, 12, 31}));
    CHECK(moved(backward(models.costs, 4096, LayerKind::moe).before) ==
          (fused ? Rows{7, 12, 12, 7} : Rows{48, 12, 12, 19}));
    framework.expert_dispatcher = ExpertDispatcher::deepep;  // moves copies where they arrive only
    const Models deepep(builtin_model("deepseek-v2"), layout, framework);
    CHECK(moved(forward(deepep.costs, 4096, LayerKind::moe).after) == (fused ? Rows{12, 12} : Rows{12, 30}));
  }
}

TEST_CASE("A capacity sets what each expert computes, whatever the router's load, and no count is read") {
  Layout layout = tensor_parallel(1);
  layout.data = layout.expert = 8;
  FrameworkOptions framework;
  framework.expert_capacity_factor = 1.5;
  framework.expert_imbalance = 3;
  framework.host.waits_for_routes = true;
  const Models models(builtin_model("deepseek-v2"), layout, framework);
  double flops = 0;
  const Lists there = forward(models.costs, 4096, LayerKind::moe);
  for (const Op& op : there.after.ops()) {
    if (op.name == OpName::ep_all_to_all) CHECK(op.bytes == 1.5 * 4096 * 6 * 5120 * 2);
    if (op.name == OpName::expert_gemm) flops += op.flops;
  }
  CHECK(flops == doctest::Approx(2.0 * 20 * 1844 * 3 * 5120 * 1536));  // 36,864 copies: 1843.2 an expert
  CHECK(!models.costs.host().waits_for_routes);
}

TEST_CASE("A grouped kernel takes all products of a rank in one launch, at its own rates") {
  Layout layout = tensor_parallel(1);
  layout.data = layout.expert = 8;
  FrameworkOptions framework;
  framework.expert_kernel = "cutlass-grouped";
  framework.expert_streams = 4;
  const Models models(builtin_model("deepseek-v2"), layout, framework);
  const GemmModel grouped(models.profile, Precision::bf16, "cutlass-grouped");
  RangeUse use;
  std::vector<Op> products;
  const Lists of_layer = forward(models.costs, 4096, LayerKind::moe);
  for (const Op& op : of_layer.after.ops())
    if (op.name == OpName::expert_gemm) products.push_back(op);
  REQUIRE(products.size() == 2);
  CHECK(products[0].launches == 1);
  CHECK(products[0].duration ==
        to_picoseconds(grouped.seconds(1229, 3072, 5120, use, GemmRole::forward, 20)));
  framework.expert_kernel = "none-such";
  CHECK_THROWS_WITH_AS(Models(builtin_model("deepseek-v2"), layout, framework),
                       doctest::Contains("found \"none-such\""), UserError);
}

TEST_CASE("Experts of their own tensor parallelism: whole experts, fewer tokens, nothing gathered") {
  // TP 4, 4096 tokens: with etp 4 a rank computes a quarter of each expert for all 4096 x 6 copies, with etp
  // 1 whole experts for the 1024 x 6 copies of its own rows. 20 local experts: 307.2 -> 308 rows each.
  Layout layout = tensor_parallel(4);
  layout.data = 8;
  layout.expert = 8;
  layout.expert_tensor = 1;
  const Models models(builtin_model("deepseek-v2"), layout);
  const Lists lists = forward(models.costs, 4096, LayerKind::moe);
  double expert_flops = 0;
  bool before_exchange = true;
  for (const Op& op : lists.after.ops()) {
    if (op.name == OpName::ep_all_to_all) {
      CHECK(op.bytes == 1024.0 * 6 * 5120 * 2);
      before_exchange = false;
    }
    if (op.name == OpName::expert_gemm) {
      expert_flops += op.flops;
      CHECK(!before_exchange);
    }
    if (expert_flops == 0 && !before_exchange) CHECK(op.stream != Stream::tp);
  }
  CHECK(expert_flops == doctest::Approx(2.0 * 20 * 308 * 3 * 5120 * 1536));
}

TEST_CASE("The last stage's logits are n x V/t x h, its embedding's neighbours are small") {
  const ModelShape& model = builtin_model("llama3.1-8b");
  const Models models(model, tensor_parallel(8));
  OpList list;
  RangeUse use;
  models.costs.ends.head_forward(1000, list, use);
  CHECK(names_of(list) ==
        Names{"rms_norm", "tp_all_gather", "logits_gemm", "cross_entropy", "tp_reduce_scatter"});
  CHECK(list.ops()[2].flops == 2.0 * 1000 * 4096 * (128256 / 8));
  models.costs.ends.head_backward(1000, list, use);
  double back = 0;
  for (const Op& op : list.ops()) back += op.flops;
  CHECK(back == 2 * 2.0 * 1000 * 4096 * (128256 / 8));
  models.costs.ends.embedding(1000, false, list, use);
  CHECK(names_of(list) == Names{"embedding", "tp_reduce_scatter"});
  models.costs.ends.embedding(1000, true, list, use);
  CHECK(names_of(list) == Names{"tp_all_gather", "embedding"});
}

TEST_CASE("A loss moves what its kernels read and write of each bf16 logit, forward and backward") {
  struct Case {
    LossKind loss;
    double forward, backward;
  };
  // sum: copy to fp32 (2 + 4), read (4); one number in bf16 (2). mean-square: copy (6), difference (8),
  // square (8), mean (4); gradient (4), power (8), its double (8), product (12), cast back (6). pytorch: copy
  // (6), log_softmax (8); its gradients (4 + 12), cast back (6).
  for (const auto& [loss, forward_bytes, backward_bytes] :
       {Case{LossKind::fused, 10, 6}, Case{LossKind::unfused, 38, 14}, Case{LossKind::sum, 10, 2},
        Case{LossKind::mean, 10, 10}, Case{LossKind::mean_square, 26, 38}, Case{LossKind::pytorch, 14, 22}}) {
    const std::string name(kLossNames[at(loss)]);
    CAPTURE(name);
    FrameworkOptions framework;
    framework.loss = loss;
    const Models models(builtin_model("llama3.1-8b"), tensor_parallel(8), framework);
    OpList list;
    RangeUse use;
    models.costs.ends.head_forward(1000, list, use);
    CHECK(bytes_of(list, OpName::cross_entropy) == 1000 * (128256.0 / 8) * forward_bytes);
    const bool normalised = at(loss) < 2 || loss == LossKind::pytorch;  // over TP ranks
    CHECK(bytes_of(list, OpName::tp_reduce_scatter) == (normalised ? 3 * 1000 * 4.0 : 0.0));
    models.costs.ends.head_backward(1000, list, use);
    CHECK(bytes_of(list, OpName::cross_entropy) == 1000 * (128256.0 / 8) * backward_bytes);
  }
}

TEST_CASE("A chunked loss makes logits and their gradients chunk by chunk, in the forward") {
  // 128,256 columns are 32 times 4,096, so that a chunk is the power of two above 5,000 / 32: 256 tokens, 20
  // chunks, the last one of 136. With 16,032 columns a rank: above 5,000 / 4, 2,048.
  CHECK(tokens_with_logits(LossKind::chunked, 5000, 128256, 4096) == 256);
  CHECK(tokens_with_logits(LossKind::chunked, 5000, 16032, 4096) == 2048);
  CHECK(tokens_with_logits(LossKind::chunked, 100, 32000, 4096) == 16);
  CHECK(tokens_with_logits(LossKind::chunked, 100, 2000, 4096) == 100);
  CHECK(tokens_with_logits(LossKind::fused, 5000, 128256, 4096) == 5000);
  FrameworkOptions framework;
  const Models whole(builtin_model("llama3.1-8b"), tensor_parallel(1), framework);
  framework.loss = LossKind::chunked;
  framework.gradient_add_bytes = 10;
  const Models models(builtin_model("llama3.1-8b"), tensor_parallel(1), framework);
  OpList list, other;
  RangeUse use;
  const auto sum = [](const OpList& ops, double Op::*of) {
    double all = 0;
    for (const Op& op : ops.ops()) all += op.*of;
    return all;
  };
  models.costs.ends.head_forward(5000, list, use);
  CHECK(names_of(list) ==
        Names{"rms_norm", "logits_gemm", "cross_entropy", "input_gradient", "weight_gradient"});
  CHECK(bytes_of(list, OpName::cross_entropy) == doctest::Approx(5000 * 128256.0 * 3 * 2));
  CHECK(sum(list, &Op::flops) == doctest::Approx(3 * 2.0 * 5000 * 4096 * 128256));
  CHECK(list.ops()[1].launches == 20);
  // The same products as without chunks, which then begin with the backward.
  models.costs.ends.head_backward(5000, list, use);
  CHECK(names_of(list) == Names{"cross_entropy", "rms_norm"});
  CHECK(sum(list, &Op::flops) == 0);
  CHECK(list.ops()[0].bytes == 2 * 5000 * 4096 * 2.0 + 128256 * 4096.0 * (2 * 2 + 10));
  whole.costs.ends.head_forward(5000, list, use);
  whole.costs.ends.head_backward(5000, other, use);
  CHECK(sum(list, &Op::flops) + sum(other, &Op::flops) == doctest::Approx(3 * 2.0 * 5000 * 4096 * 128256));
}

TEST_CASE("RoPE and the gated activation as PyTorch's own kernels move more of each element") {
  FrameworkOptions eager;
  eager.fused_rope = eager.fused_activation = false;
  const Models fused(builtin_model("llama3.1-8b"), tensor_parallel(8));
  const Models unfused(builtin_model("llama3.1-8b"), tensor_parallel(8), eager);
  // 4 + 1 heads of 128, read and written once; or 14 times, and cosine and sine twice, of 5 fp32 and a bf16
  // each.
  const Lists once = forward(fused.costs, 1000), often = forward(unfused.costs, 1000);
  CHECK(bytes_of(once.before, OpName::rope) == 1000 * 128 * 5 * 2 * 2.0);
  CHECK(bytes_of(often.before, OpName::rope) == 1000 * 128 * (5 * 14 * 2 + 2 * 2 * (5 * 4 + 2.0)));
  // 1,792 of 14,336 columns: gate, up and product; or gate, silu(gate), and those two with up and product.
  CHECK(bytes_of(once.after, OpName::activation) == 1000 * 1792 * 3 * 2.0);
  CHECK(bytes_of(often.after, OpName::activation) == 1000 * 1792 * 5 * 2.0);
  const Lists back = backward(fused.costs, 1000), slow = backward(unfused.costs, 1000);
  CHECK(bytes_of(back.before, OpName::activation) == 1000 * 1792 * 5 * 2.0);
  CHECK(bytes_of(slow.before, OpName::activation) == 1000 * 1792 * 13 * 2.0);
  // An expert's, too: the busiest rank's copies, 5 for 3.
  const Models sparse(builtin_model("deepseek-v2"), tensor_parallel(1)),
      eager_sparse(builtin_model("deepseek-v2"), tensor_parallel(1), eager);
  CHECK(3 * bytes_of(forward(eager_sparse.costs, 1024, LayerKind::moe).after, OpName::activation) ==
        5 * bytes_of(forward(sparse.costs, 1024, LayerKind::moe).after, OpName::activation));
  CHECK(bytes_of(slow.after, OpName::rope) == 8 * bytes_of(back.after, OpName::rope));
}

TEST_CASE("RoPE that is not fused has kernels for each document, each of a kernel's least time") {
  FrameworkOptions eager;
  eager.fused_rope = false;
  const Models models(builtin_model("llama3.1-8b"), tensor_parallel(8), eager);
  const auto rope = [&](std::int64_t documents, bool back) {
    OpList before, after;
    RangeUse use;
    if (back)
      models.costs.layers.backward(LayerKind::dense, 1000, {}, before, after, use, documents);
    else
      models.costs.layers.forward(LayerKind::dense, 1000, {}, before, after, use, documents);
    for (const Op& op : (back ? after : before).ops())
      if (op.name == OpName::rope) return op;
    return Op{};
  };
  // For Q and for K, forward: 4 kernels once and 12 a document; backward: 1 and 7.
  CHECK(rope(1, false).kernels == 2 * (4 + 12));
  CHECK(rope(5, false).kernels == 2 * (4 + 5 * 12));
  CHECK(rope(5, true).kernels == 2 * (1 + 5 * 7));
  RangeUse unused;
  const double least = models.costs.kernels.elementwise().seconds(Elementwise::rope, 1, unused);
  CHECK(to_seconds(rope(5, false).duration - rope(1, false).duration) ==
        doctest::Approx(96 * least).epsilon(1e-6));
  CHECK(to_seconds(rope(5, true).duration - rope(1, true).duration) ==
        doctest::Approx(56 * least).epsilon(1e-6));
  // The host issues each behind lengths that it has read; from a graph it could not.
  HostOptions host;
  host.launches.forward[at(OpName::rope)] = 4;
  const Op fives[] = {rope(5, false)};
  CHECK(launches_of(host, fives, false).launches == 128);
  CHECK(behind_lengths(host, fives).launches == 128);
  host.graphs = Graphs::layer;
  CHECK(behind_lengths(host, fives).launches == 0);
}

TEST_CASE("RoPE of a batch that is not fused has the kernels of one call, and reads no lengths") {
  FrameworkOptions eager;
  eager.fused_rope = eager.rope_by_document = false;
  const Models models(builtin_model("llama3.1-8b"), tensor_parallel(8), eager);
  OpList before, after;
  RangeUse use;
  models.costs.layers.forward(LayerKind::dense, 1000, {}, before, after, use, 4);
  const auto rope = std::ranges::find(before.ops(), OpName::rope, &Op::name);
  CHECK(rope->kernels == 2 * 12);
  CHECK(behind_lengths(HostOptions{}, before.ops()).launches == 0);
  models.costs.layers.backward(LayerKind::dense, 1000, {}, before, after, use, 4);
  CHECK(std::ranges::find(after.ops(), OpName::rope, &Op::name)->kernels == 2 * 7);
}

TEST_CASE("A kernel that adds a gradient to the sum moves ten bytes of each weight behind its product") {
  FrameworkOptions adds;
  adds.gradient_add_bytes = 10;
  const Models fused(builtin_model("llama3.1-8b"), tensor_parallel(8));
  const Models apart(builtin_model("llama3.1-8b"), tensor_parallel(8), adds);
  const Lists one = backward(fused.costs, 1000), two = backward(apart.costs, 1000);
  // QKV: 768 x 4,096, alone behind attention's backward.
  constexpr double kMoved = 10.0 * 768 * 4096;
  CHECK(bytes_of(two.after, OpName::weight_gradient) - bytes_of(one.after, OpName::weight_gradient) ==
        kMoved);
  RangeUse use;
  const Picoseconds more = run_time(two.after.ops()).busy[at(Stream::compute)] -
                           run_time(one.after.ops()).busy[at(Stream::compute)];
  CHECK(to_seconds(more) ==
        doctest::Approx(apart.costs.kernels.elementwise().seconds(Elementwise::copy, kMoved, use)));
  CHECK(flops(two) == flops(one));
}

TEST_CASE("K and V of a token: replicated when there are fewer KV heads than TP ranks") {
  // 8 KV heads of 128, K and V, 2 bytes: 4096 bytes a token; TP 4 holds a quarter; TP 8 an eighth; TP 16 one
  // head all the same.
  const ModelShape& model = builtin_model("llama3.1-8b");
  CHECK(Models(model, tensor_parallel(1)).costs.kv_bytes_per_token() == 4096);
  CHECK(Models(model, tensor_parallel(4)).costs.kv_bytes_per_token() == 1024);
  CHECK(Models(model, tensor_parallel(8)).costs.kv_bytes_per_token() == 512);
  CHECK(Models(model, tensor_parallel(16)).costs.kv_bytes_per_token() == 512);
}

TEST_CASE(
    "The host stalls a pass by what its kernels are too short for, less the queue that the last one left") {
  // 3 launches at 10 each take the host 30. A GPU that is busy for 12 waits 18; with 15 queued it waits 3.
  CHECK(stall_of({3, 30, 12}) == 18);
  CHECK(stall_of({3, 30, 12}, 15) == 3);
  CHECK(stall_of({3, 30, 30}) == 0);
  CHECK(stall_of({3, 30, 12}, 50) == 0);
  // A pass of 2 launches and 50 lets the host get 30 ahead, unless the queue is full before: over 600 layers
  // 1024 of 1200 launches of 25 each, of which 1024 / 600 layers' worth is left for one: 25600 / 600 = 42
  // > 30. Over 2000 layers it holds 1024 x (50 / 4000) = 12.
  CHECK(lead_after({2, 20'000, 50'000}, 600) == 30'000);
  CHECK(lead_after({2, 20'000, 50'000}, 2000) == 50'000 / 4000 * 1024);
  CHECK(lead_after({2, 20'000, 15'000}, 1) == 0);  // the host is behind
  CHECK(lead_after({}, 1) == 0);
}

TEST_CASE("A layer has the launches of its framework; CUDA graphs take out what they cover") {
  HostOptions host;
  host.launches.forward[at(OpName::rms_norm)] = 7;
  host.launches.backward[at(OpName::rms_norm)] = 12;
  host.launches.forward[at(OpName::attention)] = 4;
  host.launches.backward[at(OpName::attention)] = 5;
  const Models models(builtin_model("llama3.1-8b"), tensor_parallel(1));
  const Lists there = forward(models.costs, 4096, LayerKind::dense),
              back = backward(models.costs, 4096, LayerKind::dense);
  // Forward: norm, projection and rotary embedding | output, residual | norm, two products, activation |
  // residual.
  CHECK(launches_of(host, there.before.ops(), false).launches == 7 + 2);
  CHECK(launches_of(host, there.after.ops(), false).launches == 2 + 7 + 3 + 1);
  // Backward: two products of each of the FFN's two, activation | norm, residual, two products | rotary
  // embedding, two products, norm, residual.
  CHECK(launches_of(host, back.before.ops(), true).launches == 5 + 12 + 1 + 2);
  CHECK(launches_of(host, back.after.ops(), true).launches == 1 + 2 + 12 + 1);
  CHECK(attention_launches(host, false, 1).launches == 4);
  CHECK(attention_launches(host, true, 2).launches == 5 + 4);  // selective recompute
  host.graphs = Graphs::attention;                    // the FFN with its norm stays
  CHECK(launches_of(host, there.before.ops(), false).launches == 0);
  CHECK(launches_of(host, there.after.ops(), false).launches == 7 + 3);
  CHECK(launches_of(host, back.before.ops(), true).launches == 5 + 12);
  CHECK(attention_launches(host, true, 2).launches == 1);
  host.graphs = Graphs::layer;
  CHECK((launches_of(host, there.after.ops(), false) + attention_launches(host, false, 1)).launches == 1);
  host.graphs = Graphs::full;
  CHECK((launches_of(host, there.after.ops(), false) + attention_launches(host, false, 1)).launches == 0);
}

TEST_CASE(
    "A graph of the router takes its norm and its kernels out of an expert layer; a dense layer keeps its "
    "norm") {
  FrameworkOptions framework;
  framework.routing_kernels = 25;
  const Models models(builtin_model("deepseek-v2"), tensor_parallel(1), framework);
  HostOptions host;
  host.launches.forward[at(OpName::rms_norm)] = 7;
  host.launches.backward[at(OpName::rms_norm)] = 12;
  const auto launches = [&](LayerKind kind, bool graphs, bool in_backward) {
    host.router_graphs = graphs;
    return in_backward ? launches_of(host, backward(models.costs, 1024, kind).before.ops(), true).launches
                       : launches_of(host, forward(models.costs, 1024, kind).after.ops(), false).launches;
  };
  const auto less = [&](LayerKind kind, bool in_backward) {
    return launches(kind, false, in_backward) - launches(kind, true, in_backward);
  };
  // The norm's 7, the router's product and its 25 kernels become one launch. In the backward the norm's are
  // 12 and the router has two products.
  CHECK(less(LayerKind::moe, false) == 7 + 1 + 25 - 1);
  CHECK(less(LayerKind::moe, true) == 12 + 2 + 25 - 1);
  for (const bool in_backward : {false, true}) CHECK(less(LayerKind::dense, in_backward) == 0);
  // A backward pass that recomputes the router replays two graphs.
  const Op recomputed[] = {{.name = OpName::router, .again = true, .ffn = true},
                           {.name = OpName::router, .ffn = true}};
  CHECK(launches_of(host, recomputed, true).launches == 2);
}

TEST_CASE("Kernels of PyTorch's own functions take the host their own time, but never more than a launch") {
  const Op ops[] = {{.name = OpName::rope, .kernels = 10},
                    {.name = OpName::expert_bias, .kernels = 5},
                    {.name = OpName::activation}};
  HostOptions host;
  host.seconds_per_launch = 7e-5;
  const auto microseconds = [&] { return 1e6 * to_seconds(launches_of(host, ops, false).host); };
  CHECK(microseconds() == doctest::Approx(16 * 70));
  host.seconds_per_kernel = 2e-5;
  CHECK(microseconds() == doctest::Approx(15 * 20 + 70));
  host.seconds_per_kernel = 0;
  CHECK(microseconds() == doctest::Approx(70));
  host.seconds_per_kernel = 2e-5;
  host.seconds_per_launch = 1e-5;
  CHECK(microseconds() == doctest::Approx(16 * 10));
  host.by_op = true;
  CHECK(microseconds() == doctest::Approx(3 * 10));
}

TEST_CASE("A host that waits at every hop of the pipeline brings no lead along; one that never waits does") {
  FrameworkOptions framework;
  framework.host.seconds_per_launch = 1e-8;  // 10,000 ps
  for (const bool waits : {false, true})
    for (const int stages : {1, 2}) {
      framework.host.waits_at_hops = waits;
      Layout layout = tensor_parallel(1);
      layout.pipeline = stages;
      const Models models(builtin_model("llama3.1-8b"), layout, framework);
      // 30,000 of the host for 12,000 of the GPU; the backward before it let the host get 15,000 ahead.
      CHECK(models.costs.stalls.for_host(LayerKind::dense, {3, 30'000, 12'000}, {2, 20'000, 35'000}) ==
            (waits && stages > 1 ? 18'000 : 3'000));
    }
}

TEST_CASE("One norm before attention and FFN runs once, and is kept once") {
  ModelShape m = builtin_model("llama3.1-8b");
  const Models two(m, Layout{});
  m.parallel_ffn = m.one_norm = true;
  const Models one(m, Layout{});
  for (const bool backward : {false, true}) {
    CHECK(ops_of_pass(two, LayerKind::dense, 1024, backward, OpName::rms_norm).size() == 2);
    CHECK(ops_of_pass(one, LayerKind::dense, 1024, backward, OpName::rms_norm).size() == 1);
  }
  const auto kept = [](const Models& models) {
    return kept_bytes(models.costs.model(), Layout{}, {}, LayerKind::dense);
  };
  // The norm's input and its output in bf16, and its statistic.
  CHECK(kept(two) - kept(one) == 2 * 4096 * 2 + norm_of(m.norm).kept_row_bytes);
  Layout repeats;
  repeats.recompute = Recompute::modules;
  repeats.recompute_modules = module_bit(RecomputeModule::layernorm);
  CHECK(ops_of_pass(Models(m, repeats), LayerKind::dense, 1024, true, OpName::rms_norm).size() == 2);
  // Two norms of one input keep it once.
  m.one_norm = false;
  CHECK(kept(two) - kept(Models(m, Layout{})) == 4096 * 2);
}
