// Reads a study. Rows of study_keys.h read plain keys; this file reads keys that depend on others or have no
// plain value, and refuses keys that do not go together.
#include "sim/study/read/study.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/text.h"
#include "sim/cost/check_layout.h"
#include "sim/schedule/schedule.h"
#include "sim/step/lockstep.h"
#include "sim/study/read/framework_keys.h"
#include "sim/study/read/key_notes.h"
#include "sim/study/read/naming.h"
#include "sim/study/read/parallel_keys.h"
#include "sim/study/read/plan_file.h"
#include "sim/study/read/policy_run.h"
#include "sim/study/read/study_keys.h"
#include "sim/study/read/training.h"
#include "sim/workload/model_hf.h"
#include "traces/json_object.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 50;

template <class Target>
Target read_plain(const json& node, const std::string& where, std::span<const Key<Target>> rows) {
  JsonObject object(node, where);
  Target target;
  read_keys(object, rows, target);
  object.finish();
  require_keys(object, rows);
  return target;
}

// A profile's name, or a path: relative to the study if a file is there, else to the working folder.
std::string profile_next_to(const std::string& name, const std::string& directory) {
  const bool is_path = name.find('/') != std::string::npos || name.ends_with(".json");
  const std::string near = (std::filesystem::path(directory) / name).string();
  return is_path && std::filesystem::is_regular_file(near) ? near : name;
}

// A preset's name, or a path relative to the study.
FrameworkPreset load_preset(const std::string& name, const std::string& where, const std::string& directory) {
  const bool is_path = name.find('/') != std::string::npos || name.ends_with(".json");
  return naming(where, [&] {
    return FrameworkPreset::load(is_path ? (std::filesystem::path(directory) / name).string() : name);
  });
}

// The study's `framework`: a preset by name or file, and what differs from it. `node` may be null.
Framework read_framework(const json* node, const std::string& where, const std::string& directory) {
  if (node == nullptr || node->is_string()) {
    const std::string name = node == nullptr ? std::string(kDefaultFramework) : node->get<std::string>();
    return framework_with(load_preset(name, where, directory));
  }
  if (!node->is_object())
    throw UserError(where, ": expected a preset's name, a file or an object, found ", shown_json(*node));
  JsonObject object(*node, where);
  Framework framework =
      framework_with(load_preset(object.text("preset", kDefaultFramework), where, directory));
  read_keys(object, framework_keys(), framework);
  constexpr double kLeastBucketMB = 0.1;  // smaller buckets would make calls without end
  if (const double bucket = framework.in_training.gradient_bucket_MB; bucket > 0 && bucket < kLeastBucketMB)
    object.fail("gradient_bucket_MB", "0 or a number in 0.1..100000.0");
  object.finish(place_of_key);
  // An option that hides nothing but names a dispatcher selects that dispatcher, unless the study names one.
  for (FrameworkOptions* options : {&framework.in_training, &framework.alone})
    if (options->expert_overlap == ExpertOverlap::deepep && !object.has("expert_dispatcher"))
      options->expert_dispatcher = ExpertDispatcher::deepep;
  if (const json* anchor = object.find("anchor"))
    framework.anchor = read_plain(*anchor, where + ".anchor", anchor_keys());
  framework.says_kernel = object.has("attention_kernel");
  framework.says_launch = object.has("seconds_per_launch");
  framework.says_own_kernel = object.has("seconds_per_kernel");
  framework.says_slowdowns = object.has("gemm_slowdown") || object.has("attention_slowdown") ||
                             object.has("elementwise_slowdown") || object.has("expert_gemm_slowdown") ||
                             object.has("expert_product_seconds");
  return framework;
}

MoeShape read_experts(const json& node, const std::string& where, const ModelShape& model) {
  MoeShape moe = read_plain(node, where, expert_keys());
  moe.shared = moe.shared_ffn > 0 ? 1 : 0;
  JsonObject object(node, where);
  if (moe.dense_layers > model.layers)
    object.fail("dense_layers", "an integer in 0.." + std::to_string(model.layers));
  if (moe.active > moe.experts) object.fail("active", "at most count experts");
  return moe;
}

