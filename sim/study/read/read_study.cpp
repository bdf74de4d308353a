#include <algorithm>
#include <filesystem>
#include <sstream>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/names.h"
#include "policies/base/utf8.h"
#include "policies/policy.h"
#include "profiler/profile/json_fields.h"
#include "sim/schedule/schedule.h"
#include "sim/study/read/json_object.h"
#include "sim/study/read/policy_run.h"
#include "sim/study/read/study.h"
#include "sim/workload/model_size.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr std::string_view kSelectiveNote =
    "recompute selective: FlashAttention keeps no scores, so it frees no memory and costs attention's "
    "forward "
    "once more, as it does in Megatron-LM";
constexpr std::int64_t kLongest = std::int64_t{1} << 31;
constexpr std::int64_t kMostGpus = 1 << 22;
constexpr std::int64_t kMostSteps = 10'000'000;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 50;

MoeShape read_experts(const json& node, const std::string& where, const ModelShape& model) {
  JsonObject object(node, where);
  MoeShape moe;
  moe.experts = static_cast<int>(object.integer("count", 0, 1, 1 << 20));
  moe.active = static_cast<int>(object.integer("active", 0, 1, 1 << 20));
  moe.expert_ffn = object.integer("ffn", 0, 1, 1 << 26);
  moe.shared_ffn = object.integer("shared_ffn", 0, 1, 1 << 26);
  moe.shared = moe.shared_ffn > 0 ? 1 : 0;
  moe.dense_layers = static_cast<int>(object.integer("dense_layers", 0, 0, model.layers));
  object.finish();
  for (const char* key : {"count", "active", "ffn"})
    if (!object.has(key)) object.fail(key, "a size");
  if (moe.active > moe.experts) object.fail("active", "at most count experts");
  return moe;
}

MlaShape read_mla(const json& node, const std::string& where) {
  JsonObject object(node, where);
  MlaShape mla;
  mla.q_lora = object.integer("q_lora", 0, 1, 1 << 24);
  mla.kv_lora = object.integer("kv_lora", 0, 1, 1 << 24);
  mla.nope_dim = static_cast<int>(object.integer("nope_dim", 0, 1, 1 << 16));
  mla.rope_dim = static_cast<int>(object.integer("rope_dim", 0, 1, 1 << 16));
  mla.v_dim = static_cast<int>(object.integer("v_dim", 0, 1, 1 << 16));
  object.finish();
  for (const char* key : {"kv_lora", "nope_dim", "rope_dim", "v_dim"})
    if (!object.has(key)) object.fail(key, "a size");
  return mla;
}

// A shape written out in the study.
ModelShape read_shape(JsonObject& object) {
  ModelShape m;
  m.name = object.text("name", "custom");
  m.layers = static_cast<int>(object.integer("layers", 0, 1, 100000));
  m.hidden = object.integer("hidden", 0, 1, 1 << 24);
  m.heads = static_cast<int>(object.integer("heads", 0, 1, 1 << 20));
  m.kv_heads = static_cast<int>(object.integer("kv_heads", m.heads, 1, 1 << 20));
  m.head_dim = static_cast<int>(object.integer("head_dim", m.heads > 0 ? m.hidden / m.heads : 0, 1, 1 << 16));
  m.ffn = object.integer("ffn", 0, 1, 1 << 26);
  m.vocab = object.integer("vocab", 0, 1, 1 << 26);
  m.gated_ffn = object.flag("gated_ffn", true);
  m.tied_embeddings = object.flag("tied_embeddings", false);
  m.sliding_window = object.integer("sliding_window", 0, 1, kLongest);
  const std::int64_t every = object.integer("sliding_window_pattern", 0, 2, 100000);
  if (every > 0 && m.sliding_window == 0)
    object.fail("sliding_window", "the window of sliding_window_pattern");
  for (int i = 0; every > 0 && i < m.layers; ++i) m.sliding_layers.push_back((i + 1) % every != 0);
  if (const json* experts = object.find("experts"))
    m.moe = read_experts(*experts, object.where() + ".experts", m);
  if (const json* mla = object.find("mla")) {
    m.mla = read_mla(*mla, object.where() + ".mla");
    if (!object.has("head_dim")) m.head_dim = m.mla->nope_dim + m.mla->rope_dim;
  }
  object.finish();
  for (const char* key : {"layers", "hidden", "heads", "ffn", "vocab"})
    if (!object.has(key)) object.fail(key, "a size");
  if (m.head_dim < 1) object.fail("heads", "at most hidden heads, or a head_dim");
  if (m.mla && m.head_dim != m.mla->nope_dim + m.mla->rope_dim)
    object.fail("head_dim", "mla.nope_dim + mla.rope_dim, or none");
  if (m.heads % m.kv_heads != 0) object.fail("kv_heads", "a divisor of heads");
  check_model_size(m, object.where());
  return m;
}

