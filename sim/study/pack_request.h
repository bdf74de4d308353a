// Plans without a simulation, with their metrics: what `equipoise pack` and the Python module's `pack` do
// with lengths. Their options are keys of a study: keys of `batch` that shape a step, and every key of a
// packing policy. The command line and the Python module read this one list (pack_keys).
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

// The typed text goes to the reader of studies, which checks it.
struct PackKey {
  std::string flag;  // --max-tokens for max_tokens; --no-rollback for a flag whose default is on
  std::string key;   // the study's key
  ParameterKind kind = ParameterKind::integer;
  bool value = true;   // value of a flag that is given
  bool batch = false;  // whether it belongs to the study's `batch` or to the policy's entry
  std::string help;
};

// Keys of `batch`, then every key of a packing policy except `seed`, which the trace has, too.
std::span<const PackKey> pack_keys();

// The key for a name in Python's spelling: the flag with underscores ("no_rollback"), or the study's key
// ("rollback"). Null if there is none.
const PackKey* pack_key(std::string_view name);

// The value of a key from its text: numbers and lists become JSON, words and sizes stay text.
nlohmann::json typed_value(const PackKey& key, const std::string& text);

nlohmann::json list_of_words(const std::string& text);

struct PackRequest {
  std::string command = "pack";                      // begins the errors
  nlohmann::json batch = nlohmann::json::object();   // keys of a study's `batch`
  nlohmann::json policy = nlohmann::json::object();  // keys of a study's policy entry
  int lanes = 1;
  int context = 1;
  std::string model;    // built-in name or path of a config.json; may be empty
  std::string profile;  // empty: none
  std::string cost;     // if empty, profiled with a model and a profile, else quadratic
  std::uint64_t seed = 0;
  nlohmann::json trace = {{"uniform", 1}};  // as a study has it
  std::string framework = "megatron";
  // A study with one row that describes the plan's job: its model, cluster, parallel and framework. The
  // fields above override its batch, lanes, CP degree and row. If null, nothing else is known.
  nlohmann::json job;

  // Whether times and memory of the job can be predicted.
  [[nodiscard]] bool knows_job() const { return !job.is_null() || (!model.empty() && !profile.empty()); }
};

// The study that the request states, without rows. Every option becomes one of its keys, so that the reader
// of studies checks them. Throws UserError.
Study study_of_request(const PackRequest& request);

// A row of that study: the policy of that name with the request's options. Throws UserError.
PolicyRun row_of_request(const PackRequest& request, const Study& study, const std::string& policy);

// Notes on keys of the request that none of the study's rows uses, and on keys of `batch` without effect.
Notes idle_request_notes(const PackRequest& request, const Study& study);

// The profile of the study if the request knows the job, else none. A row refers to it.
std::optional<Profile> profile_of_request(const PackRequest& request, const Study& study);

// The row with the models that price its documents. It has models of its layout only with a profile. Throws
// UserError if the cost needs a model or a profile that the request does not name.
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

// Plans the row as a study does. If the request knows no job, thresholds are searched by the work of
// micro-batches instead of simulated steps. Throws UserError, and UnplaceableDocument.
Packed pack(const PackRequest& request, const Study& study, const DocumentSet& documents, PolicyRun run);

}  // namespace equipoise
