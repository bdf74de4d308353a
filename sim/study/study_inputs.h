// What all policies of a study share: its profile, its documents, and other contents of files.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policies/loader.h"
#include "profiler/profile/profile.h"
#include "sim/study/read/plan_file.h"
#include "sim/study/read/study.h"
#include "sim/study/run_options.h"
#include "sim/study/study_result.h"
#include "traces/trace.h"

namespace equipoise {

struct StudyInputs {
  Profile profile;
  Trace trace;
  DocumentSet documents;
  PlansOfRows plans;  // of rows that read theirs from a file
};

// Throws UserError for an unknown profile, a trace that is too short, a layout that the profile cannot price,
// or a file that is no plan.
StudyInputs load_inputs(const Study& study);

// A table over several profiles has one rule. If a preset's slowdowns would apply in some cases and not in
// others, whose kernels were measured, they are carried over to all cases that do not state the rule. Their
// notes say so. Throws UserError.
void use_one_rule(const std::vector<Study*>& cases);
// Carries the slowdowns over in one study.
void carry_slowdowns(Study& study);

// The trace as the study's global batches. Throws UserError if it is too short.
DocumentSet documents_of(const Study& study, const Trace& trace);

// The documents of a study: a recorded file, a published distribution, a mixture, or one length for all.
// `documents` says how many an endless source must give. Throws UserError.
Trace load_trace(const Study& study);

// --- Where they come from
//
// What a result says of its inputs: where each comes from and of which kind it is, which a reader must know
// before believing the result, and how long the documents are.

std::vector<InputSource> sources_of(const Study& study, const StudyInputs& inputs,
                                    const RunStudyOptions& options);

// The lengths that a policy receives, from the first bin that holds something to the last. A document cut at
// a window border counts as its pieces, since each attends only to itself. O(slices).
std::vector<LengthBin> length_bins(const DocumentSet& documents);
std::vector<LengthBin> length_bins(std::span<const std::int64_t> lengths);

}  // namespace equipoise
