// `study --measured-step`: the user's own step, in seconds or as a log, becomes the study's anchor.
#pragma once

#include <string>

#include "sim/study/read/study.h"
#include "sim/study/run_options.h"

namespace equipoise {

// The anchor as --set takes it: "framework.anchor={...}". `measured` has seconds, or a log that `validate
// --measured` reads; `label` is the measured row, or empty for the baseline. `notes` receives where the log
// differs from the study, and what of it was not used. Throws UserError.
std::string anchor_assignment(const std::string& measured, const std::string& label, const Study& study,
                              const RunStudyOptions& options, Notes& notes);

}  // namespace equipoise
