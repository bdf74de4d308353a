#include "sim/study/read/study_keys.h"

#include <algorithm>

#include "policies/policy.h"
#include "sim/metrics/metrics.h"
#include "sim/study/read/framework_keys.h"
#include "sim/study/read/key_notes.h"
#include "sim/study/read/parallel_keys.h"
#include "sim/study/read/policy_run.h"
#include "sim/workload/model_hf.h"

namespace equipoise {

namespace keys {
namespace {

constexpr std::int64_t kMostSteps = 10'000'000;
constexpr std::int64_t kMostDocuments = std::int64_t{1} << 32;

ordered_json one_required(std::initializer_list<const char*> keys) {
  ordered_json list = ordered_json::array();
  for (const char* key : keys) list.push_back({{"required", {key}}});
  return list;
}

ordered_json filled_text_schema() {
  return {{"type", "string"}, {"minLength", 1}};
}
ordered_json definition(const char* name) {
  return {{"$ref", std::string("#/definitions/") + name}};
}

constexpr Key<TraceSource::Component> kMixtureKeys[] = {
    text<&TraceSource::Component::file>("file", "A trace file"),
    text<&TraceSource::Component::distribution>("distribution", "A published distribution"),
    number<&TraceSource::Component::weight>("weight", 1e-09, 1e9, "Relative; 1 by default"),
};

ordered_json mixture_schema() {
  ordered_json part = object_schema(mixture_keys());
  part["oneOf"] = one_required({"file", "distribution"});
  return {{"type", "array"}, {"minItems", 1}, {"items", std::move(part)}};
}

constexpr Key<TraceSource> kTraceKeys[] = {
    text<&TraceSource::file>("file",
                             "Document lengths: integers, CSV, JSONL, .npy, Megatron .idx; .gz and .zst too"),
    integer<&TraceSource::uniform>("uniform", 1, kLongestSize, "Every document has this length"),
    text<&TraceSource::distribution>("distribution",
                                     "A published length distribution (`equipoise list traces`)"),
    other<TraceSource>("mixture", mixture_schema, "Traces drawn from by weight"),
    text<&TraceSource::column>("column", "CSV column or JSONL field with the length")
        .acting("with a file of columns: .csv, .tsv, .jsonl, .ndjson", acts::has_columns),
    integer<&TraceSource::documents>("documents", 1, kMostDocuments,
                                     "At most this many; as many as the study needs by default"),
    integer<&TraceSource::seed>("seed", 0, INT64_MAX, "Seed of a drawn trace, and of shuffle")
        .acting("with a distribution, a mixture of several or shuffle", acts::draws),
    flag<&TraceSource::shuffle>("shuffle", "Documents of a file come in an order that seed draws")
        .acting("with a file", acts::has_files),
    flag<&TraceSource::repeat>("repeat", "Read the trace again from the start where it is too short")
        .acting("with a file, a mixture or a number of documents", acts::may_be_short),
};

ordered_json trace_schema() {
  ordered_json schema = object_schema(trace_keys());
  schema["oneOf"] = one_required({"file", "uniform", "distribution", "mixture"});
  return schema;
}

ordered_json names_schema() {
  return {{"type", "array"}, {"items", text_schema()}};
}

constexpr Key<HfSource> kHfKeys[] = {
    text<&HfSource::path>("hf_config", "Path of a config.json")
        .must_be("the path of a Hugging Face config.json"),
    flag<&HfSource::options, &HfOptions::gated_ffn>(
        "gated_ffn", "Where the file's activation and model_type leave it open"),
    other<HfSource>("ignore", names_schema,
                    "Keys of the file that are passed over although the simulation has nothing for them"),
    integer<&HfSource::options, &HfOptions::layers>("layers", 1, kMostLayers, "Instead of the file's"),
};

constexpr Key<MoeShape> kExpertKeys[] = {
    integer<&MoeShape::experts>("count", 1, 1 << 20, "Routed experts").must_be("a size"),
    integer<&MoeShape::active>("active", 1, 1 << 20, "Experts that a token visits").must_be("a size"),
    integer<&MoeShape::expert_ffn>("ffn", 1, 1 << 26, "Width of one expert").must_be("a size"),
    integer<&MoeShape::shared_ffn>("shared_ffn", 1, 1 << 26,
                                   "Width of all shared experts together; none without it"),
    integer<&MoeShape::dense_layers>("dense_layers", 0, kMostLayers,
                                     "Layers without experts, the first ones; 0 by default"),
    flag<&MoeShape::bias>(
        "bias",
        "An expert's products add a bias, as those of GPT-OSS do; its time counts, its parameters do not"),
};

constexpr Key<MlaShape> kMlaKeys[] = {
    integer<&MlaShape::q_lora>("q_lora", 1, 1 << 24,
                               "Rank of the compressed queries; without it they are projected directly"),
    integer<&MlaShape::kv_lora>("kv_lora", 1, 1 << 24, "Rank of the compressed keys and values")
        .must_be("a size"),
    integer<&MlaShape::nope_dim>("nope_dim", 1, 1 << 16, "Size of a head's query and key, without position")
        .must_be("a size"),
    integer<&MlaShape::rope_dim>("rope_dim", 1, 1 << 16, "Size of a head's query and key, rotary")
        .must_be("a size"),
    integer<&MlaShape::v_dim>("v_dim", 1, 1 << 16, "Size of a head's value").must_be("a size"),
};

ordered_json pattern_schema() {
  return size_schema(2, kMostLayers);
}

constexpr Key<ModelShape> kShapeKeys[] = {
    text<&ModelShape::name>("name", "For the table"),
    integer<&ModelShape::layers>("layers", 1, kMostLayers, "Layers").must_be("a size"),
    integer<&ModelShape::hidden>("hidden", 1, 1 << 24, "Hidden size").must_be("a size"),
    integer<&ModelShape::heads>("heads", 1, 1 << 20, "Query heads").must_be("a size"),
    integer<&ModelShape::kv_heads>("kv_heads", 1, 1 << 20, "KV heads; as many as query heads by default"),
    integer<&ModelShape::head_dim>("head_dim", 1, 1 << 16, "hidden / heads by default"),
    integer<&ModelShape::ffn>("ffn", 1, 1 << 26, "FFN size").must_be("a size"),
    integer<&ModelShape::vocab>("vocab", 1, 1 << 26, "Vocabulary").must_be("a size"),
    flag<&ModelShape::gated_ffn>("gated_ffn", "SwiGLU (true by default) or one up projection"),
    flag<&ModelShape::tied_embeddings>("tied_embeddings", "The head shares the embedding"),
    integer<&ModelShape::sliding_window>("sliding_window", 1, kLongestSize,
                                         "Keys up to its own that a query sees; without it all"),
    other<ModelShape>(
        "sliding_window_pattern", pattern_schema,
        "The last of so many layers sees everything, the others the window; without it all layers slide"),
    flag<&ModelShape::chunked>(
        "chunked_attention",
        "The window is a chunk: documents are cut every so many tokens, and a query sees "
        "its own chunk (Llama 4); false by default"),
    other<ModelShape>("experts", schema_of<expert_keys>,
                      "Layers with a mixture of experts; ffn is the width of those without"),
    other<ModelShape>("mla", schema_of<mla_keys>,
                      "Multi-head latent attention (DeepSeek-V2); head_dim is nope_dim + rope_dim"),
};

ordered_json model_schema() {
  return {{"anyOf",
           {described_text("Built-in name (`equipoise list models`)"), object_schema(hf_keys()),
            object_schema(shape_keys())}}};
}

ordered_json words_schema(std::span<const std::string_view> words) {
  return {{"type", "array"}, {"minItems", 1}, {"items", {{"enum", words}}}};
}
ordered_json targets_schema() {
  const ordered_json word = {{"type", "string"}};
  return {{"anyOf", {{{"type", "array"}, {"minItems", 1}, {"items", word}}, word}}};
}
ordered_json predictions_schema() {
  return size_schema(0, kMostPredictions);
}
constexpr Key<Training> kLoraKeys[] = {
    integer<&Training::lora_dim>("dim", 1, 1 << 16, "Rank of the adapters").must_be("a size"),
    other<Training>(
        "target_modules", targets_schema,
        "Linear layers that get one, all four by default, by Megatron's names or by PEFT's; linear_qkv "
        "(q_proj, k_proj, v_proj): the projections before attention; linear_proj (o_proj): the one behind "
        "it; linear_fc1 (gate_proj, up_proj): gate and up, of experts too, each of which has its own "
        "adapter; linear_fc2 (down_proj): down; all-linear: all four"),
};

constexpr Key<Training> kFrozenKeys[] = {
    integer<&Training::frozen_layers>(
        "layers", 0, kMostLayers,
        "The first so many layers whole, in addition to embedding: nothing of them is "
        "trained, kept or gone back through; 0: none")
        .must_be("an integer in 0..100000"),
};

ordered_json frozen_schema() {
  ordered_json schema = words_schema(kWeightNames);
  schema["items"] = {{"anyOf", {schema["items"], object_schema(frozen_keys())}}};
  return schema;
}

constexpr Key<Cluster> kNetworkKeys[] = {
    number<&Cluster::network, &NetworkRates::nic_GBps>(
        "nic_GBps", 0.001, 1e6, "Rate of one GPU's NIC, one direction; the profile's by default"),
    text<&Cluster::network, &NetworkRates::name>("name", "Which of the profile's fitted networks"),
    choice<&Cluster::wiring>("topology", kWiringNames,
                             "Wiring of nodes and switches; rail: the k-th GPUs of all nodes share leaf "
                             "switches; fat-tree: all GPUs of a node share one"),
    number<&Cluster::oversubscription>("oversubscription", 1, 1000, "Oversubscription of the uplinks")
        .noting(note_oversubscription),
};

// Watts of a GPU's board, by the same keys as a profile's `power`.
constexpr Key<Cluster> kWattsKeys[] = {
    number<&Cluster::watts, &PowerDraw::attention>("attention_W", 0.001, 1e5, "In attention kernels")
        .must_be("watts of a GPU"),
    number<&Cluster::watts, &PowerDraw::gemm>("gemm_W", 0.001, 1e5, "In matrix products")
        .must_be("watts of a GPU"),
    number<&Cluster::watts, &PowerDraw::memory>("memory_W", 0.001, 1e5,
                                                "In kernels that move data, the optimizer's too")
        .must_be("watts of a GPU"),
    number<&Cluster::watts, &PowerDraw::communication>("communication_W", 0.001, 1e5,
                                                       "In communication that compute does not hide")
        .must_be("watts of a GPU"),
    number<&Cluster::watts, &PowerDraw::idle>("idle_W", 0.001, 1e5, "Waiting for others, with memory held")
        .must_be("watts of a GPU"),
};

constexpr Key<Cluster> kClusterKeys[] = {
    text<&Cluster::profile>("profile", "`equipoise list profiles`, or the path of a profile"),
    integer<&Cluster::gpus>("gpus", 1, kMostGpus,
                            "All GPUs of the run: parallel.data is so many over tensor x context x pipeline; "
                            "as many as the layout has by default"),
    integer<&Cluster::gpus_per_node>("gpus_per_node", 1, 1024, "The profile's by default"),
    other<Cluster>("network", schema_of<network_keys>, "Between nodes"),
    number<&Cluster::memory_GB>("memory_GB", 0.001, 1e9, "Memory of a GPU, instead of the profile's"),
    number<&Cluster::memory_headroom>(
        "memory_headroom", 0, 0.999,
        "Share of a GPU's memory that stays free, in addition to the framework's reserve, wherever the "
        "program "
        "chooses: sizes from memory, recompute auto, tune, what would make a row run; a plan that needs it "
        "runs and is marked memory_tight"),
    number<&Cluster::dollars_per_gpu_hour>("dollars_per_gpu_hour", 0, 1e6,
                                           "What a GPU costs per hour: a column shows what 10^9 tokens cost"),
    other<Cluster>(
        "watts", schema_of<watts_keys>,
        "What a GPU's board draws by what it does, instead of the profile's power: columns show joules per "
        "token, kWh per step and mean watts per GPU"),
};

constexpr Key<Study> kBatchKeys[] = {
    integer<&Study::batch, &PackOptions::context_window>("context_window", 1, kLongestSize,
                                                         "Tokens of a window; 128K by default")
        .noting(note_windows),
    integer<&Study::batch, &PackOptions::sequences_per_step>(
        "sequences_per_step", 1, 1 << 24,
        "Global batch in windows; pipeline x data by default; with documents_per_step the fewest "
        "micro-batches of a step")
        .noting(note_sequences),
    integer<&Study::batch, &PackOptions::micro_batch_size>("micro_batch_size", 1, 1 << 20,
                                                           "Windows of a micro-batch"),
    integer<&Study::batch, &PackOptions::documents_per_step>(
        "documents_per_step", 1, 1 << 30, "Global batch in whole documents instead of windows"),
    integer<&Study::batch, &PackOptions::max_length>(
        "max_length", 1, kLongestSize,
        "Most tokens of a document, before any policy sees it; any by default"),
    choice<&Study::batch, &PackOptions::longer>(
        "oversize", kLongerThanNames,
        "What happens to a document above max_length in every row; truncate: its end is cut; drop: all of it")
        .noting(note_longer),
    integer<&Study::batch, &PackOptions::micro_batches>(
        "micro_batches", 1, 1 << 24,
        "Micro-batches of a step over all lanes; by default as "
        "many as sequences, with documents_per_step as windows "
        "hold a mean batch")
        .acting("with a policy of a given number of micro-batches", acts::takes_micro_batches),
    integer<&Study::steps>("steps", 1, kMostSteps, "Global batches of the study; 100 by default"),
    choice<&Study::loader>("loader", kLoaderTailNames,
                           "What becomes of the rest of a document cut at a window's end; carry: it begins "
                           "the next window; drop: it is thrown away, as WLB-LLM's loader does")
        .noting(note_windows),
};

ordered_json published_status_schema() {
  return {{"enum", kPublishedStatus}};
}
ordered_json published_metrics_schema() {
  ordered_json properties = ordered_json::object();
  for (const std::string& metric : published_metrics()) properties[metric] = definition("figure");
  return {{"type", "object"}, {"additionalProperties", false}, {"properties", std::move(properties)}};
}

constexpr Key<Published> kPublishedKeys[] = {
    other<Published>("source", filled_text_schema, "Where they are, e.g. \"arXiv 2503.17924, Table 2\"")
        .must_be("where the figures are, e.g. \"arXiv ..., Table 2\""),
    text<&Published::against>(
        "against", "Name or label of the row that a speed-up is over; the study's baseline by default"),
    other<Published>("status", published_status_schema,
                     "oom: the source says that this run does not fit in memory; ok: that it runs"),
    other<Published>("metrics", published_metrics_schema,
                     "Figures by the keys of summary.json's metrics, and bucket_size"),
};

ordered_json published_definition() {
  ordered_json schema = {{"description", "Figures of one source"}};
  schema.update(object_schema(published_keys()));
  schema["anyOf"] = one_required({"metrics", "status"});
  return schema;
}
ordered_json published_schema() {
  return {{"anyOf", {definition("published"), {{"type", "array"}, {"items", definition("published")}}}}};
}

constexpr Key<PolicyRun> kPolicyKeys[] = {
    other<PolicyRun>("name", text_schema,
                     "A packing policy (`equipoise list policies`), a preset (plain-4d, fixed-4d, wlb-llm, "
                     "seq1f1b, slimpipe, disaggregated), or plan: a plan made elsewhere")
        .must_be("the name of a policy"),
    other<PolicyRun>("file", filled_text_schema,
                     "plan: its file (equipoise.plan/1 or equipoise.plans/1), relative to the study"),
    other<PolicyRun>("policy", text_schema,
                     "plan: which of the file's plans, by its name or its policy; the only one by default"),
    text<&PolicyRun::label>("label", "How the row is called; the name by default"),
    text<&PolicyRun::shard>("shard", "Sharding rule; per-sequence by default"),
    text<&PolicyRun::schedule>(
        "schedule",
        "Schedule of the pipeline; the study's by default; auto: the fastest that fits of "
        "the study's, seq1f1b and state-aware-1f1b"),
    integer<&PolicyRun::virtual_pipeline>(
        "virtual_pipeline", 1, kMostGpus,
        "Model chunks of a pipeline rank; the layout's by default, 1 where the row's schedule takes no more; "
        "auto: the fastest that fits of the layout's and 1")
        .or_words(kAutoWord),
    choice<&PolicyRun::context_comm>("context_comm", kContextCommNames, kContextCommHelp),
    choice<&PolicyRun::cost>("cost", kCostKindNames,
                             "What a document weighs when packing; profiled: its time by the profile; "
                             "quadratic: its length squared; flops: its operations, Skrull's Eq. 13"),
    other<PolicyRun>("recompute", recompute_schema, ""),
    flag<&PolicyRun::recompute_by_stage>(
        "recompute_by_stage", "Recompute auto chooses layers for each micro-batch and stage (InfiniPipe)"),
    flag<&PolicyRun::stage_attention_exchange>(
        "stage_attention_exchange",
        "Stages even out the attention of what they run at one time (SlimPipe), of all CP ranks with "
        "context_comm disaggregated (DistCA); with schedule seq1f1b"),
    other<PolicyRun>("published", published_schema,
                     "What a paper printed for this row, shown next to ours; one object, or one per source"),
};

ordered_json policy_definition() {
  ordered_json schema = {{"description", "One row of the comparison"}};
  schema.update(object_schema(policy_keys()));
  const ordered_json of_policies = policy_schema_properties();
  for (const auto& [key, value] : of_policies.items()) schema["properties"][key] = value;
  return schema;
}
ordered_json policies_schema() {
  return {
      {"type", "array"},
      {"minItems", 1},
      {"items", {{"anyOf", {described_text("A policy or preset with its defaults"), definition("policy")}}}}};
}

ordered_json address_schema() {
  return {{"type", "string"}};
}

constexpr Key<Study> kStudyKeys[] = {
    other<Study>("$schema", address_schema,
                 "Where an editor finds the schema of this file (equipoise list schema > FILE); not read"),
    text<&Study::name>("name", "Title of the table; the file's name by default"),
    other<Study>("trace", trace_schema,
                 "Where the documents come from: one of file, uniform, distribution and mixture")
        .must_be("an object"),
    other<Study>("model", model_schema, "A built-in name, a Hugging Face config.json, or a shape written out")
        .must_be("a model name or {\"hf_config\": path}"),
    other<Study>(
        "mtp_layers", predictions_schema,
        "Modules of multi-token prediction behind the last layer, on the last stage (DeepSeek-V3's "
        "num_nextn_predict_layers): each has a projection, a layer like the last one and a pass of its own "
        "through the head; the config.json's number by default, 0 for other models"),
    other<Study>(
        "lora", schema_of<lora_keys>,
        "Adapters of low rank next to frozen linear layers; all else of the model is frozen, too, unless "
        "`frozen` says otherwise"),
    other<Study>(
        "frozen", frozen_schema,
        "Weights that a step leaves as they are: without gradients, optimizer states and the products "
        "for them; none by default, all with lora; embedding: the tokens' vectors; linear_qkv: the "
        "projections "
        "before attention; linear_proj: the one behind it; linear_fc1: gate and up, of experts too; "
        "linear_fc2: "
        "down; router: what chooses experts; norms: the weights of all norms; head: the logits' matrix"),
    other<Study>("cluster", schema_of<cluster_keys>, "GPUs and network"),
    other<Study>("parallel", schema_of<parallel_keys>,
                 "The layout: GPUs = tensor x context x pipeline x data"),
    other<Study>("batch", schema_of<batch_keys>, "The shape of a step"),
    choice<&Study::layout, &Layout::precision>(
        "precision", kPrecisionNames,
        "Precision of GEMMs; bf16: all; fp8: those of layers, the head in bf16"),
    other<Study>("framework", framework_schema,
                 "A preset (`equipoise list frameworks`; megatron by default), the path of a file made by "
                 "`equipoise fit --steps`, or an object with a preset and what differs from it"),
    text<&Study::schedule>(
        "schedule", "`equipoise list schedules`; 1f1b by default, interleaved-1f1b with virtual stages"),
    other<Study>("policies", policies_schema, "Rows of the comparison")
        .must_be("a list of at least one policy"),
    text<&Study::baseline>("baseline",
                           "Name or label of the row the others are compared with; the first by default"),
    text<&Study::export_row>(
        "export_row",
        "Label of the row that `export` takes, as `tune` leaves it in best.json; the fastest by default"),
    number<&Study::max_delay>(
        "max_delay", 0, 1e9,
        "Iterations that tokens of the row that is called fastest may wait on the mean, "
        "as `tune` leaves it in best.json; study --max-delay goes before it"),
};

template <class Options>
void add_parameters(std::span<const Parameter<Options>> rows, const Options& defaults,
                    ordered_json& properties) {
  for (const Parameter<Options>& row : rows) {
    const std::string key(row.key);
    if (properties.contains(key)) continue;
    properties[key] = {{"description", acting_help(help_of_key(row.key, row.help), row.acts_when)}};
    properties[key].update(value_schema(row));
    add_default(row, defaults, properties[key]);
  }
}

using Visit = std::function<void(const std::string&, const ordered_json&)>;

void walk(const ordered_json& schema, const std::string& path, const ordered_json& definitions,
          const Visit& visit) {
  constexpr std::string_view kPlace = "#/definitions/";
  if (schema.contains("$ref")) {
    const std::string name = schema["$ref"].get<std::string>().substr(kPlace.size());
    if (name != "figure")
      walk(definitions[name], path, definitions, visit);  // docs/reference/columns.md explains those
    return;
  }
  if (schema.contains("anyOf"))
    for (const ordered_json& form : schema["anyOf"]) walk(form, path, definitions, visit);
  if (schema.contains("items")) walk(schema["items"], path + "[]", definitions, visit);
  if (!schema.contains("properties")) return;
  for (const auto& [key, value] : schema["properties"].items()) {
    const std::string name = path.empty() ? key : path + "." + key;
    const bool named = !value.contains("description") && value.contains("$ref");
    const ordered_json& known =
        named ? definitions[value["$ref"].get<std::string>().substr(kPlace.size())] : value;
    if (known.contains("description") && &known != &definitions["figure"]) visit(name, known);
    walk(value, name, definitions, visit);
  }
}

}  // namespace
}  // namespace keys

using nlohmann::ordered_json;

std::span<const Key<Study>> study_keys() {
  return keys::kStudyKeys;
}
std::span<const Key<TraceSource>> trace_keys() {
  return keys::kTraceKeys;
}
std::span<const Key<TraceSource::Component>> mixture_keys() {
  return keys::kMixtureKeys;
}
std::span<const Key<HfSource>> hf_keys() {
  return keys::kHfKeys;
}
std::span<const Key<ModelShape>> shape_keys() {
  return keys::kShapeKeys;
}
std::span<const Key<MoeShape>> expert_keys() {
  return keys::kExpertKeys;
}
std::span<const Key<MlaShape>> mla_keys() {
  return keys::kMlaKeys;
}
std::span<const Key<Training>> lora_keys() {
  return keys::kLoraKeys;
}
std::span<const Key<Training>> frozen_keys() {
  return keys::kFrozenKeys;
}
std::span<const Key<Cluster>> cluster_keys() {
  return keys::kClusterKeys;
}
std::span<const Key<Cluster>> watts_keys() {
  return keys::kWattsKeys;
}
std::span<const Key<Cluster>> network_keys() {
  return keys::kNetworkKeys;
}
std::span<const Key<Study>> batch_keys() {
  return keys::kBatchKeys;
}
std::span<const Key<PolicyRun>> policy_keys() {
  return keys::kPolicyKeys;
}
std::span<const Key<Published>> published_keys() {
  return keys::kPublishedKeys;
}

std::string place_of_key(std::string_view key) {
  std::string places;
  const auto look = [&](const auto& rows, const char* place) {
    if (std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row.key == key; }))
      places.append(places.empty() ? "" : " or in ").append(place);
  };
  look(study_keys(), "the study itself, for all rows,");
  look(trace_keys(), "trace");
  look(lora_keys(), "lora");
  look(cluster_keys(), "cluster");
  look(network_keys(), "cluster.network");
  look(watts_keys(), "cluster.watts");
  look(framework_keys(), "framework");
  look(parallel_keys(), "parallel");
  look(batch_keys(), "batch");
  look(policy_keys(), "an entry of policies");
  look(pack_parameters(), "an entry of policies");
  look(shard_parameters(), "an entry of policies");
  if (places.ends_with(',')) places.pop_back();
  return places;
}

