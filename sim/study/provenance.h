// What a result says of its inputs: where each comes from and of which kind it is, which a reader must know
// before believing the result, and how long the documents are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/study/run_options.h"
#include "sim/study/study_inputs.h"
#include "sim/study/study_result.h"

namespace equipoise {

std::vector<InputSource> sources_of(const Study& study, const StudyInputs& inputs,
                                    const RunStudyOptions& options);

// Of what a policy is given: a document cut at a window border counts as its pieces, since each attends only
// to itself. From the first bin that holds something to the last. O(slices).
std::vector<LengthBin> length_bins(const DocumentSet& documents);

}  // namespace equipoise
