// Activations that go to the host's memory and back: what passes wait for, and what stays on the GPU.
#include <doctest/doctest.h>

#include "tests/sim/models.h"

using namespace equipoise;
using namespace equipoise::testing;

namespace {

// A layer keeps 1,800 bytes of a token of model_of(1) (test_training.cpp): 7,372,800 of 4,096 tokens.
constexpr double kKept = 1800;

Layout offloading(double share, double link_GBps, int context = 1) {
  Layout layout;
  layout.context = context;
  layout.activation_offload = share;
  layout.host_link_GBps = link_GBps;
  return layout;
}

struct Passes {
  Picoseconds forward, backward, input;
};

Passes passes_of(const Layout& layout) {
  const Models models(model_of(1), layout);
  const ShardRule rule = shard_by("per-sequence");
  MicroBatchCoster coster(models.costs, rule);
  MicroBatchCost cost;
  coster.cost(documents({4096}), layout.context, cost);
  const auto ends = [&](const LayerTimeline& timeline) {
    std::vector<Picoseconds> clock(at(layout.context), 0);
    advance(timeline, 1, clock);
    return *std::max_element(clock.begin(), clock.end());
  };
  return {ends(cost.forward[0]), ends(cost.backward[0]), ends(cost.input_gradient[0])};
}

}  // namespace

TEST_CASE(
    "Copies hide under a layer's own time, and where they take longer each pass takes as long as they do") {
  const Passes without = passes_of(Layout());
  const Passes fast = passes_of(offloading(1, 10000));
  CHECK(fast.forward == without.forward);
  CHECK(fast.backward == without.backward);
  // Half of 7,372,800 bytes at 0.1 GB/s: 36.864 ms, far above what the layer takes.
  const Passes slow = passes_of(offloading(0.5, 0.1));
  CHECK(without.backward < 36'864'000'000);
  CHECK(slow.forward == 36'864'000'000);
  CHECK(slow.backward == 36'864'000'000);
  CHECK(slow.input == 36'864'000'000);  // the half of a backward that the next stage waits for
}

TEST_CASE("Passes only get longer with the share and with a slower link, never by more than the copy takes") {
  for (const int context : {1, 2, 4}) {
    Picoseconds last = 0;
    for (const double share : {0.0, 0.1, 0.5, 1.0}) {
      const Passes passes = passes_of(offloading(share, 20, context));
      const double copy = share * kKept * 4096 / context / 20e9 * 1e12;
      CHECK(passes.forward >= last);
      last = passes.forward;
      CHECK(as_double(passes.forward - passes_of(offloading(0, 20, context)).forward) <= copy + 1);
      CHECK(as_double(passes.forward) >= copy - 1);
      CHECK(passes_of(offloading(share, 5, context)).backward >= passes.backward);
    }
  }
}

TEST_CASE("What is offloaded is held for the layer at work and for the one whose copy is under way") {
  const auto footprint = [](double share) {
    const Models models(model_of(3), offloading(share, 50));
    const std::vector<MicroBatch> batches = {documents({4096})};
    const std::vector<std::int64_t> tokens = {4096}, gathered = {0};
    return models.memory.footprint(0, {batches, tokens, gathered, 1}, 0);
  };
  const Footprint all = footprint(0), half = footprint(0.5);
  CHECK(all.activations - half.activations == 3 * 0.5 * kKept * 4096);
  CHECK(half.buffers - all.buffers == 2 * 0.5 * kKept * 4096);
  CHECK(Models(model_of(3), offloading(0.25, 50)).memory.kept_per_token() == 0.75 * kKept);
}
