// The search: which candidates are tried, in which order, and when one need not be.
//
// 1. Layouts whose states alone do not fit are excluded; the others are ordered by what they are
//    estimated to take (StepBound), fastest first.
// 2. One row, the probe: first on one layout of each set of degrees, then on those that promise most by all
//    that was probed, a batch at a time. What a layout takes over its estimate is thought to be a product of
//    what its degrees and its value of each other key take. Then every row on the layout on which the probe
//    was fastest. That foretells seconds per token of any candidate as (its layout's) x (its row's) /
//    (both's).
// 3. All other candidates in the order of what is foretold, until the budget is used up.
// 4. After the first half of the probes, and each time that twice as many candidates are known, policies are
//    compared: those that were not tried on the best layouts run there. That includes policies whose packing
//    searches on its own (thresholds, groups of HBP, layouts of FlexSP), although one takes as long as a
//    hundred other candidates. So a search that is ended early has compared all policies, not the probe
//    alone. Where minutes bound it, it has half of them until every policy is compared: tried, or proven
//    slower by its bounds. After that half, the policies that are missing on the best layouts share what is
//    left, then the order goes on. A shard keeps to its order, since a merge compares the policies.
// All of that is on few steps. Who is among the fastest there runs on more, then on all (halving.h). Where
// the budget reached every candidate, the others run on all steps, too.
//
// The winner is the fastest of those that have the strongest claim to be called so (standing.h): by its plan
// a candidate runs in the framework and keeps the order of the data, or not. `keep` candidates of each claim
// are ranked, where they are faster than the first of a stronger one.
//
// A candidate whose bound says that it cannot come among these is never tried, and one that runs on
// all steps ends as soon as its steps prove it (trial.h). Both are exact: where the budget reaches all
// candidates, the winner is the best of the space.
//
// Candidates are tried in batches whose sizes follow from the search alone, each compared with the limit
// before the batch. So results depend neither on threads nor on interruptions. A time limit decides where the
// search ends, and after half of it which policies come first.
//
// Over machines each does 1 and 2, and of 3 every n-th run of the order, against the limit that its own
// candidates give it. That limit is never below the one that a single machine has at that candidate, but for
// the borders of batches; and what a trial comes to under a lower limit follows from what it knew before each
// step (under_limit). So the single machine's search over what all have tried, which is cheap, gives its
// result to the bit: what cannot be told it tries itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/study/share.h"
#include "sim/tune/candidates.h"
#include "sim/tune/time_limit.h"
#include "sim/tune/trial.h"

namespace equipoise {

class Journal;
class KnownTrials;

struct SearchOptions {
  std::int64_t budget = 2'000;  // limit of candidates tried
  std::size_t keep = 10;        // distinct ones of a claim, exact if all candidates were reached
  // Limits of a token's mean and largest delay, in iterations.
  double most_delay = std::numeric_limits<double>::infinity();
  double longest_delay = std::numeric_limits<double>::infinity();
  // The largest mean delay of a winner: that limit, or where there is none, the study's.
  double order_delay = 1;
  bool prune = true;                   // false: runs every candidate to its end, for tests
  Share share;                         // share of the candidates after the probes
  const KnownTrials* known = nullptr;  // trials of other searches
  bool only_known = false;             // tries nothing else
  double minutes = 0;                  // after which it ends with its best; 0: never
  MinuteClock clock = steady_minutes;  // by which they pass
  RunStudyOptions run;                 // jobs: threads
  std::string name;                    // the study's, for messages
  // Called after each trial: candidates tried, of how many at most, the best seconds per token so far. Never
  // at once.
  std::function<void(std::int64_t, std::int64_t, double)> progress;
  // Called with the name of what runs after the search (outcome.h), as it begins, by several threads.
  std::function<void(const std::string&)> show = [](const std::string&) {};
};

struct SearchResult {
  std::vector<Tried> tried;          // in the order of the search, with their last trial
  // Places in `tried` of those that ran: by claim, the strongest first, then by speed.
  std::vector<std::size_t> ranking;
  std::int64_t candidates = 0;       // number in the space
  std::int64_t too_large = 0;        // candidates whose states alone do not fit
  std::int64_t bounded = 0;          // candidates that bounds alone prove slower
  std::int64_t left = 0;             // not reached within the budget, or in another's share
  std::vector<Tried> few;            // trials on few steps of candidates that then ran on more
  std::int64_t trials = 0;           // for all candidates
  std::int64_t ran = 0;              // trials that were simulated here and not found in a journal
  std::vector<int> batches;          // batches that candidates run on, in order; 0 means all
  // By place in `tried`: of the best that ran on all steps here, what a study shows of them.
  std::map<std::size_t, std::shared_ptr<const PolicyResult>> rows;
  std::vector<std::string> not_compared;       // policies neither tried nor proven slower by bounds alone
  std::vector<std::string> too_large_layouts;  // by layout: why its states do not fit; empty if they do
  bool interrupted = false;
  bool timed_out = false;  // ended by its minutes, which is no interruption

  [[nodiscard]] std::int64_t dropped() const;  // candidates that few steps showed to be slower
  // Whether every candidate ran on all steps, or its bound proves it slower.
  [[nodiscard]] bool complete() const;
};

// `journal` may be null. Ends early with the results so far if options.run.stop is set, or the minutes are
// over.
SearchResult search(const Candidates& candidates, const StudyInputs& inputs, const SearchOptions& options,
                    Journal* journal);

}  // namespace equipoise
