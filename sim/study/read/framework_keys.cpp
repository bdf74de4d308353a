#include "sim/study/read/framework_keys.h"

#include "sim/study/read/key_notes.h"

namespace equipoise {

namespace keys {
namespace {

constexpr Key<Anchor> kAnchorKeys[] = {
    text<&Anchor::row>("row", "Label of the row that was measured"),
    number<&Anchor::seconds>("seconds", 0, 1e7, "What its step took"),
    number<&Anchor::factor>("factor", kLeastAnchor, kMostAnchor, "On the times of all kernels")
        .must_be("the factor on the times of all kernels"),
    text<&Anchor::layout>(
        "layout",
        "TP, CP, PP and DP of the measured run, on which a step's error is that of two of its rows"),
};

// Collectives of gradients and parameters take SMs from a stage that never waits for another.
constexpr const char* kWithTakenSms =
    "with parallel.expert above 1, or with zero 0 to 2 and several replicas but no pipeline";
bool takes_sms(const Study& study) {
  return acts::exchanges_experts(study) ||
         (study.layout.zero < 3 && study.layout.pipeline == 1 && acts::has_replicas(study));
}

constexpr Key<Framework> kFrameworkKeys[] = {
    other<Framework>("preset", text_schema,
                     "A preset's name, or a path that ends in .json; megatron by default"),
    flag<&FrameworkOptions::tp_overlap_forward>("tp_overlap", "Forward TP collectives run under their GEMM")
        .acting("with parallel.tensor above 1", acts::has_tensor),
    integer<&FrameworkOptions::tp_overlap_sms>(
        "tp_overlap_sms", 0, kMostOverlapSms,
        "SMs that a TP collective takes from a GEMM. Under tp_overlap a forward's scatter goes in four "
        "pieces, the last one bare, its GEMM on the other SMs. A backward's GEMMs are launched for all SMs "
        "and lose half of a collective's time. The preset's by default")
        .counted()
        .acting("with parallel.tensor above 1", acts::has_tensor),
    flag<&FrameworkOptions::records_streams>(
        "records_streams",
        "Outputs that TP collectives reduce stay until the GPU has passed them (PyTorch's record_stream): an "
        "op holds a forward's, as the host runs ahead; the preset's by default")
        .acting("with parallel.tensor above 1", acts::has_tensor),
    flag<&FrameworkOptions::overlap_param_gather>("overlap_param_gather",
                                                  "ZeRO-1 and 2 gather parameters under the next forward")
        .acting("with zero 1 or 2", acts::gathers_parameters),
    flag<&FrameworkOptions::reduce_gradients>(
        "reduce_gradients",
        "Gradients are reduced over DP and CP; true by default, false for benchmarks that leave them local"),
    flag<&FrameworkOptions::scatter_gradients>(
        "scatter_gradients",
        "ZeRO-1 reduces shards of the gradients under the backward; false: an all-reduce of all of them "
        "behind the last backward; the preset's by default")
        .acting("with zero 1", [](const Study& study) { return study.layout.zero == 1; }),
    flag<&FrameworkOptions::overlap_grad_reduce>(
        "overlap_grad_reduce",
        "ZeRO-0 and 1 reduce a layer's gradients under the backward of the layers before it; false: all of "
        "them behind the last backward, as Megatron-LM without --overlap-grad-reduce; true by default")
        .acting("with zero 0 or 1 and several replicas",
                [](const Study& study) { return study.layout.zero < 2 && acts::has_replicas(study); }),
    flag<&FrameworkOptions::optimizer_step>(
        "optimizer_step",
        "The step ends with the optimizer and the gather of what it updated; true by default, false for "
        "benchmarks that time forward and backward (its memory stays)"),
    flag<&FrameworkOptions::keep_gathered_kv>(
        "keep_gathered_kv",
        "context_comm all-gather, group-cast and disaggregated: what a forward brought from other ranks is "
        "kept for its backward, which then gathers nothing; false by default, as keeping K and V takes a "
        "group's whole context on every rank")
        .acting("with all-gather, group-cast or disaggregated context parallelism", acts::gathers_keys),
    integer<&FrameworkOptions::gradient_bytes>("gradient_bytes", 2, 4,
                                               "Size of a gradient element in the reduction"),
    number<&FrameworkOptions::optimizer_bytes>(
        "optimizer_bytes", 1, 32,
        "Size of a parameter's optimizer states: 12 for an fp32 master weight and two fp32 moments"),
    number<&FrameworkOptions::gradient_copy_bytes>(
        "gradient_copy_bytes", 0, 4,
        "Held of a gradient element besides gradient_bytes: 2 where bf16 gradients stay next to an fp32 "
        "accumulation; the preset's by default"),
    number<&FrameworkOptions::gradient_bucket_MB>(
        "gradient_bucket_MB", 0, 1e5,
        "MiB of weights that are reduced at once under the backward, at least 0.1; 0: a layer's; the "
        "preset's by default"),
    number<&FrameworkOptions::gradient_add_bytes>(
        "gradient_add_bytes", 0, 32,
        "Moved of a dense layer's weight where a kernel adds a micro-batch's gradient to the sum: 10 for "
        "bf16 to fp32; 0: the product adds it; the preset's by default"),
    number<&FrameworkOptions::step_end_bytes>(
        "step_end_bytes", 0, 64,
        "Moved of each gradient of a rank at a step's end besides the optimizer: 16 for norm, clipping and "
        "zeroing of fp32 gradients; the preset's by default"),
    number<&FrameworkOptions::allocator_slack>("allocator_slack", 0, 1,
                                               "A fraction of activations, logits and buffers that a caching "
                                               "allocator holds in addition; the preset's by default"),
    flag<&FrameworkOptions::fused_activation>(
        "fused_activation",
        "A gated FFN's activation is one kernel, and gate, up and their product are kept; false: silu(gate) "
        "is a kernel of its own, kept too, as in eager PyTorch; the preset's by default"),
    flag<&FrameworkOptions::fused_rope>(
        "fused_rope",
        "RoPE is one kernel; true by default, false for PyTorch's own ones for each document of a rank, "
        "whose lengths the host reads first (Megatron-LM without apply_rope_fusion)"),
    flag<&FrameworkOptions::rope_by_document>(
        "rope_by_document",
        "RoPE that is not fused has kernels for each document of a rank, as packed ones need; true by "
        "default, false for a batch of whole sequences, which one call takes"),
    flag<&FrameworkOptions::early_stop>(
        "early_stop",
        "Whole layers that are recomputed run a dense layer's forward only up to the last product's input, "
        "which is all that its backward needs (PyTorch's checkpoint unless reentrant); the preset's by "
        "default"),
    flag<&FrameworkOptions::ring_merges>("ring_merges",
                                         "context_comm ring and ulysses-ring: each step's output and "
                                         "gradients are read, put together and written by "
                                         "kernels of their own, as in Transformer Engine; PyTorch's ring "
                                         "always has its own; the preset's by default")
        .acting("with ring context parallelism and linear_layers fused", acts::rings),
    choice<&FrameworkOptions::loss>(
        "loss", kLossNames,
        "What follows the logits, the preset's by default; fused: a cross-entropy of two reads and a write; "
        "unfused: Megatron-LM's, kernel by kernel; pytorch: its own of an fp32 copy, kernel by kernel; "
        "chunked: Liger Kernel's fused linear cross-entropy, whose forward makes logits and gradients chunk "
        "by chunk; sum: of an fp32 copy of the logits, in a benchmark; mean: of that copy; mean-square: the "
        "mean of (logit - 1)^2 of that copy")
        .noting([](std::string_view, bool, const Study& study, Notes& notes) {
          if (study.framework.in_training.loss == LossKind::chunked)
            notes.push_back({"loss_chunked", "", {}});
        }),
    choice<&FrameworkOptions::linear_layers>(
        "linear_layers", kLinearLayersNames,
        "Whose linear layers run, the preset's by default; fused: Q, K and V in one product, gate and up in "
        "another, and TP gathers an input again during the backward (Megatron-LM, Transformer Engine); "
        "torch: a product each, gathered inputs kept, FP8 cast by torchao, compiled; torch-eager: the same "
        "without torch.compile"),
    choice<&FrameworkOptions::stage_division>(
        "stage_division", kStageDivisionNames,
        "How layers are shared out over virtual stages, the preset's by default; even: the middle stages "
        "first where they do not divide; block-costs: a stage is full once the cost up to its last block "
        "exceeds its share; a layer costs 4 x hidden x query width + 3 x hidden x FFN, the head vocabulary x "
        "hidden (nanotron)")
        .acting("with a pipeline, without stage_layers and count_embedding_and_head", acts::divides_stages),
    flag<&FrameworkOptions::fp8_param_gather>("fp8_param_gather",
                                              "ZeRO-3 gathers the layers' weights in FP8 (torchao's "
                                              "enable_fsdp_float8_all_gather); false by default")
        .acting("with precision fp8, zero 3, linear_layers torch and a dense model without MLA",
                acts::gathers_fp8),
    integer<&FrameworkOptions::logit_bytes>(
        "logit_bytes", 4, 16,
        "What the loss holds of each logit at once: 6 with fp32 in place and a bf16 copy (Megatron-LM), 10 "
        "with fp32 log-softmax and gradient next to bf16 logits (PyTorch), 14 where an fp32 copy is kept too")
        .acting("unless loss is chunked",
                [](const Study& study) { return study.framework.in_training.loss != LossKind::chunked; }),
    number<&FrameworkOptions::fp8_input_bytes>(
        "fp8_input_bytes", 0, 4,
        "With precision fp8, kept of an element of a linear layer's input: 1 as Transformer Engine keeps it, "
        "1.03125 with a scale for each 128 elements, 2 where bf16 is kept and cast again; the preset's by "
        "default"),
    number<&FrameworkOptions::fp8_attention_bytes>(
        "fp8_attention_bytes", 0, 4,
        "With precision fp8, kept of an element of attention's output: 3 with bf16 for its own backward and "
        "FP8 for the next layer's, 2 where one bf16 copy serves both; the preset's by default"),
    number<&FrameworkOptions::fp8_activation_bytes>(
        "fp8_activation_bytes", 0, 4,
        "With precision fp8, kept of an element that an FFN's activation reads: 2 in bf16, 1 where it is "
        "stored in FP8 (Megatron-LM's activation_func_fp8_input_store); the preset's by default"),
    number<&FrameworkOptions::fp8_weight_bytes>(
        "fp8_weight_bytes", 0, 4,
        "With precision fp8, kept of a weight of a linear layer besides two bytes of bf16: 2 for cached FP8 "
        "in both orders, 0 where FP8 takes bf16's place or nothing is cached; the preset's by default"),
    number<&FrameworkOptions::fp8_frozen_weight_bytes>(
        "fp8_frozen_weight_bytes", 0, 4,
        "With precision fp8, what a frozen weight of a linear layer takes in all: 1 where it is there in FP8 "
        "alone, 2 in bf16 or in FP8 in both orders, 4 in all of them; the preset's by default")
        .acting("with frozen weights", acts::freezes_weights),
    number<&FrameworkOptions::seconds_per_op>(
        "seconds_per_op", 0, 1,
        "Host time of each op as it is modelled, whatever the framework launches for it: instead of the "
        "preset's launches and seconds_per_launch. None by default"),
    number<&FrameworkOptions::host, &HostOptions::seconds_per_launch>(
        "seconds_per_launch", 0, 1,
        "Host time of a kernel's launch; where the host is behind, the GPU waits. By default that of a "
        "profile whose host was measured, else the preset's"),
    choice<&FrameworkOptions::host, &HostOptions::graphs>(
        "graphs", kGraphsNames,
        "What runs from CUDA graphs and so takes the host one launch, none by default; none: nothing; "
        "attention: a layer's attention with its norm and projections; layer: each pass of a layer; full: "
        "everything"),
    flag<&FrameworkOptions::host, &HostOptions::router_graphs>(
        "router_graphs",
        "The router of a layer with experts, with the norm before it, runs from a CUDA graph of its own "
        "(Megatron-LM's cuda_graph_scope moe_router and moe_preprocess); false by default")
        .acting("with a model that has experts", acts::has_experts),
    number<&FrameworkOptions::host, &HostOptions::seconds_per_kernel>(
        "seconds_per_kernel", 0, 1,
        "Host time of a kernel that PyTorch's own functions launch, without a framework's module around it: "
        "RoPE that is not fused, the bias and the clamp of GPT-OSS's experts; never more than a launch. By "
        "default the preset's, or a launch's where the host's was measured"),
    flag<&FrameworkOptions::recompute_ahead>(
        "recompute_ahead",
        "chunkflow without a pipeline issues the k-th recomputing forward of a group before its k-th "
        "backward, and so holds K + 1 chunks; true by default, of no effect with strict_keep")
        .acting("without a pipeline", acts::has_no_pipeline),
    number<&FrameworkOptions::expert_imbalance>("expert_imbalance", 1, 1000,
                                                "Busiest expert-parallel rank / mean, in every micro-batch")
        .acting("with a model that has experts", acts::has_experts),
    number<&FrameworkOptions::expert_skew>(
        "expert_skew", 0, 10,
        "Standard deviation over mean of an expert's share of a document's tokens: the busiest "
        "expert-parallel rank is then drawn for every micro-batch; the preset's by default, which is 0: the "
        "router is balanced")
        .acting("with a model that has experts", acts::has_experts),
    integer<&FrameworkOptions::expert_seed>("expert_seed", 0, INT64_MAX, "Seed of those draws; 0 by default")
        .counted()
        .acting("with framework.expert_skew above 0", acts::draws_experts),
    choice<&FrameworkOptions::expert_router>(
        "expert_router", kExpertRouterNames,
        "How the router was trained to balance loads, which decides how uneven they are drawn, stated by "
        "default; stated: as expert_skew says; loss-free: by biases (DeepSeek-V3); auxiliary-loss: by a loss "
        "term; unbalanced: not at all")
        .acting("with expert parallelism and no expert_capacity_factor", acts::routes_unevenly),
    number<&FrameworkOptions::expert_gemm_slowdown>("expert_gemm_slowdown", 0.1, 100,
                                                    "How much slower the experts' grouped GEMMs run in "
                                                    "training, over gemm_slowdown; the preset's by default")
        .acting("with a model that has experts", acts::has_experts),
    number<&FrameworkOptions::expert_product_seconds>(
        "expert_product_seconds", 0, 1,
        "What each expert's product takes besides its arithmetic (launch, first and last wave, a host that "
        "falls behind); the preset's by default")
        .acting("with a model that has experts", acts::has_experts),
    text<&FrameworkOptions::expert_kernel>(
        "expert_kernel",
        "The profile's grouped kernel that takes the products of all experts of a rank in one launch "
        "(cutlass-grouped, triton-fused; torch-grouped of h100-sxm and h200-sxm); empty: the library's GEMM "
        "for each expert; the preset's by default")
        .acting("with a model that has experts", acts::has_experts),
    flag<&FrameworkOptions::permute_fusion>(
        "permute_fusion",
        "One kernel sorts tokens by expert and one brings them back (Megatron-LM's moe_permute_fusion); "
        "false: a kernel for each step of both, all copies read and written by each; the preset's by default")
        .acting("with a model that has experts", acts::has_experts),
    flag<&FrameworkOptions::fused_expert_activation>(
        "fused_expert_activation",
        "The experts' activation is in the epilogue of a product, with GPT-OSS's clamp (Megatron-LM's "
        "use_transformer_engine_op_fuser); false by default: the clamp is kernels of PyTorch")
        .acting("with a model that has experts", acts::has_experts),
    number<&FrameworkOptions::expert_capacity_factor>(
        "expert_capacity_factor", 0, 1000,
        "Each expert computes so many times the mean of copies: more are dropped, fewer padded "
        "(moe_expert_capacity_factor with moe_pad_expert_input_to_capacity), and the host need not wait for "
        "counts; 0, the default: every copy is computed")
        .acting("with a model that has experts", acts::has_experts),
    integer<&FrameworkOptions::expert_streams>(
        "expert_streams", 0, kMostExpertStreams,
        "The experts' products go out one by one on so many streams, and as many share the SMs at a time; 0: "
        "all of a rank's in one kernel; the preset's by default")
        .counted()
        .acting("with a model that has experts", acts::has_experts),
    integer<&FrameworkOptions::exchange_sms>("exchange_sms", 0, 1024,
                                             "SMs that the kernels of an exchange of experts hold, and those "
                                             "of gradients and parameters: compute under them runs on the "
                                             "others; the preset's by default")
        .counted()
        .acting(kWithTakenSms, takes_sms),
    flag<&FrameworkOptions::exchange_sm_margin>(
        "exchange_sm_margin",
        "Compute under an exchange is launched for the SMs that it leaves; false: for all, and the blocks of "
        "those that it holds come in a wave of their own; the preset's by default")
        .acting(kWithTakenSms, takes_sms),
    integer<&FrameworkOptions::routing_kernels>(
        "routing_kernels", 0, kMostRoutingKernels,
        "Small kernels of a layer with experts, each pass, besides those that move its tokens (softmax, "
        "choice, auxiliary loss, counts, maps); the preset's by default")
        .counted()
        .acting("with a model that has experts", acts::has_experts),
    choice<&FrameworkOptions::expert_overlap>(
        "expert_overlap", kExpertOverlapNames,
        "What hides the exchanges of expert parallelism; none: nothing; shared-expert: the shared expert "
        "(Megatron-LM's moe_shared_expert_overlap); deepep: nothing, by DeepEP's kernels; dualpipe: another "
        "micro-batch's forward or backward (DualPipe, Megatron-LM's overlap_moe_expert_parallel_comm)")
        .acting("with parallel.expert above 1", acts::exchanges_experts)
        .noting(note_expert_overlap),
    choice<&FrameworkOptions::expert_dispatcher>(
        "expert_dispatcher", kExpertDispatcherNames,
        "What moves token copies to their experts; alltoall: NCCL's all-to-all; deepep: DeepEP, which "
        "crosses the network once for each node and token")
        .acting("with parallel.expert above 1", acts::exchanges_experts),
    integer<&FrameworkOptions::expert_nodes>(
        "expert_nodes", 0, 1 << 20,
        "Most nodes that a token is routed to; 0: what the model's router leaves, any where it has no groups "
        "of experts. It has no effect with expert_dispatcher alltoall, which sends every copy on its own")
        .counted()
        .acting("with parallel.expert above 1", acts::exchanges_experts),
    number<&FrameworkOptions::dispatch_bytes>("dispatch_bytes", 0, 8,
                                              "Bytes of an element sent to its experts (FP8 dispatch: 1, "
                                              "1.03125 with its scales); 0: an activation's")
        .acting("with parallel.expert above 1", acts::exchanges_experts),
    flag<&Framework::carry_slowdowns>(
        "carry_slowdowns",
        "Slowdowns of the preset count on kernels that they were not fitted on: by default on published and "
        "derived ones of any GPU, not on measured ones. A sweep over profiles of both kinds carries them to "
        "all"),
    number<&FrameworkOptions::gemm_slowdown>(
        "gemm_slowdown", 0.1, 100,
        "How much slower GEMMs run in training than alone, at the clock of full load where a preset was "
        "fitted with it; the preset's by default"),
    number<&FrameworkOptions::attention_slowdown>(
        "attention_slowdown", 0.1, 100,
        "How much slower attention runs in training than alone; the preset's by default"),
    number<&FrameworkOptions::elementwise_slowdown>(
        "elementwise_slowdown", 0.1, 100,
        "How much slower elementwise kernels run in training than alone; the preset's by default"),
    other<Framework>(
        "anchor", schema_of<anchor_keys>,
        "One factor on the times of all kernels, in addition to their slowdowns, with which a row takes "
        "as long as somebody measured: what `study --measured-step` finds; none by default"),
    text<&FrameworkOptions::attention_kernel>("attention_kernel",
                                              "Which of the profile's attention kernels; the preset's by "
                                              "default, the profile's default where it has no such kernel"),
    flag<&Framework::reduce_each_micro_batch>(
        "reduce_each_micro_batch",
        "With zero 2: gradients are reduced with every micro-batch, as DeepSpeed and FSDP do, not only after "
        "a layer's last backward (memory is the same); true by default, zero 3 always does")
        .acting("with zero 2: zero 3 always reduces so, others reduce after the last one",
                acts::reduces_gradients_alone),
};

}  // namespace

ordered_json framework_schema() {
  return {
      {"anyOf",
       {described_text("A preset's name, or a path that ends in .json"), object_schema(framework_keys())}}};
}

}  // namespace keys

std::span<const Key<Anchor>> anchor_keys() {
  return keys::kAnchorKeys;
}

std::span<const Key<Framework>> framework_keys() {
  return keys::kFrameworkKeys;
}

}  // namespace equipoise
