// Steps under link contention for benchmarks: Llama 3.1 405B on 8-GPU nodes with NICs of 50 GB/s, under a fat
// tree that is oversubscribed 4:1; lanes of 32 micro-batches of 128K tokens, lognormal documents.
#pragma once

#include <stdexcept>

#include "policies/sharding/sharding.h"
#include "profiler/profile/profile.h"
#include "sim/step/contended_run.h"
#include "sim/step/expansion.h"
#include "tests/bench/packed_step.h"

namespace equipoise {

struct ContentionJob {
  static constexpr int kTensor = 8, kPipeline = 16, kMicroBatches = 32, kNode = 8;
  static constexpr std::int64_t kWindow = 131072;

  ModelShape model = builtin_model("llama3.1-405b");
  Layout layout;
  Profile profile = Profile::load("h100-sxm");
  RankGrid grid;
  LayerCosts costs;
  ShardRule shard;
  StepOptions options;
  Step step;
  Fabric fabric;

  // `gpus`: of replicas of tensor 8 x context x pipeline 16.
  ContentionJob(int gpus, int context)
      : layout(layout_of(gpus, context)),
        grid(layout.order, {kTensor, context, 1, layout.data, kPipeline}, kNode),
        costs(model, layout, profile, grid, {}, {}),
        step(packed_step({layout.data, context, kMicroBatches, kWindow})),
        fabric(fabric_of(gpus, profile)) {
    shard.fixed = &sharding_policy("per-document");
    options.schedule = &schedule_policy("1f1b");
  }

 private:
  static Layout layout_of(int gpus, int context) {
    Layout layout;
    layout.tensor = kTensor;
    layout.context = context;
    layout.pipeline = kPipeline;
    layout.data = gpus / (kTensor * context * kPipeline);
    if (layout.data < 1) throw std::invalid_argument("fewer GPUs than a replica takes");
    return layout;
  }
  static Fabric fabric_of(int gpus, const Profile& profile) {
    FabricOptions options;
    options.gpus = gpus;
    options.gpus_per_node = kNode;
    options.nvlink_GBps = profile.device().nvlink_GBps;
    options.nic_GBps = 50;
    options.wiring = Wiring::fat_tree;
    options.oversubscription = 4;
    return Fabric(options);
  }
};

}  // namespace equipoise