// What a study says of its model: a built-in name, a config.json, or a shape written out.
ModelShape read_model(const json& node, const std::string& where, const std::string& study,
                      std::vector<std::string>& notes) {
  if (node.is_string())
    return naming(study, [&] { return builtin_model(node.get<std::string>()); });  // says "model: " itself
  JsonObject object(node, where);
  if (object.has("hidden")) return read_shape(object);
  const std::string path = object.text("hf_config", "");
  if (path.empty()) object.fail("hf_config", "the path of a Hugging Face config.json");
  HfOptions options;
  options.layers = static_cast<int>(object.integer("layers", 0, 1, 100000));
  if (object.has("gated_ffn")) options.gated_ffn = object.flag("gated_ffn", true);
  if (const json* keys = object.find("ignore")) {
    if (!keys->is_array()) object.fail("ignore", "a list of keys of the config");
    for (const json& key : *keys) {
      if (!key.is_string()) object.fail("ignore", "a list of keys of the config");
      options.ignore.push_back(key.get<std::string>());
    }
  }
  (void)object.find("gated_ffn");
  object.finish();
  return read_hf_config((std::filesystem::path(study).parent_path() / path).string(), options, &notes);
}

TraceSource read_trace_source(const json& node, const std::string& where) {
  JsonObject object(node, where);
  TraceSource source;
  source.file = object.text("file", "");
  source.uniform = object.integer("uniform", 0, 1, kLongest);
  source.distribution = object.text("distribution", "");
  source.column = object.text("column", "");
  source.documents = object.integer("documents", 0, 1, std::int64_t{1} << 32);
  source.seed = static_cast<std::uint64_t>(object.integer("seed", 0, 0, INT64_MAX));
  source.repeat = object.flag("repeat", false);
  if (const json* parts = object.find("mixture")) {
    if (!parts->is_array() || parts->empty())
      object.fail("mixture", "a list of {file or distribution, weight}");
    for (std::size_t i = 0; i < parts->size(); ++i) {
      JsonObject part((*parts)[i], where + ".mixture[" + std::to_string(i) + "]");
      TraceSource::Part p;
      p.file = part.text("file", "");
      p.distribution = part.text("distribution", "");
      p.weight = part.number("weight", 1, 1e-9, 1e9);
      part.finish();
      if (p.file.empty() == p.distribution.empty())
        throw UserError(part.where() + ": expected file or distribution");
      source.mixture.push_back(std::move(p));
    }
  }
  object.finish();
  const int kinds =
      !source.file.empty() + (source.uniform > 0) + !source.distribution.empty() + !source.mixture.empty();
  if (kinds != 1)
    throw UserError(where + ": expected one of file, uniform, distribution and mixture, found " +
                    std::to_string(kinds));
  return source;
}

