// The end of a search, for people and programs: its best candidates as a study shows a row, compared with the
// study's own baseline, and how sure the winner is.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/study/study_result.h"
#include "sim/tune/search.h"

namespace equipoise {

struct RankedRow {
  Point point;
  std::vector<std::string> alike;  // others with the same steps, on this layout or another
  Study study;                     // best.json of this candidate
  StudyResult result;              // its only row, compared with the baseline
  [[nodiscard]] const PolicyResult& row() const { return result.policies.front(); }
};

struct Baseline {
  Study study;         // the user's, with only its baseline row
  StudyResult result;  // one row, which may not have run
  [[nodiscard]] const PolicyResult& row() const { return result.policies.front(); }
};

// `study` is the user's, with absolute paths. Its row counts as refused until it runs.
Baseline baseline_to_run(const nlohmann::json& study);
// An impossible layout gives a refused row.
void run_baseline(Baseline& baseline, const StudyInputs& inputs, const RunStudyOptions& options);

// A place of the ranking. Candidates with bit-equal times do not differ, and the first represents all.
struct Place {
  Point point;
  double seconds_per_token = 0;
  std::vector<std::string> alike;
  std::shared_ptr<const PolicyResult> row = nullptr;  // as the search ran it; null if only a journal has it
};
std::vector<Place> places_of(const Candidates& candidates, const SearchResult& found);

// The `keep` best of them as a study shows a row. Those that a journal tells of are run again, as many at
// once as there are threads. Speed-ups are of seconds per token, whatever the number of GPUs. `rows` has the
// first of them where this throws Interrupted.
void run_ranked(const Candidates& candidates, const std::vector<Place>& places, const StudyInputs& inputs,
                const Baseline& baseline, const SearchOptions& options, std::vector<RankedRow>& rows);

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

// None if nothing ran; if this throws Interrupted, `results` has what is known.
void sensitivity(const Candidates& candidates, const SearchResult& found, const StudyInputs& inputs,
                 const SearchOptions& options, std::vector<WhatIf>& results);

// The documents of a trace, drawn with replacement: as many tokens as `inputs` has, and some more.
Trace bootstrap_trace(const StudyInputs& inputs, std::uint64_t seed);

std::string layout_text(const Layout& layout);  // "TP 8, CP 2 ring, PP 4 x 2, DP 1"
// The same, followed by ", recompute auto" unless it is none.
std::string layout_and_recompute(const Layout& layout);
std::string recompute_text(const Layout& layout);  // "8 layers"
// "wlb, queues 2, adaptive on TP 8, CP 2, PP 4 x 2, DP 1, recompute 8 layers"
std::string candidate_text(const std::string& label, const Layout& layout);
std::string candidate_text(const Candidates& candidates, Point point);

struct TuneReport {
  const Candidates& candidates;
  const Space& space;
  const SearchOptions& options;
  const SearchResult& found;
  const Baseline& baseline;
  const std::vector<Place>& places;
  const std::vector<RankedRow>& ranking;  // the places that ran in full
  const std::vector<WhatIf>& what_if;
  bool cut_short = false;        // the search is over, but some of the work after it did not run
  std::string flags_alone = {};  // result of a framework's flags; empty if as the first, or unknown
  bool what_if_over = false;     // what_if lacks the questions for which there was no time
};

// One line about the ends of all candidates.
std::string counts_text(const SearchResult& found);
// "the fastest of 1,234 candidates", or of those that were tried, if not all were decided.
std::string reach_text(const SearchResult& found);
// "wlb on TP 8, CP 2, PP 4, DP 1: 870 tokens/s/GPU", as the search found it.
std::string found_text(const TuneReport& report, const Place& place);
// What ended the search before every candidate was decided, and how to continue it.
std::string end_text(const TuneReport& report);
// What was decided on few steps, and which policies were not tried; may be empty.
std::string halving_text(const SearchResult& found);

// How tokens per step differ between rows of the ranking and the baseline; else empty.
std::optional<Note> unequal_batches(const TuneReport& report);
// Parts of a sentence: places that the first is significantly faster than, and those that it is tied with.
Notes winner_over_others(const TuneReport& report);
std::string about_text(const TuneReport& report);  // the model, how many GPUs and steps
// The ranking, what the search looked at, what limits the winner, and how sure it is.
std::string tune_table(const TuneReport& report);
// equipoise.tune/1: the same and every tried candidate. Equal searches give equal bytes, without measured
// times.
nlohmann::json tune_json(const TuneReport& report);
// A line for each row of the ranking.
std::string tune_csv(const TuneReport& report);

}  // namespace equipoise
