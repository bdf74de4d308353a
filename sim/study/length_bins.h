// Document lengths of a study beside the work that they cause: attention is quadratic in a document, so few
// long ones make most of it.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/loader.h"

namespace equipoise {

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