// Reads a shape that the study writes out.
ModelShape read_shape(JsonObject& object) {
  ModelShape m;
  m.name = "custom";
  read_keys(object, shape_keys(), m);
  if (!object.has("kv_heads")) m.kv_heads = m.heads;
  if (!object.has("head_dim")) m.head_dim = m.heads > 0 ? static_cast<int>(m.hidden / m.heads) : 0;
  const std::int64_t every = object.integer("sliding_window_pattern", 0, 2, 100000);
  if (every > 0 && m.sliding_window == 0)
    object.fail("sliding_window", "the window of sliding_window_pattern");
  if (m.chunked && m.sliding_window == 0)
    object.fail("sliding_window", "the tokens of a chunk of chunked_attention");
  for (int i = 0; every > 0 && i < m.layers; ++i) m.sliding_layers.push_back((i + 1) % every != 0);
  if (const json* experts = object.find("experts"))
    m.moe = read_experts(*experts, object.where() + ".experts", m);
  if (const json* mla = object.find("mla")) {
    m.mla = read_plain(*mla, object.where() + ".mla", mla_keys());
    if (!object.has("head_dim")) m.head_dim = m.mla->nope_dim + m.mla->rope_dim;
  }
  object.finish();
  require_keys(object, shape_keys());
  if (m.head_dim < 1) object.fail("heads", "at most hidden heads, or a head_dim");
  if (m.mla && m.head_dim != m.mla->nope_dim + m.mla->rope_dim)
    object.fail("head_dim", "mla.nope_dim + mla.rope_dim, or none");
  if (m.heads % m.kv_heads != 0) object.fail("kv_heads", "a divisor of heads");
  check_model_size(m, object.where());
  return m;
}

// A built-in name, a config.json whose path is relative to the study's file, or a shape written out.
ModelShape read_model(const json& node, const std::string& where, const std::string& study, Notes& notes) {
  if (node.is_string())
    // its message begins with "model: "
    return naming(study, [&] { return builtin_model(node.get<std::string>()); });
  JsonObject object(node, where);
  if (object.has("hidden")) return read_shape(object);
  HfSource source;
  read_keys(object, hf_keys(), source);
  if (source.path.empty()) object.fail("hf_config", "the path of a Hugging Face config.json");
  if (const json* keys = object.find("ignore")) {
    if (!keys->is_array()) object.fail("ignore", "a list of keys of the config");
    for (const json& key : *keys) {
      if (!key.is_string()) object.fail("ignore", "a list of keys of the config");
      source.options.ignore.push_back(key.get<std::string>());
    }
  }
  object.finish();
  return read_hf_config((std::filesystem::path(study).parent_path() / source.path).string(), source.options,
                        &notes);
}

TraceSource read_trace_source(const json& node, const std::string& where) {
  JsonObject object(node, where);
  TraceSource source;
  read_keys(object, trace_keys(), source);
  if (const json* parts = object.find("mixture")) {
    if (!parts->is_array() || parts->empty())
      object.fail("mixture", "a list of {file or distribution, weight}");
    for (std::size_t i = 0; i < parts->size(); ++i) {
      const std::string place = where + ".mixture[" + std::to_string(i) + "]";
      source.mixture.push_back(read_plain((*parts)[i], place, mixture_keys()));
      if (source.mixture.back().file.empty() == source.mixture.back().distribution.empty())
        throw UserError(place, ": expected file or distribution");
    }
  }
  object.finish();
  const int kinds =
      !source.file.empty() + (source.uniform > 0) + !source.distribution.empty() + !source.mixture.empty();
  if (kinds != 1)
    throw UserError(where, ": expected one of file, uniform, distribution and mixture, found ", kinds);
  return source;
}

