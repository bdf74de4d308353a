// What an exchange between experts puts on the wires, for each way and dispatcher.
#include <doctest/doctest.h>

#include "policies/base/error.h"
#include "profiler/profile/collective.h"
#include "sim/cost/expert_exchange.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

Layout experts_on(int ranks) {
  Layout layout;
  layout.data = ranks;
  layout.expert = ranks;
  layout.recompute = Recompute::none;
  return layout;
}

FrameworkOptions deepep() {
  FrameworkOptions framework;
  framework.expert_dispatcher = ExpertDispatcher::deepep;
  return framework;
}

Op exchange(const Models& models, const FrameworkOptions& framework, ExchangeWay way, double tokens = 4096,
            double load = 1) {
  RangeUse use;
  const LayerCosts& costs = models.costs;
  return expert_exchange(
      {costs.model(), framework, costs.grid().shape(Axis::expert), 2, costs.kernels.collectives()}, tokens,
      load, way, use);
}

}  // namespace

TEST_CASE("All-to-all: every copy is in the buffer, FP8 halves the way to the experts and not the way back") {
  const Models models(builtin_model("deepseek-v3"), experts_on(64));
  const double copies = 4096.0 * 8 * 7168;
  FrameworkOptions framework;
  CHECK(exchange(models, framework, ExchangeWay::to_experts).bytes == copies * 2);
  CHECK(exchange(models, framework, ExchangeWay::back).bytes == copies * 2);
  framework.dispatch_bytes = 1;
  CHECK(exchange(models, framework, ExchangeWay::to_experts).bytes == copies);
  CHECK(exchange(models, framework, ExchangeWay::back).bytes == copies * 2);
  CHECK(exchange(models, framework, ExchangeWay::back, 4096, 1.5).bytes == copies * 3);
  // Every copy is sent wherever its expert is: a limit of nodes changes nothing here.
  framework.expert_nodes = 4;
  CHECK(exchange(models, framework, ExchangeWay::back).bytes == copies * 2);
}

TEST_CASE("DeepEP crosses the network once a node: 4 of 8 nodes, 7 of 8 of them not at home") {
  const Models models(builtin_model("deepseek-v3"), experts_on(64));
  FrameworkOptions framework = deepep();
  framework.expert_nodes = 4;
  const Op op = exchange(models, framework, ExchangeWay::back);
  // 3.5 crossings a token, as an all-to-all of 4 copies of which 56 / 64 leave the node.
  CHECK(op.bytes == doctest::Approx(4096.0 * 7168 * 2 * 4));
  RangeUse use;
  const GroupShape group = models.grid.shape(Axis::expert);
  const ExchangeLoad load = forwarded_load(routed_token({256, 8, group, 8, 4}), group, 4096.0 * 7168 * 2);
  CHECK(load.network_bytes == doctest::Approx(4096.0 * 7168 * 2 * 3.5));
  CHECK(op.duration ==
        to_picoseconds(models.costs.kernels.collectives().forwarded_seconds(load, group, use)));
  CHECK(use.calls == 1);
  // Twice the tokens, FP8: the same bytes.
  framework.dispatch_bytes = 1;
  CHECK(exchange(models, framework, ExchangeWay::to_experts, 8192).bytes == doctest::Approx(op.bytes));
  // What the model's router does is what counts unless a study says otherwise: its 8 groups are the nodes.
  framework.expert_nodes = 0;
  CHECK(exchange(models, framework, ExchangeWay::back).duration == op.duration);
  // Without the limit there are more nodes to reach; all-to-all sends eight copies, 7 of 8 off the node.
  framework.expert_nodes = 8;
  const Op any = exchange(models, framework, ExchangeWay::back);
  CHECK(any.bytes > op.bytes);
  const Op every_copy = exchange(models, FrameworkOptions{}, ExchangeWay::back);
  CHECK(any.bytes < every_copy.bytes);
  CHECK(op.duration < any.duration);
  CHECK(any.duration < every_copy.duration);
}

TEST_CASE("A layer exchanges there and back in both passes, FP8 on the first way of each") {
  FrameworkOptions framework;
  framework.dispatch_bytes = 1;
  const Models models(builtin_model("deepseek-v2"), experts_on(8), framework);
  for (const bool backward : {false, true}) {
    std::vector<double> bytes;
    for (const Op& op : ops_of_pass(models, LayerKind::moe, 4096, backward, OpName::ep_all_to_all))
      bytes.push_back(op.bytes);
    CHECK(bytes == std::vector<double>{4096.0 * 6 * 5120, 4096.0 * 6 * 5120 * 2});
  }
}

