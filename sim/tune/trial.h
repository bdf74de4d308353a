// One candidate tried: planned, then simulated step by step until it is known to be too slow.
//
// After its plan is made every step has a lower bound (bound.h). Steps run in order; once the simulated
// seconds of those that ran and the bounds of the others say more seconds per token than the limit, the
// candidate is proven slower than it and ends. That changes no result: who ends early could not have won.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "sim/study/run_options.h"
#include "sim/study/study_inputs.h"

namespace equipoise {

enum class Outcome { ok, slower, oom, unplaceable, refused, late };
inline constexpr std::string_view kOutcomeNames[] = {"ok", "slower", "oom", "unplaceable", "refused", "late"};

struct Trial {
  Outcome outcome = Outcome::refused;
  // ok: seconds of all steps over all tokens. slower: what it takes at least. Else 0.
  double seconds_per_token = 0;
  double expected = 0;  // slower: what the steps that ran foretell
  int steps = 0;        // simulated
  std::string reason;   // why it did not run; empty for ok and slower
  friend bool operator==(const Trial&, const Trial&) = default;
};

struct TrialLimits {
  double seconds_per_token = std::numeric_limits<double>::infinity();  // no slower candidate is wanted
  double token_delay = std::numeric_limits<double>::infinity();        // most token_delay_mean
};

// `study` has one row. Throws Interrupted once options.stop is set.
Trial try_candidate(const Study& study, const StudyInputs& inputs, const TrialLimits& limits,
                    const RunStudyOptions& options);

}  // namespace equipoise
