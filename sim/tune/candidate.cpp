#include "sim/tune/candidate.h"

#include <algorithm>
#include <optional>
#include <set>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/parallel.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr std::int64_t kMostLayouts = 1'000'000;
constexpr std::int64_t kMostRows = 10'000;
constexpr std::int64_t kMostCandidates = 10'000'000;

// The combination number `index` of the axes, the last varying fastest.
json combination(const std::vector<TriedKey>& axes, std::int64_t index) {
  json chosen = json::object();
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    const auto values = static_cast<std::int64_t>(axis->values.size());
    chosen[axis->key] = axis->values[at(index % values)];
    index /= values;
  }
  return chosen;
}

std::int64_t combinations(const std::vector<TriedKey>& axes, std::int64_t most, const std::string& where) {
  std::int64_t count = 1;
  for (const TriedKey& axis : axes) {
    count *= static_cast<std::int64_t>(axis.values.size());
    if (count > most)
      throw UserError(where + ": expected at most " + std::to_string(most) +
                      " combinations of values, found more; fewer values");
  }
  return count;
}

// A degree as the combination has it, else the study; nothing where it is no number (a word that the reader
// refuses).
std::optional<std::int64_t> degree(const json& keys, const json& study, const char* name) {
  const std::string key = std::string("parallel.") + name;
  const json parallel = study.value("parallel", json::object());
  const json value = keys.contains(key) ? keys[key] : parallel.value(name, json(1));
  return value.is_number_integer() ? std::optional(value.get<std::int64_t>()) : std::nullopt;
}

// Puts the data degree beside the others; false where no number of replicas gives so many GPUs.
bool complete(json& keys, const json& study, std::int64_t gpus) {
  std::int64_t group = 1;
  for (const char* name : {"tensor", "context", "pipeline"}) {
    const auto size = degree(keys, study, name);
    if (!size || *size < 1 || *size > gpus / group) return false;
    group *= *size;
  }
  if (keys.contains("parallel.data")) return degree(keys, study, "data") == gpus / group && gpus % group == 0;
  if (gpus % group != 0) return false;
  keys["parallel.data"] = gpus / group;
  return true;
}

// Without CP there is no form in which K and V travel: the first of the axis stands for all.
bool is_alike(const json& keys, const json& study, const std::vector<TriedKey>& axes) {
  const auto comm = std::find_if(axes.begin(), axes.end(),
                                 [](const TriedKey& axis) { return axis.key == "parallel.context_comm"; });
  return comm != axes.end() && degree(keys, study, "context") == 1 && keys[comm->key] != comm->values.front();
}

std::string text_of(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.size() == 1)
    return text_of(value.begin().value()) + " " + value.begin().key();
  if (value.is_number_integer()) {
    const auto number = value.get<std::int64_t>();
    if (number >= 1024 && number % 1024 == 0) return std::to_string(number / 1024) + "K";
  }
  return value.dump();
}

// "wlb, queues 2, adaptive": what the entry says, or its own label with what is tried beside it.
std::string label_of(const json& entry, const std::vector<TriedKey>& axes) {
  const bool labelled = entry.contains("label");
  std::string label = text_of(labelled ? entry["label"] : entry["name"]);
  for (const TriedKey& axis : axes) {
    if (axis.key == "name" || axis.key == "label" || (labelled && axis.values.size() == 1)) continue;
    const bool says_itself = axis.key == "shard" || axis.key == "schedule";
    label += ", " + (says_itself ? "" : axis.key + " ") + text_of(entry[axis.key]);
  }
  return label;
}

std::vector<RowChoice> rows_of(const Space& space, const std::string& space_name, std::int64_t& alike) {
  std::vector<RowChoice> rows;
  std::set<std::string> entries, labels;
  for (std::size_t i = 0; i < space.policies.size(); ++i) {
    const auto& axes = space.policies[i];
    const std::string where = space_name + ": policies[" + std::to_string(i) + "]";
    const std::int64_t count = combinations(axes, kMostRows, where);
    for (std::int64_t c = 0; c < count; ++c) {
      RowChoice row{combination(axes, c), ""};
      json bare = row.entry;
      bare.erase("label");
      if (!entries.insert(bare.dump()).second) {
        ++alike;
        continue;
      }
      row.label = label_of(row.entry, axes);
      for (int copy = 2; !labels.insert(row.label).second; ++copy)
        row.label = label_of(row.entry, axes) + " #" + std::to_string(copy);
      row.entry["label"] = row.label;
      rows.push_back(std::move(row));
    }
    if (static_cast<std::int64_t>(rows.size()) > kMostRows)
      throw UserError(space_name + ": policies: expected at most " + std::to_string(kMostRows) +
                      " combinations of values, found more; fewer values");
  }
  return rows;
}

json with_keys(const json& study, const json& keys) {
  json file = study;
  file.erase("baseline");
  file.erase("policies");
  for (const auto& [key, value] : keys.items()) set_study_key(file, key + "=" + value.dump());
  // The study's default, typed out: with model chunks the other of the two is meant.
  if (!keys.contains("schedule") && keys.contains("parallel.virtual_pipeline") && file.contains("schedule"))
    if (file["schedule"] == "1f1b" || file["schedule"] == "interleaved-1f1b") file.erase("schedule");
  return file;
}

}  // namespace

Candidates candidates_of(const Space& space, const json& study, std::int64_t gpus,
                         const std::string& space_name, int jobs) {
  Candidates made;
  made.study = study;
  made.rows = rows_of(space, space_name, made.none.alike);
  const std::int64_t all = combinations(space.shared, kMostLayouts, space_name);
  std::vector<json> keys;
  for (std::int64_t c = 0; c < all; ++c) {
    json chosen = combination(space.shared, c);
    if (!complete(chosen, study, gpus))
      ++made.none.gpus;
    else if (is_alike(chosen, study, space.shared))
      ++made.none.alike;
    else
      keys.push_back(std::move(chosen));
  }
  if (keys.empty())
    throw UserError(space_name + ": expected a layout of " + std::to_string(gpus) +
                    " GPUs (tensor x context x pipeline x data), found none among " + std::to_string(all) +
                    " combinations; other degrees, or --gpus");
  std::vector<LayoutChoice> layouts(keys.size());
  std::vector<std::string> impossible(keys.size());
  parallel_for(jobs, keys.size(), [&](int, std::size_t i) {
    json file = with_keys(study, keys[i]);
    file["policies"] = {made.rows.front().entry};
    const Study parsed = parse_case(file, space_name);
    layouts[i] = {keys[i], parsed.layout};
    impossible[i] = parsed.impossible;
  });
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (impossible[i].empty()) {
      made.layouts.push_back(std::move(layouts[i]));
      continue;
    }
    ++made.none.impossible;
    if (made.none.example.empty()) made.none.example = impossible[i];
  }
  if (made.layouts.empty()) throw UserError(made.none.example);
  if (made.count() > kMostCandidates)
    throw UserError(space_name + ": expected at most " + std::to_string(kMostCandidates) +
                    " candidates, found " + std::to_string(made.count()) + "; fewer values");
  return made;
}

json candidate_json(const Candidates& candidates, Point point) {
  json file = with_keys(candidates.study, candidates.layouts[point.layout].keys);
  file["policies"] = {candidates.rows[point.row].entry};
  file["baseline"] = candidates.rows[point.row].label;
  return file;
}

Study candidate_study(const Candidates& candidates, Point point, const std::string& name) {
  return parse_case(candidate_json(candidates, point), name);
}

}  // namespace equipoise
