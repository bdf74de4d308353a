// How sure the winner of a search is: whether it stays the fastest on something else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/tune/search.h"

namespace equipoise {

// Whether the winner stays the fastest if what it was found for is not quite so: half or twice the network,
// less memory, other documents of the same kind. Its rivals are the best candidates of other layouts and of
// other policies: they are what one would have chosen instead.
struct WhatIf {
  std::string change;  // "NIC x0.5"
  bool winner_runs = false;
  bool stays = false;         // whether the winner stays fastest among its rivals
  double winner_seconds = 0;  // per token
  double rival_seconds = 0;   // of the fastest rival; 0 if none runs
  std::string rival;          // its policy and layout
  std::string reason;         // why the winner does not run, or why nothing was tried
};

// Limit of candidates that these questions run in full.
inline constexpr int kMostWhatIfs = 36;

// `first`: the winner. If this throws Interrupted, `results` has what is known.
void sensitivity(const Candidates& candidates, const SearchResult& found, Point first,
                 const StudyInputs& inputs, const SearchOptions& options, std::vector<WhatIf>& results);

// The documents of a trace, drawn with replacement: as many tokens as `inputs` has, and some more.
Trace bootstrap_trace(const StudyInputs& inputs, std::uint64_t seed);

}  // namespace equipoise