TEST_CASE("A library's own loop over experts leaves their bias to the framework, a grouped kernel does not") {
  // Four tokens of GPT-OSS-20B on 8 of 32 experts: 16 copies, of which 4 x 4 arrive, each 2,880 wide. Forward
  // 28 bytes an element and 2 kernels for each expert and 2 for all, backward 40 bytes, 8 and 2.
  FrameworkOptions framework;
  for (const int streams : {0, 4}) {
    framework.expert_streams = streams;
    const Models models(builtin_model("gpt-oss-20b"), experts_on(4), framework);
    for (const bool backward : {false, true}) {
      std::vector<std::pair<double, std::uint32_t>> biases;
      for (const Op& op : ops_of_pass(models, LayerKind::moe, 4, backward, OpName::expert_bias))
        biases.emplace_back(op.bytes, op.kernels);
      if (streams == 0)
        CHECK(biases.empty());
      else
        CHECK(biases == std::vector<std::pair<double, std::uint32_t>>{
                            {16.0 * 2880 * (backward ? 40 : 28), backward ? 66 : 18}});
    }
  }
}

TEST_CASE("The bias of experts that do not train has no gradient of its own") {
  FrameworkOptions framework;
  framework.expert_streams = 4;
  ModelShape model = builtin_model("gpt-oss-20b");
  const auto kernels_with = [&](std::uint32_t frozen, double bytes) {
    model.training.frozen = frozen;
    const Models models(model, experts_on(4), framework);
    const auto biases = ops_of_pass(models, LayerKind::moe, 4, true, OpName::expert_bias);
    REQUIRE(biases.size() == 1);
    CHECK(biases[0].bytes == 16.0 * 2880 * bytes);
    return biases[0].kernels;
  };
  // A trained bias has a product, its sum and what is added to the gradient; the first product's only that.
  CHECK(kernels_with(bit_of(WeightKind::fc2) | bit_of(WeightKind::fc1), 28) == 8 * 4 + 2);
  CHECK(kernels_with(bit_of(WeightKind::fc2), 28) == 8 * 5 + 2);
  CHECK(kernels_with(bit_of(WeightKind::fc1), 40) == 8 * 7 + 2);
}

TEST_CASE("GPT-OSS's experts clamp gate and up in kernels of PyTorch, unless a product's epilogue does") {
  // 16 copies of 2 x 2,880 elements: 8 bytes each and 4 kernels forward, 15 and 7 backward.
  FrameworkOptions framework;
  framework.expert_streams = 4;
  framework.host.graphs = Graphs::layer;  // a graph has the kernels, too
  for (const bool fused : {false, true}) {
    framework.fused_expert_activation = fused;
    const Models models(builtin_model("gpt-oss-20b"), experts_on(4), framework);
    for (const bool backward : {false, true}) {
      double bytes = 0;
      std::uint32_t kernels = 0;
      for (const Op& op : ops_of_pass(models, LayerKind::moe, 4, backward, OpName::activation))
        if (op.kernels > 0) bytes += op.bytes, kernels += op.kernels;
      CHECK(bytes == (!fused ? 16.0 * 2 * 2880 * (backward ? 15 : 8) : 0));
      CHECK(kernels == (!fused ? backward ? 7U : 4U : 0U));
    }
  }
}

TEST_CASE("A profile without DeepEP's times says so") {
  // Two processes on CPUs: no such kernels.
  const Profile profile = Profile::load(std::string(EQUIPOISE_SOURCE_DIR) + "/profiler/profiles/cpu.json");
  const Models models(builtin_model("deepseek-v2"), experts_on(8));
  const CollectiveModel none(profile, NetworkRates{});
  RangeUse use;
  const FrameworkOptions framework = deepep();
  const ExpertGroup group{models.costs.model(), framework, {8, 8}, 2, none};
  CHECK_THROWS_WITH_AS((void)expert_exchange(group, 16, 1, ExchangeWay::back, use),
                       doctest::Contains("has no times of DeepEP"), UserError);
}
