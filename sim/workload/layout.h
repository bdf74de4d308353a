// How a model is spread over GPUs: the parallel sizes, what is recomputed and how states are sharded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/workload/context_comm.h"
#include "sim/workload/model.h"

namespace equipoise {

inline constexpr int kMostCastStages = 8;
// Which of a CP group's ranks are adjacent: those of an inner group, or those of the ring or gather.
enum class ContextPlacement { inner_first, outer_first };
inline constexpr std::string_view kContextPlacementNames[] = {"inner-first", "outer-first"};
// How a framework divides layers among virtual stages if nobody says it (stage_layers.h).
enum class StageDivision : std::uint8_t { even, block_costs };
inline constexpr std::string_view kStageDivisionNames[] = {"even", "block-costs"};
// automatic: the fewest layers with which a row of a study fits. It is resolved before anything is priced.
enum class Recompute { none, selective, full, layers, automatic, modules };
inline constexpr std::string_view kRecomputeNames[] = {"none",   "selective", "full",
                                                       "layers", "auto",      "modules"};

// Parts of a layer whose forward a backward repeats and whose results are not kept: Megatron-LM's
// --recompute-modules.
enum class RecomputeModule : std::uint8_t {
  core_attn,       // the attention kernel
  layernorm,       // both norms of a layer
  moe_act,         // the activation inside the routed experts
  mla_up_proj,     // the up projections of multi-head latent attention, and rotary embedding
  mlp,             // the FFN of a layer without experts
  moe,             // router, exchanges, routed and shared experts
  shared_experts,  // the shared experts alone
  per_op,          // all but attention, reduce-scatters and every other product: torchtitan's selective "op"
};
inline constexpr std::string_view kRecomputeModuleNames[] = {
    "core_attn", "layernorm", "moe_act", "mla_up_proj", "mlp", "moe", "shared_experts", "per_op"};
using RecomputeModules = std::uint32_t;
constexpr RecomputeModules module_bit(RecomputeModule module) {
  return RecomputeModules{1} << static_cast<unsigned>(module);
}
// "layernorm+moe_act"
inline std::string names_of(RecomputeModules modules) {
  std::string text;
  for (std::size_t m = 0; m < std::size(kRecomputeModuleNames); ++m)
    if ((modules & module_bit(static_cast<RecomputeModule>(m))) != 0)
      text.append(text.empty() ? "" : "+").append(kRecomputeModuleNames[m]);
  return text;
}

// How the ranks of a pipeline hold a model's layers, which are cut into blocks.
//
// A rank holds one block for each of its model chunks. Virtual stage v = chunk x pipeline + rank is that
// chunk of that rank, and holds block v. Example, 4 blocks on 2 ranks: rank 0 has virtual stages 0 and 2,
// rank 1 has 1 and 3.
//
// In a bidirectional pipeline (Schedule::bidirectional) there are as many blocks as ranks, and two ranks hold
// each block: virtual stage v >= pipeline has a copy of block 2 x pipeline - 1 - v.
struct VirtualStages {
  int pipeline = 1;  // ranks
  int blocks = 1;    // blocks of layers, in the model's order
  bool bidirectional = false;

  [[nodiscard]] int count() const { return bidirectional ? 2 * blocks : blocks; }
  [[nodiscard]] int block_of(int v) const { return is_copy(v) ? 2 * pipeline - 1 - v : v; }
  [[nodiscard]] bool is_first(int v) const { return block_of(v) == 0; }
  [[nodiscard]] bool is_last(int v) const { return block_of(v) == blocks - 1; }
  // The virtual stage with the first block, for a micro-batch that goes through chunk `chunk` of each rank.
  [[nodiscard]] int first(int chunk) const { return bidirectional && chunk == 1 ? 2 * pipeline - 1 : 0; }
  // The virtual stage that a micro-batch reaches `by` blocks after v, or before it if `by` is negative. The
  // block must exist.
  [[nodiscard]] int further(int v, int by) const { return is_copy(v) ? v - by : v + by; }
  // Whether this goes from the last rank to the first, or back.
  [[nodiscard]] bool wraps(int v, int by) const {
    return !bidirectional && (by > 0 ? v % pipeline + 1 == pipeline : v % pipeline == 0);
  }