Cluster read_cluster(const json& node, const std::string& where) {
  JsonObject object(node, where);
  Cluster cluster;
  read_keys(object, cluster_keys(), cluster);
  if (const json* network = object.find("network")) {
    JsonObject net(*network, where + ".network");
    read_keys(net, network_keys(), cluster);
    net.finish(place_of_key);
  }
  if (const json* watts = object.find("watts")) {
    JsonObject power(*watts, where + ".watts");
    read_keys(power, watts_keys(), cluster);
    power.finish(place_of_key);
    require_keys(power, watts_keys());
  }
  object.finish(place_of_key);
  return cluster;
}

void note_prediction(const ModelShape& model, Notes& notes) {
  if (model.mtp_layers == 0) return;
  ModelShape alone = model;
  alone.mtp_layers = 0;
  notes.push_back({"predicts_tokens",
                   "",
                   {{"layers", model.mtp_layers}, {"parameters", model.parameters() - alone.parameters()}}});
}

// PyTorch's pipelining keeps parameters and gradients whole. A preset that shards them elsewhere therefore
// shards only the optimizer's states there.
int default_zero(const Framework& framework, const Layout& layout) {
  return framework.preset.zero == 3 && layout.pipeline > 1 ? 1 : framework.preset.zero;
}

std::int64_t gpus_of_replica(const Layout& layout) {
  return layout.gpus() / layout.data;
}

// `all` is the number of GPUs of the whole run (cluster.gpus); 0: as many as the layout has.
void read_layout(const json& node, const std::string& where, const Framework& framework, std::int64_t all,
                 Layout& layout) {
  read_parallel(node, where, layout);
  if (!node.contains("zero")) layout.zero = default_zero(framework, layout);
  layout.reduce_each_micro_batch = framework.reduce_each_micro_batch;
  layout.stage_division = framework.in_training.stage_division;
  std::int64_t gpus = 1;
  for (const int axis : {layout.tensor, layout.context, layout.pipeline, layout.data}) {
    gpus *= axis;  // cannot overflow: both are at most 2^22
    if (gpus > kMostGpus)
      throw UserError(where, ": expected tensor x context x pipeline x data of at most ", kMostGpus,
                      " GPUs, found more");
  }
  if (all > 0 && !node.contains("data"))
    layout.data = static_cast<int>(std::max<std::int64_t>(1, all / gpus_of_replica(layout)));
}

// Sets the parts of a step's shape that follow from the layout. `says_sequences` means that the file has
// batch.sequences_per_step.
void shape_step(const Layout& layout, bool says_sequences, PackOptions& batch) {
  if (!says_sequences) batch.sequences_per_step = std::int64_t{layout.pipeline} * layout.data;
  batch.lanes = layout.data;
  batch.context = layout.context;
  batch.gpus = std::int64_t{layout.data} * layout.context;
  batch.stages = layout.pipeline;
  shape_chunks(layout.pipeline, layout.virtual_pipeline, batch);
  batch.waiting_lanes = PackOptions{}.waiting_lanes;
  if (lanes_synchronize(layout))
    batch.waiting_lanes = layout.reduces_each_micro_batch()
                              ? layout.data
                              : std::clamp(layout.expert / layout.context, 1, layout.data);
}

void read_batch(const json& node, const std::string& where, Study& study) {
  JsonObject object(node, where);
  study.says_sequences = object.has("sequences_per_step");
  read_keys(object, batch_keys(), study);
  object.finish(place_of_key);
  PackOptions& batch = study.batch;
  shape_step(study.layout, study.says_sequences, batch);
  if (study.steps > kMostTokens / batch.sequences_per_step / batch.context_window)
    throw UserError(where, ": expected steps x sequences_per_step x context_window of at most 2^50 tokens");
}

// The label of the row with this label, else of the first row with this policy.
std::string label_of(const std::vector<PolicyRun>& runs, const std::string& name, const std::string& where) {
  std::vector<std::string_view> labels;
  for (const PolicyRun& run : runs) labels.push_back(run.label);
  if (std::find(labels.begin(), labels.end(), name) != labels.end()) return name;
  for (const PolicyRun& run : runs)
    if (run.name == name) return run.label;
  throw UserError(where, ": expected the name of one of the policies, found \"", name, "\"",
                  did_you_mean(name, labels));
}

