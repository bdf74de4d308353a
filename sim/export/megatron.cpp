#include "sim/export/megatron.h"

#include <algorithm>
#include <iterator>

#include "policies/base/text.h"

namespace equipoise {
namespace {

using namespace exported;
using Row = const ExportedRow&;

// E is the embedding, t a layer, m one of multi-token prediction, L the head: "Et*5|t*6|t*5mL".
Value pipeline_layout(Row r) {
  if (r.has_even_stages() || r.layout().count_embedding_and_head || r.layout().bidirectional) return nullptr;
  std::string text = "E";
  for (const int layers : r.layers_of_stages())
    text += (text == "E" ? "" : "|") + (layers > 0 ? "t*" + std::to_string(layers) : std::string());
  return text + std::string(at(r.model().mtp_layers), 'm') + "L";
}
Value virtual_stages(Row r) {
  return pipeline_layout(r).is_null() ? above(1, r.layout().virtual_pipeline) : Value();
}
Value context_comm(Row r) {
  return where(r.layout().context > 1, facts_of(r.layout().context_comm).megatron);
}
Value context_sizes(Row r) {  // first the all-to-all inside, then the ring across
  const Layout& l = r.layout();
  if (l.context == 1 || !facts_of(l.context_comm).nested) return {};
  const int inner = l.inner_ranks(l.context);
  return Value::array({inner, l.context / inner});
}
bool recomputes_layers(Row r) {
  return r.layout().recompute == Recompute::full || r.layout().recompute == Recompute::layers;
}
bool recomputes_by_op(Row r) {
  return r.layout().repeats(RecomputeModule::per_op);
}
bool recomputes_modules(Row r) {
  return r.layout().recompute == Recompute::selective ||
         (r.layout().recompute == Recompute::modules && !recomputes_by_op(r));
}
// Megatron-LM accumulates and reduces in fp32 unless a flag says otherwise.
bool reduces_in_bf16(Row r) {
  return r.framework().gradient_bytes < 4;
}
Value recompute_granularity(Row r) {
  return recomputes_layers(r) ? Value("full") : where(recomputes_modules(r), "selective");
}
Value recompute_method(Row r) {
  return where(recomputes_layers(r), r.layout().recompute == Recompute::full ? "uniform" : "block");
}
Value recompute_layers(Row r) {
  if (!recomputes_layers(r)) return nullptr;
  if (r.layout().recompute == Recompute::full) return 1;
  return std::ranges::max(r.recomputed_of_stages());
}
Value recompute_modules(Row r) {
  if (!recomputes_modules(r)) return nullptr;
  Value names = Value::array();
  for (std::size_t m = 0; m < std::size(kRecomputeModuleNames); ++m)
    if (r.layout().repeats(static_cast<RecomputeModule>(m))) names.push_back(kRecomputeModuleNames[m]);
  return names;
}
Value adapted_layers(Row r) {
  Value names = Value::array();
  for (std::size_t w = 0; w < std::size(kWeightNames); ++w)
    if (r.model().training.adapts(static_cast<WeightKind>(w))) names.push_back(kWeightNames[w]);
  return names;
}
Value sharding(Row r) {
  return where(r.layout().zero >= 2, r.layout().zero == 2 ? "optim_grads" : "optim_grads_params");
}
Value moe_layers(Row r) {
  if (!r.model().moe) return nullptr;
  std::string text;
  for (int layer = 0; layer < r.model().layers; ++layer)
    text += (text.empty() ? "[" : ",") + std::string(r.model().is_moe_layer(layer) ? "1" : "0");
  return text + "]";
}
Value mla(Row r, std::int64_t number) {
  return where(r.model().mla.has_value(), number);
}
bool is_hybrid(Row r) {
  return r.row.run.name == "hybrid-cp";
}
Value overlaps_experts(Row r, ExpertOverlap overlap) {
  return where(r.layout().expert > 1 && r.framework().expert_overlap == overlap, true);
}
bool sends_by_deepep(Row r) {
  return r.framework().expert_dispatcher == ExpertDispatcher::deepep ||
         r.framework().expert_overlap == ExpertOverlap::deepep;
}
Value dispatcher(Row r) {
  return where(r.layout().expert > 1, sends_by_deepep(r) ? "flex" : "alltoall");
}

// One setting under both names: Megatron-LM's flag and the key of a Megatron-Bridge recipe. An empty name
// means that this one has none.
struct BothNames {
  std::string_view flag, key;
  Value (*value)(Row);
};

constexpr BothNames kSettings[] = {
    {"--tensor-model-parallel-size", "model.tensor_model_parallel_size",
     [](Row r) -> Value { return r.layout().tensor; }},
    {"--sequence-parallel", "model.sequence_parallel",
     [](Row r) { return where(r.layout().tensor > 1, true); }},
    {"--context-parallel-size", "model.context_parallel_size",
     [](Row r) -> Value { return r.layout().context; }},
    {"--cp-comm-type", "model.cp_comm_type", context_comm},
    {"--hierarchical-context-parallel-sizes", "model.hierarchical_context_parallel_sizes", context_sizes},
    {"--hybrid-context-parallel", "model.hybrid_context_parallel",
     [](Row r) { return where(is_hybrid(r), true); }},
    {"--max-seqlen-per-dp-cp-rank", "model.max_seqlen_per_dp_cp_rank",
     [](Row r) { return where(is_hybrid(r), r.study.batch.context_window / r.layout().context); }},
    {"--calculate-per-token-loss", "model.calculate_per_token_loss",
     [](Row r) { return where(is_hybrid(r), true); }},
    {"--pipeline-model-parallel-size", "model.pipeline_model_parallel_size",
     [](Row r) -> Value { return r.layout().pipeline; }},
    {"--num-virtual-stages-per-pipeline-rank", "model.virtual_pipeline_model_parallel_size", virtual_stages},
    {"--pipeline-model-parallel-layout", "model.pipeline_model_parallel_layout", pipeline_layout},
    {"--account-for-embedding-in-pipeline-split", "model.account_for_embedding_in_pipeline_split",
     [](Row r) { return where(r.layout().count_embedding_and_head, true); }},
    {"--account-for-loss-in-pipeline-split", "model.account_for_loss_in_pipeline_split",
     [](Row r) { return where(r.layout().count_embedding_and_head, true); }},
    {"--mtp-num-layers", "model.mtp_num_layers", [](Row r) { return above(0, r.model().mtp_layers); }},
    {"--expert-model-parallel-size", "model.expert_model_parallel_size",
     [](Row r) { return above(1, r.layout().expert); }},
    {"--expert-tensor-parallel-size", "model.expert_tensor_parallel_size",
     [](Row r) { return where(r.model().moe.has_value(), r.layout().expert_tensor_size()); }},
    {"--moe-token-dispatcher-type", "model.moe_token_dispatcher_type", dispatcher},
    {"--moe-flex-dispatcher-backend", "model.moe_flex_dispatcher_backend",
     [](Row r) { return where(r.layout().expert > 1 && sends_by_deepep(r), "deepep"); }},
    {"--moe-shared-expert-overlap", "model.moe_shared_expert_overlap",
     [](Row r) { return overlaps_experts(r, ExpertOverlap::shared_expert); }},
    {"--overlap-moe-expert-parallel-comm", "comm_overlap.overlap_moe_expert_parallel_comm",
     [](Row r) { return overlaps_experts(r, ExpertOverlap::dualpipe); }},
    {"--use-tp-pp-dp-mapping", "dist.use_tp_pp_dp_mapping",
     [](Row r) { return where(r.layout().order == "tp-cp-ep-pp-dp", true); }},
    {"--use-distributed-optimizer", "ddp.use_distributed_optimizer",
     [](Row r) -> Value { return r.layout().zero > 0; }},
    {"", "optimizer.use_distributed_optimizer", [](Row r) -> Value { return r.layout().zero > 0; }},
    {"--use-megatron-fsdp", "dist.use_megatron_fsdp",
     [](Row r) { return where(r.layout().zero >= 2, true); }},
    {"--data-parallel-sharding-strategy", "ddp.data_parallel_sharding_strategy", sharding},
    {"--ckpt-format", "checkpoint.ckpt_format",
     [](Row r) { return where(r.layout().zero >= 2, "fsdp_dtensor"); }},
    {"--overlap-grad-reduce", "ddp.overlap_grad_reduce",
     [](Row r) { return where(r.framework().overlap_grad_reduce || r.layout().zero >= 2, true); }},
    {"--overlap-param-gather", "ddp.overlap_param_gather",
     [](Row r) {
       const bool under_forward = r.framework().overlap_param_gather && r.layout().zero > 0;
       return where(under_forward && (r.framework().overlap_grad_reduce || r.layout().zero >= 2), true);
     }},
    {"--tp-comm-overlap", "comm_overlap.tp_comm_overlap",
     [](Row r) { return where(r.framework().tp_overlap_forward && r.layout().tensor > 1, true); }},
    {"--cross-entropy-loss-fusion", "model.cross_entropy_loss_fusion",
     [](Row r) { return where(r.framework().loss == LossKind::fused, true); }},
    {"--recompute-granularity", "model.recompute_granularity", recompute_granularity},
    {"--recompute-method", "model.recompute_method", recompute_method},
    {"--recompute-num-layers", "model.recompute_num_layers", recompute_layers},
    {"--recompute-modules", "model.recompute_modules", recompute_modules},
    {"", "peft.dim", lora_rank},
    {"", "peft.target_modules",
     [](Row r) { return where(r.model().training.adapted != 0, adapted_layers(r)); }},
    {"--micro-batch-size", "train.micro_batch_size",
     [](Row r) -> Value { return r.study.batch.micro_batch_size; }},
    {"--global-batch-size", "train.global_batch_size", [](Row r) { return above(0, r.batch().sequences); }},
    {"--seq-length", "dataset.seq_length", [](Row r) -> Value { return r.study.batch.context_window; }},
    {"--max-position-embeddings", "",
     [](Row r) -> Value { return std::max(r.study.batch.context_window, r.row.run.pack.max_tokens); }},
    // No document of a plan attends to another.
    {"--dataloader-inter-document-masking", "", [](Row) -> Value { return true; }},
    {"--bf16", "", [](Row) -> Value { return true; }},
    {"--grad-reduce-in-bf16", "", [](Row r) { return where(reduces_in_bf16(r), true); }},
    {"--fp8-format", "", [](Row r) { return where(r.layout().precision == Precision::fp8, "hybrid"); }},
    {"", "mixed_precision",
     [](Row r) -> Value {
       return r.layout().precision == Precision::fp8 ? "bf16_with_fp8_current_scaling_mixed" : "bf16_mixed";
     }},
    {"--num-layers", "", [](Row r) -> Value { return r.model().layers; }},
    {"--hidden-size", "", [](Row r) -> Value { return r.model().hidden; }},
    {"--ffn-hidden-size", "", [](Row r) -> Value { return r.model().ffn; }},
    {"--num-attention-heads", "", [](Row r) -> Value { return r.model().heads; }},
    {"--group-query-attention", "", [](Row r) { return where(r.model().kv_heads < r.model().heads, true); }},
    {"--num-query-groups", "",
     [](Row r) { return where(r.model().kv_heads < r.model().heads, r.model().kv_heads); }},
    {"--kv-channels", "", [](Row r) { return where(!r.model().mla, r.model().head_dim); }},
    {"--swiglu", "", [](Row r) -> Value { return r.model().gated_ffn; }},
    // Costs assume RMSNorm, RoPE, no dropout, and no biases other than those of Q, K and V.
    {"--normalization", "", [](Row) -> Value { return "RMSNorm"; }},
    {"--position-embedding-type", "", [](Row) -> Value { return "rope"; }},
    {"--disable-bias-linear", "", [](Row) -> Value { return true; }},
    {"--attention-dropout", "", [](Row) -> Value { return 0.0; }},
    {"--hidden-dropout", "", [](Row) -> Value { return 0.0; }},
    {"--add-qkv-bias", "", [](Row r) -> Value { return r.model().qkv_bias; }},
    {"--untie-embeddings-and-output-weights", "", [](Row r) -> Value { return !r.model().tied_embeddings; }},
    {"--vocab-size", "", [](Row r) -> Value { return r.model().vocab; }},
    {"--num-experts", "",
     [](Row r) { return where(r.model().moe.has_value(), r.model().moe ? r.model().moe->experts : 0); }},
    {"--moe-router-topk", "",
     [](Row r) { return where(r.model().moe.has_value(), r.model().moe ? r.model().moe->active : 0); }},
    {"--moe-ffn-hidden-size", "",
     [](Row r) { return where(r.model().moe.has_value(), r.model().moe ? r.model().moe->expert_ffn : 0); }},
    {"--moe-shared-expert-intermediate-size", "",
     [](Row r) { return above(0, r.model().moe ? r.model().moe->shared_width() : 0); }},
    {"--moe-layer-freq", "", moe_layers},
    {"--multi-latent-attention", "", [](Row r) { return where(r.model().mla.has_value(), true); }},
    {"--q-lora-rank", "", [](Row r) { return above(0, r.model().mla ? r.model().mla->q_lora : 0); }},
    {"--kv-lora-rank", "", [](Row r) { return mla(r, r.model().mla ? r.model().mla->kv_lora : 0); }},
    {"--qk-head-dim", "", [](Row r) { return mla(r, r.model().mla ? r.model().mla->nope_dim : 0); }},
    {"--qk-pos-emb-head-dim", "", [](Row r) { return mla(r, r.model().mla ? r.model().mla->rope_dim : 0); }},
    {"--v-head-dim", "", [](Row r) { return mla(r, r.model().mla ? r.model().mla->v_dim : 0); }},
};

constexpr std::string_view kByDocument =
    "per-document, by --dataloader-inter-document-masking; without it per-sequence, where documents see each "
    "other";
constexpr std::string_view kWindows = "--window-size and --window-attn-skip-freq";
constexpr std::string_view kGroupsOfExperts = "--moe-router-num-groups and --moe-router-group-topk";

constexpr Gap kGaps[] = {
    {"policy", [](Row r) { return packed_otherwise(*framework_runs("megatron"), r); },
     "the dataset cuts documents into windows in data order", kFeedIt},
    {"order",
     [](Row r) {
       return std::string(r.row.run.pack.order == Order::as_packed ? ""
                                                                   : kOrderNames[at(r.row.run.pack.order)]);
     },
     "micro-batches run as the loader gives them", "the order of plan.json"},
    {"shard",
     [](Row r) { return r.layout().context == 1 || r.shard() == "per-document" ? std::string() : r.shard(); },
     "packed documents are cut each into 2 x CP chunks (thd_get_partitioned_indices)", kByDocument},
    {"schedule", [](Row r) { return scheduled_otherwise(*framework_runs("megatron"), r); },
     "only 1F1B and interleaved 1F1B are there", "1F1B, interleaved where there are virtual stages"},
    {"parallel.virtual_pipeline",
     [](Row r) {
       return found_if(r.layout().virtual_pipeline > 1 && r.schedule() == "1f1b", "with schedule 1f1b");
     },
     "virtual stages run interleaved", "interleaved 1F1B"},
    {"parallel.context_comm",
     [](Row r) {
       const ContextCommFacts& form = facts_of(r.layout().context_comm);
       const bool own = (form.run_by & kByMegatron) == 0;
       return std::string(r.layout().context > 1 && form.nested && own ? form.name : "");
     },
     "inside an all-to-all K and V go round a ring", "ulysses-ring (a2a+p2p)"},
    {"parallel.context_comm",
     [](Row r) {
       const ContextCommFacts& form = facts_of(r.layout().context_comm);
       const bool own = !form.nested && (form.run_by & kByMegatron) == 0;
       const bool once = form.casts && r.layout().cast_once_per_node;
       return r.layout().context > 1 && own
                  ? std::string(form.name) + (once ? " with cast_once_per_node" : "")
                  : "";
     },
     "a rank gets K and V of all tokens, needed or not", "all-gather (all_gather)"},
    {"parallel.order",
     [](Row r) {
       return r.layout().order == "tp-cp-ep-dp-pp" || r.layout().order == "tp-cp-ep-pp-dp" ? std::string()
                                                                                           : r.layout().order;
     },
     "ranks are ordered tp-cp-ep-dp-pp or tp-cp-ep-pp-dp", "tp-cp-ep-dp-pp"},
    {"recompute",
     [](Row r) -> std::string {
       if (r.layout().recompute != Recompute::layers) return "";
       const std::vector<int> layers = r.recomputed_of_stages();
       if (std::equal(layers.begin() + 1, layers.end(), layers.begin())) return "";
       return all_joined(layers, ", ", [](int n) { return std::to_string(n); }) + " layers of the stages";
     },
     "one number holds for all stages", "the largest, which needs less memory and more time"},
    {"recompute", [](Row r) { return std::string(recomputes_by_op(r) ? "per_op" : ""); },
     "modules of a layer are recomputed, not single products", "nothing is recomputed"},
    {"recompute", [](Row r) { return r.recomputed_by_micro_batch(); },
     "one number holds for all micro-batches",
     "the most that any of them recomputes, as written, which costs the others time; "
     "config.recompute_num_layers, which a forward reads, set before each"},
    {"framework.overlap_param_gather",
     [](Row r) {
       return found_if(
           r.framework().overlap_param_gather && !r.framework().overlap_grad_reduce && r.layout().zero == 1,
           "without overlap_grad_reduce");
     },
     "a gather under the forward needs a reduction under the backward", "neither"},
    {"batch.documents_per_step",
     [](Row r) { return r.has_windows() ? std::string() : std::to_string(r.study.batch.documents_per_step); },
     "a global batch is a number of samples",
     "the plan's micro-batches as samples, or as many windows as a step has tokens for"},
    kCountOfPlan,
    kLargerMicroBatches,
    {"batch.max_length",
     [](Row r) {
       const bool cuts = r.study.batch.max_length > 0 && r.row.metrics.lost_tokens.value_or(0) > 0;
       return cuts ? std::to_string(r.study.batch.max_length) : std::string();
     },
     "documents are cut at windows only", "cut them when the dataset is made"},
    kLora,
    {"model.sliding_window",
     [](Row r) { return found_if(r.model().sliding_window > 0, std::to_string(r.model().sliding_window)); },
     "the layers that slide are your model's own", kWindows},
    {"framework.expert_nodes",
     [](Row r) {
       return found_if(r.framework().expert_nodes > 0, std::to_string(r.framework().expert_nodes));
     },
     "a router is limited to groups of experts", kGroupsOfExperts},
};

template <auto Name>
std::vector<Setting> settings_of() {
  std::vector<Setting> settings;
  for (const BothNames& both : kSettings)
    if (!(both.*Name).empty()) settings.push_back({both.*Name, both.value});
  return settings;
}

}  // namespace

Exporter megatron_exporter() {
  static const std::vector<Setting> kFlags = settings_of<&BothNames::flag>();
  return {"megatron",
          "Megatron-LM (main of 2026-08-22, d98e8a64dd)",
          "use: torchrun ... pretrain_gpt.py \"${ARGUMENTS[@]}\" with your data, tokenizer, optimizer and "
          "--rotary-base",
          framework_runs("megatron")->names,
          ExportForm::arguments,
          kFlags,
          kGaps,
          "plain"};
}

Exporter nemo_exporter() {
  static const std::vector<Setting> kKeys = settings_of<&BothNames::key>();
  static const std::vector<Gap> kGapsByKeys = [] {  // the same gaps with keys in place of flags
    std::vector<Gap> gaps(std::begin(kGaps), std::end(kGaps));
    for (Gap& gap : gaps) {
      if (gap.nearest == kByDocument)
        gap.nearest =
            "per-document, by a dataset that packs (dataset.offline_packing_specs); else per-sequence, where "
            "documents see each other";
      if (gap.nearest == kWindows) gap.nearest = "model.window_size and model.window_attn_skip_freq";
      if (gap.nearest == kGroupsOfExperts)
        gap.nearest = "model.moe_router_num_groups and model.moe_router_group_topk";
      if (gap.key == kLora.key) {
        gap.why = "whether there are adapters is the recipe's";
        gap.nearest = "a recipe with peft (YOUR_MODELS_peft_config), which peft.dim is told";
      }
    }
    gaps.push_back({"framework.gradient_bytes",
                    [](Row r) { return std::string(reduces_in_bf16(r) ? "2" : ""); },
                    "mixed_precision by name reduces in fp32, whatever ddp says",
                    "without that override, cfg.mixed_precision = get_mixed_precision_config(NAME) with "
                    "grad_reduce_in_fp32 = False, in the recipe"});
    return gaps;
  }();
  return {
      "nemo",
      "NeMo's Megatron-Bridge (main of 2026-08-22, 067f987df)",
      "use: run_recipe.py --recipe YOUR_MODELS_RECIPE \"${OVERRIDES[@]}\"; the recipe has the model's shape",
      "megatron megatron-eager ",
      ExportForm::overrides,
      kKeys,
      kGapsByKeys};
}

}  // namespace equipoise
