#include "sim/study/read/framework.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "policies/base/text.h"
#include "sim/study/read/key_notes.h"
#include "sim/study/read/study_keys.h"

namespace equipoise {

using nlohmann::json;

namespace {

bool has_attention_kernel(const Profile& profile, const std::string& kernel) {
  return profile.json().contains(json::json_pointer("/tables/attention/kernels") / kernel);
}

// How far carried slowdowns are off, as far as published steps of the GPU say.
std::string error_text(const FrameworkPreset& preset, const Profile& profile) {
  const std::string seen = kernels_are_measured(profile) ? "" : preset.error_on(profile);
  return seen.empty() ? "error there unknown" : seen;
}

// The attention kernel that is used there; empty: the profile's default.
std::string kernel_on(const Framework& framework, const Profile& profile) {
  const std::string& kernel = framework.in_training.attention_kernel;
  return framework.says_kernel || has_attention_kernel(profile, kernel) ? kernel : std::string();
}

// ", of which GEMM and elementwise in part were measured, attention was not", where GEMM was.
std::string measured_text(const Framework& framework, const Profile& profile) {
  const Measured attention = attention_measured(profile, kernel_on(framework, profile));
  const Measured elementwise = elementwise_measured(profile);
  if (attention == Measured::all && elementwise == Measured::all) return ", which were measured";
  std::vector<std::string> measured = {"GEMM"}, others;
  for (const auto& [kind, how] : {std::pair("attention", attention), std::pair("elementwise", elementwise)})
    (how == Measured::none ? others : measured)
        .push_back(std::string(kind) + (how == Measured::some ? " in part" : ""));
  const auto were = [](const std::vector<std::string>& kinds) {
    return all_joined(kinds, " and ") + (kinds.size() == 1 ? " was" : " were");
  };
  return ", of which " + were(measured) + " measured" + (others.empty() ? "" : ", " + were(others) + " not");
}

// What slowdowns stay although GEMM was measured: those of kernels that were not. "attention x1.89".
struct Kept {
  bool attention = false, elementwise = false;
  [[nodiscard]] bool any() const { return attention || elementwise; }
};
Kept kept_on(const Framework& framework, const Profile& profile) {
  if (framework.rule_on(profile) != SlowdownRule::alone || framework.says_slowdowns ||
      framework.carry_slowdowns || framework.preset.kernels == KernelTimes::benchmark)
    return {};
  const FrameworkOptions& slowed = framework.in_training;
  return {slowed.attention_slowdown != 1 &&
              attention_measured(profile, kernel_on(framework, profile)) == Measured::none,
          slowed.elementwise_slowdown != 1 && elementwise_measured(profile) == Measured::none};
}
std::string kept_text(const Framework& framework, const Kept& kept) {
  std::string text;
  if (kept.attention) text = "attention x" + fixed(framework.in_training.attention_slowdown, 2);
  if (kept.elementwise)
    text += (text.empty() ? "" : " and ") +
            ("elementwise x" + fixed(framework.in_training.elementwise_slowdown, 2));
  return text;
}

}  // namespace

SlowdownRule Framework::rule_on(const Profile& profile) const {
  const SlowdownRule rule = preset.rule_on(profile);
  if (!carry_slowdowns || rule == SlowdownRule::fitted || preset.kernels == KernelTimes::benchmark)
    return rule;
  return *carry_slowdowns ? SlowdownRule::carried : SlowdownRule::alone;
}

FrameworkOptions Framework::on(const Profile& profile) const {
  FrameworkOptions options = rule_on(profile) == SlowdownRule::alone ? alone : in_training;
  const Kept kept = kept_on(*this, profile);
  if (kept.attention) options.attention_slowdown = in_training.attention_slowdown;
  if (kept.elementwise) options.elementwise_slowdown = in_training.elementwise_slowdown;
  options.attention_kernel = kernel_on(*this, profile);
  if (!says_launch && profile.device().seconds_per_launch)
    options.host.seconds_per_launch = *profile.device().seconds_per_launch;
  return options;
}

std::vector<std::string> Framework::notes_on(const Profile& profile) const {
  const std::string name = "framework " + preset.name;
  if (preset.kernels == KernelTimes::benchmark && !says_slowdowns)
    return {name + ": kernels are taken at their benchmark speed; training runs them slower"};
  if (preset.kernels == KernelTimes::benchmark) return {};
  std::vector<std::string> found;
  const std::string here = " on profile " + profile.name() + " (" + profile.device().name + ")";
  const std::string own = name + ": its slowdowns are 1";
  const std::string fitted = name + ": its slowdowns were fitted on published times of " +
                             all_joined(preset.gpu_families) + ";" + here + " they are ";
  switch (rule_on(profile)) {
    case SlowdownRule::alone:
      if (const Kept kept = kept_on(*this, profile); kept.any())
        found.push_back(own + " for GEMM" + here + ", where it was measured; " + kept_text(*this, kept) +
                        " stay, as these were not");
      else
        found.push_back(kernels_are_measured(profile) ? own + here + " for kernels" + measured_text(*this, profile)
                                                      : fitted + "1");
      found.back() += std::string(says_slowdowns ? " (where the study states none)" : "") +
                      "; its host and what it overlaps and shards stay" +
                      (carry_slowdowns ? "" : " (framework.carry_slowdowns)");
      break;
    case SlowdownRule::carried:
      found.push_back(fitted + "carried over, " + error_text(preset, profile) +
                      "; measured steps of your own replace them (equipoise fit --steps)");
      break;
    case SlowdownRule::fitted:
      if (preset.kernels == KernelTimes::borrowed)
        found.push_back(name + ": slowdowns borrowed from " + preset.borrowed_from +
                        ", their error is unknown");
  }
  const std::string& kernel = in_training.attention_kernel;
  if (!says_kernel && !kernel.empty() && !has_attention_kernel(profile, kernel))
    found.push_back(name + ": profile " + profile.name() + " has no attention kernel " + kernel +
                    ": its default is taken");
  return found;
}

std::string Framework::kernels_text_on(const Profile& profile) const {
  if (says_slowdowns) return slowdowns_text(on(profile)) + ", as the study says";
  if (preset.kernels == KernelTimes::benchmark) return preset.kernels_text();
  switch (rule_on(profile)) {
    case SlowdownRule::alone:
      return std::string("kernels as fast as the profile has them") +
             (!kernels_are_measured(profile) ? "" : measured_text(*this, profile)) +
             (kept_on(*this, profile).any() ? "; " + kept_text(*this, kept_on(*this, profile)) + ", fitted"
                                            : "");
    case SlowdownRule::carried:
      return slowdowns_text(in_training) + ", carried over from " + all_joined(preset.gpu_families) + ", " +
             error_text(preset, profile);
    case SlowdownRule::fitted:
      break;
  }
  const std::string seen = preset.error_on(profile);
  return preset.kernels_text() + (seen.empty() ? "" : "; " + seen);
}

const FamilyError* Framework::expected_error(const StepFamily& steps, const Profile& profile) const {
  const bool own = !says_slowdowns && rule_on(profile) != SlowdownRule::alone;
  return own ? preset.expected_error(steps) : nullptr;
}

std::string Framework::kernel_errors_on(const Profile& profile, const std::string& network) const {
  if (rule_on(profile) != SlowdownRule::alone) return "";
  return measured_errors(profile, kernel_on(*this, profile), network);
}

std::string Framework::routing_text_on(const Profile& profile) const {
  const FrameworkOptions options = on(profile);
  if (options.expert_router != ExpertRouter::stated && options.expert_capacity_factor == 0)
    return "router as trained: " + std::string(kExpertRouterNames[at(options.expert_router)]) +
           (options.expert_skew > 0 ? ", times loads of skew " + fixed(options.expert_skew, 2) : "") +
           (options.expert_imbalance > 1 ? ", times " + fixed(options.expert_imbalance, 2) : "");
  if (options.expert_skew > 0)
    return "experts' loads drawn with skew " + fixed(options.expert_skew, 2) +
           (options.expert_imbalance > 1 ? ", times " + fixed(options.expert_imbalance, 2) : "");
  if (options.expert_imbalance > 1)
    return "the busiest rank of experts has " + fixed(options.expert_imbalance, 2) + " times the mean";
  if (options.expert_skew != preset.options.expert_skew || preset.skew_source.empty())
    return "router taken as balanced";
  return "router taken as " + preset.skew_source + " (framework.expert_skew)";
}

Framework framework_with(FrameworkPreset preset) {
  Framework framework;
  framework.preset = std::move(preset);
  framework.reduce_each_micro_batch = framework.preset.reduce_each_micro_batch;
  framework.in_training = framework.preset.options;
  framework.alone = framework.preset.alone();
  return framework;
}

Framework framework_of(std::string_view preset) {
  return framework_with(FrameworkPreset::load(preset));
}

// --- The keys of a study's `framework`.

namespace keys {
namespace {

constexpr Key<Framework> kFrameworkKeys[] = {
    other<Framework>("preset", text_schema,
                     "A preset's name, or a path that ends in .json; megatron by default"),
    flag<&FrameworkOptions::tp_overlap_forward>("tp_overlap", "Forward TP collectives run under their GEMM")
        .acting("with parallel.tensor above 1", acts::has_tensor),
    integer<&FrameworkOptions::tp_overlap_sms>(
        "tp_overlap_sms", 0, kMostOverlapSms,
        "SMs that a TP collective holds beside a GEMM. Under tp_overlap a forward's scatter goes in four "
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
                                               "Of a gradient element in the reduction"),
    number<&FrameworkOptions::optimizer_bytes>(
        "optimizer_bytes", 1, 32,
        "Of a parameter's optimizer states: 12 for an fp32 master weight and two fp32 moments"),
    number<&FrameworkOptions::gradient_copy_bytes>(
        "gradient_copy_bytes", 0, 4,
        "Held of a gradient element beside gradient_bytes: 2 where bf16 gradients stay beside an fp32 "
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
        "Moved of each gradient of a rank at a step's end beside the optimizer: 16 for norm, clipping and "
        "zeroing of fp32 gradients; the preset's by default"),
    number<&FrameworkOptions::allocator_slack>("allocator_slack", 0, 1,
                                               "A fraction of activations, logits and buffers that a caching "
                                               "allocator holds beside them; the preset's by default"),
    flag<&FrameworkOptions::fused_activation>(
        "fused_activation",
        "A gated FFN's activation is one kernel, and gate, up and their product are kept; false: silu(gate) "
        "is a kernel of its own, kept too, as in eager PyTorch; the preset's by default"),
    flag<&FrameworkOptions::fused_rope>(
        "fused_rope",
        "RoPE is one kernel; true by default, false for PyTorch's own ones for each document of a rank, "
        "whose lengths the host reads first (Megatron-LM without apply_rope_fusion)"),
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
        .noting([](std::string_view, bool, const Study& study, std::vector<std::string>& notes) {
          if (study.framework.in_training.loss == LossKind::chunked)
            notes.push_back("framework.loss chunked: no published step was held against it");
        }),
    choice<&FrameworkOptions::linear_layers>(
        "linear_layers", kLinearLayersNames,
        "Whose linear layers run, the preset's by default; fused: Q, K and V in one product, gate and up in "
        "another, and TP gathers an input again beside the backward (Megatron-LM, Transformer Engine); "
        "torch: a product each, gathered inputs kept, FP8 cast by torchao, compiled; torch-eager: the same "
        "without torch.compile"),
    choice<&FrameworkOptions::stage_division>(
        "stage_division", kStageDivisionNames,
        "How layers are shared out over virtual stages, the preset's by default; even: the middle stages "
        "first where they do not divide; block-costs: a stage is full once the cost up to its last block "
        "exceeds its share, 4 x hidden x query width + 3 x hidden x FFN a layer and vocabulary x hidden of "
        "the head (nanotron)")
        .acting("with a pipeline, without stage_layers and count_embedding_and_head", acts::divides_stages),
    flag<&FrameworkOptions::fp8_param_gather>("fp8_param_gather",
                                              "ZeRO-3 gathers the layers' weights in FP8 (torchao's "
                                              "enable_fsdp_float8_all_gather); false by default")
        .acting("with precision fp8, zero 3, linear_layers torch and a dense model without MLA",
                acts::gathers_fp8),
    integer<&FrameworkOptions::logit_bytes>(
        "logit_bytes", 4, 16,
        "What the loss holds of each logit at once: 6 with fp32 in place and a bf16 copy (Megatron-LM), 10 "
        "with fp32 log-softmax and gradient beside bf16 logits (PyTorch), 14 where an fp32 copy is kept too")
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
        "With precision fp8, kept of a weight of a linear layer beside two bytes of bf16: 2 for cached FP8 "
        "in both orders, 0 where FP8 takes bf16's place or nothing is cached; the preset's by default"),
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
        "What each expert's product takes beside its arithmetic (launch, first and last wave, a host that "
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
                                             "SMs that the kernels of an exchange of experts hold: compute "
                                             "under it runs on the others; the preset's by default")
        .counted()
        .acting("with parallel.expert above 1", acts::exchanges_experts),
    flag<&FrameworkOptions::exchange_sm_margin>(
        "exchange_sm_margin",
        "Compute under an exchange is launched for the SMs that it leaves; false: for all, and the blocks of "
        "those that it holds come in a wave of their own; the preset's by default")
        .acting("with parallel.expert above 1", acts::exchanges_experts),
    integer<&FrameworkOptions::routing_kernels>(
        "routing_kernels", 0, kMostRoutingKernels,
        "Small kernels of a layer with experts, each pass, beside those that move its tokens (softmax, "
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
        "of experts. Of no effect with expert_dispatcher alltoall, which sends every copy on its own")
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
        "fitted beside it; the preset's by default"),
    number<&FrameworkOptions::attention_slowdown>(
        "attention_slowdown", 0.1, 100,
        "How much slower attention runs in training than alone; the preset's by default"),
    number<&FrameworkOptions::elementwise_slowdown>(
        "elementwise_slowdown", 0.1, 100,
        "How much slower elementwise kernels run in training than alone; the preset's by default"),
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

std::span<const Key<Framework>> framework_keys() {
  return keys::kFrameworkKeys;
}

}  // namespace equipoise
