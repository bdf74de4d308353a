// A job without a study file: options name model, GPUs and documents; rules or a search set the rest.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "policies/base/note.h"
#include "sim/study/run_options.h"

namespace equipoise {

inline constexpr const char* kDefaultWindow = "32K";

struct JobOptions {
  std::string model;  // built in, or the path of a config.json; if empty there is a study file
  std::int64_t gpus = 0;
  std::string gpu = "h100";  // a profile's name, or the beginning of one
  std::string trace;         // a file, a shipped trace or a distribution; the shipped mixture if empty
  std::string window;        // tokens; kDefaultWindow if empty
  std::string framework;              // if empty, Megatron's preset for the model
  std::vector<std::string> policies;  // if empty, one policy from each paper, and equipoise
};

// The profile of a GPU as users type it: a name, or the beginning of one. Throws UserError.
std::string profile_of(const std::string& gpu);

// The words that specify this job: its options that are not the default.
std::vector<std::string> words_of(const JobOptions& job);

// The name of its study in messages.
inline constexpr const char* kJobName = "the job";

// A study's file for the job, relative to the working folder. `fits` has the layout that was found, or says
// that there is none and how many GPUs would do.
struct JobStudy {
  nlohmann::json file;
  bool has_layout = false;
  Note fits;
};
// Throws UserError, which names the option, and Interrupted.
JobStudy study_of_job(const JobOptions& job, const RunStudyOptions& options);
// What decides and what no option of the job says. `file`: its study with the assignments of --set, and
// `assignments` has those of --sweep, too.
Note assumed_of(const JobOptions& job, std::span<const std::string> assignments, const nlohmann::json& file);

}  // namespace equipoise
