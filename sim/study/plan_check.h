// Whether a plan that was made elsewhere can run in a study: it fits the layout, and it is legal on the
// study's documents by the judge of all plans (policies/validator.h).
#pragma once

#include <string>
#include <vector>

#include "policies/loader.h"
#include "policies/plan.h"
#include "sim/study/read/study.h"

namespace equipoise {

// Throws UserError with file, place, what was found and what is allowed. What is odd and yet runs is a note
// without the row's label.
//
// One law is milder than for our own policies: pieces of a document that run out of order are taken where
// they are whole pieces to the plan, as --oversize split makes them.
void check_plan(const Study& study, const DocumentSet& documents, const PolicyRun& run,
                std::vector<std::string>& notes);

}  // namespace equipoise
