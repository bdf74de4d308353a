// report.html: a study's result as a page for a browser.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/study/study_result.h"

namespace equipoise {

// What the page draws (equipoise.report/1): summary.json unchanged, and for each row its steps, a few of them
// op by op, memory by stage, load by GPU, and token delay. Lists that grow with the study are thinned to a
// bound, and say so.
nlohmann::json report_json(const Study& study, const StudyResult& result);

std::string report_html(const Study& study, const StudyResult& result);

}  // namespace equipoise
