// What a search found, in words, as a table and as JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sim/tune/outcome.h"
#include "sim/tune/what_if.h"

namespace equipoise {

struct TuneReport {
  const Candidates& candidates;
  const Space& space;
  const SearchOptions& options;
  const SearchResult& found;
  const Baseline& baseline;
  const Places& places;
  const std::vector<RankedRow>& ranking;  // the places that ran in full
  const std::vector<RankedRow>& faster;   // of the other claims
  const std::vector<WhatIf>& what_if;
  bool cut_short = false;     // the search is over, but some of the work after it did not run
  bool what_if_over = false;  // what_if lacks the questions for which there was no time
};

// One line about the ends of all candidates.
std::string counts_text(const SearchResult& found);
// "the fastest of 1,234 candidates", or of those that were tried, if not all were decided; "the fastest that
// megatron runs in the order of the data", by the winner's claim, if faster ones were passed over.
std::string reach_text(const TuneReport& report);
// "wlb on TP 8, CP 2, PP 4, DP 1: 870 tokens/s/GPU", as the search found it.
std::string found_text(const TuneReport& report, const Place& place);
// What ended the search before every candidate was decided, and how to continue it.
std::string end_text(const TuneReport& report);
// What was decided on few steps; may be empty.
std::string halving_text(const SearchResult& found);
std::string not_compared_text(const SearchResult& found);  // policies that were not tried; may be empty
std::string baseline_text(const Baseline& baseline);       // what speed-ups are over

// "Excluded for want of a flag: 144 layouts (parallel.context_comm 120, schedule 24)."; may be empty.
std::string without_flag_text(const NoCandidates& none);
// A line for each what-if question; empty without any.
std::string what_ifs_text(const TuneReport& report);
// Places that did not run in full, a line each; empty if all did.
std::string left_text(const TuneReport& report);
std::string label_of(const RankedRow& ranked);  // "wlb-llm and 1 alike"

// What the study's own rows changed on the best layout (own_rows.h); may be empty.
std::string own_rows_text(const TuneReport& report);
// How tokens per step differ between rows of the ranking and the baseline; else empty.
std::optional<Note> unequal_batches(const TuneReport& report);
// The winner, by the words of a study's verdict: places that it is significantly faster than and tied with,
// and faster candidates that were passed over, with what they need. Needs a row that ran in full; the places
// after `shown` are not named.
Note fastest_line(const TuneReport& report, std::size_t shown = SIZE_MAX);
std::string about_text(const TuneReport& report);  // the model, how many GPUs and steps
// All columns: the ranking, what the search looked at, what limits the winner, and how sure it is.
std::string tune_table(const TuneReport& report);
// A line for each row of the ranking.
std::string tune_csv(const TuneReport& report);

// equipoise.tune/1: the same and every tried candidate. Equal searches give equal bytes, without measured
// times.
nlohmann::json tune_json(const TuneReport& report);

}  // namespace equipoise
