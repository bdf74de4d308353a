// What all policies of a study share, its profile and its documents, and what else is read from files.
#pragma once

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
  PlansOfRows plans;  // of rows that have theirs from a file
};

// Throws UserError: an unknown profile, a trace that is too short, a layout that the profile cannot price, a
// file that is no plan.
StudyInputs load_inputs(const Study& study);

// A table over several profiles has one rule: where a preset's slowdowns would count in some of its cases and
// not in others, whose kernels somebody measured, they are carried over to all that do not state the rule
// themselves. Says so in the notes of those. Throws UserError.
void use_one_rule(const std::vector<Study*>& cases);
// What it does to a study whose slowdowns are carried over.
void carry_slowdowns(Study& study);

// The trace as the study's global batches. Throws UserError where it is too short.
DocumentSet documents_of(const Study& study, const Trace& trace);

// The documents of a study: a recorded file, a published distribution, a mixture, or one length for all.
// Throws UserError. `documents` is how many a source without an end must give.
Trace load_trace(const Study& study);

// --- Where they come from
//
// What a result says of its inputs: where each comes from and of which kind it is, which a reader must know
// before believing the result, and how long the documents are.

std::vector<InputSource> sources_of(const Study& study, const StudyInputs& inputs,
                                    const RunStudyOptions& options);

// The lengths that a policy is given: a document cut at a window border counts as its pieces, since each
// attends only to itself. From the first bin that holds something to the last. O(slices).
std::vector<LengthBin> length_bins(const DocumentSet& documents);

}  // namespace equipoise
