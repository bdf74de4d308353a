#include "sim/cost/check_layout.h"

#include <cstdint>
#include <iterator>
#include <numeric>
#include <string>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "sim/cost/context_exchange/context_form.h"
#include "sim/workload/stage_layers.h"

namespace equipoise {
namespace {

void require_layout(bool holds, const std::string& where, const std::string& what) {
  if (!holds) throw UserError(where, ": parallel", what);
}

std::string num(std::int64_t value) {
  return std::to_string(value);
}

// Checks the all-to-all inside a nested form.
void check_inner(int heads, const Layout& p, const std::string& where) {
  std::string allowed;
  for (int degree = 1; degree <= p.context; ++degree)
    if (p.context % degree == 0 && heads % degree == 0)
      allowed.append(allowed.empty() ? "" : ", ").append(num(degree));
  allowed = "; allowed: " + allowed;
  const std::string name = ".context_inner: ", found = name + num(p.context_inner);
  require_layout(p.context_inner > 0, where,
                 name + "expected a degree with context_comm " + std::string(name_of(p.context_comm)) +
                     ", found none" + allowed);
  require_layout(p.context % p.context_inner == 0, where,
                 found + " is no divisor of context = " + num(p.context) + allowed);
  require_layout(heads % p.context_inner == 0, where,
                 found + " is no divisor of the " + num(heads) + " query heads of a TP rank" + allowed);
}

// A recurrence's heads are shared out over TP, and then over CP (ranks_of_heads) by an all-to-all without
// further forms.
void check_recurrence(const RecurrentShape& r, const Layout& p, const std::string& where) {
  const auto of_heads = [](int heads) { return num(heads) + " heads of its linear recurrences"; };
  require_layout(
      r.heads % p.tensor == 0, where,
      ".tensor: expected a divisor of the model's " + of_heads(r.heads) + ", found " + num(p.tensor));
  require_layout(r.key_heads % p.tensor == 0 || p.tensor % r.key_heads == 0, where,
                 ".tensor: expected a divisor or multiple of the " + num(r.key_heads) +
                     " key heads of its linear recurrences, found " + num(p.tensor));
  require_layout(p.nano_batches_of(p.context) == 1 && !p.evens_out_stages(), where,
                 ".nano_batches: expected 1 and no stage_attention_exchange for a model with linear "
                 "recurrences");
  require_layout(!p.repeats(RecomputeModule::per_op), where,
                 ".recompute.modules: expected no per_op for a model with linear recurrences");
}

// Which keys a query sees is not known before they are scored, so every rank needs all of them. All forms but
// an all-gather are refused by Megatron-core, too.
void check_indexer(const Layout& p, const std::string& where) {
  const std::string model = " for a model with an indexer";
  // Policies form CP groups of GPUs that are data parallel otherwise.
  require_layout(
      p.context * p.data == 1 || p.context_comm == ContextComm::all_gather, where,
      ".context_comm: expected all-gather" + model + ", found " + std::string(name_of(p.context_comm)));
  require_layout(p.nano_batches_of(p.context) == 1, where, ".nano_batches: expected 1" + model);
  require_layout(!p.evens_out_stages(), where, ".stage_attention_exchange: expected false" + model);
  require_layout(
      !p.repeats(RecomputeModule::mla_up_proj), where,
      ".recompute.modules: expected no mla_up_proj" + model + ", whose attention reads compressed keys");
}

// Checks the form of context parallelism.
void check_form(const ModelShape& m, const Layout& p, const std::string& where) {
  const int heads = m.heads / p.tensor;
  if (facts_of(p.context_comm).nested) check_inner(heads, p, where);
  const ContextCommFacts& facts = p.acting_facts();
  if (m.sliding_window > 0 && !facts.takes_windows) {
    std::string allowed;
    for (const ContextCommFacts& other : kContextComms)
      if (other.takes_windows) allowed.append(allowed.empty() ? "" : " or ").append(other.name);
    require_layout(false, where,
                   ".context_comm: expected " + allowed + " for a model with sliding windows, found " +
                       std::string(name_of(p.context_comm)));
  }
  if (m.recurrence) check_recurrence(*m.recurrence, p, where);
  if (m.indexer) check_indexer(p, where);
  require_layout(!m.moe || p.nano_batches_of(p.context) == 1, where,
                 ".nano_batches: expected 1 for a model with experts, found " + num(p.nano_batches));
  const std::string allowed = ranks_of_heads(m, p, p.context);
  require_layout(allowed.empty(), where, ".context: expected " + allowed + ", found " + num(p.context));
  if (!p.evens_out_stages()) return;
  const char* const otherwise = ", or stage_attention_exchange false, found ";
  require_layout(
      p.context == 1 || facts.plans_tasks, where,
      ".context: expected 1 or context_comm disaggregated" + std::string(otherwise) + num(p.context));
  require_layout(p.expert == 1, where, ".expert: expected 1" + std::string(otherwise) + num(p.expert));
  require_layout(m.sliding_window == 0, where,
                 ".pipeline: expected 1 for sliding windows" + std::string(otherwise) + num(p.pipeline));
}

void check_stage_layers(const ModelShape& m, const Layout& p, int stages, const std::string& where) {
  require_layout(std::ssize(p.stage_layers) == stages, where,
                 ".stage_layers: expected layers of " + num(stages) +
                     " stages (pipeline x virtual_pipeline), found " + num(std::ssize(p.stage_layers)) +
                     " numbers");
  const std::int64_t sum = std::accumulate(p.stage_layers.begin(), p.stage_layers.end(), std::int64_t{0});
  require_layout(sum == m.layers, where,
                 ".stage_layers: expected the model's " + num(m.layers) + " layers, found " + num(sum));
  require_layout(!p.count_embedding_and_head, where,
                 ".stage_layers: expected no count_embedding_and_head next to it, which shares layers out");
}

void check_stages(const ModelShape& m, const Layout& p, const std::string& where) {
  const int stages = p.stage_order().blocks;
  if (p.divides_by_block_costs()) {
    const int filled = divide_by_block_costs(m, stages).filled;
    require_layout(
        filled == stages, where,
        ".pipeline: expected pipeline x virtual_pipeline stages that all get a block by framework."
        "stage_division block-costs (parallel.stage_layers or stage_division even divides otherwise), "
        "found " +
            num(stages) + ": the last " + num(stages - filled) + " would get none");
  }
  if (!p.stage_layers.empty()) check_stage_layers(m, p, stages, where);
  if (!p.evens_out_stages() || p.context == 1) return;
  const std::vector<int> layers = layers_of_stages(m, p);
  const auto [fewest, most] = std::ranges::minmax(layers);
  require_layout(fewest == most, where,
                 ".pipeline: expected stages of as many layers, or stage_attention_exchange false, found " +
                     num(fewest) + " and " + num(most));
}

}  // namespace

ParallelSizes parallel_sizes(const Layout& l) {
  const int inner = l.inner_ranks(l.context);
  return {l.tensor,   l.context,       l.expert, l.data,
          l.pipeline, l.expert_tensor, inner,    l.context_placement == ContextPlacement::outer_first};
}

void check_layout(const ModelShape& m, const Layout& p, const std::string& where) {
  const int t = p.tensor;
  require_layout(m.heads % t == 0, where,
                 ".tensor: expected a divisor of the model's " + num(m.heads) + " heads, found " + num(t));
  require_layout(m.kv_heads % t == 0 || t % m.kv_heads == 0, where,
                 ".tensor: expected a divisor or multiple of the model's " + num(m.kv_heads) +
                     " KV heads, found " + num(t));
  require_layout(m.ffn % t == 0, where,
                 ".tensor: expected a divisor of the FFN size " + num(m.ffn) + ", found " + num(t));
  require_layout(
      m.training.lora_dim % t == 0, where,
      ".tensor: expected a divisor of lora.dim = " + num(m.training.lora_dim) + ", found " + num(t));
  require_layout(m.training.lora_dim % p.expert_tensor_size() == 0, where,
                 ".expert_tensor: expected a divisor of lora.dim = " + num(m.training.lora_dim) + ", found " +
                     num(p.expert_tensor_size()));
  const std::int64_t virtual_stages = std::int64_t{p.pipeline} * p.virtual_pipeline;
  const std::int64_t counted = m.layers + (p.count_embedding_and_head ? 2 : 0);
  require_layout(virtual_stages <= counted || !p.stage_layers.empty(), where,
                 ".pipeline: expected pipeline x virtual_pipeline of at most " + num(counted) + " layers" +
                     (p.count_embedding_and_head ? " with embedding and head" : "") + ", found " +
                     num(virtual_stages));
  check_stages(m, p, where);
  require_layout(p.virtual_pipeline == 1 || p.pipeline > 1, where,
                 ".virtual_pipeline: expected 1 without a pipeline, found " + num(p.virtual_pipeline));
  require_layout(p.zero >= 0 && p.zero <= 3, where, ".zero: expected 0..3, found " + num(p.zero));
  require_layout(p.zero < 3 || p.pipeline == 1, where,
                 ".zero: 3 (FSDP) with a pipeline is not supported, expected 0..2");
  require_layout(
      p.recompute_layers >= 0 && p.recompute_layers <= m.all_layers(), where,
      ".recompute.layers: expected 0.." + num(m.all_layers()) + ", found " + num(p.recompute_layers));
  const auto repeats = [&](RecomputeModule module) { return p.repeats(module); };
  require_layout(m.mla || !repeats(RecomputeModule::mla_up_proj), where,
                 ".recompute.modules: expected no mla_up_proj for a model without latent attention");
  for (const RecomputeModule module :
       {RecomputeModule::moe, RecomputeModule::moe_act, RecomputeModule::shared_experts})
    require_layout(m.moe || !repeats(module), where,
                   std::string(".recompute.modules: expected no ") +
                       std::string(kRecomputeModuleNames[at(module)]) + " for a model without experts");
  require_layout(!repeats(RecomputeModule::per_op) || (!m.moe && !m.mla), where,
                 ".recompute.modules: expected no per_op for a model with experts or latent attention");
  require_layout(
      !repeats(RecomputeModule::per_op) || p.recompute_modules == module_bit(RecomputeModule::per_op), where,
      ".recompute.modules: expected per_op alone, found " + names_of(p.recompute_modules));
  check_form(m, p, where);
  if (m.moe) {
    const int e = p.expert_tensor_size();
    require_layout(t % e == 0, where,
                   ".expert_tensor: expected a divisor of tensor = " + num(t) + ", found " + num(e));
    require_layout(m.moe->expert_ffn % e == 0, where,
                   (p.expert_tensor > 0 ? ".expert_tensor" : ".tensor") +
                       (": expected a divisor of the expert FFN size " + num(m.moe->expert_ffn)) +
                       ", found " + num(e));
    require_layout(m.moe->shared_width() % t == 0, where,
                   ".tensor: expected a divisor of the shared experts' FFN size " +
                       num(m.moe->shared_width()) + ", found " + num(t));
    require_layout(m.moe->experts % p.expert == 0, where,
                   ".expert: expected a divisor of the model's " + num(m.moe->experts) + " experts, found " +
                       num(p.expert));
    const std::int64_t ranks = std::int64_t{t} / e * p.data * p.context;
    require_layout(ranks % p.expert == 0, where,
                   std::string(".expert: expected a divisor of ") +
                       (e == t ? "data x context = " : "tensor x data x context / expert_tensor = ") +
                       num(ranks) + ", found " + num(p.expert));
  } else {
    require_layout(p.expert == 1, where,
                   ".expert: expected 1 for a model without experts, found " + num(p.expert));
    require_layout(
        p.expert_tensor_size() == t, where,
        ".expert_tensor: expected none for a model without experts, found " + num(p.expert_tensor));
  }
}

}  // namespace equipoise
