#include "sim/export/pytorch.h"

#include <algorithm>

#include "policies/base/text.h"

namespace equipoise {
namespace {

using namespace exported;
using Row = const ExportedRow&;

std::string number_above(std::int64_t least, std::int64_t number) {
  return number > least ? std::to_string(number) : std::string();
}
std::string recompute_of(Row r) {
  const Layout& l = r.layout();
  if (l.recompute == Recompute::layers) return counted(l.recompute_layers, "layer");
  return l.recompute == Recompute::modules ? names_of(l.recompute_modules)
                                           : std::string(name_of(l.recompute));
}
bool recomputes(Row r) {
  return r.layout().recompute == Recompute::full ||
         (r.layout().recompute == Recompute::layers && r.layout().recompute_layers > 0);
}

// The CP form that runs, if the framework does not have it.
std::string context_gap(Row r, ContextFrameworks framework) {
  const ContextCommFacts& form = facts_of(r.layout().context_comm);
  return std::string(r.layout().context == 1 || (form.run_by & framework) != 0 ? "" : form.name);
}

// What none of the three frameworks can express.
constexpr Gap policy_gap(std::string (*found)(Row)) {
  return {"policy", found, "batches are those of your data loader", kFeedIt};
}
constexpr Gap kPrediction = {
    "mtp_layers", [](Row r) { return number_above(0, r.model().mtp_layers); },
    "modules of multi-token prediction are those of the model that your script has built",
    "Megatron-LM's --mtp-num-layers"};
constexpr Gap kOrderOfRanks = {
    "parallel.order",
    [](Row r) { return r.layout().order == Layout().order ? std::string() : r.layout().order; },
    "the order of ranks is fixed", "tensor parallelism innermost, inside a node"};
constexpr Gap kDocuments = {
    "batch.documents_per_step",
    [](Row r) { return r.has_windows() ? std::string() : std::to_string(r.study.batch.documents_per_step); },
    "a global batch is a number of samples", "samples that are packs, as many as a step has"};

constexpr Setting kDeepspeed[] = {
    // DeepSpeed defines it as micro-batches x accumulation x data parallelism.
    {"train_batch_size", [](Row r) { return above(0, r.batch().sequences); }},
    {"train_micro_batch_size_per_gpu", [](Row r) -> Value { return r.study.batch.micro_batch_size; }},
    {"gradient_accumulation_steps", [](Row r) { return above(0, r.batch().of_lane); }},
    {"bf16.enabled", [](Row) -> Value { return true; }},
    {"zero_optimization.stage", [](Row r) -> Value { return r.layout().zero; }},
    {"sequence_parallel_size", [](Row r) { return above(1, r.layout().context); }},
    {"tensor_parallel.autotp_size", [](Row r) { return above(1, r.layout().tensor); }},
    {"pipeline.stages", [](Row r) { return above(1, r.layout().pipeline); }},
    {"expert_parallel.enabled", [](Row r) { return where(r.layout().expert > 1, true); }},
    {"expert_parallel.autoep_size", [](Row r) { return above(1, r.layout().expert); }},
    {"activation_checkpointing.number_checkpoints",
     [](Row r) {
       return where(recomputes(r),
                    r.layout().recompute == Recompute::full ? r.model().layers : r.layout().recompute_layers);
     }},
};
constexpr Gap kDeepspeedGaps[] = {
    policy_gap([](Row r) { return packed_otherwise(*framework_runs("deepspeed"), r); }),
    {"shard", [](Row r) { return r.layout().context > 1 ? r.shard() : std::string(); },
     "Ulysses gives every rank whole heads: there is nothing to shard by document", "Ulysses"},
    {"parallel.context_comm", [](Row r) { return context_gap(r, kByDeepspeed); },
     "sequence_parallel_size is Ulysses'", "Ulysses, whose times are others"},
    {"parallel.pipeline", [](Row r) { return number_above(1, r.layout().pipeline); },
     "stages are those of a PipelineModule in your code, which allows ZeRO 0 and 1",
     "PipelineModule(num_stages=...)"},
    {"schedule", [](Row r) { return scheduled_otherwise(*framework_runs("deepspeed"), r); },
     "PipelineModule runs 1F1B", "1F1B"},
    {"recompute",
     [](Row r) { return r.layout().recompute == Recompute::none ? std::string() : recompute_of(r); },
     "the model checkpoints, and not the config",
     "gradient_checkpointing_enable() of the model, all its layers"},
    {"precision", [](Row r) { return std::string(r.layout().precision == Precision::fp8 ? "fp8" : ""); },
     "the config knows bf16 and fp16", "Transformer Engine's layers in the model"},
    kOrderOfRanks,
    kDocuments,
    kCountOfPlan,
    kRecomputeOfPlan,
    kLora,
    kPrediction,
};

Value titan_schedule(Row r) {
  if (r.layout().pipeline == 1) return nullptr;
  constexpr std::pair<std::string_view, const char*> kNames[] = {{"gpipe", "GPipe"},
                                                                 {"interleaved-1f1b", "Interleaved1F1B"},
                                                                 {"dualpipe", "DualPipeV"},
                                                                 {"zb-h1", "InterleavedZeroBubble"}};
  for (const auto& [ours, theirs] : kNames)
    if (r.schedule() == ours) return theirs;
  return "1F1B";
}
Value less_layers(Row r) {
  return where(r.layout().pipeline > 1, r.layout().count_embedding_and_head ? 1 : 0);
}
// Recomputes every n-th layer, or by operator.
Value every_layer(Row r) {
  if (r.layout().repeats(RecomputeModule::per_op)) return "op";
  const int layers = r.layout().recompute_layers;
  return where(r.layout().recompute == Recompute::layers && layers > 0,
               std::to_string(std::max(1, r.model().layers / std::max(1, layers))));
}

constexpr Setting kTorchtitan[] = {
    {"model.converters",
     [](Row r) {
       return where(r.layout().precision == Precision::fp8, Value::array({"quantize.linear.float8"}));
     }},
    {"quantize.linear.float8.enable_fsdp_float8_all_gather",
     [](Row r) {
       return where(
           r.framework().fp8_param_gather && r.layout().zero == 3 && r.layout().precision == Precision::fp8,
           true);
     }},
    {"training.seq_len", [](Row r) -> Value { return r.study.batch.context_window; }},
    {"training.local_batch_size",
     [](Row r) -> Value {
       return r.study.batch.micro_batch_size *
              (r.layout().pipeline > 1 ? std::max<std::int64_t>(1, r.batch().of_lane) : 1);
     }},
    {"training.global_batch_size", [](Row r) { return above(0, r.batch().sequences); }},
    {"training.mixed_precision_param", [](Row) -> Value { return "bfloat16"; }},
    {"parallelism.data_parallel_replicate_degree",
     [](Row r) -> Value { return r.layout().zero == 0 ? r.layout().data : 1; }},
    {"parallelism.data_parallel_shard_degree",
     [](Row r) -> Value { return r.layout().zero == 0 ? 1 : r.layout().data; }},
    {"parallelism.fsdp_reshard_after_forward",
     [](Row r) { return where(r.layout().zero > 0, r.layout().zero == 3 ? "always" : "never"); }},
    {"parallelism.tensor_parallel_degree", [](Row r) -> Value { return r.layout().tensor; }},
    {"parallelism.context_parallel_degree", [](Row r) -> Value { return r.layout().context; }},
    {"parallelism.context_parallel_load_balancer",
     [](Row r) { return where(r.layout().context > 1, "headtail"); }},
    {"parallelism.context_parallel_rotate_method",
     [](Row r) {
       return where(r.layout().context > 1, (facts_of(r.layout().context_comm).run_by & kByTorchtitan) != 0
                                                ? "allgather"
                                                : "alltoall");
     }},
    {"parallelism.pipeline_parallel_degree", [](Row r) -> Value { return r.layout().pipeline; }},
    {"parallelism.pipeline_parallel_schedule", titan_schedule},
    {"parallelism.pipeline_parallel_microbatch_size",
     [](Row r) { return where(r.layout().pipeline > 1, r.study.batch.micro_batch_size); }},
    {"parallelism.pipeline_parallel_layers_per_stage",
     [](Row r) {
       const std::vector<int> layers = r.layers_of_stages();
       return where(layers.size() > 1, *std::max_element(layers.begin(), layers.end()));
     }},
    {"parallelism.pipeline_parallel_first_stage_less_layers", less_layers},
    {"parallelism.pipeline_parallel_last_stage_less_layers", less_layers},
    {"parallelism.expert_parallel_degree", [](Row r) { return above(1, r.layout().expert); }},
    {"parallelism.expert_tensor_parallel_degree",
     [](Row r) { return where(r.layout().expert > 1, r.layout().expert_tensor_size()); }},
    {"parallelism.expert_parallel_comm_backend",
     [](Row r) {
       return where(r.layout().expert > 1,
                    r.framework().expert_dispatcher == ExpertDispatcher::deepep ? "deepep" : "standard");
     }},
    {"activation_checkpoint.mode",
     [](Row r) -> Value {
       return !every_layer(r).is_null()                 ? "selective"
              : r.layout().recompute == Recompute::full ? "full"
                                                        : "none";
     }},
    {"activation_checkpoint.selective_ac_option", every_layer},
};
constexpr Gap kTorchtitanGaps[] = {
    policy_gap([](Row r) { return packed_otherwise(*framework_runs("torchtitan"), r); }),
    {"shard",
     [](Row r) { return r.layout().context == 1 || r.shard() == "per-sequence" ? std::string() : r.shard(); },
     "CP cuts the sequence from both ends (headtail)", "per-sequence"},
    {"parallel.context_comm", [](Row r) { return context_gap(r, kByTorchtitan); },
     "K and V are gathered, or rotated by all-to-all", "alltoall, which rotates as a ring does"},
    {"schedule", [](Row r) { return scheduled_otherwise(*framework_runs("torchtitan"), r); },
     "it is not among torch.distributed.pipelining's schedules",
     "the one written: DualPipeV of dualpipe, InterleavedZeroBubble of zb-h1, else 1F1B"},
    {"parallel.zero",
     [](Row r) { return std::string(r.layout().data > 1 && r.layout().zero == 1 ? "1" : ""); },
     "FSDP shards gradients and parameters, too", "fsdp_reshard_after_forward never, as ZeRO-2"},
    {"parallel.pipeline", [](Row r) { return std::string(r.has_even_stages() ? "" : "with uneven stages"); },
     "stages get equal layers but for the ends",
     "pipeline_parallel_layers_per_stage as large as the largest"},
    {"recompute",
     [](Row r) {
       const Recompute mode = r.layout().recompute;
       const bool divides = mode == Recompute::layers && r.layout().recompute_layers > 0 &&
                            r.model().layers % r.layout().recompute_layers == 0;
       const bool whole = mode == Recompute::none || mode == Recompute::full || divides;
       return whole || r.layout().repeats(RecomputeModule::per_op) ? std::string() : recompute_of(r);
     },
     "whole layers are recomputed, every n-th, or single ops by torch's own choice",
     "the mode written; more layers with a smaller selective_ac_option"},
    kOrderOfRanks,
    kDocuments,
    kCountOfPlan,
    kLargerMicroBatches,
    kRecomputeOfPlan,
    kLora,
    kPrediction,
};

// verl runs FSDP if there is no tensor and pipeline parallelism, else Megatron.
bool uses_fsdp(Row r) {
  return r.layout().tensor == 1 && r.layout().pipeline == 1;
}
bool packs_by_tokens(Row r) {
  return r.row.run.name != "padded" && r.row.run.name != "sorted";
}
// A document is never cut, and a micro-batch has at most ppo_max_token_len_per_gpu x CP tokens.
std::int64_t tokens_of_gpu(Row r) {
  const std::int64_t ranks = r.layout().context;
  return (std::max(r.micro_batch_tokens(), r.longest_document()) + ranks - 1) / ranks;
}
Value of_megatron(Row r, std::int64_t number) {
  return where(!uses_fsdp(r), number);
}

constexpr Setting kVerl[] = {
    {"actor_rollout_ref.actor.strategy", [](Row r) -> Value { return uses_fsdp(r) ? "fsdp2" : "megatron"; }},
    {"actor_rollout_ref.model.use_remove_padding", [](Row r) -> Value { return packs_by_tokens(r); }},
    {"actor_rollout_ref.model.lora_rank", [](Row r) { return where(uses_fsdp(r), lora_rank(r)); }},
    {"actor_rollout_ref.model.lora.rank", [](Row r) { return where(!uses_fsdp(r), lora_rank(r)); }},
    {"actor_rollout_ref.actor.use_dynamic_bsz", [](Row r) -> Value { return packs_by_tokens(r); }},
    {"actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
     [](Row r) { return where(packs_by_tokens(r), tokens_of_gpu(r)); }},
    {"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
     [](Row r) { return where(!packs_by_tokens(r), r.study.batch.micro_batch_size); }},
    {"data.train_batch_size", [](Row r) { return above(0, r.study.batch.documents_per_step); }},
    {"actor_rollout_ref.actor.ppo_mini_batch_size",
     [](Row r) { return above(0, r.study.batch.documents_per_step); }},
    {"actor_rollout_ref.actor.ulysses_sequence_parallel_size",
     [](Row r) { return where(uses_fsdp(r), r.layout().context); }},
    {"actor_rollout_ref.actor.fsdp_config.fsdp_size",
     [](Row r) { return where(uses_fsdp(r), r.layout().zero == 0 ? 1 : -1); }},
    {"actor_rollout_ref.actor.fsdp_config.reshard_after_forward",
     [](Row r) { return where(uses_fsdp(r), r.layout().zero == 3); }},
    {"actor_rollout_ref.model.enable_gradient_checkpointing",
     [](Row r) { return where(uses_fsdp(r), recomputes(r)); }},
    {"actor_rollout_ref.actor.megatron.tensor_model_parallel_size",
     [](Row r) { return of_megatron(r, r.layout().tensor); }},
    {"actor_rollout_ref.actor.megatron.context_parallel_size",
     [](Row r) { return of_megatron(r, r.layout().context); }},
    {"actor_rollout_ref.actor.megatron.pipeline_model_parallel_size",
     [](Row r) { return of_megatron(r, r.layout().pipeline); }},
    {"actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size",
     [](Row r) { return above(1, uses_fsdp(r) ? 1 : r.layout().virtual_pipeline); }},
    {"actor_rollout_ref.actor.megatron.expert_model_parallel_size",
     [](Row r) { return above(1, uses_fsdp(r) ? 1 : r.layout().expert); }},
    {"actor_rollout_ref.actor.megatron.use_distributed_optimizer",
     [](Row r) { return where(!uses_fsdp(r), r.layout().zero > 0); }},
    {"actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity",
     [](Row r) { return where(!uses_fsdp(r) && recomputes(r), "full"); }},
    {"actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method",
     [](Row r) { return where(!uses_fsdp(r) && recomputes(r), "block"); }},
    {"actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers",
     [](Row r) { return where(!uses_fsdp(r) && recomputes(r), std::ranges::max(r.recomputed_of_stages())); }},
    {"trainer.n_gpus_per_node",
     [](Row r) -> Value { return std::min<std::int64_t>(r.row.gpus_per_node, r.layout().gpus()); }},
    {"trainer.nnodes",
     [](Row r) -> Value { return (r.layout().gpus() + r.row.gpus_per_node - 1) / r.row.gpus_per_node; }},
};
constexpr Gap kVerlGaps[] = {
    {"parallel.pipeline", [](Row r) { return std::string(r.has_even_stages() ? "" : "with uneven stages"); },
     "stages get equal layers", "that"},
    {"policy", [](Row r) { return packed_otherwise(*framework_runs("verl"), r); },
     "micro-batches are those of use_dynamic_bsz: largest differencing up to ppo_max_token_len_per_gpu",
     "karmarkar-karp, which is a row of a study to compare with"},
    {"shard",
     [](Row r) {
       return found_if(r.layout().context > 1 && (uses_fsdp(r) || r.shard() != "per-document"), r.shard());
     },
     "FSDP's Ulysses shards nothing, Megatron cuts each document into 2 x CP chunks",
     "per-document with Megatron"},
    {"parallel.context_comm",
     [](Row r) { return context_gap(r, uses_fsdp(r) ? kByVerlFsdp : kByVerlMegatron); },
     "FSDP has Ulysses, Megatron a ring", "those; override_transformer_config.cp_comm_type with Megatron"},
    {"schedule", [](Row r) { return scheduled_otherwise(*framework_runs("verl"), r); },
     "Megatron's 1F1B runs, interleaved with virtual stages", "that"},
    {"batch.sequences_per_step",
     [](Row r) {
       return found_if(r.has_windows(), counted(r.study.batch.sequences_per_step, "window") + ", about " +
                                            counted(r.documents(), "document"));
     },
     "data.train_batch_size and ppo_mini_batch_size count samples, whatever their tokens",
     "as many as a step has documents"},
    {"recompute",
     [](Row r) {
       const Recompute mode = r.layout().recompute;
       const bool all = mode == Recompute::none || mode == Recompute::full;
       return all || (mode == Recompute::layers && !uses_fsdp(r)) ? std::string() : recompute_of(r);
     },
     "FSDP checkpoints all layers or none",
     "all layers where some are recomputed; recompute_modules with Megatron"},
    {"parallel.zero",
     [](Row r) { return found_if(!uses_fsdp(r) && r.layout().zero >= 2, std::to_string(r.layout().zero)); },
     "Megatron in verl shards the optimizer only", "use_distributed_optimizer"},
    {"precision", [](Row r) { return std::string(r.layout().precision == Precision::fp8 ? "fp8" : ""); },
     "the actor trains in bf16", "bf16"},
    {"lora",
     [](Row r) {
       const WeightSet adapted = r.model().training.adapted;
       return std::string(adapted == 0 || adapted == kAdaptable ? "" : "target_modules");
     },
     "all linear layers have adapters by default",
     "model.target_modules (with Megatron model.lora.target_modules)"},
    kOrderOfRanks,
    kRecomputeOfPlan,
    kPrediction,
};

}  // namespace

Exporter deepspeed_exporter() {
  return {"deepspeed",
          "DeepSpeed (0.19.6, edaa72212)",
          "use: deepspeed train.py --deepspeed_config THIS_FILE",
          "deepspeed ",
          ExportForm::json_text,
          kDeepspeed,
          kDeepspeedGaps};
}

Exporter torchtitan_exporter() {
  return {"torchtitan",
          "torchtitan (v0.2.2, the last that reads TOML; later ones have these names in Python)",
          "use: CONFIG_FILE=THIS_FILE ./run_train.sh, with your [model], [optimizer] and data",
          "torchtitan ",
          ExportForm::toml,
          kTorchtitan,
          kTorchtitanGaps};
}

Exporter verl_exporter() {
  return {"verl",
          "verl (0.9.1)",
          "use: python3 -m verl.trainer.main_ppo \"${OVERRIDES[@]}\" with your data and model; "
          "actor.megatron.* with "
          "--config-name=ppo_megatron_trainer; batch sizes are of rollout.n 1",
          "fsdp megatron ",
          ExportForm::overrides,
          kVerl,
          kVerlGaps,
          "karmarkar-karp"};
}

}  // namespace equipoise
