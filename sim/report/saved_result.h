// A result that `study --out` saved, read back into the value that it was written from. This is the only
// reader of summary.json, for `report`, `verify` and all others.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "sim/study/study_result.h"

namespace equipoise {

struct SavedResult {
  std::string path;        // the path that was asked for
  nlohmann::json summary;  // as it was written
  std::string study;       // its name
  std::string baseline;    // the label of its baseline, which may be absent
  // What the summary has of the result: no plans or details, and steps only if steps.csv is there. `notes`
  // has all of the study's.
  StudyResult result;
};

// Throws UserError if `summary` is no summary; `path` is its file.
SavedResult read_summary(nlohmann::json summary, const std::string& path);

// `path` is a folder of `study --out`, or its summary.json with steps.csv next to it. Throws UserError.
SavedResult load_saved(const std::string& path);

}  // namespace equipoise
