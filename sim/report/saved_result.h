// A result that `study --out` saved, read back into the value that it was written from: the one reader of
// summary.json, for `report`, `verify` and whatever else asks a saved result.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "sim/study/study_result.h"

namespace equipoise {

struct SavedResult {
  std::string path;        // as it was asked for
  nlohmann::json summary;  // as it was written
  std::string study;       // its name
  std::string baseline;    // the label of its baseline, which need not be there
  // What the summary has of it: neither plans nor details, and steps only where steps.csv is there.
  // `notes` are all of the study's.
  StudyResult result;
};

// Throws UserError where `summary` is none; `path` is its file.
SavedResult read_summary(nlohmann::json summary, const std::string& path);

// `path`: a folder of `study --out`, or its summary.json with steps.csv next to it. Throws UserError.
SavedResult load_saved(const std::string& path);

}  // namespace equipoise
