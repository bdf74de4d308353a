// Whether the study's framework runs a row: by itself, with a loader of the user's own, or not at all.
#pragma once

#include <optional>
#include <set>

#include "sim/study/study_result.h"
#include "sim/workload/context_comm.h"

namespace equipoise {

// CP degrees of lanes with work that differ from the layout's.
std::set<int> other_degrees(const PolicyResult& row);

// Fills in runs_in and needs, by the row's plan where it has one. What all rows share is a choice of the
// user's and does not count: the study's own schedule, and `stated`, the form of context parallelism in the
// user's study.
void say_what_runs(const Study& study, std::optional<ContextComm> stated, PolicyResult& row);

}  // namespace equipoise
