#include "sim/tune/space.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "sim/framework/framework_runs.h"
#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr std::string_view kGroups[] = {"parallel", "batch", "framework"};
constexpr std::string_view kAllowed =
    "a key of parallel or framework, schedule, precision, batch.micro_batch_size, batch.micro_batches or "
    "policies (candidates share the documents, the model, the cluster and the global batch)";

bool may_differ(const std::string& key) {
  return key.starts_with("parallel.") || key.starts_with("framework.") || key == "framework" ||
         key == "schedule" || key == "precision" || key == "batch.micro_batch_size" ||
         key == "batch.micro_batches";
}

TriedKey axis_of(const std::string& key, const json& values, const std::string& where) {
  TriedKey axis{key, {}};
  if (!values.is_array()) {
    axis.values.push_back(values);
    return axis;
  }
  for (const json& value : values) {
    if (std::find(axis.values.begin(), axis.values.end(), value) != axis.values.end())
      throw UserError(where, ": expected each value once, found ", shown_json(value), " twice");
    axis.values.push_back(value);
  }
  if (axis.values.empty()) throw UserError(where, ": expected at least one value, found []");
  return axis;
}

void read_shared(const json& node, const std::string& prefix, const std::string& path, Space& space) {
  for (const auto& [name, values] : node.items()) {
    const std::string key = prefix + name;
    if (prefix.empty() && name == "policies") continue;
    const bool group = prefix.empty() && std::ranges::count(kGroups, name) > 0;
    if (group && values.is_object()) {
      read_shared(values, name + ".", path, space);
      continue;
    }
    if (!may_differ(key)) throw UserError(path, ": ", key, ": expected ", kAllowed);
    space.shared.push_back(axis_of(key, values, path + ": " + key));
  }
}

std::vector<TriedKey> read_entry(const json& entry, const std::string& where) {
  if (entry.is_string()) return {{"name", {entry}}};
  if (!entry.is_object()) throw UserError(where, ": expected a name or an object, found ", shown_json(entry));
  std::vector<TriedKey> keys;
  for (const auto& [key, values] : entry.items()) keys.push_back(axis_of(key, values, where + "." + key));
  return keys;
}

json first_entry(const std::vector<TriedKey>& keys) {
  json entry = json::object();
  for (const TriedKey& axis : keys) entry[axis.key] = axis.values.front();
  return entry;
}

void set_key(json& file, const TriedKey& axis, const json& value) {
  set_study_key(file, axis.key + "=" + value.dump());
}

// Reads each value once, with the first of the others: an unknown key or a wrong type is found before any
// work.
void check_values(const Space& space, const json& study, const std::string& path) {
  json file = study;
  file.erase("baseline");
  file["policies"] = json::array();
  for (const auto& keys : space.policies) file["policies"].push_back(first_entry(keys));
  (void)parse_case(file, path);
  for (const TriedKey& axis : space.shared)
    for (const json& value : axis.values) {
      json tried = file;
      set_key(tried, axis, value);
      (void)parse_case(tried, path);
    }
  for (std::size_t i = 0; i < space.policies.size(); ++i)
    for (const TriedKey& axis : space.policies[i])
      for (const json& value : axis.values) {
        json tried = file;
        tried["policies"][i][axis.key] = value;
        (void)parse_case(tried, path);
      }
}

// The study's own rows with one value per key, except those that cannot move to another layout (a plan from a
// file).
std::vector<std::vector<TriedKey>> rows_of_study(const json& study) {
  std::vector<std::vector<TriedKey>> rows;
  for (const json& entry : study.at("policies")) {
    if (entry.is_string()) {
      rows.push_back({{"name", {entry}}});
      continue;
    }
    if (entry.contains("file")) continue;
    std::vector<TriedKey> keys;
    for (const auto& [key, value] : entry.items())
      if (key != "published") keys.push_back({key, {value}});
    rows.push_back(std::move(keys));
  }
  return rows;
}

}  // namespace