 private:
  [[nodiscard]] bool is_copy(int v) const { return bidirectional && v >= pipeline; }
};

struct Layout {
  int tensor = 1;
  int context = 1;
  int pipeline = 1;
  int data = 1;
  int virtual_pipeline = 1;
  bool bidirectional = false;  // the schedule's: every rank holds two blocks of layers
  int expert = 1;
  // Tensor parallelism inside an expert, a divisor of `tensor`; 0 means `tensor`, Megatron-LM's default. If
  // it is less, the ranks of a TP group have different experts ("MoE parallel folding", arXiv 2504.14960).
  int expert_tensor = 0;
  bool count_embedding_and_head = false;  // each counts as a layer when layers are divided (Llama 3)
  std::vector<int> stage_layers;  // of each virtual stage, in the model's order; empty: by stage_division
  StageDivision stage_division = StageDivision::even;  // a key of `framework` in a study
  ContextComm context_comm = ContextComm::all_gather;
  int context_inner = 0;  // ranks of a nested form's all-to-all; 0 if none is given
  ContextPlacement context_placement = ContextPlacement::inner_first;
  std::int64_t block = 512;         // for group-cast: tokens of the packed sequence that are sent together
  int cast_stages = 1;              // for group-cast: number of exchanges in which a rank's needs arrive
  bool cast_once_per_node = false;  // for group-cast: through one rank of each node that needs it
  double epsilon = 0.1;             // for disaggregated: how far a rank's attention may be from the mean
  int nano_batches = 1;             // for disaggregated: parts that hide each other's exchanges, or 1
  // Stages of a pipeline even out the attention of the micro-batches that they run at one time (SlimPipe).
  bool stage_attention_exchange = false;
  int zero = 1;  // from 0, everything replicated, to 3, FSDP
  // ZeRO-2 reduces gradients with every micro-batch, as DeepSpeed and FSDP do because a rank keeps only a
  // shard of them. If false, it does so after the last backward of a layer. The memory model counts a shard
  // in both cases. The key is under `framework` in a study.
  bool reduce_each_micro_batch = true;
  // Selective: the backward runs attention's forward again, as Megatron-LM's core_attn recomputation does.
  // FlashAttention keeps no scores and the output projection keeps attention's output, so it frees nothing.
  Recompute recompute = Recompute::none;
  int recompute_layers = 0;                // with Recompute::layers: in the whole model (stage_layers.h)
  RecomputeModules recompute_modules = 0;  // with Recompute::modules
  // The share of the optimizer's states that is in the host's memory, where the host updates them at the
  // rates for one GPU's share: Megatron-LM's --optimizer-offload-fraction, DeepSpeed's offload_optimizer.
  double optimizer_offload = 0;
  // The share of what a layer's forward keeps that is copied to the host's memory and back for its backward:
  // Megatron Core's fine-grained activation offloading, Transformer Engine's cpu_offloading.
  double activation_offload = 0;
  double host_link_GBps = 50;    // per direction, between a GPU and its host
  double host_memory_GBps = 35;  // that the host's update of states achieves
  Precision precision = Precision::bf16;
  std::string order = "tp-cp-ep-dp-pp";  // rank order, innermost axis first

  friend bool operator==(const Layout&, const Layout&) = default;
  [[nodiscard]] std::int64_t gpus() const { return std::int64_t{tensor} * context * pipeline * data; }
  // The form in effect: a nested one whose all-to-all spans one rank or the whole group is a plain one.
  [[nodiscard]] ContextComm acting_form() const {
    const ContextCommFacts& facts = facts_of(context_comm);
    if (facts.nested && context_inner == 1) return facts.across;
    return facts.nested && context_inner == context ? ContextComm::ulysses : context_comm;
  }
  [[nodiscard]] const ContextCommFacts& acting_facts() const { return facts_of(acting_form()); }
  // Ranks in an inner group of a CP group of that degree; 1 if the form is not nested.
  [[nodiscard]] int inner_ranks(int degree) const {
    return acting_facts().nested ? std::gcd(context_inner, degree) : 1;
  }
  // Parts of a micro-batch that hide each other's exchanges on a CP group of that degree.
  [[nodiscard]] int nano_batches_of(int degree) const {
    return facts_of(context_comm).plans_tasks && degree > 1 ? nano_batches : 1;
  }
  [[nodiscard]] bool divides_by_block_costs() const {
    return stage_layers.empty() && !count_embedding_and_head && stage_division == StageDivision::block_costs;
  }
  [[nodiscard]] bool evens_out_stages() const { return stage_attention_exchange && pipeline > 1; }
  [[nodiscard]] int expert_tensor_size() const { return expert_tensor > 0 ? expert_tensor : tensor; }
  // Ranks of a pipeline stage that hold the same experts.
  [[nodiscard]] std::int64_t expert_replicas() const {
    return std::int64_t{tensor} * context * data / (std::int64_t{expert_tensor_size()} * expert);
  }
  [[nodiscard]] bool reduces_each_micro_batch() const {
    return zero == 3 || (zero == 2 && reduce_each_micro_batch);
  }
  // Whether a layer's backward repeats this part of its forward.
  [[nodiscard]] bool repeats(RecomputeModule module) const {
    if (recompute == Recompute::selective) return module == RecomputeModule::core_attn;
    return recompute == Recompute::modules && (recompute_modules & module_bit(module)) != 0;
  }
  [[nodiscard]] VirtualStages stage_order() const {
    return {pipeline, pipeline * virtual_pipeline, bidirectional};
  }
  [[nodiscard]] int virtual_stages() const { return stage_order().count(); }
  // Number of ranks that hold a block of layers, per data x context rank.
  [[nodiscard]] int copies() const { return bidirectional ? 2 : 1; }
};

constexpr std::string_view name_of(Recompute mode) {
  return kRecomputeNames[at(mode)];
}

// "TP 2, CP 8, PP 4, DP 1": what is equal in two runs on one layout.
inline std::string degrees_text(const Layout& l) {
  return concatenated("TP ", l.tensor, ", CP ", l.context, ", PP ", l.pipeline, ", DP ", l.data);
}

}  // namespace equipoise
