// One measured step of one's own anchors all rows: what a machine and its software do to kernels beyond what
// a preset knows is mostly common to the rows of a study.
#pragma once

#include <string>

#include "sim/study/read/study.h"
#include "sim/study/run_options.h"

namespace equipoise {

// The factor on the times of all kernels with which the row's mean step takes `seconds`, to a millionth.
// `label`: empty for the baseline. Each try plans and simulates the row once at stage fidelity; about ten are
// made. Throws UserError where the study has no such row, where it does not run, and where no factor from
// kLeastAnchor to kMostAnchor does it.
Anchor anchor_to(const Study& study, const std::string& label, double seconds,
                 const RunStudyOptions& options);

}  // namespace equipoise
