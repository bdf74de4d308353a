// What a result says of its inputs: where each comes from and of which kind it is, which a reader must know
// before believing the result, and how long the documents are.
#pragma once

#include <cstdint>
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

// Document lengths of a study beside the work that they cause: attention is quadratic in a document, so few
// long ones make most of it.
struct LengthBin {
  std::int64_t begin = 1, end = 2;  // tokens: begin <= length < end, powers of two
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  double causal_pairs = 0;
};

// Of what a policy is given: a document cut at a window border counts as its pieces, since each attends only
// to itself. From the first bin that holds something to the last. O(slices).
std::vector<LengthBin> length_bins(const DocumentSet& documents);

}  // namespace equipoise
