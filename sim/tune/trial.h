// One candidate tried: planned, then simulated step by step until it is known to be too slow, or on few
// steps.
//
// After its plan is made every step has a lower bound (StepBound). Steps run in order; once the simulated
// seconds of those that ran and the bounds of the others say more seconds per token than the limit, the
// candidate is proven slower than it and ends. That changes no result: who ends early could not have won.
//
// A trial on few steps plans only the first global batches of the study. Its estimate is
//   seconds of its steps x (bound of all documents / bound of the documents in those steps),
// where the bound is that of the work spread evenly over all GPUs. Steps that only empty at the end what was
// held are not run, so that a policy which holds documents back neither gains nor loses by that.
#pragma once

#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/index.h"
#include "sim/report/standing.h"
#include "sim/study/run_options.h"
#include "sim/study/study_inputs.h"
#include "sim/study/study_result.h"
#include "sim/tune/candidates.h"
#include "sim/tune/plan_cache.h"

namespace equipoise {

// dropped: it ran on few steps, where others were faster.
enum class Outcome { ok, slower, oom, unplaceable, refused, late, dropped };
inline constexpr std::string_view kOutcomeNames[] = {"ok",      "slower", "oom",    "unplaceable",
                                                     "refused", "late",   "dropped"};

struct Trial {
  Outcome outcome = Outcome::refused;
  // ok: seconds of all steps over all tokens. slower: its lower bound. dropped: its estimate. Else 0.
  double seconds_per_token = 0;
  double expected = 0;  // slower: the estimate if other steps exceed their bounds as those that ran did
  int batches = 0;      // batches of the study that it ran on; all if 0
  int steps = 0;        // simulated
  int planned = 0;      // steps in its plan
  // What it may be called if it is the fastest, by its plan; its delay counts only on all batches.
  Claim claim = Claim::fastest_elsewhere;
  std::string reason;   // why it did not run; empty for ok and slower
  // ok: iterations that a token waits on the mean, as metrics have it, and the most that a GPU holds.
  std::optional<double> token_delay;
  double peak_bytes = 0;
  // The limit that it was compared with, and the seconds per token that were known to be needed before each
  // step: of a candidate that ended early, the last is above the limit. Empty where two sharding rules were
  // tried.
  double limit = std::numeric_limits<double>::infinity();
  std::vector<double> least;
  friend bool operator==(const Trial&, const Trial&) = default;
};

struct Tried {
  Point point;
  Trial trial;
};

// Seconds per token above which a candidate ends early, by its claim.
struct SlowerThan {
  std::array<double, kClaims> of_claim;
  SlowerThan(double every) { of_claim.fill(every); }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] double of(Claim claim) const { return of_claim[at(claim)]; }
};

struct TrialLimits {
  SlowerThan seconds_per_token = std::numeric_limits<double>::infinity();
  double token_delay = std::numeric_limits<double>::infinity();        // limit of token_delay_mean
  double longest_delay = std::numeric_limits<double>::infinity();      // limit for any token, including those
                                                                       // still held at the end
  int batches = 0;  // the inputs have only so many of the study's batches; all if 0
  // What decides a claim: the largest mean delay that keeps the order of the data, and
  // Candidates::stated_form.
  double order_delay = 1;
  std::optional<ContextComm> stated_form = {};
};

// The study's first `count` batches. If the batch with the longest document comes later, it replaces the last
// one kept, so that a short trial already shows whether that document fits.
StudyInputs first_batches(const StudyInputs& inputs, int count);

// The result under another limit, without running the candidate again; nothing where the known result does
// not decide it.
std::optional<Trial> under_limit(const Trial& known, double limit);

// Why a row's tokens wait longer than `most` on the mean, or one of them longer than `longest`; nothing where
// none does. A policy that sees the whole set has no delay, and so keeps no bound.
std::optional<Note> lateness(const PlanMetrics& delays, double most, double longest);

// `study` has one row. `ran`: of a candidate that runs to its end, what a study shows of it; null: nobody
// asks. Throws Interrupted once options.stop is set.
Trial try_candidate(const Study& study, const StudyInputs& inputs, const TrialLimits& limits,
                    const RunStudyOptions& options, const Shared& shared = {},
                    std::shared_ptr<const PolicyResult>* ran = nullptr);

}  // namespace equipoise