Cluster read_cluster(const json& node, const std::string& where, std::vector<std::string>& notes) {
  JsonObject object(node, where);
  Cluster cluster;
  cluster.profile = object.text("profile", cluster.profile);
  cluster.gpus_per_node = static_cast<int>(object.integer("gpus_per_node", 0, 1, 1024));
  cluster.memory_GB = object.number("memory_GB", 0, 0.001, 1e9);
  if (const json* network = object.find("network")) {
    JsonObject net(*network, where + ".network");
    cluster.network.nic_GBps = net.number("nic_GBps", 0, 0.001, 1e6);
    cluster.network.name = net.text("name", "");
    cluster.wiring = static_cast<Wiring>(net.choice("topology", 0, kWiringNames));
    cluster.oversubscription = net.number("oversubscription", 1, 1, 1000);
    net.finish();
    if (cluster.oversubscription != 1)
      notes.push_back(
          "network.oversubscription matters only with --fidelity op --contention, and between nodes");
  }
  object.finish();
  return cluster;
}

RecomputeModules read_modules(const json& list, JsonObject& object) {
  std::string known;
  for (const std::string_view name : kRecomputeModuleNames)
    known.append(known.empty() ? "" : ", ").append(name);
  const std::string expected = "a list of " + known;
  if (!list.is_array() || list.empty()) object.fail("modules", expected);
  RecomputeModules modules = 0;
  for (const json& word : list) {
    const auto* const name =
        std::find(std::begin(kRecomputeModuleNames), std::end(kRecomputeModuleNames),
                  word.is_string() ? std::string_view(word.get_ref<const std::string&>()) : "");
    if (name == std::end(kRecomputeModuleNames)) object.fail("modules", expected);
    modules |= module_bit(static_cast<RecomputeModule>(name - std::begin(kRecomputeModuleNames)));
  }
  return modules;
}

// Of a layout or of a row.
template <class Target>
void read_recompute(const json& node, const std::string& where, Target& target) {
  // Layers and modules are an object.
  constexpr Recompute kModes[] = {Recompute::none, Recompute::selective, Recompute::full,
                                  Recompute::automatic};
  constexpr std::string_view kNames[] = {name_of(kModes[0]), name_of(kModes[1]), name_of(kModes[2]),
                                         name_of(kModes[3])};
  if (node.is_object()) {
    JsonObject object(node, where + ".recompute");
    target.recompute_layers = static_cast<int>(object.integer("layers", 0, 0, 100000));
    if (const json* modules = object.find("modules"))
      target.recompute_modules = read_modules(*modules, object);
    object.finish();
    if (object.has("layers") == object.has("modules"))
      object.fail("layers", "an integer in 0..100000, or modules instead of it");
    target.recompute = object.has("layers") ? Recompute::layers : Recompute::modules;
    return;
  }
  const json wrapped = {{"recompute", node}};
  JsonObject object(wrapped, where);
  target.recompute = kModes[object.choice("recompute", 0, kNames)];
}

// PyTorch's pipelining holds parameters and gradients whole: a preset that shards them everywhere else shards
// the optimizer's states there.
int default_zero(const Framework& framework, const Layout& layout) {
  return framework.preset.zero == 3 && layout.pipeline > 1 ? 1 : framework.preset.zero;
}

Layout read_layout(const json& node, const std::string& where, const Framework& framework) {
  JsonObject object(node, where);
  Layout layout;
  const auto size = [&](const char* key) { return static_cast<int>(object.integer(key, 1, 1, kMostGpus)); };
  layout.tensor = size("tensor");
  layout.context = size("context");
  layout.pipeline = size("pipeline");
  layout.data = size("data");
  layout.virtual_pipeline = size("virtual_pipeline");
  layout.expert = size("expert");
  layout.expert_tensor = static_cast<int>(object.integer("expert_tensor", 0, 1, kMostGpus));
  layout.count_embedding_and_head = object.flag("count_embedding_and_head", false);
  layout.context_comm = static_cast<ContextComm>(object.choice("context_comm", 0, kContextCommNames));
  layout.zero = static_cast<int>(object.integer("zero", default_zero(framework, layout), 0, 3));
  layout.reduce_each_micro_batch = framework.reduce_each_micro_batch;
  if (object.has("reduce_each_micro_batch"))
    throw UserError(where +
                    ".reduce_each_micro_batch: expected under framework, as "
                    "framework.reduce_each_micro_batch (default true)");
  if (const json* recompute = object.find("recompute")) read_recompute(*recompute, where, layout);
  layout.order = object.text("order", layout.order);
  object.finish();
  std::int64_t gpus = 1;
  for (const int axis : {layout.tensor, layout.context, layout.pipeline, layout.data}) {
    gpus *= axis;  // both at most 2^22
    if (gpus > kMostGpus)
      throw UserError(where + ": expected tensor x context x pipeline x data of at most " +
                      std::to_string(kMostGpus) + " GPUs, found more");
  }
  return layout;
}

