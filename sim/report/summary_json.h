// A study's result as equipoise.summary/1.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "sim/study/study_result.h"

namespace equipoise {

nlohmann::json summary_json(const Study& study, const StudyResult& result);

}  // namespace equipoise
