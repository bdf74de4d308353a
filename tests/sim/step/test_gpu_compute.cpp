#include <doctest/doctest.h>

#include "sim/step/gpu_compute.h"
#include "sim/step/step_result.h"

using namespace equipoise;

TEST_CASE("a GPU's time is the sum over the lanes that it serves, group after group") {
  // One stage of 4 GPUs. First group: lane 0 on GPUs 0 and 1, lane 2 on GPU 2. Second group: lane 1 on GPU 0,
  // lane 3 on GPUs 1 and 2. GPU 3 serves nobody.
  Step step;
  step.lanes.resize(4);
  const int context[] = {2, 1, 1, 2}, group[] = {0, 1, 0, 1};
  for (std::size_t l = 0; l < 4; ++l) {
    step.lanes[l].context = context[l];
    step.lanes[l].barrier_group = group[l];
  }
  Layout layout;
  layout.data = 4;
  GpuCompute gpus;
  gpus.begin_step(step, layout, 1);
  gpus.add(0, 0, 0, 1);
  gpus.add(0, 0, 1, 2);
  gpus.add(1, 0, 0, 10);
  gpus.add(2, 0, 0, 4);
  gpus.add(3, 0, 0, 20);
  gpus.add(3, 0, 1, 40);
  CHECK(gpus.seconds() == std::vector<double>{11, 22, 44, 0});
  CHECK(gpus.spread().max == 44);
  CHECK(gpus.spread().mean == 77.0 / 4);
  CHECK(gpus.spread().min == 0);
  gpus.begin_step(step, layout, 1);
  CHECK(gpus.spread().max == 0);
}

TEST_CASE("stages and TP ranks are GPUs of their own") {
  Step step;
  step.lanes.resize(2);
  Layout layout;
  layout.data = 2;
  layout.pipeline = 2;
  GpuCompute gpus;
  gpus.begin_step(step, layout, 2);
  gpus.add(1, 1, 1, 8);  // lane 1, stage 1, TP rank 1: the last of 2 x 2 x 2
  REQUIRE(gpus.seconds().size() == 8);
  CHECK(gpus.seconds()[7] == 8);
  CHECK(gpus.spread().mean == 1);
}
