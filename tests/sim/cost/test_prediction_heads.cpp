// The head of a model with as many modules of multi-token prediction as a study may have.
#include <doctest/doctest.h>

#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

TEST_CASE(
    "All modules of multi-token prediction that a study may have fit into a list of ops, whatever the loss") {
  for (std::size_t loss = 0; loss < std::size(kLossNames); ++loss)
    for (const Precision precision : {Precision::bf16, Precision::fp8}) {
      CAPTURE(kLossNames[loss]);
      ModelShape model = builtin_model("deepseek-v3");
      model.mtp_layers = 16;
      Layout layout;
      layout.tensor = 8;
      layout.precision = precision;
      FrameworkOptions framework;
      framework.loss = static_cast<LossKind>(loss);
      const Models models(model, layout, framework);
      OpList forward, backward;
      RangeUse use;
      models.costs.ends.head_forward(4096, forward, use);
      models.costs.ends.head_backward(4096, backward, use);
      CAPTURE(forward.size());
      CAPTURE(backward.size());
      double flops = 0;
      for (const OpList* list : {&forward, &backward})
        for (const Op& op : list->ops()) flops += op.flops;
      // 17 heads, and 16 products of two rows' width and a rank's columns, each with both gradients.
      const double head = 2.0 * 4096 * 7168 * (129280 / 8), input = 2.0 * 4096 * 2 * 7168 * (7168 / 8);
      CHECK(flops == doctest::Approx(3 * (17 * head + 16 * input)));
    }
}
