// Whether the study's framework runs a row: by itself, with a loader of the user's own, or not at all.
#pragma once

#include <set>

#include "sim/study/study_result.h"

namespace equipoise {

// CP degrees of lanes with work that differ from the layout's.
std::set<int> other_degrees(const PolicyResult& row);

// Fills in runs_in and needs, by the row's plan where it has one. What all rows share, such as the study's
// own schedule and form of context parallelism, is a choice of the study and does not count.
void say_what_runs(const Study& study, PolicyResult& row);

}  // namespace equipoise
