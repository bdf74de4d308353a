// The studies that a command line asks for: one, or the cases of a sweep.
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sim/limits/memory_limit.h"
#include "sim/study/read/study.h"
#include "sim/study/run_options.h"
#include "sim/study/study_inputs.h"

namespace equipoise {

// The file of a study or of a job, and what the options change in it.
struct AskedStudy {
  nlohmann::json file;
  std::string path;                     // for messages and relative paths
  std::vector<std::string> set, sweep;  // key.path=value; key.path=a,b,c
};

// One study of a sweep, or the only study.
struct StudyCase {
  std::vector<std::string> assignments;
  std::string name;  // "key=a key=b"; empty without a sweep
  Study study;
};

// All combinations of the sweeps, the last one varying fastest. All are read before any runs, because a wrong
// value in the last should not be found after hours. A case whose values are valid but do not go together (a
// TP degree that does not divide the heads) does not affect the others, unless no case remains.
std::vector<StudyCase> read_cases(const AskedStudy& asked, std::int64_t max_cases, const MemoryLimit& limit);

// What a case's rows share, or why none of them can run.
struct CaseInputs {
  std::optional<StudyInputs> read;
  std::string refused;
};

// Sets options.rows_in_turn as check_estimate does. A case of a sweep that cannot run keeps no other from
// running; a study without a sweep throws UserError for what only its files tell.
CaseInputs inputs_of(const StudyCase& c, RunStudyOptions& options, const MemoryLimit& limit,
                     double max_output_GB = HUGE_VAL);

// The study's file with the assignments.
nlohmann::json file_of(nlohmann::json file, const std::vector<std::string>& assignments);

// Refuses cases that would overwrite each other's files.
void check_folders(const std::vector<StudyCase>& cases);

}  // namespace equipoise
