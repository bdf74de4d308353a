// report.html: a study's result as a page for a browser.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "sim/study/study_result.h"

namespace equipoise {

// What the page draws (equipoise.report/1): summary.json unchanged, and for each row its steps, a few of them
// op by op, memory by stage, load by GPU, and token delay. Lists that grow with the study are thinned to a
// bound, and say so.
nlohmann::json report_json(const Study& study, const StudyResult& result);

// A page about the lengths of documents before any policy has them. `name` and `headline` are plain text.
std::string lengths_html(const std::string& name, const std::string& headline,
                         std::span<const std::int64_t> lengths);

std::string report_html(const Study& study, const StudyResult& result);

}  // namespace equipoise
