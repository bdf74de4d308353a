// A candidate is a layout (values of the shared keys) and a row (a policy with its options). Combinations
// that no run can have (a TP degree that does not divide the heads, another number of GPUs, a data degree
// that does not divide the global batch) are no candidates, and are counted by reason. The same holds for
// those that differ from another only in what cannot matter, such as how K and V travel without context
// parallelism.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/study/read/study.h"
#include "sim/tune/space.h"
#include "sim/workload/layout.h"

namespace equipoise {

struct LayoutChoice {
  nlohmann::json keys;  // {"parallel.tensor": 8, ...}, including parallel.data
  Layout layout;
  std::uint32_t base = 0;  // place in Candidates::bases
};

struct RowChoice {
  nlohmann::json entry;  // an entry of `policies`, with its own label
  std::string label;
};

struct Point {
  std::uint32_t layout = 0, row = 0;
  friend bool operator==(const Point&, const Point&) = default;
};

struct NoCandidates {  // combinations that are no candidates, by reason
  std::int64_t gpus = 0, impossible = 0, alike = 0;
  std::string example;  // why one of them is impossible
  // Unwanted ones, by the key that says so; rows are separate.
  std::map<std::string, std::int64_t> layouts_without, rows_without;
};

// The study and all rows as they were read, for the layouts that have its values of the keys outside of
// `parallel`. A candidate is one of its rows on one of these layouts, and needs no reading of its own.
struct CandidateBase {
  Study study;  // without rows, on the user's own layout
  std::vector<PolicyRun> rows;
};

struct Candidates {
  nlohmann::json study;  // absolute_study
  std::vector<CandidateBase> bases;
  std::vector<LayoutChoice> layouts;  // in the order of the space, with the last key varying fastest
  std::vector<RowChoice> rows;
  NoCandidates none;

  // How K and V travel in the user's own layout, whatever is known of the framework; none without CP there.
  [[nodiscard]] std::optional<ContextComm> stated_form() const {
    const Layout& own = bases.front().study.layout;
    return own.context > 1 ? std::optional(own.context_comm) : std::nullopt;
  }
  [[nodiscard]] std::int64_t count() const {
    return static_cast<std::int64_t>(layouts.size()) * static_cast<std::int64_t>(rows.size());
  }
};

// The key for which a study's layout, or its one row, is unwanted, and why; empty if it is wanted.
struct Unwanted {
  std::function<std::pair<std::string, std::string>(const Study&)> layout, row;
};

// All of them on exactly `gpus` GPUs that are wanted. `study`: an absolute_study.
// Throws UserError where the space has more layouts than can be examined, or none that is valid on so many
// GPUs; `space_name` names it.
Candidates candidates_of(const Space& space, const nlohmann::json& study, std::int64_t gpus,
                         const std::string& space_name, int jobs, const Unwanted& unwanted = {});

// The study file of a candidate: its only row is its own baseline.
nlohmann::json candidate_json(const Candidates& candidates, Point point);
// What that file says, without its notes and settings. `name`: of the study, for messages.
Study candidate_study(const Candidates& candidates, Point point, const std::string& name);

// best.json: the candidate on its layout, and before it the study's own rows there with the study's baseline,
// so that `study best.json` compares them. A row that the candidate is, that makes the same steps (`alike`,
// labels), that fits no other layout, that this layout does not allow, or whose label is in `omitted`, is not
// repeated; where the baseline is such a row, the candidate is the baseline.
nlohmann::json best_json(const Candidates& candidates, Point point, const std::vector<std::string>& alike,
                         const std::vector<std::string>& omitted = {});

}  // namespace equipoise
