// What all policies of a study share, its profile and its documents, and what else is read from files.
#pragma once

#include "policies/loader.h"
#include "profiler/profile/profile.h"
#include "sim/study/read/plan_file.h"
#include "sim/study/read/study.h"
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

// The trace as the study's global batches. Throws UserError where it is too short.
DocumentSet documents_of(const Study& study, const Trace& trace);

// The documents of a study: a recorded file, a published distribution, a mixture, or one length for all.
// Throws UserError. `documents` is how many a source without an end must give.
Trace load_trace(const Study& study);

}  // namespace equipoise
