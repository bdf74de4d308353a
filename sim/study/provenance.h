// Where every input of a study comes from, and of which kind it is: what a reader of a result must know
// before believing it.
#pragma once

#include <string>
#include <vector>

#include "sim/study/run_options.h"
#include "sim/study/study_inputs.h"

namespace equipoise {

struct InputSource {
  std::string what;   // "documents", "GEMM times"
  std::string value;  // what it is here
  std::string kind;   // measured, published, derived, simulated, stated (by the study), assumed; or several
  std::string from;   // sources as plain text; may be empty
};

std::vector<InputSource> sources_of(const Study& study, const StudyInputs& inputs,
                                    const RunStudyOptions& options);

}  // namespace equipoise