void read_batch(const json& node, const std::string& where, Study& study) {
  JsonObject object(node, where);
  PackOptions& batch = study.batch;
  batch.context_window = object.integer("context_window", batch.context_window, 1, kLongest);
  batch.micro_batch_size = object.integer("micro_batch_size", 1, 1, 1 << 20);
  batch.sequences_per_step = object.integer(
      "sequences_per_step", std::int64_t{study.layout.pipeline} * study.layout.data, 1, 1 << 24);
  batch.documents_per_step = object.integer("documents_per_step", 0, 1, 1 << 30);
  batch.micro_batches = object.integer("micro_batches", 0, 1, 1 << 24);
  study.steps = object.integer("steps", 100, 1, kMostSteps);
  study.loader = static_cast<LoaderTail>(object.choice("loader", 0, kLoaderTailNames));
  object.finish();
  if (study.steps > kMostTokens / batch.sequences_per_step / batch.context_window)
    throw UserError(where + ": expected steps x sequences_per_step x context_window of at most 2^50 tokens");
  const std::int64_t per_lane = batch.micro_batch_size * study.layout.data;
  if (batch.micro_batches == 0 && batch.documents_per_step == 0 && batch.sequences_per_step % per_lane != 0)
    study.impossible = where +
                       ".sequences_per_step: expected a multiple of micro_batch_size x parallel.data = " +
                       std::to_string(per_lane) + ", found " + std::to_string(batch.sequences_per_step);
  batch.lanes = study.layout.data;
  batch.context = study.layout.context;
  batch.gpus = std::int64_t{study.layout.data} * study.layout.context;
  batch.stages = study.layout.pipeline;
}

// The row with this label, else the first row of a policy of this name.
std::string label_of(const std::vector<PolicyRun>& runs, const std::string& name, const std::string& where) {
  std::vector<std::string_view> labels;
  for (const PolicyRun& run : runs) labels.push_back(run.label);
  if (std::find(labels.begin(), labels.end(), name) != labels.end()) return name;
  for (const PolicyRun& run : runs)
    if (run.name == name) return run.label;
  throw UserError(where + ": expected the name of one of the policies, found \"" + name + "\"" +
                  did_you_mean(name, labels));
}

}  // namespace

