// Everything that prices a layout, owned in one place, from a shipped profile. Tests that use it check laws
// and ratios, never the profile's own figures.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "profiler/profile/profile.h"
#include "sim/cost/check_layout.h"
#include "sim/cost/layer_costs.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/memory/memory_model.h"
#include "sim/topology/rank_grid.h"

namespace equipoise::testing {

inline Profile shipped_profile() {
  return Profile::load(std::string(EQUIPOISE_SOURCE_DIR) + "/profiler/profiles/h100-sxm.json");
}

struct Models {
  explicit Models(const ModelShape& model, const Layout& l, FrameworkOptions framework = {})
      : layout(l),
        grid(l.order, parallel_sizes(l), 8),
        costs(model, l, profile, grid, NetworkRates{}, framework),
        memory(model, l, profile, framework) {}
  Models(const Models&) = delete;  // costs and grid refer to their siblings
  Models& operator=(const Models&) = delete;

  Profile profile = shipped_profile();
  Layout layout;
  RankGrid grid;
  LayerCosts costs;
  MemoryModel memory;
};

// The ops of this name in a layer's forward or backward pass.
inline std::vector<Op> ops_of_pass(const Models& models, LayerKind kind, std::int64_t tokens, bool backward,
                                   OpName name) {
  OpList before, after;
  RangeUse use;
  if (backward)
    models.costs.layers.backward(kind, tokens, before, after, use);
  else
    models.costs.layers.forward(kind, tokens, before, after, use);
  std::vector<Op> ops;
  for (const OpList* list : {&before, &after})
    for (const Op& op : list->ops())
      if (op.name == name) ops.push_back(op);
  return ops;
}

// A model so small that its parameters and bytes are sums to do by hand.
inline ModelShape model_of(int layers) {
  ModelShape m;
  m.name = "hand";
  m.layers = layers;
  m.hidden = 64;
  m.heads = m.kv_heads = 2;
  m.head_dim = 32;
  m.ffn = 128;
  m.vocab = 256;
  return m;
}

// One micro-batch of whole documents, with ids from `first`.
inline MicroBatch documents(std::initializer_list<std::int64_t> lengths, std::int64_t first = 0) {
  MicroBatch micro_batch;
  for (const std::int64_t length : lengths) micro_batch.slices.push_back({first++, 0, length});
  return micro_batch;
}

inline ShardRule shard_by(const char* name) {
  ShardRule rule;
  rule.fixed = &sharding_policy(name);
  rule.options.pad = Pad::tail;
  return rule;
}

// What a micro-batch costs on the layout's CP ranks.
inline MicroBatchCost cost_of(const Models& models, const MicroBatch& micro_batch,
                              const char* shard = "per-document") {
  const ShardRule rule = shard_by(shard);
  MicroBatchCoster coster(models.costs, rule);
  MicroBatchCost cost;
  coster.cost(micro_batch, models.layout.context, cost);
  return cost;
}

}  // namespace equipoise::testing
