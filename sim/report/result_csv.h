// A study's results as CSV: its rows, their steps and their GPUs.
#pragma once

#include <string>

#include "sim/study/study_result.h"

namespace equipoise {

// One line per policy; columns are the metric keys.
std::string summary_csv(const Study& study, const StudyResult& result);

// One line per policy and step.
std::string steps_csv(const StudyResult& result);

// One line per policy and GPU with its place and its compute seconds, a mean over full steps; needs
// RunStudyOptions::record_gpus.
std::string gpus_csv(const StudyResult& result);

}  // namespace equipoise
