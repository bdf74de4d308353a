// The loader: turns a trace into global batches, what a policy gets for one optimizer step.
//
// Window batches (documents_per_step = 0): the trace is concatenated and cut into windows; a batch is
// sequences_per_step consecutive windows. A document cut at a border becomes slices of the same id; the rest
// is carried into the next window, or dropped (WLB-LLM's loader). Document batches: that many whole
// documents. A study fixes its set once (the first `steps` batches), and every policy of the study gets
// exactly that. O(documents + slices).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policies/options.h"
#include "policies/policy.h"

namespace equipoise {

struct LoadOptions {
  std::int64_t steps =
      0;  // full global batches in the set; 0: the whole trace, whose last batch may be short
  LoaderTail tail = LoaderTail::carry;
  bool repeat = false;  // a trace that ends too early is read again from the start, ids continuing
};

struct DocumentSet {
  std::vector<GlobalBatch> batches;
  std::int64_t documents = 0;       // read from the trace; ids are below this
  std::int64_t tokens = 0;          // in the batches
  std::int64_t dropped_tokens = 0;  // thrown away at window borders by LoaderTail::drop
};

// Throws UserError for an empty trace, a length below 1, a shape that makes no batch, and a trace too short.
DocumentSet load_documents(std::span<const std::int64_t> lengths, const PackOptions& shape,
                           const LoadOptions& options);

}  // namespace equipoise
