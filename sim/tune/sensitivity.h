// Whether the winner stays the fastest if what it was found for is not quite so: half or twice the network,
// less memory, other documents of the same kind. Its rivals are the best candidates of other layouts and of
// other policies: they are what one would have chosen instead.
#pragma once

#include <string>
#include <vector>

#include "sim/tune/search.h"

namespace equipoise {

struct WhatIf {
  std::string change;  // "NIC x0.5"
  bool winner_runs = false;
  bool stays = false;         // the fastest of winner and rivals
  double winner_seconds = 0;  // per token
  double rival_seconds = 0;   // of the fastest rival; 0: none runs
  std::string rival;          // its policy and layout
  std::string reason;         // why the winner does not run, or why nothing was tried
};

// Empty where nothing ran.
std::vector<WhatIf> sensitivity(const Candidates& candidates, const SearchResult& found,
                                const StudyInputs& inputs, const SearchOptions& options);

// The documents of a trace drawn with replacement: as many tokens as `inputs` has and some more.
Trace bootstrap_trace(const StudyInputs& inputs, std::uint64_t seed);

std::string layout_text(const Layout& layout);     // "TP 8, CP 2 ring, PP 4 x 2, DP 1"
std::string recompute_text(const Layout& layout);  // "8 layers"
// "wlb, queues 2, adaptive on TP 8, CP 2, PP 4 x 2, DP 1, recompute 8 layers"
std::string candidate_text(const std::string& label, const Layout& layout);
std::string candidate_text(const Candidates& candidates, Point point);

}  // namespace equipoise
