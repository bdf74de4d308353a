#include "sim/study/read/parallel_keys.h"

#include "policies/sharding/disaggregation.h"
#include "sim/study/read/key_notes.h"
#include "sim/study/read/study_keys.h"
#include "sim/study/read/training.h"

namespace equipoise {

constexpr Recompute kRecomputeModes[] = {Recompute::none, Recompute::selective, Recompute::full,
                                         Recompute::automatic};
constexpr std::string_view kRecomputeModeNames[] = {name_of(kRecomputeModes[0]), name_of(kRecomputeModes[1]),
                                                    name_of(kRecomputeModes[2]), name_of(kRecomputeModes[3])};

namespace keys {

static ordered_json modules_schema() {
  return {{"type", "array"}, {"minItems", 1}, {"items", {{"enum", kRecomputeModuleNames}}}};
}

constexpr Key<RecomputeKeys> kRecomputeKeys[] = {
    integer<&RecomputeKeys::layers>("layers", 0, kMostLayers,
                                    "Layers of the whole model that are recomputed in full"),
    other<RecomputeKeys>(
        "modules", modules_schema,
        "Parts of a layer whose forward runs again in the backward and whose results are not kept "
        "(Megatron-LM's --recompute-modules); core_attn: the attention kernel; layernorm: both norms; "
        "moe_act: the activation inside routed experts; mla_up_proj: up projections of latent attention and "
        "rotary embedding; mlp: the FFN of a layer without experts; moe: router, exchanges and experts; "
        "shared_experts: these alone; per_op: all but attention, reduce-scatters and every other product "
        "(torchtitan's selective op), with no other part"),
};

static ordered_json stage_layers_schema() {
  return {{"type", "array"},
          {"minItems", 1},
          {"items", {{"type", "integer"}, {"minimum", 0}, {"maximum", kMostLayers}}}};
}

constexpr Key<Layout> kParallelKeys[] = {
    integer<&Layout::tensor>("tensor", 1, kMostGpus,
                             "TP: GPUs that share each matrix; sequence parallelism is always on with it"),
    integer<&Layout::context>("context", 1, kMostGpus, "CP: GPUs that share the tokens of a micro-batch"),
    integer<&Layout::pipeline>("pipeline", 1, kMostGpus, "PP: stages that share the layers"),
    integer<&Layout::data>("data", 1, kMostGpus, "DP: replicas that share the global batch"),
    integer<&Layout::virtual_pipeline>("virtual_pipeline", 1, kMostGpus, "Model chunks of a pipeline rank"),
    integer<&Layout::expert>("expert", 1, kMostGpus, "EP: GPUs that share the experts of a layer"),
    integer<&Layout::expert_tensor>(
        "expert_tensor", 1, kMostGpus,
        "Tensor parallelism inside an expert, a divisor of tensor; tensor by default, as in Megatron-LM")
        .acting("with a model that has experts", acts::has_experts),
    flag<&Layout::count_embedding_and_head>(
        "count_embedding_and_head",
        "Embedding and head count as a layer each where the stages get their layers")
        .acting("with a pipeline", acts::has_pipeline)
        .noting(note_count_embedding),
    other<Layout>("stage_layers", stage_layers_schema,
                  "Layers of each virtual stage, in the model's order; as framework.stage_division shares "
                  "them out by default")
        .acting("with a pipeline", acts::has_pipeline),
    choice<&Layout::context_comm>("context_comm", kContextCommNames, kContextCommHelp)
        .acting("with parallel.context or data above 1", acts::has_replicas),
    integer<&Layout::context_inner>("context_inner", 1, kMostGpus,
                                    "Ranks of an all-to-all, a divisor of context and of the query heads of "
                                    "a TP rank; context / context_inner ranks are a ring or gather")
        .acting("with parallel.context_comm ulysses-ring or ulysses-all-gather on several ranks",
                acts::nests),
    choice<&Layout::context_placement>(
        "context_placement", kContextPlacementNames,
        "Which CP ranks are neighbours; inner-first: of an all-to-all; outer-first: of the ring or gather")
        .acting("with parallel.context_comm ulysses-ring or ulysses-all-gather on several ranks",
                acts::nests),
    integer<&Layout::block>("block", 1, kLongestSize,
                            "Tokens of the packed sequence whose K and V are sent to all ranks with a query "
                            "that sees one of them")
        .acting("with parallel.context_comm group-cast on several ranks", acts::casts),
    integer<&Layout::cast_stages>(
        "cast_stages", 1, kMostCastStages,
        "Exchanges in which a rank's blocks arrive, each during the attention to those before")
        .acting("with parallel.context_comm group-cast on several ranks", acts::casts),
    flag<&Layout::cast_once_per_node>(
        "cast_once_per_node",
        "What several ranks of another node need crosses the network once and goes on over NVLink; its "
        "gradients are added up there first (MagiAttention's hierarchical group collectives)")
        .acting("with parallel.context_comm group-cast on several ranks", acts::casts),
    number<&Layout::epsilon>(
        "epsilon", 0, 1, "How far from the mean a rank's attention may be, as a share of it; 0.1 by default")
        .acting("with context_comm disaggregated on several ranks", acts::disaggregates),
    integer<&Layout::nano_batches>(
        "nano_batches", 1, kMostNanoBatches,
        "2: a micro-batch runs as two halves, each during the other's exchanges of Q, K, V and output")
        .acting("with context_comm disaggregated on several ranks", acts::disaggregates),
    integer<&Layout::zero>("zero", 0, 3,
                           "0: everything replicated; 1: optimizer states sharded; 2: gradients, too; 3: "
                           "FSDP; the framework preset's by default")
        .acting("with parallel.context or data above 1", acts::has_replicas)
        .noting(note_zero),
    other<Layout>("recompute", recompute_schema, "").noting(note_recompute),
    number<&Layout::optimizer_offload>(
        "optimizer_offload", 0, 1,
        "Share of the optimizer's states in the host's memory, updated there; 0 by default")
        .noting(note_offload),
    number<&Layout::activation_offload>(
        "activation_offload", 0, 1,
        "Share of what a layer's forward keeps that is copied to the host's memory during the layers behind "
        "it, and back during the backward (Megatron Core's fine-grained activation offloading); 0 by default")
        .noting(note_activation_offload),
    number<&Layout::host_link_GBps>(
        "host_link_GBps", 0.1, 10000,
        "Rate of a GPU's link to its host, each way; 50 by default, what PCIe 5 x16 achieves")
        .acting("with parallel.optimizer_offload or activation_offload above 0", acts::uses_host_link),
    number<&Layout::host_memory_GBps>(
        "host_memory_GBps", 0.1, 10000,
        "Rate of the host's memory while it updates states, a GPU's share; 35 by "
        "default: half of 16 channels of DDR5-4800 over 8 GPUs")
        .acting("with parallel.optimizer_offload above 0", acts::offloads),
    text<&Layout::order>("order", "Rank order from the innermost axis; tp-cp-ep-dp-pp by default"),
};

// Layers or modules: an object with one of them.
ordered_json recompute_definition() {
  const auto object_of = [](const Key<RecomputeKeys>& row) {
    ordered_json schema = object_schema(std::span(&row, 1));
    schema["required"].push_back(row.key);
    return schema;
  };
  return {{"description",
           "What a backward computes again, none by default; none: nothing; selective: attention's forward, "
           "which frees nothing with FlashAttention; full: every layer; auto: the fewest layers that fit"},
          {"anyOf",
           {{{"enum", kRecomputeModeNames}}, object_of(kRecomputeKeys[0]), object_of(kRecomputeKeys[1])}}};
}

ordered_json recompute_schema() {
  return {{"$ref", "#/definitions/recompute"}};
}

}  // namespace keys

std::span<const Key<Layout>> parallel_keys() {
  return keys::kParallelKeys;
}

static std::vector<int> read_stage_layers(const nlohmann::json& list, JsonObject& object) {
  const std::string expected =
      "a list of integers in 0.." + std::to_string(keys::kMostLayers) + ", one a virtual stage";
  if (!list.is_array() || list.empty()) object.fail("stage_layers", expected);
  std::vector<int> layers;
  for (const nlohmann::json& count : list) {
    if (!count.is_number_integer() || count < 0 || count > keys::kMostLayers)
      object.fail("stage_layers", expected);
    layers.push_back(count.get<int>());
  }
  return layers;
}

RecomputeKeys read_recompute(const nlohmann::json& node, const std::string& where) {
  RecomputeKeys said;
  if (!node.is_object()) {
    const nlohmann::json wrapped = {{"recompute", node}};
    JsonObject object(wrapped, where);
    said.mode = kRecomputeModes[object.choice("recompute", 0, kRecomputeModeNames)];
    return said;
  }
  JsonObject object(node, where + ".recompute");
  read_keys(object, std::span<const Key<RecomputeKeys>>(keys::kRecomputeKeys), said);
  if (const nlohmann::json* modules = object.find("modules"))
    said.modules = read_words(*modules, object, "modules", kRecomputeModuleNames);
  object.finish();
  if (object.has("layers") == object.has("modules"))
    object.fail("layers", "an integer in 0..100000, or modules instead of it");
  // zero layers mean none
  const Recompute of_layers = said.layers == 0 ? Recompute::none : Recompute::layers;
  said.mode = object.has("layers") ? of_layers : Recompute::modules;
  return said;
}

void read_parallel(const nlohmann::json& node, const std::string& where, Layout& layout) {
  JsonObject object(node, where);
  read_keys(object, parallel_keys(), layout);
  if (const nlohmann::json* recompute = object.find("recompute")) {
    const RecomputeKeys said = read_recompute(*recompute, where);
    layout.recompute = said.mode;
    layout.recompute_layers = said.layers;
    layout.recompute_modules = said.modules;
  }
  if (const nlohmann::json* layers = object.find("stage_layers"))
    layout.stage_layers = read_stage_layers(*layers, object);
  object.finish(place_of_key);
}

}  // namespace equipoise