// Throws if a row's named parts do not go with the model or with the overlap of experts' exchanges.
void check_modules(const PolicyRun& run, const std::string& path, const Study& study) {
  Layout layout = study.layout;
  if (run.has_recompute) {
    layout.recompute = run.recompute;
    layout.recompute_modules = run.recompute_modules;
  }
  if (layout.recompute != Recompute::modules) return;
  if (layout.repeats(RecomputeModule::moe) &&
      study.framework.in_training.expert_overlap == ExpertOverlap::dualpipe)
    throw UserError(path,
                    ": parallel.recompute.modules: expected no moe with framework.expert_overlap dualpipe, "
                    "whose pairs have no place for exchanges that run again");
  check_layout(study.model, layout, path);
}

// Throws if layers that are recomputed whole would be copied to the host: only their inputs are kept.
void check_offload(const std::string& path, const Study& study) {
  if (study.layout.activation_offload == 0) return;
  for (const PolicyRun& run : study.policies) {
    const Recompute mode = run.has_recompute ? run.recompute : study.layout.recompute;
    const bool whole = mode == Recompute::full || mode == Recompute::layers || mode == Recompute::automatic;
    if (whole || run.chooses_groups())
      throw UserError(path, ": parallel.activation_offload: expected 0 where layers are recomputed whole (",
                      run.label, "), found ", short_number(study.layout.activation_offload));
  }
}

// Throws if cluster.gpus is not the layout's number.
void check_gpus(const std::string& path, const Study& study) {
  const std::int64_t gpus = study.cluster.gpus, replica = gpus_of_replica(study.layout);
  if (gpus == 0 || study.layout.gpus() == gpus) return;
  if (gpus % replica != 0)
    throw UserError(path,
                    ": cluster.gpus: expected a multiple of parallel.tensor x context x pipeline = ", replica,
                    ", found ", gpus);
  throw UserError(path, ": parallel.data: expected ", gpus / replica, " for cluster.gpus ", gpus,
                  ", or none, since it follows from that; found ", study.layout.data);
}

// Throws for keys that are allowed one by one and do not go together. `training` has those of lora and
// frozen. Rows whose preset asks for an exchange of attention that cannot run go without it.
void check_together(const std::string& path, const std::string& training, Study& study) {
  check_gpus(path, study);
  const PackOptions& batch = study.batch;
  const std::int64_t per_lane = batch.micro_batch_size * study.layout.data;
  if (batch.micro_batches == 0 && batch.documents_per_step == 0 && batch.sequences_per_step % per_lane != 0)
    throw UserError(path,
                    ": batch.sequences_per_step: expected a multiple of micro_batch_size x parallel.data = ",
                    per_lane, ", found ", batch.sequences_per_step);
  if (!training.empty()) throw UserError(training);
  check_layout(study.model, study.layout, path);
  for (std::size_t i = 0; i < study.policies.size(); ++i)
    if (const int layers = study.policies[i].recompute_layers; layers > study.model.all_layers())
      throw UserError(path, ": policies[", i, "].recompute.layers: expected 0..", study.model.all_layers(),
                      ", found ", layers);
  for (std::size_t i = 0; i < study.policies.size(); ++i) {
    PolicyRun& run = study.policies[i];
    const std::string row = path + ": policies[" + std::to_string(i) + "].";
    check_modules(run, path, study);
    Layout layout = study.layout;
    layout.context_comm = run.context_comm.value_or(layout.context_comm);
    if (run.context_comm)
      check_layout(study.model, layout, row + "context_comm " + std::string(name_of(layout.context_comm)));
    layout = study.layout;
    layout.virtual_pipeline = run.virtual_pipeline.value_or(layout.virtual_pipeline);
    if (run.virtual_pipeline)
      check_layout(study.model, layout, row + "virtual_pipeline " + std::to_string(*run.virtual_pipeline));
    const bool typed = run.says("stage_attention_exchange");
    const std::string fault = exchange_fault(study, run, typed ? row + "stage_attention_exchange" : path);
    if (leaves_out_exchange(run, fault))
      study.notes.push_back({"without_exchange", run.label, {{"fault", fault}}});
    else if (!fault.empty())
      throw UserError(fault);
  }
  check_offload(path, study);
}

