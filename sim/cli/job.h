// A job without a study file: model, GPUs and documents by options, the rest by rule or by a search, and
// said.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "policies/base/note.h"
#include "sim/study/run_options.h"

namespace equipoise {

struct JobOptions {
  std::string model;  // built in, or the path of a config.json; empty: there is a study file
  std::int64_t gpus = 0;
  std::string gpu = "h100";  // a profile, or how its name begins
  std::string trace;         // a file, a shipped trace or a distribution; empty: the shipped mixture
  std::string window = "32K";
  std::string framework = "megatron";
  std::vector<std::string> policies;  // empty: one of each paper's, and equipoise
};

// The profile of a GPU as users type it: its name, or how it begins. Throws UserError.
std::string profile_of(const std::string& gpu);

// The words that say this job: options that are not the default.
std::vector<std::string> words_of(const JobOptions& job);

// What messages call its study.
inline constexpr const char* kJobName = "the job";

// A study's file for the job, relative to the working folder. `fits`: the layout that was found, or that none
// was and from how many GPUs on one is; `assumed`: what no option said.
struct JobStudy {
  nlohmann::json file;
  bool has_layout = false;
  Note fits, assumed;
};
// Throws UserError naming the option, and Interrupted.
JobStudy study_of_job(const JobOptions& job, const RunStudyOptions& options);

}  // namespace equipoise
