// Only a plan, with its metrics: what `equipoise pack` and the Python module's `pack` do with lengths.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "policies/loader.h"
#include "policies/plan.h"
#include "policies/plan_metrics.h"
#include "sim/study/study.h"

namespace equipoise {

struct PackRequest {
  nlohmann::json batch = nlohmann::json::object();   // keys of a study's `batch`
  nlohmann::json policy = nlohmann::json::object();  // keys of a study's policy entry
  int lanes = 1;
  int context = 1;
  std::string model;    // built-in name or path of a config.json; empty: none
  std::string profile;  // empty: none
  std::string cost;     // empty: profiled with a model and a profile, else quadratic
  std::uint64_t seed = 0;
};

// A study that holds what the request says, without trace and rows; the model may be absent. Throws
// UserError.
Study study_of_request(const PackRequest& request);

// A row of it: the policy of that name with the request's options. Throws UserError.
PolicyRun row_of_request(const PackRequest& request, const Study& study, const std::string& policy);

// Keys of the request that none of the study's rows uses, and those of `batch` without effect.
std::vector<std::string> idle_request_notes(const PackRequest& request, const Study& study);

struct Packed {
  std::string label;
  Plan plan;
  PlanMetrics metrics;
  std::optional<double> imbalance;
  double pack_ms = 0;              // measured, mean per global batch
  std::vector<std::string> notes;  // for the user
};

// The study's own planner; thresholds are searched by the work of micro-batches, groups by simulated steps.
// Throws UserError, and UnplaceableDocument.
Packed pack(const PackRequest& request, const Study& study, const DocumentSet& documents, PolicyRun run);

// equipoise.plan/1.
nlohmann::json packed_json(const Packed& packed);

}  // namespace equipoise
