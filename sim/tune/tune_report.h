// What a search found, for people and programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/tune/outcome.h"
#include "sim/tune/sensitivity.h"

namespace equipoise {

struct TuneReport {
  const Candidates& candidates;
  const Space& space;
  const SearchOptions& options;
  const SearchResult& found;
  const Baseline& baseline;
  const std::vector<RankedRow>& ranking;
  const std::vector<WhatIf>& what_if;
};

// The ranking, what the search looked at, what limits the winner, and how sure it is.
std::string tune_table(const TuneReport& report);
// equipoise.tune/1: the same and every candidate that was tried. No measured time is in it: equal searches
// give equal bytes.
nlohmann::json tune_json(const TuneReport& report);
// A line for each row of the ranking.
std::string tune_csv(const TuneReport& report);

}  // namespace equipoise
