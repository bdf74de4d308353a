#include "sim/tune/candidates.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <string_view>

#include "policies/base/error.h"
#include "policies/base/index.h"
#include "policies/base/parallel.h"
#include "sim/study/read/parallel_keys.h"

namespace equipoise {

using nlohmann::json;

namespace {

constexpr std::int64_t kMostLayouts = 1'000'000;
constexpr std::int64_t kMostRows = 10'000;
constexpr std::int64_t kMostCandidates = 10'000'000;

// Place of each axis's value in combination number `index`, the last axis varying fastest.
std::vector<std::size_t> value_places(const std::vector<TriedKey>& axes, std::int64_t index) {
  std::vector<std::size_t> places(axes.size());
  for (std::size_t a = axes.size(); a-- > 0;) {
    const auto values = static_cast<std::int64_t>(axes[a].values.size());
    places[a] = at(index % values);
    index /= values;
  }
  return places;
}

json combination(const std::vector<TriedKey>& axes, std::int64_t index) {
  const std::vector<std::size_t> places = value_places(axes, index);
  json chosen = json::object();
  for (std::size_t a = 0; a < axes.size(); ++a) chosen[axes[a].key] = axes[a].values[places[a]];
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

constexpr std::string_view kParallel = "parallel.";

const ContextCommFacts* nested_form(const json& name) {
  const auto* const found = std::ranges::find_if(
      kContextComms, [&](const ContextCommFacts& form) { return form.nested && name == form.name; });
  return found == std::end(kContextComms) ? nullptr : found;
}

// The axes of layouts. Most combinations have the wrong number of GPUs, which plain numbers decide.
class LayoutAxes {
 public:
  LayoutAxes(const std::vector<TriedKey>& axes, const json& study, std::int64_t gpus)
      : axes_(axes),
        gpus_(gpus),
        group_{numbers("tensor", study), numbers("context", study), numbers("pipeline", study)},
        data_(numbers("data", study)),
        inner_(numbers("context_inner", study)),
        comm_(axis("context_comm")) {
    const json own = study.value("parallel", json::object()).value("context_comm", json());
    for (const json& form : comm_ < axes.size() ? axes[comm_].values : std::vector<json>{own})
      nested_.push_back(nested_form(form));
  }

  struct Combination {
    std::vector<std::size_t> places;
    std::int64_t data = 0;   // 0 if no number of replicas gives so many GPUs
    bool is_alike = false;   // whether another combination means the same
    bool has_inner = false;  // whether its inner degree has an effect
  };
  [[nodiscard]] Combination at_index(std::int64_t index) const {
    Combination made{value_places(axes_, index)};
    made.data = data_of(made.places);
    if (made.data > 0) find_alike(made);
    return made;
  }

  [[nodiscard]] json keys_of(const Combination& of) const {
    json keys = json::object();
    for (std::size_t a = 0; a < axes_.size(); ++a)
      if (a != inner_.axis || of.has_inner) keys[axes_[a].key] = axes_[a].values[of.places[a]];
    keys["parallel.data"] = of.data;
    return keys;
  }

 private:
  // A key's values as numbers, or the study's if no axis has it; 0 for a word, which the reader refuses.
  struct Numbers {
    std::size_t axis;
    std::vector<std::int64_t> values;
    [[nodiscard]] std::int64_t of(const std::vector<std::size_t>& places) const {
      return values[axis < places.size() ? places[axis] : 0];
    }
  };
  [[nodiscard]] std::size_t axis(std::string_view name) const {
    const std::string key = std::string(kParallel).append(name);
    return static_cast<std::size_t>(std::ranges::find(axes_, key, &TriedKey::key) - axes_.begin());
  }
  [[nodiscard]] Numbers numbers(const char* name, const json& study) const {
    Numbers made{axis(name), {}};
    const json own = study.value("parallel", json::object()).value(name, json(1));
    for (const json& value : made.axis < axes_.size() ? axes_[made.axis].values : std::vector<json>{own})
      made.values.push_back(value.is_number_integer() ? value.get<std::int64_t>() : 0);
    return made;
  }

  [[nodiscard]] std::int64_t data_of(const std::vector<std::size_t>& places) const {
    std::int64_t group = 1;
    for (const Numbers& degree : group_) {
      const std::int64_t size = degree.of(places);
      if (size < 1 || size > gpus_ / group) return 0;
      group *= size;
    }
    if (gpus_ % group != 0) return 0;
    const std::int64_t data = gpus_ / group;
    return data_.axis < axes_.size() && data_.of(places) != data ? 0 : data;
  }

  // Without CP there is no form in which K and V travel, and a form that is not nested has no inner degree:
  // the first of the axis represents all. Nested forms at the ends of the inner degree are plain ones, where
  // the axis has those.
  void find_alike(Combination& of) const {
    const bool forms = comm_ < axes_.size(), inners = inner_.axis < axes_.size();
    const std::int64_t context = group_[1].of(of.places);
    const ContextCommFacts* const nested = nested_[forms ? of.places[comm_] : 0];
    of.has_inner = inners && context != 1 && nested != nullptr;
    of.is_alike = (forms && context == 1 && of.places[comm_] != 0) ||
                  (inners && !of.has_inner && of.places[inner_.axis] != 0);
    if (!of.has_inner || !forms) return;
    const auto has = [&](ContextComm plain) {
      return std::ranges::count(axes_[comm_].values, json(name_of(plain))) > 0;
    };
    const std::int64_t inner = inner_.of(of.places);
    of.is_alike = of.is_alike || (inner == 1 && has(nested->across)) ||
                  (inner != 1 && inner == context && has(ContextComm::ulysses));
  }

  const std::vector<TriedKey>& axes_;
  std::int64_t gpus_;
  std::array<Numbers, 3> group_;  // values of tensor, context, pipeline
  Numbers data_, inner_;
  std::size_t comm_;
  std::vector<const ContextCommFacts*> nested_;  // by value of context_comm
};

std::string value_text(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.size() == 1)
    return value_text(value.begin().value()) + " " + value.begin().key();
  if (value.is_number_integer()) {
    const auto number = value.get<std::int64_t>();
    if (number >= 1024 && number % 1024 == 0) return std::to_string(number / 1024) + "K";
  }
  return value.dump();
}

// "wlb, queues 2, adaptive": what the entry says, or its own label and the values that are tried.
std::string label_of(const json& entry, const std::vector<TriedKey>& axes) {
  const bool labelled = entry.contains("label");
  std::string label = value_text(labelled ? entry["label"] : entry["name"]);
  for (const TriedKey& axis : axes) {
    if (axis.key == "name" || axis.key == "label" || (labelled && axis.values.size() == 1)) continue;
    const bool says_itself = axis.key == "shard" || (axis.key == "schedule" && entry["schedule"] != "auto");
    label += ", " + (says_itself ? "" : axis.key + " ") + value_text(entry[axis.key]);
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
  file.erase("export_row");
  file.erase("policies");
  for (const auto& [key, value] : keys.items()) set_study_key(file, key + "=" + value.dump());
  // The study's default, typed out: with model chunks the other of the two is meant.
  if (!keys.contains("schedule") && keys.contains("parallel.virtual_pipeline") && file.contains("schedule"))
    if (file["schedule"] == "1f1b" || file["schedule"] == "interleaved-1f1b") file.erase("schedule");
  return file;
}

json without_layout(json keys) {
  for (auto key = keys.begin(); key != keys.end();)
    key = key.key().starts_with(kParallel) ? keys.erase(key) : std::next(key);
  return keys;
}

// The layout for the keys of `parallel`, on a base with its other keys.
Layout layout_on(const CandidateBase& base, const json& keys, const std::string& name) {
  json parallel = json::object();
  for (const auto& [key, value] : keys.items())
    if (key.starts_with(kParallel)) parallel[key.substr(kParallel.size())] = value;
  Layout layout = base.study.layout;
  read_parallel(parallel, name + ": parallel", layout);
  return layout;
}

Study study_of(const CandidateBase& base, const PolicyRun& row, const Layout& layout,
               const std::string& name) {
  Study study = base.study;
  study.file = name;
  study.policies = {row};
  study.baseline = row.label;
  return laid_out(std::move(study), layout);
}

// Reads the rows once for all layouts of a base, and sets each layout's base.
std::vector<CandidateBase> read_bases(const Space& space, const Candidates& made, const std::string& name,
                                      std::vector<LayoutChoice>& layouts) {
  std::vector<CandidateBase> bases;
  std::map<std::string, std::uint32_t> known;
  const auto varies = [&](const char* key) {
    return std::ranges::find(space.shared, key, &TriedKey::key) != space.shared.end();
  };
  for (LayoutChoice& layout : layouts) {
    json keys = without_layout(layout.keys);
    const auto [base, is_new] = known.try_emplace(keys.dump(), static_cast<std::uint32_t>(bases.size()));
    layout.base = base->second;
    if (!is_new) continue;
    if (varies("parallel.virtual_pipeline")) keys["parallel.virtual_pipeline"] = 1;
    json file = with_keys(made.study, keys);
    file["policies"] = json::array();
    for (const RowChoice& row : made.rows) file["policies"].push_back(row.entry);
    Study study = parse_case(file, name);
    study.says_zero = study.says_zero || varies("parallel.zero");
    study.settings.clear();
    study.notes.clear();
    std::vector<PolicyRun> rows = std::move(study.policies);
    study.policies.clear();
    bases.push_back({std::move(study), std::move(rows)});
  }
  return bases;
}

}  // namespace

Candidates candidates_of(const Space& space, const json& study, std::int64_t gpus,
                         const std::string& space_name, int jobs, const Unwanted& unwanted) {
  Candidates made{study, {}, {}, {}, {}};
  made.rows = rows_of(space, space_name, made.none.alike);
  for (RowChoice& row : made.rows)  // because flags have one CP degree for all micro-batches
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
      } catch (const UserError&) {  // it goes with other layouts only
        return false;
      }
    });
  if (made.rows.empty()) throw UserError(why.second);
  const std::int64_t all = combinations(space.shared, kMostLayouts, space_name);
  const LayoutAxes axes(space.shared, study, gpus);
  std::vector<LayoutChoice> layouts;
  for (std::int64_t c = 0; c < all; ++c) {
    const LayoutAxes::Combination chosen = axes.at_index(c);
    if (chosen.data == 0)
      ++made.none.gpus;
    else if (chosen.is_alike)
      ++made.none.alike;
    else
      layouts.push_back({axes.keys_of(chosen), {}});
  }
  if (layouts.empty())
    throw UserError(space_name, ": expected a layout of ", gpus,
                    " GPUs (tensor x context x pipeline x data), found none among ", all,
                    " combinations; other degrees, or --gpus");
  made.bases = read_bases(space, made, space_name, layouts);
  std::vector<std::pair<std::string, std::string>> none(layouts.size());  // by layout, the key and the reason
  parallel_for(jobs, layouts.size(), [&](int, std::size_t i) {
    LayoutChoice& choice = layouts[i];
    const CandidateBase& base = made.bases[choice.base];
    const Study one = study_of(base, base.rows.front(), layout_on(base, choice.keys, space_name), space_name);
    choice.layout = one.layout;
    none[i].second = one.impossible;
    if (unwanted.layout && one.impossible.empty()) none[i] = unwanted.layout(one);
  });
  for (std::size_t i = 0; i < layouts.size(); ++i) {
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
  const LayoutChoice& choice = candidates.layouts[point.layout];
  const CandidateBase& base = candidates.bases[choice.base];
  return study_of(base, base.rows[point.row], choice.layout, name);
}

// The content of an entry of `policies`, however it is written and labelled.
static json bare_entry(json entry) {
  if (entry.is_string()) entry = {{"name", entry}};
  entry.erase("label");
  entry.erase("published");
  return entry;
}

json best_json(const Candidates& candidates, Point point, const std::vector<std::string>& alike,
               const std::vector<std::string>& omitted) {
  json file = candidate_json(candidates, point);
  json winner = file["policies"].front(), baseline;
  const Study own = parse_case(candidates.study, "best.json");
  json rows = json::array();
  for (std::size_t i = 0; i < own.policies.size(); ++i) {
    json row = bare_entry(candidates.study["policies"][i]);
    const std::string& label = own.policies[i].label;
    if (row.contains("file") || row == bare_entry(winner) || std::ranges::count(omitted, label) > 0) continue;
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
  file["export_row"] = winner["label"];
  rows.push_back(std::move(winner));
  file["policies"] = std::move(rows);
  return file;
}

}  // namespace equipoise
