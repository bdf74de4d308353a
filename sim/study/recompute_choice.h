// `recompute: auto`: the fewest checkpointed layers with which a row runs, and what a table says where its
// rows do not choose what they recompute under the same rule.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/study/derive.h"
#include "sim/study/run_study.h"

namespace equipoise {

// Whether the row's recompute is `auto`, its own or the study's.
bool recompute_is_automatic(const Study& study, const PolicyRun& run);

// Puts the choice into `run`. hbp's groups take their own (Algorithm 4: layers_of_group); every other row is
// tried with more layers of the model, `runs` says whether it runs with them, until it does: bisection, so
// some log2 of the layers runs. What runs with no number of layers is left with all.
void choose_recompute(const Study& study, const RunModels& models, PolicyRun& run,
                      const std::function<bool(const PolicyRun&)>& runs, std::vector<std::string>& notes);

// What differs, naming the rows; empty where all rows that ran follow one rule.
std::string recompute_difference(const Study& study, const StudyResult& result);

}  // namespace equipoise
