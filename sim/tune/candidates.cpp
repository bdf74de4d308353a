#include "sim/tune/candidates.h"

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
      throw UserError(where, ": expected at most ", most,
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

// Adds the data degree to the others; false where no number of replicas gives so many GPUs.
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

// The nested form of that name, or null.
const ContextCommFacts* nested_form(const json& name) {
  const auto* const found = std::ranges::find_if(
      kContextComms, [&](const ContextCommFacts& form) { return form.nested && name == form.name; });
  return found == std::end(kContextComms) ? nullptr : found;
}

// Whether another combination says the same. Without CP there is no form in which K and V travel, and a form
// that is not nested has no inner degree: the first of the axis represents all. Nested forms at the ends of
// the inner degree are plain ones, where the axis has those. Takes an inner degree out that says nothing.
bool is_alike(json& keys, const json& study, const std::vector<TriedKey>& axes) {
  const auto axis = [&axes](std::string_view key) {
    return std::find_if(axes.begin(), axes.end(), [&](const TriedKey& tried) { return tried.key == key; });
  };
  const auto comm = axis("parallel.context_comm"), inner = axis("parallel.context_inner");
  const auto context = degree(keys, study, "context");
  if (comm != axes.end() && context == 1 && keys[comm->key] != comm->values.front()) return true;
  if (inner == axes.end()) return false;
  const json form = comm != axes.end()
                        ? keys[comm->key]
                        : study.value("parallel", json::object()).value("context_comm", json());
  const ContextCommFacts* const nested = nested_form(form);
  if (context == 1 || nested == nullptr) {
    if (keys[inner->key] != inner->values.front()) return true;
    keys.erase(inner->key);
    return false;
  }
  if (comm == axes.end()) return false;
  const auto has = [&](ContextComm plain) {
    return std::find(comm->values.begin(), comm->values.end(), json(name_of(plain))) != comm->values.end();
  };
  if (keys[inner->key] == 1) return has(nested->across);
  return keys[inner->key] == context.value_or(0) && has(ContextComm::ulysses);
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

// "wlb, queues 2, adaptive": what the entry says, or its own label and the values that are tried.
std::string label_of(const json& entry, const std::vector<TriedKey>& axes) {
  const bool labelled = entry.contains("label");
  std::string label = text_of(labelled ? entry["label"] : entry["name"]);
  for (const TriedKey& axis : axes) {
    if (axis.key == "name" || axis.key == "label" || (labelled && axis.values.size() == 1)) continue;
    const bool says_itself = axis.key == "shard" || (axis.key == "schedule" && entry["schedule"] != "auto");
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
      if (!entries.insert(bare.dump()).second && ++alike > 0) continue;
      row.label = label_of(row.entry, axes);
      for (int copy = 2; !labels.insert(row.label).second; ++copy)
        row.label = label_of(row.entry, axes) + " #" + std::to_string(copy);
      row.entry["label"] = row.label;
      rows.push_back(std::move(row));
    }
    if (static_cast<std::int64_t>(rows.size()) > kMostRows)
      throw UserError(space_name, ": policies: expected at most ", kMostRows,
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
                         const std::string& space_name, int jobs, const Unwanted& unwanted) {
  Candidates made{study, {}, {}, {}};
  made.rows = rows_of(space, space_name, made.none.alike);
  for (RowChoice& row : made.rows)  // flags have one CP degree for all micro-batches
    if (unwanted.row && row.entry["name"] == "equipoise" && !row.entry.contains("start"))
      row.entry.emplace("own_degrees", false);
  std::pair<std::string, std::string> why;
  if (unwanted.row)
    std::erase_if(made.rows, [&](const RowChoice& row) {
      json file = study;
      file.update({{"policies", {row.entry}}, {"baseline", row.label}});
      try {
        why = unwanted.row(parse_case(file, space_name));
        return !why.first.empty() && ++made.none.rows_without[why.first] > 0;
      } catch (const UserError&) {  // it goes with another layout only
        return false;
      }
    });
  if (made.rows.empty()) throw UserError(why.second);
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
    throw UserError(space_name, ": expected a layout of ", gpus,
                    " GPUs (tensor x context x pipeline x data), found none among ", all,
                    " combinations; other degrees, or --gpus");
  std::vector<LayoutChoice> layouts(keys.size());
  std::vector<std::pair<std::string, std::string>> none(keys.size());  // the key, if it is one, and why
  parallel_for(jobs, keys.size(), [&](int, std::size_t i) {
    json file = with_keys(study, keys[i]);
    file["policies"] = json::array({made.rows.front().entry});
    const Study parsed = parse_case(file, space_name);
    layouts[i] = {keys[i], parsed.layout};
    none[i].second = parsed.impossible;
    if (unwanted.layout && parsed.impossible.empty()) none[i] = unwanted.layout(parsed);
  });
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto& [key, why_not] = none[i];
    if (made.none.example.empty()) made.none.example = why_not;
    if (why_not.empty())
      made.layouts.push_back(std::move(layouts[i]));
    else
      ++(key.empty() ? made.none.impossible : made.none.layouts_without[key]);
  }
  if (made.layouts.empty()) throw UserError(made.none.example);
  if (made.count() > kMostCandidates)
    throw UserError(space_name, ": expected at most ", kMostCandidates, " candidates, found ", made.count(),
                    "; fewer values");
  return made;
}

json candidate_json(const Candidates& candidates, Point point) {
  json file = with_keys(candidates.study, candidates.layouts[point.layout].keys);
  file["policies"] = json::array({candidates.rows[point.row].entry});
  file["baseline"] = candidates.rows[point.row].label;
  return file;
}

Study candidate_study(const Candidates& candidates, Point point, const std::string& name) {
  return parse_case(candidate_json(candidates, point), name);
}

// What an entry of `policies` asks for, however it is written and called.
static json bare_entry(json entry) {
  if (entry.is_string()) entry = {{"name", entry}};
  entry.erase("label");
  entry.erase("published");
  return entry;
}

json best_json(const Candidates& candidates, Point point, const std::vector<std::string>& alike) {
  json file = candidate_json(candidates, point);
  json winner = file["policies"].front(), baseline;
  const Study own = parse_case(candidates.study, "best.json");
  json rows = json::array();
  for (std::size_t i = 0; i < own.policies.size(); ++i) {
    json row = bare_entry(candidates.study["policies"][i]);
    const std::string& label = own.policies[i].label;
    if (row.contains("file") || row == bare_entry(winner)) continue;
    if (std::ranges::any_of(candidates.rows, [&](const RowChoice& of) {
          return std::ranges::count(alike, of.label) > 0 && bare_entry(of.entry) == row;
        }))
      continue;
    if (label == winner["label"]) winner["label"] = label + " (found)";
    row["label"] = label;
    rows.push_back(std::move(row));
    if (label == own.baseline) baseline = label;
  }
  file["baseline"] = baseline.is_null() ? winner["label"] : baseline;
  rows.push_back(std::move(winner));
  file["policies"] = std::move(rows);
  return file;
}

}  // namespace equipoise
