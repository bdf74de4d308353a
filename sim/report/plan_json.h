// A plan as equipoise.plan/1.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/study/pack_request.h"
#include "sim/study/study_result.h"
#include "sim/workload/stage_layers.h"

namespace equipoise {

// `metrics` is copied. For recompute_layers_of_model, which a micro-batch states, the file also has the
// layers on the fullest pipeline stage (recompute_layers, as specified), which `recomputed` knows. Null means
// that there is no model: then all layers count as one stage.
nlohmann::json plan_json(const Plan& plan, const nlohmann::json& metrics, const RecomputedLayers* recomputed);
// What `pack` prints of one policy.
nlohmann::json packed_json(const Packed& packed);
// The plans of all policies; needs RunStudyOptions::keep_plans.
std::string plans_json_text(const Study& study, const StudyResult& result);

}  // namespace equipoise
