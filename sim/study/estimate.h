// The memory that a study takes and the files that it writes, estimated from its documents and the sizes of
// its plans before any row is planned.
#pragma once

#include <cmath>

#include "policies/loader.h"
#include "sim/limits/memory_limit.h"
#include "sim/study/read/study.h"
#include "sim/study/run_options.h"

namespace equipoise {

// A plan has one micro-batch for every `capacity` tokens. Where the micro-batches of a step are given and
// place fewer tokens than arrive, the rest is carried from step to step, and every step lists it.
struct PlanSize {
  double steps = 0, micro_batches = 0;
  double slices = 0;   // in micro-batches
  double carried = 0;  // in the lists of carried slices, summed over steps
};
PlanSize plan_size(const PolicyRun& run, const DocumentSet& documents);

// Bytes. options.jobs 0: nothing is simulated. options.keep_plans: all plans stay, and the rows' files are
// written. The memory is within a factor of two of what is allocated.
struct Estimate {
  double memory = 0, output = 0;
};
Estimate estimate(const Study& study, const DocumentSet& documents, const RunStudyOptions& options);

// Throws UserError where an estimate is above its limit. Sets options.rows_in_turn where the memory of two
// rows at a time would be above it.
void check_estimate(const Study& study, const DocumentSet& documents, RunStudyOptions& options,
                    const MemoryLimit& limit, double max_output_GB = HUGE_VAL);

}  // namespace equipoise