namespace {

// What cannot hide the exchanges of experts here, although the framework says that it does. Where there are
// no exchanges that is only worth a word if the study asks for it.
void note_expert_overlap(bool says, Study& study) {
  const ExpertOverlap overlap = study.framework.on_fitted_gpus.expert_overlap;
  const std::string key = "framework.expert_overlap " + std::string(name_of(overlap));
  const auto note = [&](const std::string& text) { study.notes.push_back(key + text); };
  if (overlap == ExpertOverlap::none) return;
  if (!study.model.moe || study.layout.expert == 1) {
    if (says)
      note(study.model.moe ? " matters only with parallel.expert above 1"
                           : " has no effect: the model has no experts");
    return;
  }
  if (overlap == ExpertOverlap::shared_expert && study.model.moe->shared_width() == 0)
    note(": the model has no shared expert, so nothing runs under the exchanges");
  if (overlap != ExpertOverlap::dualpipe) return;
  if (study.layout.zero == 3)
    note(" pairs nothing with zero 3, whose gathers go part by part of a single op: exchanges are exposed");
  for (const PolicyRun& run : study.policies) {
    const std::string& schedule = run.schedule.empty() ? study.schedule : run.schedule;
    const SchedulePolicy& policy = schedule_policy(schedule);
    if (study.layout.zero < 3 && !policy.pairs && !policy.bidirectional)
      study.notes.push_back(run.label + ": " + key + ": schedule " + schedule +
                            " pairs no forward with a backward, so exchanges are exposed (1f1b, "
                            "interleaved-1f1b and dualpipe do)");
  }
}

// Keys of the framework and the layout that cannot do here what they are known for.
void note_layout(const json* framework, bool says_zero, Study& study) {
  const auto says = [&](const char* key) { return framework != nullptr && framework->contains(key); };
  if (says("recompute_ahead") && study.layout.pipeline > 1)
    study.notes.emplace_back("framework.recompute_ahead matters only without a pipeline");
  note_expert_overlap(says("expert_overlap"), study);
  if (says("reduce_each_micro_batch") && study.layout.zero != 2)
    study.notes.emplace_back(
        "framework.reduce_each_micro_batch matters only with zero 2; zero " +
        std::to_string(study.layout.zero) +
        (study.layout.zero == 3 ? " always reduces with every micro-batch" : " reduces after the last one"));
  if (!says_zero && study.layout.zero != study.framework.preset.zero)
    study.notes.emplace_back("framework " + study.framework.preset.name + ": zero " +
                             std::to_string(study.layout.zero) +
                             " with a pipeline, which keeps parameters and gradients whole");
  if (study.layout.count_embedding_and_head && study.layout.pipeline == 1)
    study.notes.emplace_back("parallel.count_embedding_and_head has no effect without a pipeline");
  const bool selective = std::any_of(study.policies.begin(), study.policies.end(), [&](const PolicyRun& run) {
    return (run.has_recompute ? run.recompute : study.layout.recompute) == Recompute::selective;
  });
  if (selective) study.notes.emplace_back(kSelectiveNote);
}

}  // namespace

void read_policy_recompute(const json& node, const std::string& where, PolicyRun& run) {
  run.has_recompute = true;
  read_recompute(node, where, run);
}

namespace {

// A row's named parts against the model, and against what runs beside them.
void check_modules(const PolicyRun& run, const std::string& path, Study& study) {
  Layout layout = study.layout;
  if (run.has_recompute) {
    layout.recompute = run.recompute;
    layout.recompute_modules = run.recompute_modules;
  }
  if (layout.recompute != Recompute::modules || !study.impossible.empty()) return;
  try {
    check_layout(study.model, layout, path);
  } catch (const UserError& e) {
    study.impossible = e.what();
  }
  if (layout.repeats(RecomputeModule::moe) &&
      study.framework.on_fitted_gpus.expert_overlap == ExpertOverlap::dualpipe)
    study.impossible =
        path +
        ": parallel.recompute.modules: expected no moe with framework.expert_overlap dualpipe, "
        "whose pairs have no place for exchanges that run again";
}

}  // namespace

