// A study's results for people and programs: the table, summary.json, steps.csv and plan.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/study/run_study.h"

namespace equipoise {

// The comparison an engineer reads, and one line on what limits the winner. All times are simulated.
std::string study_table(const Study& study, const StudyResult& result);

// Its parts, for other tables of rows: a status column where asked for, and the line of a row that is not ok.
std::vector<std::string> comparison_header(bool with_status);
std::vector<std::string> comparison_cells(const PolicyResult& row, bool with_status);
std::string reason_line(const PolicyResult& row);
// What the times of a table come from, one line.
std::string source_line(const Study& study, const StudyResult& result);

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

}  // namespace equipoise
