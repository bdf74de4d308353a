#include "sim/report/words/kinds.h"

#include <algorithm>

namespace equipoise {
namespace {

// To add a note: its row here, and {"id", about, {{"name", value}, ...}} where its cause is.
constexpr Kind kKinds[] = {
    // --- From files
    {"text", "a file of an earlier version has a note's words alone", "text", "{text}"},

    // --- Of documents and plans
    {"documents_dropped", "batch.max_length drops documents", "key max_length documents of tokens",
     "{key} {max_length}: {documents:,} of {of:,} documents dropped, {tokens:,} tokens lost, the same for "
     "every policy",
     "without max_length they stay whole"},
    {"documents_truncated", "batch.max_length truncates documents", "key max_length documents of tokens",
     "{key} {max_length}: {documents:,} of {of:,} documents truncated, {tokens:,} tokens lost, the same for "
     "every "
     "policy",
     "without max_length they stay whole"},
    {"slices_dropped", "--oversize dropped what the policy cannot place", "slices tokens",
     "{slices} slices with {tokens} tokens dropped (--oversize)"},
    {"more_per_iteration", "whole packs exceed the global batch", "packs percent documents",
     "iterations of {packs:#pack} hold {percent:1} % more tokens than {documents} documents on the mean, as "
     "near as "
     "whole packs on these lanes come",
     "a smaller pack length comes nearer"},
    {"fewer_per_iteration", "whole packs do not fill the global batch", "packs percent documents",
     "iterations of {packs:#pack} hold {percent:1} % fewer tokens than {documents} documents on the mean, as "
     "near as "
     "whole packs on these lanes come",
     "a smaller pack length comes nearer"},
    {"of_group", "a note is on one group of hbp", "length context says",
     "group {length}:{context}: {says:/}"},
    {"steps_not_proven", "FlexSP's exact search ends at its limit", "steps of nodes",
     "{steps} of {of} steps are not proven optimal within {nodes} nodes"},
    {"no_degree_fits", "hbp has no group of a pack length", "tokens",
     "no CP degree of the layout fits packs of {tokens} tokens into memory"},
    {"groups", "hbp forms its groups", "groups", "groups (length:degree): {groups:/ }"},
    {"group", "part of groups", "length context", "{length}:{context}"},
    {"group_checkpointed", "part of groups", "length context layers",
     "{length}:{context} with {layers} layers checkpointed"},
    {"bucket_broken", "Skrull's micro-batches exceed their bucket", "micro_batches",
     "{micro_batches} micro-batches hold more than the bucket size on a rank"},
    {"queue_never_emptied", "a queue of wlb stays filled to the end", "from held bins steps enough",
     "the queue of documents from {from} tokens never emptied: it held {held} of the {bins} that empty it "
     "when the "
     "data ended, after {steps} steps",
     "too short a study to tell the delay, batch.steps of {enough} would empty it twice"},
    {"queue_emptied_once", "a queue of wlb emptied once", "from held bins steps enough",
     "the queue of documents from {from} tokens emptied only once, and held {held} of the {bins} that empty "
     "it when "
     "the data ended, after {steps} steps",
     "too short a study to tell the delay, batch.steps of {enough} would empty it twice"},
    {"programs_proven", "a policy solved integer programs", "optimal programs gap",
     "integer programs proven optimal: {optimal} of {programs}, largest gap {gap:%2}"},
    {"heuristic_longer", "skrull-solver compares itself with Skrull", "share",
     "GDS with DACP takes {share:%2} longer by this cost"},
    {"solver_largest", "a program of a step ended", "step incumbent bound gap seconds proven",
     "{about}, step {step}, largest: incumbent {incumbent}, bound {bound}, gap {gap:%2}{proven:/}, "
     "{seconds:3} s"},
    {"solver_sum", "a program over steps ended", "step incumbent bound gap seconds proven",
     "{about}, step {step}, sum over steps of the largest: incumbent {incumbent}, bound {bound}, gap "
     "{gap:%2}{proven:/}, {seconds:3} s"},
    {"optimal", "part of solver_largest", "", ", optimal"},

    // --- Of what a policy searched
    {"bucket_holds_batch", "Skrull's bucket holds a batch", "tokens",
     "BucketSize is {tokens} tokens a CP rank, which holds a whole batch"},
    {"bucket_only_size", "one bucket was tried", "tokens bound",
     "BucketSize is {tokens} tokens a CP rank, the only size tried up to {bound}, what memory allows"},
    {"bucket_fastest", "Skrull's bucket was searched", "tokens tried bound",
     "BucketSize is {tokens} tokens a CP rank, the fastest of {tried} sizes up to {bound}, what memory "
     "allows"},
    {"thresholds_found", "wlb's queues were searched", "thresholds tried",
     "thresholds found by search: {thresholds:/, } ({tried} plans tried)"},
    {"no_thresholds", "wlb is fastest without queues", "tried",
     "thresholds found by search: none ({tried} plans tried)"},
    {"threshold", "part of thresholds_found", "tokens", "{tokens}"},
    {"packs_anew", "equipoise packs steps of a start again", "start parts tried",
     "packs the steps of {start:/} anew{parts:/} ({tried} plans tried)"},
    {"takes_as_is", "equipoise takes a start as it is", "start parts tried",
     "takes the steps of {start:/} as they are{parts:/} ({tried} plans tried)"},
    {"no_plan_in_bounds", "equipoise finds no plan within its bounds", "",
     "no plan is within max_delay, L_max and memory: takes the steps of wlb as they are"},
    {"start", "part of packs_anew", "name over", "{name}{over:/}"},
    {"start_slices", "part of packs_anew", "name slices over", "{name} ({slices}){over:/}"},
    {"start_chunks", "part of packs_anew", "name chunk_size keep",
     "{name} (chunks of {chunk_size}, K {keep})"},
    {"start_chunk_sizes", "part of packs_anew", "name least most keep",
     "{name} (chunks of {least} to {most}, K {keep})"},
    {"start_queues", "part of packs_anew", "name thresholds",
     "{name} with queues from {thresholds:/, } tokens"},
    {"over_batches", "part of start", "batches", " over {batches} batches"},
    {"in_micro_batches", "part of packs_anew", "micro_batches", " in {micro_batches} micro-batches"},
    {"lanes_of_other_degrees", "part of packs_anew", "steps of",
     ", {steps} of {of} in lanes of other CP degrees than the layout's"},
    {"seconds_per_batch", "part of packs_anew", "seconds", ": {seconds:3} s a global batch"},
    {"times_the_start", "part of packs_anew", "ratio start",
     ", {ratio:3}x the speed of {start:/}, the best start as it is"},

    // --- Of a row
    {"max_tokens_from_memory", "L_max is derived", "tokens", "L_max is {tokens} tokens, what memory allows"},
    {"bucket_from_memory", "BucketSize is derived", "tokens",
     "BucketSize is {tokens} tokens a CP rank, from the memory model"},
    {"bucket_holds_longest", "BucketSize has room for the longest document", "",
     "that is room for the longest document on one CP rank, where the others may wait for it",
     "a smaller bucket_size would distribute it"},
    {"nothing_padded", "a padded micro-batch is one document", "",
     "a micro-batch is one document, so that nothing is padded",
     "batch.micro_batch_size says how many it has"},
    {"recompute_by_stage", "recompute is chosen by stage", "share",
     "recompute auto, by stage and micro-batch, is {share:%1} of all layers"},
    {"recompute_auto", "recompute is chosen for the row", "layers of",
     "recompute auto is {layers} of {of:#layer}"},
    {"recompute_auto_range", "recompute is chosen by micro-batch", "least most of",
     "recompute auto is {least} to {most} of {of:#layer} by micro-batch"},
    {"schedule_auto", "the schedule is chosen", "schedule", "schedule auto is {schedule}"},
    {"static_best", "the sharding is chosen", "shard", "static-best sharding is {shard}"},
    {"time_bound", "a policy packs for time", "least seconds above",
     "no plan that leaves these documents whole takes less than {least:3} s a global batch on this layout "
     "(all work "
     "spread evenly, each token at its cost in micro-batches of the best size); this one takes {seconds:3} "
     "s, of "
     "which {above:%1} is above that"},
    {"copies_hidden", "activations are copied to the host in time", "",
     "copies to the host hide under the passes of its largest micro-batch"},
    {"copies_wait", "passes wait for copies to the host", "share",
     "{share:%1} of its largest micro-batch's time are waits for copies to the host and back",
     "less parallel.activation_offload or a faster parallel.host_link_GBps shortens them"},
    {"idle_gpus", "steps have fewer micro-batches than lanes", "steps full micro_batches lanes idle gpus",
     "{steps} of {full} full steps have fewer micro-batches than lanes, {micro_batches:~1} on {lanes:~1}: "
     "{idle} of "
     "{gpus:,} GPUs have nothing to do",
     "more or shorter micro-batches (sequences_per_step, documents_per_step, micro_batch_size, pack_length), "
     "or a "
     "smaller parallel.data"},
    {"lanes_unsynchronized", "lanes that share exchanges order them differently", "",
     "lanes that share experts or gradients order their chunks differently, which no framework can run: "
     "their "
     "exchanges do not wait for each other",
     "take one chunk size and expert 1, or data 1"},
    {"rules_of_plan", "a plan's file decides how it runs", "rules policy",
     "{rules:/ and } as of {policy}, which made the plan"},
    {"shard_rule", "part of rules_of_plan", "shard", "shard {shard}"},
    {"schedule_rule", "part of rules_of_plan", "schedule", "schedule {schedule}"},
    {"idle_ranks", "lanes of a plan's file use a part of the ranks", "used ranks steps of",
     "lanes use {used} of the {ranks} ranks of data x context in {steps} of {of} steps; the others idle: "
     "plan as many "
     "lanes as data x context has ranks"},
    {"pieces_alone", "a plan's file cuts documents", "",
     "the plan's pieces of documents run as documents of their own, in any order"},

    // --- Verdicts
    {"none_runs", "no row of a study runs", "",
     "No policy of this study runs: each row below says what would make it."},
    {"fastest", "a row is faster than the baseline", "tied rate speedup baseline trust",
     "{about} trains fastest{tied:/}: {rate:0} tokens/s/GPU, {speedup:2}x {baseline}{trust:/}."},
    {"fastest_without_baseline", "the baseline does not run", "tied rate baseline trust",
     "{about} trains fastest{tied:/}: {rate:0} tokens/s/GPU; the baseline {baseline} did not run{trust:/}."},
    {"baseline_fastest", "no row is faster than the baseline", "tied rate trust",
     "{about}, the baseline, trains fastest{tied:/}: {rate:0} tokens/s/GPU{trust:/}."},
    {"tied", "part of fastest", "rows", ", not significantly different from {rows}"},
    {"beyond_samples", "part of fastest", "share",
     "; {share:%0} of its kernel times are beyond the profile's samples (measure them: equipoise profile)"},
    {"few_beyond_samples", "part of fastest", "",
     "; less than 1 % of its kernel times are beyond the profile's samples (measure them: equipoise "
     "profile)"},
    {"error_unknown", "part of fastest", "family", "; how far off such steps are is unknown ({family})"},
    {"kernel_errors", "part of fastest", "errors",
     ", the profile's measurements are off by {errors} (median of samples held out, of the worst group of a "
     "kind)"},
    {"error_of_family", "part of fastest", "family error rows",
     "; steps of this family ({family}) were predicted within {error:%1} ({rows:#row} held out)"},
    {"error_of_nearest", "part of fastest", "family error rows",
     "; steps of the nearest family ({family}) were predicted within {error:%1} ({rows:#row} held out)"},
    {"no_interval", "fewer than four global batches ran", "",
     "Fewer than four global batches give no interval: the sampling error of these documents is not known."},
    {"interval_above_one", "the fastest row is significantly faster than the baseline", "low high",
     "Resampling these documents puts the speed-up between {low:2}x and {high:2}x in 95 % of draws: it is "
     "more than "
     "their sampling error."},
    {"interval_has_one", "the fastest row is not significantly faster than the baseline", "low high",
     "Resampling these documents puts the speed-up between {low:2}x and {high:2}x in 95 % of draws: the two "
     "are not "
     "significantly different."},
    {"unequal_batches", "rows train different numbers of tokens per step", "differs",
     "Global batches are not equal: {differs:/}."},
    {"next_row", "a second row runs", "row rate parts", "Next is {row} at {rate:0} tokens/s/GPU{parts:/}."},
    {"next_speedup", "part of next_row", "speedup", " ({speedup:2}x)"},
    {"next_is_near", "part of next_row", "", ": not significantly different, their intervals overlap"},
    {"limited_by", "a row is the fastest", "losses", "It is limited by {losses:/}."},
    {"why_faster", "the fastest row loses less than the baseline",
     "baseline before loss winner after limited",
     "{baseline} loses {before:%1} of a step to {loss}, {winner} {after:%1}. {limited:/}"},
    {"losses", "part of limited_by", "losses", "{losses:/, } of a step"},
    {"loss", "part of losses", "name share", "{name} {share:%1}"},
    {"computation", "part of limited_by", "", "computation"},
    {"limits", "a row is the fastest", "asides losses trust",
     "{about}{asides:/} is fastest; it is limited by {losses:/}{trust:/}."},
    {"intervals_overlap", "part of limits", "", " (their intervals overlap)"},
    {"too_few_batches", "part of limits", "", " (fewer than four global batches give no interval)"},
    {"batch_of_winner", "part of limits", "ratio baseline",
     ", with {ratio:2}x the tokens per step of {baseline}"},
    {"end_of_asides", "part of limits", "", ","},
    {"gpu_spread", "loads of GPUs are known", "attention compute",
     "Its slowest GPU's attention takes {attention:/ and } (all compute: {compute:/ and })."},
    {"times_fastest", "part of gpu_spread", "ratio", "{ratio:2}x that of the fastest"},
    {"times_mean", "part of gpu_spread", "ratio", "{ratio:2}x the mean"},
    {"holds_most", "memory is known", "peak", "{about} holds the most: {peak:/}."},
    {"peak", "a row's memory is known", "GiB capacity_GiB stage lane rank parts",
     "{GiB:1} of {capacity_GiB:1} GiB on stage {stage} of lane {lane}, CP rank {rank}{parts:/}"},
    {"at_start_of_op", "part of peak", "op", ", at the start of {op}"},
    {"at_end_of_op", "part of peak", "op", ", at the end of {op}"},
    {"seconds_into_step", "part of peak", "seconds step", " ({seconds:3} s into step {step})"},
    {"in_step", "part of peak", "step", " in step {step}"},
    {"memory_parts", "part of peak", "parts", ": {parts:/, }"},
    {"memory_part", "part of peak", "part GiB", "{part} {GiB:1}"},

    // --- Of rows that differ
    {"recompute_differs", "rows of a study recompute differently", "rules",
     "recompute differs between rows, and so part of their speed-up: {rules:/; }",
     "one parallel.recompute makes them alike (auto, where one is chosen by memory)"},
    {"recompute_of_rows", "part of recompute_differs", "rule rows", "{rule} ({rows})"},
    {"batches_differ", "rows train different numbers of tokens per step", "ratio rows",
     "tokens per step differ by up to {ratio:2}x, and part of the speed-up is the batch: {rows:/, }",
     "more of batch.steps, or the policies' own sizes, bring them nearer"},
    {"tokens_of_row", "part of batches_differ", "tokens", "{about} {tokens:,}"},
    {"tails", "steps after the end of the data weigh in a row's time", "rows",
     "end-of-data steps count in time, tokens and speed-up, not in means; more of batch.steps make them "
     "fewer: "
     "{rows:/; }"},
    {"tails_of_row", "part of tails", "tails steps share more",
     "{about} {tails} of {steps:#step}, {share:%1} of its time{more:/}"},
    {"means_of_tails", "part of tails_of_row", "", ", so that its means are of these"},
    {"falls_behind", "part of tails_of_row", "", ", as its queues grow: it is not called fastest"},
    {"none_keeps_up", "part of tails_of_row", "", ", as its queues grow, and no row that runs keeps up"},

    // --- Of keys
    {"no_effect", "a key acts only with another", "key with", "{key} has no effect: it acts only {with}"},
    {"no_effect_on_policy", "a policy does not use a key", "key policy", "{key} has no effect on {policy}"},
    {"no_effect_on_shard", "a sharding rule does not use a key", "key shard",
     "{key} has no effect on {shard} sharding"},
    {"tile_no_effect", "a row states tile", "",
     "tile has no effect: the profile says what its kernels' tiles cost"},
    {"oversize_no_effect", "oversize is stated without max_length", "",
     "batch.oversize has no effect without batch.max_length"},
    {"window_no_effect", "documents_per_step is stated with a key of windows", "key policies",
     "batch.{key} has no effect with documents_per_step on {policies}: documents come whole"},
    {"sequences_of_documents", "documents_per_step is stated with sequences_per_step", "sequences",
     "batch.sequences_per_step {sequences} with documents_per_step: no size of a step, but the fewest "
     "micro-batches "
     "that it has by default"},
    {"count_embedding_no_effect", "the division counts no differently", "layers stages first last",
     "parallel.count_embedding_and_head has no effect: {layers} layers on {stages} stages leave the first "
     "and the "
     "last {first} and {last} without it, too",
     "leave it out"},
    {"overlap_without_shared", "expert_overlap needs shared experts", "overlap",
     "framework.expert_overlap {overlap}: the model has no shared expert, so nothing runs under the "
     "exchanges",
     "take none"},
    {"overlap_zero3", "dualpipe is asked for with zero 3", "overlap",
     "framework.expert_overlap {overlap} pairs nothing with zero 3, whose gathers go part by part of a "
     "single op: "
     "exchanges are exposed",
     "take zero 1 or 2"},
    {"overlap_unpaired", "dualpipe is asked for with a schedule without pairs", "overlap schedule",
     "framework.expert_overlap {overlap}: schedule {schedule} pairs no forward with a backward, so exchanges "
     "are "
     "exposed: take 1f1b, interleaved-1f1b or dualpipe, which do"},
    {"pipeline_zero", "a preset's zero does not go with a pipeline", "zero",
     "zero {zero} with a pipeline, which keeps parameters and gradients whole",
     "parallel.zero says otherwise"},
    {"zero3_of_deepspeed", "DeepSpeed runs with zero 3", "",
     "zero 3 gathers parameters under compute, where zero 2 gathers them once per step with nothing "
     "alongside: inside "
     "a node that can be faster; what DeepSpeed's hooks cost the host is not in it: measure both, or `fit "
     "--steps`"},
    {"optimizer_offload", "optimizer states are offloaded", "host_link_GBps host_memory_GBps",
     "parallel.optimizer_offload: its time is modelled and was not compared with measured steps: "
     "{host_link_GBps} "
     "GB/s to the host and {host_memory_GBps} GB/s of its memory a GPU (parallel.host_link_GBps, "
     "host_memory_GBps)"},
    {"activation_offload", "activations are offloaded", "host_link_GBps",
     "parallel.activation_offload: copies are modelled and were not compared with measured steps: "
     "{host_link_GBps} "
     "GB/s to the host a GPU, each way (parallel.host_link_GBps)",
     "the host's memory is not counted"},
    {"selective_recompute", "recompute is selective", "",
     "recompute selective: FlashAttention keeps no scores, so it frees no memory and costs attention's "
     "forward once "
     "more, as it does in Megatron-LM",
     "take none, modules or layers"},
    {"loss_chunked", "framework.loss is chunked", "",
     "framework.loss chunked: no published step was compared with it"},
    {"without_exchange", "a row cannot exchange attention between stages", "fault",
     "without stage_attention_exchange: {fault}"},

    // --- Of the model
    {"predicts_tokens", "the model predicts several tokens", "layers parameters",
     "mtp_layers: {layers} of multi-token prediction behind the last layer, on the last stage: "
     "{parameters:,} "
     "parameters",
     "0 leaves them out"},
    {"trains_part", "parameters are frozen", "trained of more",
     "a step trains {trained:,} of {of:,} parameters; MFU counts no products for gradients of the "
     "others{more:/}"},
    {"first_layers_forward", "part of trains_part", "", ", and of the first layers a forward alone"},
    {"limited_routing", "a router takes experts of some groups", "groups of",
     "its router takes a token's experts from {groups} of {of} groups (topk_group, n_group), which limits "
     "the nodes "
     "that DeepEP sends it to",
     "framework.expert_nodes says otherwise"},
    {"key_passed_over", "the study ignores a key of the config", "key",
     "{key} of the config is passed over, as the study asks"},
    {"key_not_there", "the study ignores a key that the config does not have", "key",
     "{key} of the config is not there to be ignored"},
    {"language_part", "a config of several parts", "part",
     "only the language model is simulated ({part} of the config)", "its other parts are excluded"},
    {"other_part", "a config has a part of images or sound", "part", "only the language model is simulated",
     "{part} of the config is excluded"},

    // --- Of the framework on a GPU
    {"benchmark_speed", "the framework has no slowdowns", "", "kernels are taken at their benchmark speed",
     "training runs them slower"},
    {"slowdowns_kept", "GEMM was measured on the profile, other kernels were not", "profile gpu kept more",
     "its slowdowns are 1 for GEMM on profile {profile} ({gpu}), where it was measured; {kept:/ and } stay, "
     "as these "
     "were not{more:/}"},
    {"kept", "part of slowdowns_kept", "kernels slowdown", "{kernels} x{slowdown:2}"},
    {"slowdowns_measured", "kernels were measured on the profile", "profile gpu measured more",
     "its slowdowns are 1 on profile {profile} ({gpu}) for kernels, {measured:/, }{more:/}"},
    {"all_measured", "part of slowdowns_measured", "", "which were measured"},
    {"one_measured", "part of slowdowns_measured", "kernels", "of which {kernels:/ and } was measured"},
    {"some_measured", "part of slowdowns_measured", "kernels", "of which {kernels:/ and } were measured"},
    {"one_not_measured", "part of slowdowns_measured", "kernels", "{kernels:/ and } was not"},
    {"some_not_measured", "part of slowdowns_measured", "kernels", "{kernels:/ and } were not"},
    {"kernels", "part of slowdowns_measured", "kernels", "{kernels}"},
    {"kernels_in_part", "part of slowdowns_measured", "kernels", "{kernels} in part"},
    {"slowdowns_not_carried", "slowdowns are of another GPU and are not taken", "families profile gpu more",
     "its slowdowns were fitted on published times of {families}; on profile {profile} ({gpu}) they are "
     "1{more:/}"},
    {"where_none_stated", "part of slowdowns_measured", "", " (where the study states none)"},
    {"host_stays", "part of slowdowns_measured", "", "; its host and what it overlaps and shards stay"},
    {"carry_key", "part of slowdowns_measured", "", " (framework.carry_slowdowns)"},
    {"slowdowns_carried", "slowdowns are of another GPU and are taken", "families profile gpu error",
     "its slowdowns were fitted on published times of {families}; on profile {profile} ({gpu}) they are "
     "carried over, "
     "{error}",
     "measured steps of your own replace them (equipoise fit --steps)"},
    {"slowdowns_borrowed", "a preset borrows slowdowns", "from",
     "slowdowns borrowed from {from}, their error is unknown"},
    {"no_attention_kernel", "the profile has not the preset's kernel", "profile kernel",
     "profile {profile} has no attention kernel {kernel}: its default is taken"},
    {"one_rule", "a table has profiles with and without slowdowns", "profile",
     "one rule for all profiles of a table: its slowdowns are carried over to {profile}, whose kernels were "
     "measured "
     "(alone they would be 1)"},

    // --- Of the cluster
    {"larger_node", "a node has more GPUs than the profile's", "in_node profile of_profile",
     "nodes of {in_node:#GPU} (cluster.gpus_per_node): profile {profile} has times inside nodes of "
     "{of_profile}",
     "NVLink is taken to reach all GPUs of a larger one as fast: measure there with `equipoise profile`"},
    {"smaller_node", "a node has fewer GPUs than the profile's", "in_node profile of_profile",
     "nodes of {in_node:#GPU} (cluster.gpus_per_node): those of profile {profile} have {of_profile} on "
     "NVLink",
     "leave the key out for them"},
    {"unlikely_nic", "a NIC is faster than any", "key GBps Gbps meant",
     "{key} {GBps} is {Gbps} Gbit/s a GPU, above any NIC of today: was Gbps meant? Then it is {meant}"},
    {"tensor_over_nodes", "TP groups do not divide nodes", "tensor in_node",
     "parallel.tensor {tensor} on nodes of {in_node:#GPU} (cluster.gpus_per_node): one does not divide the "
     "other, so "
     "some TP groups lie over nodes and others do not",
     "take a divisor"},
    {"part_node", "the last node is not full", "gpus in_node last",
     "{gpus:#GPU} on nodes of {in_node:#GPU} (cluster.gpus_per_node): the last node has {last}",
     "GPU hours count those that run: take a multiple, or count the node whole yourself"},
    {"network_carried", "a measured network has another NIC", "nic network profile own",
     "cluster.network.nic_GBps {nic}: network {network} of profile {profile} was measured with {own} and is "
     "carried "
     "over by the ratio",
     "for that cluster leave the key out"},
    {"network_unknown", "a network is of other clusters, with an unknown error", "network profile",
     "network {network} of profile {profile} is borrowed from other clusters; on this one its error is "
     "unknown",
     "a few points of nccl-tests calibrate it (equipoise fit --base {profile})"},
    {"network_borrowed", "a network is of other clusters", "network profile errors",
     "network {network} of profile {profile} is borrowed from other clusters; on this one collectives "
     "between nodes "
     "may be off as on fabrics held out of such a fit, {errors}",
     "a few points of nccl-tests calibrate it (equipoise fit --base {profile})"},
};

}  // namespace

std::span<const Kind> kinds() {
  return kKinds;
}

const Kind* kind_of(std::string_view id) {
  const auto found = std::ranges::find(kKinds, id, &Kind::id);
  return found == std::end(kKinds) ? nullptr : found;
}

}  // namespace equipoise
