// A comparison of simulated with measured times, whoever measured them: the pairs, and the figures that
// follow from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policies/base/note.h"

namespace equipoise {

// One optimizer step of one policy.
struct StepPair {
  std::int64_t step = 0;
  double predicted_seconds = 0;
  std::vector<double> measured_seconds;  // one per kept repetition; empty if not measured
  std::int64_t tokens = 0;               // 0: unknown
  double alone_seconds = 0;              // predicted from the profile alone; 0 if that is predicted_seconds
};

struct PolicyPairs {
  std::string label;
  std::vector<StepPair> steps;
  int runs = 0;          // measured repetitions, including dropped ones; 0: as many as a step has
  int dropped_runs = 0;  // those that other work on the machine disturbed
};

// One op of one rank. A number is -1 if the op belongs to none, or to all.
struct OpPair {
  std::string op;     // kind
  std::string label;  // the policy's
  std::int64_t step = 0;
  int lane = -1;
  int stage = -1;
  int micro_batch = -1;
  int rank = -1;
  double predicted_seconds = 0;
  std::vector<double> measured_seconds;  // repetitions
  double alone_seconds = 0;              // as a step's
};

// Largest errors that pass, as shares of the measured time.
struct ValidationLimits {
  double step = 0.05;
  double op = 0.08;  // for an op kind
};
inline constexpr ValidationLimits kCpuLimits{0.05, 0.08};
inline constexpr ValidationLimits kCudaLimits{0.05, 0.05};

struct Validation {
  std::string study;   // for titles
  std::string device;  // what measured: "cpu", "cuda", or the form of a log
  std::string profile;
  ValidationLimits limits;
  std::vector<PolicyPairs> policies;
  std::vector<OpPair> ops;
  Notes notes;  // qualifies the figures: which runs were used, what was excluded
  std::map<std::string, double> beyond_samples;  // share of each policy's time beyond the profile's samples
                                                 // (verdict.h), by label
  double other_load = 0;                         // CPUs that other programs kept busy when the run began
};

// --- How uncertain repeated measurements leave their median.

// The median of a list in any order; 0 if it is empty.
double median(std::vector<double> values);

// Half the width of the median's 95% interval by order statistics, which needs no assumption about the
// distribution. It goes from the k-th smallest to the k-th largest value, with the largest k for which
// P(Binomial(n, 1/2) < k) <= 2.5%. With fewer than 6 values no interval reaches 95%, so it is half their
// range. With fewer than 2 values there is none.
std::optional<double> median_noise(std::vector<double> values);

// --- The figures of a comparison: errors of steps, op kinds and micro-batches, whether policies rank alike,
// and which limit is broken. Every format shows these and computes none.
//
// An error is predicted / measured - 1, signed. A measured time is the median of its repetitions. The limit
// for an op kind is on its error by time, (sum predicted - sum measured) / sum measured, which is what the
// kind adds to a step. Errors of single ops are shown as well.

// The errors of a list of times that are compared one by one.
struct Errors {
  std::int64_t count = 0;
  double predicted_seconds = 0, measured_seconds = 0;  // sums
  double mean_abs = 0, mean = 0;                       // over single errors, unweighted
  double alone_seconds = 0;  // sum of the profile's predictions alone; 0 if that is predicted_seconds
  double worst = 0;          // the single error farthest from 0, signed
  std::size_t worst_at = 0;  // the place of that error

  // By time.
  [[nodiscard]] double error() const { return predicted_seconds / measured_seconds - 1; }
  [[nodiscard]] std::optional<double> error_alone() const {
    return alone_seconds > 0 ? std::optional(alone_seconds / measured_seconds - 1) : std::nullopt;
  }
};

struct MeasuredStep {
  std::int64_t step = 0;
  double predicted_seconds = 0, measured_seconds = 0;
  std::optional<double> noise_seconds;  // median_noise
  std::size_t repetitions = 0;

  [[nodiscard]] double error() const { return predicted_seconds / measured_seconds - 1; }
};

struct PolicyFigures {
  std::string label;
  std::vector<MeasuredStep> steps;                     // steps that were measured
  double predicted_seconds = 0, measured_seconds = 0;  // means over these steps
  // Mean of the steps' noise, as if one disturbance hit all of them, which is no less than the noise of the
  // mean. Nothing if no step was repeated.
  std::optional<double> noise_seconds;
  Errors errors;  // of steps
  double predicted_rate = 0,
         measured_rate = 0;  // what ranks: seconds per token, or per step if tokens are unknown
  double rate_noise = 0;
  int runs = 0, dropped_runs = 0;
  bool within_limit = true;
};

struct OpFigures {
  std::string op;
  Errors errors;
  OpPair worst;  // without its repetitions
  bool within_limit = true;
};

// All ops of a micro-batch of a step's lane, over stages and ranks.
struct MicroBatchFigures {
  std::string label;
  std::int64_t step = 0;
  int lane = 0, micro_batch = 0;
  double predicted_seconds = 0, measured_seconds = 0;

  [[nodiscard]] double error() const { return predicted_seconds / measured_seconds - 1; }
};

struct Ranking {
  std::vector<std::string> predicted, measured;            // fastest first
  std::vector<std::pair<std::string, std::string>> ties;   // pairs with equal measured times, within noise
  std::vector<std::pair<std::string, std::string>> swaps;  // first one measured faster, predicted slower
  bool per_token = false;                                  // whether rates are seconds per token

  [[nodiscard]] bool same() const { return swaps.empty(); }
};

struct ValidationFigures {
  std::vector<PolicyFigures>
      policies;                // in the order of the input, without policies that have no measured step
  std::vector<OpFigures> ops;  // by descending measured time
  Errors micro_batches;
  std::vector<MicroBatchFigures> worst_micro_batches;  // a few, worst first
  Ranking ranking;
  std::vector<std::string> broken;  // each broken limit, in words
  std::int64_t unmeasured_ops = 0;  // ops whose measured time is 0 or missing; they are in no figure
  double other_load = 0;

  [[nodiscard]] bool passed() const { return broken.empty(); }
  // Whether the limits decide. A broken limit may be the machine's fault if other work takes half a CPU,
  // which is more than any limit allows for.
  [[nodiscard]] bool judged() const { return passed() || other_load < 0.5; }
  [[nodiscard]] std::string verdict() const;  // "passed", "failed", or why it is neither
};

ValidationFigures figures_of(const Validation& validation);

}  // namespace equipoise
