// Estimates how much memory a study takes and how much it writes, from its documents and the sizes of its
// plans, before any row is planned.
#pragma once

#include <cmath>

#include "policies/loader.h"
#include "sim/limits/memory_limit.h"
#include "sim/study/read/study.h"
#include "sim/study/run_options.h"

namespace equipoise {

// A plan has one micro-batch for every `capacity` tokens. If a step has a fixed number of micro-batches and
// places fewer tokens than arrive, the rest is carried from step to step, and every step lists it.
struct PlanSize {
  double steps = 0, micro_batches = 0;
  double slices = 0;   // in micro-batches
  double carried = 0;  // in the lists of carried slices, summed over steps
};
PlanSize plan_size(const PolicyRun& run, const DocumentSet& documents);

// In bytes. With options.jobs 0 nothing is simulated. With options.keep_plans all plans are kept, and the
// rows' files are written. The memory is within a factor of two of what is allocated.
struct Estimate {
  double memory = 0, output = 0;
};
Estimate estimate(const Study& study, const DocumentSet& documents, const RunStudyOptions& options);

// Throws UserError if an estimate is above its limit. Sets options.rows_in_turn if two rows at a time would
// need more memory than that.
void check_estimate(const Study& study, const DocumentSet& documents, RunStudyOptions& options,
                    const MemoryLimit& limit, double max_output_GB = HUGE_VAL);

}  // namespace equipoise
