// The study's own rows on the winner's layout, in full, as `study best.json` runs them.
//
// A space may be without them, and a search that ends early may have dropped them after few steps. So one of
// them may be faster than the winner that the search found. It then is the winner, so that the search and
// best.json name the same row.
//
// A row of a stronger claim is no winner, since the space is without it on purpose. best.json omits it, and
// any faster row that breaks the bounds on the delay or has no flags.
#pragma once

#include <functional>

#include "sim/tune/outcome.h"

namespace equipoise {

// Adds to `places` and `candidates` the fastest of them, where it is faster than the first of `places`, and
// those of a weaker claim that are faster still: the first of each policy that the search has not.
// `wanted`: whether the search may name this row, which the study has alone. What the search has run, or has
// proven slower, does not run again.
void rank_own_rows(Candidates& candidates, const StudyInputs& inputs, const SearchResult& found,
                   const SearchOptions& options,
                   const std::function<bool(const Study&, const PolicyResult&)>& wanted, Places& places);

}  // namespace equipoise