std::vector<std::string> published_metrics() {
  std::vector<std::string> metrics;
  for (const ResultColumn& column : result_columns())
    if (column.is_metric()) metrics.emplace_back(column.key);
  std::sort(metrics.begin(), metrics.end());
  metrics.insert(metrics.begin(), "bucket_size");
  return metrics;
}

ordered_json policy_schema_properties() {
  ordered_json properties = ordered_json::object();
  keys::add_parameters(pack_parameters(), PackOptions(), properties);
  keys::add_parameters(shard_parameters(), default_sharding(), properties);
  return properties;
}

std::string values_text(const ordered_json& schema) {
  std::string text;
  const auto add = [&](const std::string& word, const char* between) {
    if (!word.empty() && !text.ends_with(word)) text += (text.empty() ? "" : between) + word;
  };
  if (schema.contains("enum"))
    for (const ordered_json& name : schema["enum"]) add(name.get<std::string>(), ", ");
  else if (schema.contains("minimum") && schema.contains("maximum"))
    text = schema["minimum"].dump() + " .. " + schema["maximum"].dump();
  else if (schema.contains("anyOf"))
    for (const ordered_json& form : schema["anyOf"]) add(values_text(form), " or ");
  else if (schema.contains("type") && schema["type"].is_string())
    text = schema["type"] == "boolean" ? "true, false" : schema["type"].get<std::string>();
  return text;
}

void for_each_key(const keys::Visit& visit) {
  const ordered_json schema = study_schema();
  keys::walk(schema, "", schema["definitions"], visit);
}

ordered_json study_schema() {
  ordered_json schema = {
      {"$schema", "http://json-schema.org/draft-07/schema#"},
      {"$id", "equipoise.study/1"},
      {"version", EQUIPOISE_VERSION},
      {"title", "Equipoise study"},
      {"description",
       "Documents, a model, a cluster, a layout and the policies to compare on them. Paths are relative to "
       "the study file; sizes may be strings with K (1024) or M (1024^2)."}};
  schema.update(keys::object_schema(study_keys()));
  schema["definitions"] = {
      {"recompute", keys::recompute_definition()},
      {"figure", {{"description", "In the unit of summary.json's metric of this name"}, {"type", "number"}}},
      {"published", keys::published_definition()},
      {"policy", keys::policy_definition()}};
  return schema;
}

}  // namespace equipoise
