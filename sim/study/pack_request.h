// Only a plan, with its metrics: what `equipoise pack` and the Python module's `pack` do with lengths.
//
// Their options are keys of a study: those of `batch` that shape a step, and every key of a packing policy.
// The command line and the Python module read this one list (pack_keys).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policies/loader.h"
#include "policies/parameter.h"
#include "policies/plan.h"
#include "policies/plan_metrics.h"
#include "sim/study/read/study.h"
#include "sim/study/row/study_row.h"

namespace equipoise {

// What is typed is passed on to the reader of studies, which checks it.
struct PackKey {
  std::string flag;  // --max-tokens for max_tokens; --no-rollback for a flag that is on by default
  std::string key;   // of the study
  ParameterKind kind = ParameterKind::integer;
  bool value = true;   // of a flag that is given
  bool batch = false;  // of the study's `batch`, else of the policy's entry
  std::string help;
};

// Those of `batch`, then every key of a packing policy but `seed`, which is of the trace, too.
std::span<const PackKey> pack_keys();

// The key of a name as Python spells it: the flag with underscores ("no_rollback"), or the study's key
// ("rollback"). Null if there is none.
const PackKey* pack_key(std::string_view name);

// The value of a key from its text: numbers and lists as such, words and sizes as they are.
nlohmann::json typed_value(const PackKey& key, const std::string& text);

// "a,b,c" as a list of strings.
nlohmann::json list_of_words(const std::string& text);

struct PackRequest {
  std::string command = "pack";                      // begins the errors
  nlohmann::json batch = nlohmann::json::object();   // keys of a study's `batch`
  nlohmann::json policy = nlohmann::json::object();  // keys of a study's policy entry
  int lanes = 1;
  int context = 1;
  std::string model;    // built-in name or path of a config.json; empty: none
  std::string profile;  // empty: none
  std::string cost;     // empty: profiled with a model and a profile, else quadratic
  std::uint64_t seed = 0;
  nlohmann::json trace = {{"uniform", 1}};  // as a study has it
  std::string framework = "megatron";
  // A study with one row, for whose job the plan is: its model, cluster, parallel, framework. What is above
  // overrides its batch, lanes, CP degree and row. Null: nothing else is known.
  nlohmann::json job;

  // Whether times and memory of the job can be predicted.
  [[nodiscard]] bool knows_job() const { return !job.is_null() || (!model.empty() && !profile.empty()); }
};

// The study that the request states, without rows. Every option is a key of it, so the reader of studies
// checks them. Throws UserError.
Study study_of_request(const PackRequest& request);

// A row of it: the policy of that name with the request's options. Throws UserError.
PolicyRun row_of_request(const PackRequest& request, const Study& study, const std::string& policy);

// Keys of the request that none of the study's rows uses, and those of `batch` without effect.
Notes idle_request_notes(const PackRequest& request, const Study& study);

// The profile of the study where the request knows the job; else none. A row refers to it.
std::optional<Profile> profile_of_request(const PackRequest& request, const Study& study);

// The row with what prices its documents. It has models of its layout only with a profile. Throws UserError
// where the cost needs a model or a profile that the request does not name.
StudyRow priced_row(const PackRequest& request, const Study& study, const DocumentSet& documents,
                    const std::optional<Profile>& profile, PolicyRun run);

struct Packed {
  std::string label;
  Plan plan;
  PlanMetrics metrics;
  std::optional<double> imbalance;
  double pack_ms = 0;  // measured, mean per global batch
  Notes notes;         // for the user
};

// Plans the row as a study does. Where the request knows no job, thresholds are searched by the work of
// micro-batches instead of simulated steps.
// Throws UserError, and UnplaceableDocument.
Packed pack(const PackRequest& request, const Study& study, const DocumentSet& documents, PolicyRun run);

}  // namespace equipoise
