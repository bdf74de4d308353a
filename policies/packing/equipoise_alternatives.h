// What the search of equipoise tries: options with the price of their plans (equipoise_search.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "policies/packing/equipoise.h"
#include "policies/packing/packing.h"
#include "policies/policy.h"

namespace equipoise {

inline constexpr double kCannotRun = std::numeric_limits<double>::infinity();

// The problem with other options.
PackingProblem with(const PackingProblem& problem, const PackOptions& options);

// An alternative: its options and price.
struct Alternative {
  PackOptions options;
  std::vector<double> steps = {};  // seconds
  double seconds = kCannotRun;     // seconds of all steps
  double delay = 0;                // mean delay of a token
  bool lost = false;               // its race; then the other values are unknown
};

// What the user reads of the options' start.
Note start_of(const PackOptions& options);
// Whether both start from the same steps, in whatever number of micro-batches.
bool start_alike(const PackOptions& one, const PackOptions& other);

// What an alternative races against: one with the same documents in each step.
struct Rival {
  std::span<const double> steps = {};  // empty: there is no race
  double loses = 1;                    // by the ratio of the sums
};

// Packs and prices alternatives, each once.
class Alternatives {
 public:
  Alternatives(const PackingProblem& problem, const PlanPrices& prices, LaneShapes& lanes);

  [[nodiscard]] const PackingProblem& problem() const { return problem_; }
  [[nodiscard]] double tokens_of_batch() const { return of_batch_; }

  // Whether delay, tokens per step and L_max are within their bounds. Stores the delay.
  bool is_allowed(const Plan& plan, Alternative& made) const;

  void price(const Plan& plan, Alternative& out);

  // The queues of wlb that its own search finds within the bounds on delay and tokens per step.
  std::vector<std::int64_t> searched_thresholds(const PackOptions& wlb);

  // Whether the job's schedule runs the start, by the first batch alone. The start may exceed the bounds.
  [[nodiscard]] bool runs(const PackOptions& options) const;

  // The unchanged start.
  Alternative as_it_is(const PackOptions& options);

  // The start packed anew, where each step keeps the faster of the two. Computed once for all bounds. One
  // that loses its race ends early, as one that cannot run, and is computed again where there is no race.
  Alternative improved(const PackOptions& options, const Rival& rival = {});

  [[nodiscard]] int tried() const { return tried_; }

 private:
  // Uses the study's recompute where less does not fit, since unequal micro-batches may be in flight
  // together.
  template <class Make>
  Alternative fitting(const PackOptions& options, const Make& make);

  [[nodiscard]] std::vector<double> seconds_of_steps(const Plan& plan, const PackOptions& options) const;

  // All steps, those of the race first: the rival's slowest, its fastest and some in between.
  static std::vector<std::size_t> ordered_for_race(std::span<const double> rival);

  // Whether the steps of the race, packed, are all slower than the rival's, and their sum by more than it
  // allows. The unchanged start does not race: it is an alternative of its own.
  [[nodiscard]] bool loses(std::span<const std::size_t> raced, const Plan& packed, const Rival& rival,
                           const PackOptions& options) const;

  // Packs all steps, unless it loses the race.
  bool pack_all(const PackingProblem& problem, const Rival& rival, PackedStart& packed) const;

  void pack_anew(Alternative& made, const Rival& rival);
  // Prices a start if it is allowed, once for all the ways to pack it.
  void price_start(const Plan& plan, Alternative& out);
  // Whether all micro-batches recompute what the study states.
  static bool is_as_stated(const PackOptions& options);
  // Whether it was refused for a delay that a wider bound may allow.
  static bool was_delayed(const Alternative& made);
  // Where batches hold more than the micro-batches of a step, wlb carries the rest from step to step.
  [[nodiscard]] bool holds_what_comes(const PackOptions& options) const;
  static void keep_faster(const Alternative& start, PackedStart& packed, Alternative& made);

  const PackingProblem& problem_;
  const PlanPrices& prices_;
  LaneShapes& lanes_;
  std::map<std::string, Alternative> packed_anew_, unchanged_;  // by the options that make them
  double of_batch_ = 0;
  int tried_ = 0;
};

}  // namespace equipoise
