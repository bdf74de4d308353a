// A study's results for programs: summary.json, steps.csv, gpus.csv and plan.json, and the list of all files
// that `study --out` writes.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/report/study_table.h"
#include "sim/study/pack_request.h"
#include "sim/study/study_inputs.h"
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

// The files that `study --out` writes of a study, one row each.
struct StudyOutput {
  std::string_view file;
  std::string_view holds;  // one line, for people
  std::string (*text)(const Study&, const StudyResult&);
};

std::span<const StudyOutput> study_outputs();

// What summary.json holds beside metrics, and the files beside it: the rows of SUMMARY.md. `word`: what is
// typed for a path.
struct SummaryKey {
  std::string kind, key, unit, what, word;
};
std::vector<SummaryKey> summary_keys();

// Writes all of them into a folder that is there. Throws UserError.
void write_outputs(const std::string& directory, const Study& study, const StudyResult& result,
                   const nlohmann::json& receipt = nullptr);

// --- Receipts: what `study --out` leaves in summary.json, so that `verify` can tell whether a figure is what its
// inputs give.

// SHA-256 in hexadecimal digits (FIPS 180-4), as sha256sum prints it.
std::string sha256(std::string_view bytes);

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
// Of what a row of summary.json says and nobody measured. Throws json::exception where it is no row.
std::string hash_of_row(const nlohmann::json& row);
std::string hash_of_row(const PolicyResult& row);

// --- report.html: a study's result as a page for a browser, and a sweep's as one of its cases.

// What the page draws (equipoise.report/1): summary.json as it is, and per row its steps, a few of them op by
// op, memory by stage, load by GPU, token delay. Lists that grow with the study are thinned to a bound, and
// say so.
nlohmann::json report_json(const Study& study, const StudyResult& result);

std::string report_html(const Study& study, const StudyResult& result);

// What the page over a sweep shows of one case: figures only, so a sweep holds no results of those that are
// finished. `folder`: where the case's own page lies, beside this one.
nlohmann::json case_of_page(const std::vector<std::string>& assignments, const std::string& folder,
                            const Study& study, const StudyResult& result);

// A page over the cases of a sweep.
class SweepPage {
 public:
  void add(const nlohmann::json& one);  // a case_of_page
  [[nodiscard]] std::string html() const;
  // That cases run on different numbers of GPUs, whose steps then cannot be compared; empty where they do
  // not.
  [[nodiscard]] std::string gpus_note() const;

 private:
  std::string title_;
  std::set<std::int64_t> gpus_;  // of the cases
  std::string cases_;            // JSON, comma-separated
  std::size_t count_ = 0, left_out_ = 0;
  std::size_t run_ = 0;  // cases in which some policy runs
  // The number of wins of each label that is told apart from the others, in the order of their first.
  std::vector<std::pair<std::string, std::size_t>> wins_;
};

}  // namespace equipoise