Study parse_case(const json& file, const std::string& path) {
  Study study;
  study.file = path;
  study.directory = std::filesystem::path(path).parent_path().string();
  JsonObject object(file, path);
  study.name = printable(object.text("name", std::filesystem::path(path).stem().string()));
  const auto part = [&](const char* key) -> const json& {
    const json* node = object.find(key);
    if (node == nullptr) object.fail(key, "an object");
    return *node;
  };
  const auto inside = [&](const char* key) { return path + ": " + key; };
  study.trace = read_trace_source(part("trace"), inside("trace"));
  const json* model = object.find("model");
  if (model == nullptr) object.fail("model", "a model name or {\"hf_config\": path}");
  study.model = read_model(*model, inside("model"), path, study.notes);
  if (const json* node = object.find("cluster"))
    study.cluster = read_cluster(*node, inside("cluster"), study.notes);
  static const json kEmpty = json::object();
  const json* framework = object.find("framework");
  study.framework = read_framework(framework, inside("framework"), study.directory);
  const json* parallel = object.find("parallel");
  study.layout = read_layout(parallel == nullptr ? kEmpty : *parallel, inside("parallel"), study.framework);
  study.layout.precision = static_cast<Precision>(object.choice("precision", 0, kPrecisionNames));
  const json* batch = object.find("batch");
  read_batch(batch == nullptr ? kEmpty : *batch, inside("batch"), study);
  study.schedule = object.text("schedule", study.layout.virtual_pipeline > 1 ? "interleaved-1f1b" : "1f1b");
  naming(path, [&] { return schedule_policy(study.schedule); });
  try {
    check_layout(study.model, study.layout, path);
  } catch (const UserError& e) {
    study.impossible = e.what();
  }

  const json* policies = object.find("policies");
  if (policies == nullptr || !policies->is_array() || policies->empty())
    object.fail("policies", "a list of at least one policy");
  for (std::size_t i = 0; i < policies->size(); ++i)
    study.policies.push_back(
        read_policy_run((*policies)[i], path + ": policies[" + std::to_string(i) + "]", study));
  for (std::size_t i = 0; i < study.policies.size(); ++i)
    if (const int layers = study.policies[i].recompute_layers; layers > study.model.layers)
      study.impossible = path + ": policies[" + std::to_string(i) + "].recompute.layers: expected 0.." +
                         std::to_string(study.model.layers) + ", found " + std::to_string(layers);
  for (const PolicyRun& run : study.policies) check_modules(run, path, study);
  make_labels_unique(study.policies);
  note_layout(framework, parallel != nullptr && parallel->contains("zero"), study);
  note_idle_keys(batch == nullptr ? kEmpty : *batch, study);
  study.baseline = printable(object.text("baseline", study.policies.front().label));
  object.finish();
  study.baseline = label_of(study.policies, study.baseline, path + ".baseline");
  for (std::size_t i = 0; i < study.policies.size(); ++i)
    for (Published& published : study.policies[i].published)
      if (!published.against.empty())
        published.against = label_of(study.policies, published.against,
                                     path + ": policies[" + std::to_string(i) + "].published.against");
  return study;
}

namespace {

json with_overrides(const std::string& path, const std::vector<std::string>& overrides) {
  json file = read_json_file(path);
  for (const std::string& assignment : overrides) set_study_key(file, assignment);
  return file;
}

}  // namespace

Study parse_study(const json& file, const std::string& path) {
  Study study = parse_case(file, path);
  if (!study.impossible.empty()) throw UserError(study.impossible);
  return study;
}

void set_study_key(json& file, const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0)
    throw UserError("--set " + assignment + ": expected key=value, e.g. parallel.context=4");
  json value = json_or_word(assignment.substr(equals + 1), "--set " + assignment.substr(0, equals));
  // "framework": "fsdp" with --set framework.KEY=...: that preset, and what differs from it.
  if (assignment.starts_with("framework.") && file.contains("framework") && file["framework"].is_string())
    file["framework"] = json{{"preset", file["framework"]}};
  json* node = &file;
  if (std::count(assignment.begin(), assignment.begin() + static_cast<std::ptrdiff_t>(equals), '.') >=
      kMostJsonDepth)
    throw UserError("--set: expected a key of at most " + std::to_string(kMostJsonDepth) +
                    " parts, found more: " + assignment.substr(0, 60) + "...");
  std::istringstream path(assignment.substr(0, equals));
  for (std::string key; std::getline(path, key, '.');) {
    if (node->is_array()) {
      std::int64_t index = 0;
      if (!parse_size(std::string_view(key), index) || index < 0 ||
          static_cast<std::size_t>(index) >= node->size())
        throw UserError("--set " + assignment + ": expected an index below " + std::to_string(node->size()) +
                        ", found " + key);
      node = &(*node)[at(index)];
    } else {
      if (!node->is_object() && !node->is_null())
        throw UserError("--set " + assignment + ": " + key + " is not inside an object");
      node = &(*node)[key];
    }
  }
  *node = std::move(value);
}

Study read_study(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_study(with_overrides(path, overrides), path);
}

Study read_case(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_case(with_overrides(path, overrides), path);
}

}  // namespace equipoise
