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
// `checks` are those of `study --verify`.
nlohmann::json receipt_of(SavedRun run, const Study& study, const StudyInputs& inputs,
                          const StudyResult& result, const std::vector<Check>& checks = {});
// [{what, holds, found}]; holds is null where nothing was looked at.
nlohmann::json checks_json(const std::vector<Check>& checks);
// Of all that a result depends on apart from the study's own text: the profile, the documents, and the files
// that the study names (a config.json, a preset, a plan), by their names. `folder`: what names are relative
// to.
nlohmann::json hashes_of_inputs(const StudyInputs& inputs, nlohmann::json study, const std::string& folder);
// Adds the same of the files alone, each once: those whose names a value has anywhere.
void add_hashes_of_files(const nlohmann::json& named, const std::string& folder, nlohmann::json& hashes,
                         std::string_view key = {});
// Of what a row of summary.json says was simulated. Throws json::exception where it is no row.
std::string hash_of_row(const nlohmann::json& row);
std::string hash_of_row(const PolicyResult& row);
// Hashes of all that summary.json says and nobody measured: of each row by its label, and of the rest, in
// which the receipt itself is. Throws json::exception where it is no summary.
struct SummaryHashes {
  nlohmann::json rows;
  std::string rest;
};
SummaryHashes hashes_of_summary(nlohmann::json summary);

}  // namespace equipoise