void find_impossible(const std::string& path, const std::string& training, Study& study) {
  study.impossible.clear();
  try {
    check_together(path, training, study);
  } catch (const UserError& e) {
    study.impossible = e.what();
  }
}

// In the order in which users know them: trace, network, framework, layout, rows, batch.
void note_all_keys(const json& file, Study& study) {
  const auto under = [](const json* node, const char* key) -> const json* {
    if (node == nullptr || !node->is_object()) return nullptr;
    const auto found = node->find(key);
    return found == node->end() ? nullptr : &*found;
  };
  Notes& notes = study.notes;
  note_keys("trace.", trace_keys(), under(&file, "trace"), study, notes);
  note_keys("cluster.network.", network_keys(), under(under(&file, "cluster"), "network"), study, notes);
  note_keys("framework.", framework_keys(), under(&file, "framework"), study, notes);
  note_keys("parallel.", parallel_keys(), under(&file, "parallel"), study, notes);
  for (const PolicyRun& run : study.policies)
    for (const std::string& key : run.idle_keys) notes.push_back(about(run.label, idle_key_note(run, key)));
  note_keys("batch.", batch_keys(), under(&file, "batch"), study, notes);
}

}  // namespace

bool PolicyRun::packs_slowly() const {
  return leaves_open() || policy().solves || policy().search.is_open_in(pack);
}

const Policy& PolicyRun::policy() const {
  return has_plan_file() ? plan_policy() : packing_policy(name);
}

CostKind PolicyRun::cost_kind() const {
  if (cost) return *cost;
  return rule().places_documents ? CostKind::flops : policy().cost;
}

bool PolicyRun::chooses_groups() const {
  return policy().derives == Derives::groups && pack.groups.empty();
}

Study parse_case(const json& file, const std::string& path) {
  if (file.is_object() && file.contains("schema"))
    throw UserError(path, ": schema: expected a study, found ", printable(file["schema"].dump()),
                    "; a search leaves one as best.json, a saved result has its own in receipt.study");
  Study study;
  study.file = path;
  study.settings = file.dump(-1, ' ', false, json::error_handler_t::replace);
  study.directory = std::filesystem::path(path).parent_path().string();
  study.name = std::filesystem::path(path).stem().string();
  JsonObject object(file, path);
  (void)object.find("$schema");  // an editor's
  read_keys(object, study_keys(), study);
  study.name = printable(study.name);
  require_keys(object, study_keys());
  static const json kEmpty = json::object();
  const auto part = [&](const char* key) -> const json& {
    const json* node = object.find(key);
    return node == nullptr ? kEmpty : *node;
  };
  const auto inside = [&](const char* key) { return path + ": " + key; };
  study.trace = read_trace_source(part("trace"), inside("trace"));
  study.model = read_model(part("model"), inside("model"), path, study.notes);
  study.model.name = printable(study.model.name);
  if (object.has("mtp_layers"))
    study.model.mtp_layers = static_cast<int>(object.integer("mtp_layers", 0, 0, kMostPredictions));
  note_prediction(study.model, study.notes);
  study.cluster = read_cluster(part("cluster"), inside("cluster"));
  study.cluster.profile = profile_next_to(study.cluster.profile, study.directory);
  study.framework = read_framework(object.find("framework"), inside("framework"), study.directory);
  read_layout(part("parallel"), inside("parallel"), study.framework, study.cluster.gpus, study.layout);
  read_batch(part("batch"), inside("batch"), study);
  study.says_zero = part("parallel").contains("zero");
  study.says_schedule = object.has("schedule");
  if (!study.says_schedule) study.schedule = default_schedule(study.layout.virtual_pipeline);
  naming(path, [&] { return schedule_policy(study.schedule); });
  const std::string training = read_training(object, path, study.model, study.notes);
  const json* policies = object.find("policies");
  if (!policies->is_array() || policies->empty()) object.fail("policies", "a list of at least one policy");
  for (std::size_t i = 0; i < policies->size(); ++i)
    study.policies.push_back(
        read_policy_run((*policies)[i], path + ": policies[" + std::to_string(i) + "]", study));
  find_impossible(path, training, study);
  make_labels_unique(study.policies);
  note_all_keys(file, study);
  object.finish(place_of_key);
  if (!object.has("baseline")) study.baseline = study.policies.front().label;
  study.baseline = label_of(study.policies, printable(study.baseline), path + ".baseline");
  if (!study.export_row.empty())
    study.export_row = label_of(study.policies, printable(study.export_row), path + ".export_row");
  for (std::size_t i = 0; i < study.policies.size(); ++i)
    for (Published& published : study.policies[i].published)
      if (!published.against.empty())
        published.against = label_of(study.policies, published.against,
                                     path + ": policies[" + std::to_string(i) + "].published.against");
  return study;
}

