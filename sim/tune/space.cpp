#include "sim/tune/space.h"

#include <algorithm>

#include "policies/base/error.h"
#include "policies/base/names.h"
#include "sim/study/read/study.h"
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
      throw UserError(where + ": expected each value once, found " + shown_json(value) + " twice");
    axis.values.push_back(value);
  }
  if (axis.values.empty()) throw UserError(where + ": expected at least one value, found []");
  return axis;
}

void read_shared(const json& node, const std::string& prefix, const std::string& path, Space& space) {
  for (const auto& [name, values] : node.items()) {
    const std::string key = prefix + name;
    if (prefix.empty() && name == "policies") continue;
    const bool group =
        prefix.empty() && std::find(std::begin(kGroups), std::end(kGroups), name) != std::end(kGroups);
    if (group && values.is_object()) {
      read_shared(values, name + ".", path, space);
      continue;
    }
    if (!may_differ(key)) throw UserError(path + ": " + key + ": expected " + std::string(kAllowed));
    space.shared.push_back(axis_of(key, values, path + ": " + key));
  }
}

std::vector<TriedKey> read_entry(const json& entry, const std::string& where) {
  if (entry.is_string()) return {{"name", {entry}}};
  if (!entry.is_object())
    throw UserError(where + ": expected a name or an object, found " + shown_json(entry));
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

// Each value once, beside the first of the others: an unknown key or a wrong type is found before any work.
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

}  // namespace

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

Space parse_space(const json& file, const std::string& path, const json& study) {
  if (!file.is_object())
    throw UserError(path + ": expected an object of a study's keys with the values to try, found " +
                    shown_json(file));
  Space space;
  read_shared(file, "", path, space);
  if (file.contains("policies")) {
    const json& policies = file["policies"];
    if (!policies.is_array() || policies.empty())
      throw UserError(path + ": policies: expected a list of at least one policy, found " +
                      shown_json(policies));
    for (std::size_t i = 0; i < policies.size(); ++i)
      space.policies.push_back(read_entry(policies[i], path + ": policies[" + std::to_string(i) + "]"));
  } else {
    space.policies = rows_of_study(study);
  }
  if (space.shared.empty() && !file.contains("policies"))
    throw UserError(path + ": expected at least one key with the values to try, found none");
  if (space.policies.empty())
    throw UserError(path +
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

}  // namespace equipoise
