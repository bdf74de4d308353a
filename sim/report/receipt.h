// Receipts: what `study --out` leaves in summary.json, so that `verify` can tell whether a figure is what its
// inputs give.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/study/study_inputs.h"
#include "sim/study/study_result.h"

namespace equipoise {

inline constexpr const char* kReceiptHash = "sha256";
struct SavedRun {
  std::string version, path;      // of the program; of the study's file
  nlohmann::json study, options;  // as it was run, --set included; what else decides times and is no default
};
// `checks`: of `study --verify`, none without it.
nlohmann::json receipt_of(SavedRun run, const Study& study, const StudyInputs& inputs,
                          const StudyResult& result, const std::vector<Check>& checks = {});
// [{what, holds, found}]; holds is null where nothing was looked at.
nlohmann::json checks_json(const std::vector<Check>& checks);
nlohmann::json hashes_of_inputs(const StudyInputs& inputs);
// The hash of what a row of summary.json says and nobody measured. Throws json::exception where it is no row.
std::string hash_of_row(const nlohmann::json& row);
std::string hash_of_row(const PolicyResult& row);

}  // namespace equipoise