Study laid_out(Study study, const Layout& layout) {
  study.layout = layout;
  if (!study.says_zero) study.layout.zero = default_zero(study.framework, layout);
  if (!study.says_schedule) study.schedule = default_schedule(layout.virtual_pipeline);
  shape_step(study.layout, study.says_sequences, study.batch);
  for (PolicyRun& run : study.policies) {
    shape_step(study.layout, study.says_sequences, run.pack);
    if (run.virtual_pipeline) set_virtual_pipeline(study, *run.virtual_pipeline, run);
    run.stage_attention_exchange = run.asks_stage_exchange;
  }
  find_impossible(study.file, "", study);
  return study;
}

Study parse_study(const json& file, const std::string& path) {
  Study study = parse_case(file, path);
  if (!study.impossible.empty()) throw UserError(study.impossible);
  return study;
}

void set_study_key(json& file, const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0)
    throw UserError("--set ", assignment, ": expected key=value, e.g. parallel.context=4");
  json value = json_or_word(assignment.substr(equals + 1), "--set " + assignment.substr(0, equals));
  // "framework": "fsdp" with --set framework.KEY=... becomes that preset with the difference.
  if (assignment.starts_with("framework.") && file.contains("framework") && file["framework"].is_string())
    file["framework"] = json{{"preset", file["framework"]}};
  json* node = &file;
  if (std::count(assignment.begin(), assignment.begin() + static_cast<std::ptrdiff_t>(equals), '.') >=
      kMostJsonDepth)
    throw UserError("--set: expected a key of at most ", kMostJsonDepth,
                    " parts, found more: ", assignment.substr(0, 60), "...");
  std::istringstream path(assignment.substr(0, equals));
  for (std::string key; std::getline(path, key, '.');) {
    if (node->is_array()) {
      std::int64_t index = 0;
      if (!parse_size(std::string_view(key), index) || index < 0 ||
          static_cast<std::size_t>(index) >= node->size())
        throw UserError("--set ", assignment, ": expected an index below ", node->size(), ", found ", key);
      node = &(*node)[at(index)];
    } else {
      if (!node->is_object() && !node->is_null())
        throw UserError("--set ", assignment, ": ", key, " is not inside an object");
      node = &(*node)[key];
    }
  }
  *node = std::move(value);
}

void set_study_keys(json& file, const std::vector<std::string>& assignments) {
  const auto fixes_gpus = [](const std::string& key) { return key.starts_with("cluster.gpus="); };
  const auto parallel = file.find("parallel");
  if (std::ranges::any_of(assignments, fixes_gpus) && parallel != file.end() && parallel->is_object())
    parallel->erase("data");
  for (const std::string& assignment : assignments) set_study_key(file, assignment);
}

Study read_study(const std::string& path, const std::vector<std::string>& overrides) {
  json file = read_json_file(path);
  set_study_keys(file, overrides);
  return parse_study(file, path);
}

}  // namespace equipoise
