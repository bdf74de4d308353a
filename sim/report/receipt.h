// Receipts: what `study --out` leaves in summary.json, so that `verify` can tell whether a figure is what its
// inputs give.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/study/study_inputs.h"
#include "sim/study/study_result.h"

namespace equipoise {

inline constexpr const char* kReceiptHash = "sha256/2";
struct SavedRun {
  std::string version, path;      // the program's version; the study's file
  nlohmann::json study, options;  // the study as it ran, with --set; options_json()
};
// The options of a run that decide its times, as a receipt has them.
nlohmann::json options_json(const RunStudyOptions& run);
// Reads them. Throws json::exception for anything else, and UserError for a value that is not allowed.
RunStudyOptions options_of_json(const nlohmann::json& options);
// `checks` has the results of `study --verify`.
nlohmann::json receipt_of(SavedRun run, const Study& study, const StudyInputs& inputs,
                          const StudyResult& result, const std::vector<Check>& checks = {});
// [{what, holds, found}]; holds is null for what was not checked.
nlohmann::json checks_json(const std::vector<Check>& checks);
// Hashes, by name, of everything that a result depends on besides the study's text: the profile, the
// documents, and the files that the study names (a config.json, a preset, a plan), relative to `folder`.
nlohmann::json hashes_of_inputs(const StudyInputs& inputs, nlohmann::json study, const std::string& folder);
// Adds the hashes of only the files that occur anywhere in a value, each once.
void add_hashes_of_files(const nlohmann::json& named, const std::string& folder, nlohmann::json& hashes,
                         std::string_view key = {});
// The hash of what was simulated in a row of summary.json. Throws json::exception if it is no row.
std::string hash_of_row(const nlohmann::json& row);
std::string hash_of_row(const PolicyResult& row);
// Hashes of all that summary.json says and nobody measured: of each row by its label, and of the rest, in
// which the order of the rows and the receipt itself are. Throws json::exception where it is no summary.
struct SummaryHashes {
  nlohmann::json rows;
  std::string rest;
};
SummaryHashes hashes_of_summary(nlohmann::json summary);

}  // namespace equipoise
