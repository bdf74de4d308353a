// The order over a virtual stage: what happens to which part, in which order.
#include <doctest/doctest.h>

#include <string>

#include "sim/step/part_order.h"
#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

char letter_of(ModelPart part) {
  return part == ModelPart::embedding ? 'E' : part == ModelPart::head ? 'H' : 'L';
}

// "gE" gathers the embedding's parameters, "." waits, "L2:1" runs two layers from number 1 on, "=3" says that
// the gradients of bucket 3 are there.
struct Text {
  std::string& text;
  bool gradients = true;
  void gather(ModelPart part) const { add({'g', letter_of(part)}); }
  void wait() const { add("."); }
  void work(const OrderedPart& part) const {
    std::string what(1, letter_of(part.part));
    if (is_layer(part.part))
      what.append(std::to_string(part.layers)).append(":").append(std::to_string(part.first));
    add(what);
  }
  void done(const OrderedPart& part) const {
    if (gradients) text.append("=").append(std::to_string(part.bucket));
  }
  void add(const std::string& what) const {
    if (!text.empty()) text += ' ';
    text += what;
  }
};

std::string told(const PartOrder& order, bool layer_by_layer, bool gradients = true) {
  std::string text;
  each_part(order, layer_by_layer, Text{text, gradients});
  return text;
}

Layout layout_of(int pipeline, int zero) {
  Layout layout;
  layout.data = 2;
  layout.pipeline = pipeline;
  layout.zero = zero;
  return layout;
}

}  // namespace

TEST_CASE("a stage runs its layers between the model's ends, and backwards the other way") {
  const PartOrders orders(model_of(4), layout_of(2, 1));
  CHECK(told(orders.forward(0), false, false) == "E L2:0");
  CHECK(told(orders.forward(1), false, false) == "L2:0 H");
  CHECK(told(orders.backward(0), false) == "L2:0=0 E=2");
  CHECK(told(orders.backward(1), false) == "H=0 L2:0=1");
  CHECK(told(orders.backward(1), true) == "H=0 L1:1=1 L1:0=2");
  // The ends' gradients are made by the input half and leave behind the layers'.
  CHECK(told(orders.weights(1), true) == "L1:1=1 L1:0=2 H=0");
}

TEST_CASE("ZeRO-3 gathers the next part's parameters under the one at work, which waits for them") {
  const PartOrders orders(model_of(2), layout_of(1, 3));
  CHECK(told(orders.forward(0), true, false) == "gE . gL E . gL L1:0 . gH L1:1 . H");
  // The embedding's backward needs no parameters; every part waits for the reductions before it.
  CHECK(told(orders.backward(0), true) == "gH . gL H .=0 gL L1:1 .=1 L1:0 .=2 E .=3");
  CHECK(told(orders.weights(0), true) == "L1:1 .=1 L1:0 .=2 H=0 E=3");
}

TEST_CASE("of a run of layers, the stage's first are recomputed") {
  OrderedPart run;
  run.first = 2;
  run.layers = 3;  // 2, 3, 4
  CHECK(run.recomputed_of(1) == 0);
  CHECK(run.recomputed_of(3) == 1);
  CHECK(run.recomputed_of(9) == 3);
}
