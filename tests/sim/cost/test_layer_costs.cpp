// The op inventory of a dense layer, and that its GEMMs do the model's arithmetic.
#include <doctest/doctest.h>

#include <algorithm>

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
  costs.forward_ops(kind, tokens, lists.before, lists.after, use);
  return lists;
}

Lists backward(const LayerCosts& costs, std::int64_t tokens, LayerKind kind = LayerKind::dense) {
  Lists lists;
  RangeUse use;
  costs.backward_ops(kind, tokens, lists.before, lists.after, use);
  return lists;
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
    CHECK(static_cast<double>(models.costs.taken_sms(33'000'000).duration) ==
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
  CHECK(with.after.launches() == without.after.launches() + 25);
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

TEST_CASE("Experts' products on streams: as many at a time share the SMs, each is a launch") {
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
      if (op.launches == 20) products.push_back(op);
  REQUIRE(products.size() == 6);
  CHECK(products[0].duration == together(1229, 3072, 5120, GemmRole::forward, 2));
  CHECK(products[1].duration == together(1229, 5120, 1536, GemmRole::forward, 2));
  CHECK(products[2].duration == together(1229, 1536, 5120, GemmRole::input_gradient, 2));
  CHECK(products[3].duration == together(1536, 5120, 1229, GemmRole::weight_gradient, 8));  // added in fp32
  CHECK(products[4].duration == together(1229, 5120, 3072, GemmRole::input_gradient, 2));
  CHECK(products[5].duration == together(5120, 3072, 1229, GemmRole::weight_gradient, 8));
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
  models.costs.head_forward_ops(1000, list, use);
  CHECK(names_of(list) ==
        Names{"rms_norm", "tp_all_gather", "logits_gemm", "cross_entropy", "tp_reduce_scatter"});
  CHECK(list.ops()[2].flops == 2.0 * 1000 * 4096 * (128256 / 8));
  models.costs.head_backward_ops(1000, list, use);
  double back = 0;
  for (const Op& op : list.ops()) back += op.flops;
  CHECK(back == 2 * 2.0 * 1000 * 4096 * (128256 / 8));
  models.costs.embedding_ops(1000, false, list, use);
  CHECK(names_of(list) == Names{"embedding", "tp_reduce_scatter"});
  models.costs.embedding_ops(1000, true, list, use);
  CHECK(names_of(list) == Names{"tp_all_gather", "embedding"});
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

TEST_CASE("The host stalls a layer only by what its kernels are too short for") {
  const Models models(builtin_model("llama3.1-8b"), tensor_parallel(1));
  const Picoseconds each = to_picoseconds(models.profile.device().framework_seconds_per_op);
  REQUIRE(each > 0);
  CHECK(models.costs.host_stall(10, 4 * each) == 6 * each);
  CHECK(models.costs.host_stall(10, 10 * each) == 0);
  CHECK(models.costs.host_stall(10, 50 * each) == 0);
}
