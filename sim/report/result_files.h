// A study's results for programs: summary.json, steps.csv, gpus.csv and plan.json, and the list of all files
// that `study --out` writes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/report/study_table.h"
#include "sim/study/pack_request.h"
#include "sim/study/study_result.h"
#include "sim/workload/stage_layers.h"

namespace equipoise {

// A plan as equipoise.plan/1.
// `metrics` is put in as it is. The file says beside what a micro-batch states (recompute_layers_of_model)
// what that makes of the fullest pipeline stage (recompute_layers, as specified): `recomputed` knows both;
// null where there is no model, where it is taken for one stage.
nlohmann::json plan_json(const Plan& plan, const nlohmann::json& metrics, const RecomputedLayers* recomputed);
// What `pack` prints of one.
nlohmann::json packed_json(const Packed& packed);

// equipoise.summary/1.
nlohmann::json summary_json(const Study& study, const StudyResult& result);

// One line per policy; columns are the metric keys.
std::string summary_csv(const Study& study, const StudyResult& result);

// One line per policy and step.
std::string steps_csv(const StudyResult& result);

// One line per policy and GPU: where it sits, and its compute seconds, mean over full steps; needs
// RunStudyOptions::record_gpus.
std::string gpus_csv(const StudyResult& result);

// The plans of all policies; needs RunStudyOptions::keep_plans.
std::string plans_json_text(const Study& study, const StudyResult& result);

// The list for summary.json.
nlohmann::json published_json(const std::vector<PublishedRow>& rows, const std::string& label);

// The files that `study --out` writes of a study, one row each.
struct StudyOutput {
  std::string_view file;
  std::string_view holds;  // one line, for people
  std::string (*text)(const Study&, const StudyResult&);
};

std::span<const StudyOutput> study_outputs();

// Writes all of them into a folder that is there. Throws UserError.
void write_outputs(const std::string& directory, const Study& study, const StudyResult& result,
                   const nlohmann::json& receipt = nullptr);

}  // namespace equipoise
