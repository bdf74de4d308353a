#include "sim/workload/layout.h"

#include <cstdlib>

#include "policies/base/error.h"
#include "policies/base/index.h"

namespace equipoise {
namespace {

void require(bool holds, const std::string& where, const std::string& what) {
  if (!holds) throw UserError(where + ": parallel" + what);
}

std::string num(std::int64_t value) {
  return std::to_string(value);
}

}  // namespace

void check_layout(const ModelShape& m, const Layout& p, const std::string& where) {
  const int t = p.tensor;
  require(m.heads % t == 0, where,
          ".tensor: expected a divisor of the model's " + num(m.heads) + " heads, found " + num(t));
  require(m.kv_heads % t == 0 || t % m.kv_heads == 0, where,
          ".tensor: expected a divisor or multiple of the model's " + num(m.kv_heads) + " KV heads, found " +
              num(t));
  require(m.ffn % t == 0, where,
          ".tensor: expected a divisor of the FFN size " + num(m.ffn) + ", found " + num(t));
  const std::int64_t virtual_stages = std::int64_t{p.pipeline} * p.virtual_pipeline;
  const std::int64_t counted = m.layers + (p.count_embedding_and_head ? 2 : 0);
  require(virtual_stages <= counted, where,
          ".pipeline: expected pipeline x virtual_pipeline of at most " + num(counted) + " layers" +
              (p.count_embedding_and_head ? " with embedding and head" : "") + ", found " +
              num(virtual_stages));
  require(p.virtual_pipeline == 1 || p.pipeline > 1, where,
          ".virtual_pipeline: expected 1 without a pipeline, found " + num(p.virtual_pipeline));
  require(p.zero >= 0 && p.zero <= 3, where, ".zero: expected 0..3, found " + num(p.zero));
  require(p.zero < 3 || p.pipeline == 1, where,
          ".zero: 3 (FSDP) with a pipeline is not supported, expected 0..2");
  require(p.recompute_layers >= 0 && p.recompute_layers <= m.layers, where,
          ".recompute.layers: expected 0.." + num(m.layers) + ", found " + num(p.recompute_layers));
  const auto repeats = [&](RecomputeModule module) { return p.repeats(module); };
  require(m.mla || !repeats(RecomputeModule::mla_up_proj), where,
          ".recompute.modules: expected no mla_up_proj for a model without latent attention");
  for (const RecomputeModule module :
       {RecomputeModule::moe, RecomputeModule::moe_act, RecomputeModule::shared_experts})
    require(m.moe || !repeats(module), where,
            std::string(".recompute.modules: expected no ") + std::string(kRecomputeModuleNames[at(module)]) +
                " for a model without experts");
  require(m.sliding_window == 0 || p.context_comm != ContextComm::ring, where,
          ".context_comm: expected all-gather or ulysses for a model with sliding windows, found ring");
  if (p.context_comm == ContextComm::ulysses)
    require((m.heads / t) % p.context == 0, where,
            ".context: Ulysses needs a divisor of the " + num(m.heads / t) +
                " query heads of a TP rank, found " + num(p.context));
  if (m.moe) {
    const int e = p.expert_tensor_size();
    require(t % e == 0, where,
            ".expert_tensor: expected a divisor of tensor = " + num(t) + ", found " + num(e));
    require(m.moe->expert_ffn % e == 0, where,
            (p.expert_tensor > 0 ? ".expert_tensor" : ".tensor") +
                (": expected a divisor of the expert FFN size " + num(m.moe->expert_ffn)) + ", found " +
                num(e));
    require(m.moe->shared_width() % t == 0, where,
            ".tensor: expected a divisor of the shared experts' FFN size " + num(m.moe->shared_width()) +
                ", found " + num(t));
    require(m.moe->experts % p.expert == 0, where,
            ".expert: expected a divisor of the model's " + num(m.moe->experts) + " experts, found " +
                num(p.expert));
    const std::int64_t ranks = std::int64_t{t} / e * p.data * p.context;
    require(ranks % p.expert == 0, where,
            std::string(".expert: expected a divisor of ") +
                (e == t ? "data x context = " : "tensor x data x context / expert_tensor = ") + num(ranks) +
                ", found " + num(p.expert));
  } else {
    require(p.expert == 1, where, ".expert: expected 1 for a model without experts, found " + num(p.expert));
    require(p.expert_tensor_size() == t, where,
            ".expert_tensor: expected none for a model without experts, found " + num(p.expert_tensor));
  }
}

std::string names_of(RecomputeModules modules) {
  std::string text;
  for (std::size_t m = 0; m < std::size(kRecomputeModuleNames); ++m)
    if ((modules & module_bit(static_cast<RecomputeModule>(m))) != 0)
      text.append(text.empty() ? "" : "+").append(kRecomputeModuleNames[m]);
  return text;
}

std::vector<int> split_layers(int layers, int virtual_stages) {
  const auto n = static_cast<std::size_t>(virtual_stages);
  std::vector<int> split(n, layers / virtual_stages);
  int extra = layers % virtual_stages;
  // The extra layers go to the middle stages first, from the centre outwards.
  for (std::size_t step = 0; extra > 0; ++step) {
    const std::size_t offset = (step + 1) / 2;
    const std::size_t centre = (n - 1) / 2;
    const std::size_t at = step % 2 == 1 ? centre + offset : centre - offset;
    if (at >= n) continue;  // also an underflow to the left
    ++split[at];
    --extra;
  }
  return split;
}

std::vector<int> layers_of_stages(const ModelShape& model, const Layout& layout) {
  const int counted = layout.count_embedding_and_head ? 2 : 0;
  std::vector<int> split = split_layers(model.layers + counted, layout.stage_order().blocks);
  if (counted > 0) {
    --split.front();
    --split.back();
  }
  if (layout.bidirectional) split.insert(split.end(), split.rbegin(), split.rend());
  return split;
}

int checkpointed_layers(const Layout& layout, int layers) {
  if (layout.recompute == Recompute::full) return layers;
  return layout.recompute == Recompute::layers ? layout.recompute_layers : 0;
}

}  // namespace equipoise
