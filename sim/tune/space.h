// What a search may try: keys of a study with their values, the policies with theirs, and which combinations
// of them a run could have.
//
// SPACE.json is an object of a study's keys, dotted as --sweep takes them, each with one value or a list of
// values to try; `policies` is a list of a study's entries in which any value may be a list, too (an option
// that is a list itself is a list of lists):
//   {"parallel.tensor": [4, 8], "parallel.context": [1, 2],
//    "policies": ["plain-4d", {"name": "wlb", "queues": [1, 2, 3]}]}
// Where it names no `policies`, they are the study's. `parallel.data` follows from the number of GPUs where
// it is not listed. Keys that all candidates must share (trace, model, cluster, the global batch) are
// refused.
//
// A candidate is a layout (values of the shared keys) and a row (a policy with its options). Combinations
// that go together in no run (a TP degree that does not divide the heads, another number of GPUs, a data
// degree that does not divide the global batch) are none, and counted by reason; so are those that differ
// from another in nothing that can matter (how K and V travel without context parallelism).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/study/read/study.h"

namespace equipoise {

struct TriedKey {
  std::string key;
  std::vector<nlohmann::json> values;
};

struct Space {
  std::vector<TriedKey> shared;                 // of the study, dotted
  std::vector<std::vector<TriedKey>> policies;  // keys of each entry; `name` among them
};

// Reads and checks every key and value, each beside the first values of the others. `study` is a study file
// whose paths are absolute. Throws UserError naming the space's file and the key.
Space read_space(const std::string& path, const nlohmann::json& study);
Space parse_space(const nlohmann::json& file, const std::string& path, const nlohmann::json& study);

nlohmann::json space_json(const Space& space);

// The space that is searched where the user names none: every layout of the GPUs that the model's sizes
// allow, and the policies that keep the order of data up to a bounded delay. `gpus`: of the candidates;
// `gpus_per_node`: bounds the TP degree.
Space default_space(const Study& study, const nlohmann::json& file, std::int64_t gpus, int gpus_per_node);

// The file with `set` applied. Every path in it is absolute, and batch.sequences_per_step stands in it, which
// would otherwise follow from the layout. Throws UserError as read_study does.
nlohmann::json absolute_study(const std::string& path, const std::vector<std::string>& set);

// The same for the file of a study that was read, in place.
void make_absolute(nlohmann::json& file, const Study& study);

struct LayoutChoice {
  nlohmann::json keys;  // {"parallel.tensor": 8, ...}, parallel.data included
  Layout layout;
};

struct RowChoice {
  nlohmann::json entry;  // of `policies`, with a label of its own
  std::string label;
};

struct Point {
  std::uint32_t layout = 0, row = 0;
  friend bool operator==(const Point&, const Point&) = default;
};

struct NoCandidates {  // combinations that are none, by reason
  std::int64_t gpus = 0, impossible = 0, alike = 0;
  std::string example;  // why one is impossible
  // Those that are not wanted, by the key that says so; rows apart.
  std::map<std::string, std::int64_t> layouts_without, rows_without;
};

struct Candidates {
  nlohmann::json study;               // absolute_study
  std::vector<LayoutChoice> layouts;  // in the order of the space, the last key varying fastest
  std::vector<RowChoice> rows;
  NoCandidates none;

  [[nodiscard]] std::int64_t count() const {
    return static_cast<std::int64_t>(layouts.size()) * static_cast<std::int64_t>(rows.size());
  }
};

// The key for which a study's layout, or its one row, is not wanted, and why; empty: it is.
struct Unwanted {
  std::function<std::pair<std::string, std::string>(const Study&)> layout, row;
};

// All of them on exactly `gpus` GPUs that are wanted. `study`: an absolute_study.
// Throws UserError where the space has more layouts than can be looked at, or none that has so many GPUs and
// goes together; `space_name` names it.
Candidates candidates_of(const Space& space, const nlohmann::json& study, std::int64_t gpus,
                         const std::string& space_name, int jobs, const Unwanted& unwanted = {});

// The study file of a candidate: its one row, which is its own baseline.
nlohmann::json candidate_json(const Candidates& candidates, Point point);
Study candidate_study(const Candidates& candidates, Point point, const std::string& name);

// best.json: the candidate on its layout, and before it the study's own rows there with the study's baseline,
// so that `study best.json` compares them. A row that the candidate is, that makes the same steps (`alike`,
// labels), or that fits no other layout, is not repeated; where the baseline is such a row, the candidate is
// the baseline.
nlohmann::json best_json(const Candidates& candidates, Point point, const std::vector<std::string>& alike);

}  // namespace equipoise