Space parse_space(const json& file, const std::string& path, const json& study) {
  if (!file.is_object())
    throw UserError(path, ": expected an object of a study's keys with the values to try, found ",
                    shown_json(file));
  Space space;
  read_shared(file, "", path, space);
  if (file.contains("policies")) {
    const json& policies = file["policies"];
    if (!policies.is_array() || policies.empty())
      throw UserError(path, ": policies: expected a list of at least one policy, found ",
                      shown_json(policies));
    for (std::size_t i = 0; i < policies.size(); ++i)
      space.policies.push_back(read_entry(policies[i], path + ": policies[" + std::to_string(i) + "]"));
  } else {
    space.policies = rows_of_study(study);
  }
  if (space.shared.empty() && !file.contains("policies"))
    throw UserError(path, ": expected at least one key with the values to try, found none");
  if (space.policies.empty())
    throw UserError(path,
                    ": policies: expected at least one policy, since the study's only have plans from "
                    "files, which fit no other layout; found none");
  check_values(space, study, path);
  return space;
}

Space read_space(const std::string& path, const json& study) {
  return parse_space(read_json_file(path), path, study);
}

json space_json(const Space& space) {
  const auto values_of = [](const TriedKey& axis) {
    return axis.values.size() == 1 && !axis.values.front().is_array() ? axis.values.front()
                                                                      : json(axis.values);
  };
  json node = json::object();
  for (const TriedKey& axis : space.shared) node[axis.key] = values_of(axis);
  node["policies"] = json::array();
  for (const auto& keys : space.policies) {
    json entry = json::object();
    for (const TriedKey& axis : keys) entry[axis.key] = values_of(axis);
    node["policies"].push_back(entry.size() == 1 && entry.contains("name") ? entry["name"] : entry);
  }
  return node;
}

namespace {

constexpr std::int64_t kFewestChunkTokens = 1024;

std::vector<json> divisors(std::int64_t number, std::int64_t most) {
  std::vector<json> found;
  for (std::int64_t d = 1; d <= std::min(number, most); ++d)
    if (number % d == 0) found.emplace_back(d);
  return found;
}

// What the model keeps: nothing again, a quarter, half, three quarters or all of the layers. Selective
// recompute is not among them: with FlashAttention it costs time and frees nothing.
std::vector<json> recompute_modes(int layers) {
  std::vector<json> modes = {"none"};
  for (int quarter = 1; quarter < 4; ++quarter)
    if (const int some = layers * quarter / 4; some > 0 && modes.back() != json{{"layers", some}})
      modes.push_back({{"layers", some}});
  modes.emplace_back("full");
  return modes;
}

void add_policies(const Study& study, Space& space) {
  const std::int64_t window = study.batch.context_window;
  space.policies.push_back(
      {{"name", {"fixed-greedy"}}, {"pack_window", {1, 2, 4, 8}}, {"shard", {"adaptive"}}});
  // L_max: what memory allows, and less, since the largest micro-batch is what other stages wait for.
  space.policies.push_back({{"name", {"wlb"}}, {"queues", {1, 2, 3, 4}}, {"shard", {"adaptive"}}});
  space.policies.push_back({{"name", {"wlb"}},
                            {"queues", {1, 2, 3, 4}},
                            {"max_tokens", {window, window + window / 4, window + window / 2}},
                            {"shard", {"adaptive"}}});
  std::vector<json> chunks;
  for (const std::int64_t parts : {32, 16, 8, 4, 2})
    if (window / parts >= kFewestChunkTokens) chunks.emplace_back(window / parts);
  if (!chunks.empty())
    space.policies.push_back({{"name", {"chunkflow"}}, {"chunk_size", chunks}, {"keep", {1, 2, 4, 8, 16}}});
  space.policies.push_back({{"name", {"sequence-slices"}}, {"slices", {2, 4, 8, 16}}});
  space.policies.push_back({{"name", {"skrull"}}});
  space.policies.push_back({{"name", {"wlb"}}, {"search", {true}}, {"shard", {"adaptive"}}});
  space.policies.push_back({{"name", {"equipoise"}}, {"moves", {2000}}});
  space.policies.push_back({{"name", {"hbp"}}});
  space.policies.push_back({{"name", {"flexsp"}}});
}

// Adds an axis, with the study's own value among its values.
void add_axis(const char* name, std::vector<json> values, const json& own, Space& space) {
  if (!own.is_null() && std::find(values.begin(), values.end(), own) == values.end()) values.push_back(own);
  space.shared.push_back({std::string("parallel.") + name, std::move(values)});
}

}  // namespace

