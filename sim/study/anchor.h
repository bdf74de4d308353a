// One measured step of the user's own run anchors all rows. What a machine and its software do to kernels
// beyond what a preset knows is mostly common to the rows of a study.
#pragma once

#include <string>

#include "sim/study/read/study.h"
#include "sim/study/run_options.h"

namespace equipoise {

// The factor on the times of all kernels with which the row's mean step takes `seconds`, to a millionth. An
// empty `label` means the baseline. Each try plans and simulates the row once at stage fidelity; there are
// about ten. Throws UserError if the study has no such row, the row does not run, or no factor from
// kLeastAnchor to kMostAnchor suffices.
Anchor anchor_to(const Study& study, const std::string& label, double seconds,
                 const RunStudyOptions& options);

}  // namespace equipoise