Space default_space(const Study& study, const json& file, std::int64_t gpus, int gpus_per_node) {
  Space space;
  const Layout& layout = study.layout;
  std::vector<json> tensor;
  for (const json& degree : divisors(gpus, gpus_per_node))
    if (study.model.heads % degree.get<int>() == 0) tensor.push_back(degree);
  add_axis("tensor", tensor, layout.tensor, space);
  add_axis("context", divisors(gpus, gpus), layout.context, space);
  // A pipeline or a schedule that the framework lacks is no layout of it, whatever a loader can do.
  const FrameworkRuns* const runs = framework_runs(study.framework.preset.name);
  const bool has_pipeline = runs == nullptr || !runs->schedules.empty();
  const bool interleaves = runs == nullptr || lists(runs->schedules, "interleaved-1f1b");
  if (has_pipeline)
    add_axis("pipeline", divisors(gpus, study.model.layers), layout.pipeline, space);
  else
    add_axis("pipeline", {1}, nullptr, space);
  if (study.model.moe) {
    std::vector<json> expert;
    for (const json& degree : divisors(gpus, study.model.moe->experts))
      if (study.model.moe->experts % degree.get<int>() == 0) expert.push_back(degree);
    add_axis("expert", expert, layout.expert, space);
  }
  if (!interleaves)
    add_axis("virtual_pipeline", {1}, nullptr, space);
  else if (study.model.layers > 1)
    add_axis("virtual_pipeline", {1, 2, 4}, layout.virtual_pipeline, space);
  std::vector<json> inner;  // within a node, as the heads allow, and below the CP degree
  for (const json& degree : divisors(gpus, std::min<std::int64_t>(gpus_per_node, gpus / 2)))
    if (degree > 1 && study.model.heads % degree.get<int>() == 0) inner.push_back(degree);
  std::vector<json> forms = {"all-gather", "ulysses", "ring", "group-cast", "disaggregated"};
  if (!inner.empty()) forms.insert(forms.end(), {"ulysses-ring", "ulysses-all-gather"});
  add_axis("context_comm", forms, nullptr, space);
  if (!inner.empty())
    add_axis("context_inner", inner, layout.context_inner > 0 ? json(layout.context_inner) : json(), space);
  const json parallel = file.value("parallel", json::object());
  add_axis("recompute", recompute_modes(study.model.layers), parallel.value("recompute", json()), space);
  space.policies = rows_of_study(file);
  add_policies(study, space);
  return space;
}

static bool is_path(const std::string& name) {
  return name.find('/') != std::string::npos || name.ends_with(".json");
}

static void resolve(json& node, const char* key, const std::filesystem::path& directory) {
  if (!node.is_object() || !node.contains(key) || !node[key].is_string()) return;
  const std::string path =
      std::filesystem::absolute(directory / node[key].get<std::string>()).lexically_normal().string();
  if (!is_utf8(path))
    throw UserError(path, ": expected a path in UTF-8, which best.json can hold, found other bytes");
  node[key] = path;
}

// Makes a path absolute; names of shipped files stay names.
static void resolve_path(json& node, const char* key, const std::filesystem::path& directory) {
  if (node.is_object() && node.contains(key) && node[key].is_string() &&
      is_path(node[key].get<std::string>()))
    resolve(node, key, directory);
}

void make_absolute(json& file, const Study& study) {
  const std::filesystem::path directory = study.directory;
  resolve(file["trace"], "file", directory);
  if (file["trace"].contains("mixture"))
    for (json& part : file["trace"]["mixture"]) resolve(part, "file", directory);
  resolve(file["model"], "hf_config", directory);
  resolve_path(file, "framework", directory);
  if (file.contains("framework")) resolve_path(file["framework"], "preset", directory);
  if (file.contains("cluster")) file["cluster"]["profile"] = study.cluster.profile;
  if (file.contains("cluster")) resolve_path(file["cluster"], "profile", "");
  for (json& row : file["policies"]) resolve(row, "file", directory);
  file["name"] = study.name;
  if (study.batch.documents_per_step == 0)
    file["batch"]["sequences_per_step"] = study.batch.sequences_per_step;
}

json absolute_study(const std::string& path, const std::vector<std::string>& set) {
  const Study study = read_study(path, set);
  json file = read_json_file(path);
  set_study_keys(file, set);
  make_absolute(file, study);
  return file;
}

}  // namespace equipoise
