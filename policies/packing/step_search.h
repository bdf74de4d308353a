// One step packed for its makespan: which documents share a micro-batch, where that stands in which lane, and
// which CP ranks hold each document. The heart of `equipoise` (equipoise.cpp), which says what a step holds.
//
// 1. The sizes that micro-batches should have: equal over the lanes, tapered along a lane (best_shares).
// 2. Documents, largest first, each to the micro-batch that lacks most of its size and has room; where lanes
//    wait for each other, as many of like size as there are lanes to one place of all of them.
// 3. Inside a micro-batch the longest documents are spread over the CP ranks, which costs their exchange, and
//    the others stay whole, largest first, each on the rank with the least. How many are spread follows from
//    prefix sums: the least of (spread so far + the larger of the next document and the others' even share).
// 4. The micro-batches are priced for real (Workload::of_micro_batch); the ratio to the sums scales their
//    documents' weights, and 1 to 3 run once more with those.
// 5. Moves: a document to another micro-batch or rank, two of like size exchanged, two micro-batches
//    exchanged. Of a move only the lanes that it touches are timed again (PipelineClock), after the bound
//    of its sum has let it pass; it stays if it makes the step's objective smaller, and for a while if it
//    loses little (threshold accepting).
//
// Objective: the slowest group of lanes that wait for each other, and a little of the mean over groups and of
// all work, so that moves that will pay later are taken too. Deterministic: moves are drawn from a stream of
// their own, and there is a number of them, not a time.
//
// Cost: O(n log n) for n documents and O(P m V + C) a move.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "policies/options.h"
#include "policies/packing/packing.h"
#include "policies/plan.h"
#include "policies/steps.h"
#include "policies/workload.h"

namespace equipoise {

// ---- The makespan of one lane's pipeline of unequal micro-batches, as a policy may know it: from nothing
// but what each micro-batch takes. And how large they should be.
//
// The ops of 1F1B, or of its interleaved form, in the order of sim/schedule; every stage has an equal share
// of the layers, nothing is sent, stages run their ops in turn and wait for what they need:
//   end(op) = max(end of the op before it on its stage, end of the op that feeds it) + its time
// That is exact for such a pipeline: O(P m V) additions and maxima for P stages, m micro-batches and V model
// chunks a stage, half a microsecond for P = 4, m = 16, V = 2.
//
// The makespan is convex in the times of the micro-batches. So with the sum fixed, equal micro-batches are
// not the best: small ones at both ends fill and drain the pipeline faster, and they rise so slowly that no
// stage waits for a larger one (best_shares).

class PipelineClock {
 public:
  // `chunks`: model chunks a stage, V; with more than one the micro-batches are a multiple of the stages.
  PipelineClock(int stages, int chunks, std::size_t micro_batches);

  [[nodiscard]] std::size_t micro_batches() const { return count_; }
  // Micro-batches that go through the chunks together.
  [[nodiscard]] std::size_t round() const { return chunks_ > 1 ? static_cast<std::size_t>(stages_) : 1; }
  // From the first op to the last.
  double makespan(std::span<const PassTimes> times);
  // No makespan is below it: the last stage's work, the first forward's way there and the last backward's way
  // back. O(1), given the sum of all times.
  [[nodiscard]] double least(double sum, const PassTimes& first, const PassTimes& last) const {
    return (sum + (stages_ - 1) * (first.forward + last.backward) / chunks_) / stages_;
  }

 private:
  struct Op {
    std::uint32_t stage, micro_batch, input, output;  // input, output: of arrived_
    bool backward;
  };
  void order_ops();

  int stages_, chunks_;
  std::size_t count_;
  std::vector<Op> ops_;  // each behind what it waits for
  std::vector<double> free_, arrived_;
};

// Shares of a lane's work, summing to 1, with which its pipeline ends first: smaller at both ends. `fixed`:
// what every micro-batch takes beside its share, in units of that work; `forward`: the forward's part of a
// time; `most`: the largest share that a micro-batch may have.
// A grid over ramps (first size, growth), then moves between pairs in falling steps; deterministic.
std::vector<double> best_shares(PipelineClock& clock, double fixed, double forward, double most);

// ---- Steps

// Micro-batches at one place of lanes that wait for each other: they take as long as the slowest in what is
// its own, and as the mean in what they share (Workload::shared_per_token).
class SharedPlace {
 public:
  SharedPlace(const PassTimes& per_token, std::size_t lanes)
      : per_token_(per_token), lanes_(static_cast<double>(lanes)) {}
  void add(const PassTimes& time, std::int64_t tokens) {
    const auto n = static_cast<double>(tokens);
    slowest_ = {std::max(slowest_.forward, time.forward - n * per_token_.forward),
                std::max(slowest_.backward, time.backward - n * per_token_.backward)};
    tokens_ += n / lanes_;
  }
  [[nodiscard]] PassTimes times() const {
    return {slowest_.forward + tokens_ * per_token_.forward,
            slowest_.backward + tokens_ * per_token_.backward};
  }

 private:
  PassTimes per_token_, slowest_;
  double lanes_, tokens_ = 0;
};

// Recompute where memory decides it for each micro-batch, as for each of hbp's groups. The most tokens of one
// that recomputes 0, 1, ... layers, up to those that L_max takes; empty where that takes none.
std::vector<std::int64_t> tokens_by_recompute(const PackOptions& options, const PlanPrices& prices);
// The same of every degree that lanes may have, as EquipoiseOptions::recompute.
void set_recompute(PackOptions& options, const PlanPrices& prices);
// The fewest layers with which a micro-batch on so many ranks fits; kStudyRecompute where `most_tokens` is
// empty.
int least_recompute(const MicroBatch& micro_batch, int ranks, std::span<const std::int64_t> most_tokens);
// Those of all micro-batches but chunks, which keep each other's K and V.
void recompute_least(Plan& plan, const EquipoiseOptions& options);
// EquipoiseOptions::recompute of a degree.
std::span<const std::int64_t> recompute_at(const EquipoiseOptions& options, int degree);

struct StepShape {
  std::int64_t max_tokens = 0;  // L_max of a micro-batch; a CP rank holds at most its share of that
  std::int64_t moves = 0;
  bool place = true;  // documents may stay whole on one CP rank
  bool taper = true;  // micro-batches of unequal size
};

// How many of a micro-batch's documents, longest first, all its ranks share: the least of what the first ones
// then add to every rank, and the larger of the next one whole and the others' even share. `spread`, `whole`:
// of each document, on every rank or on its own. O(documents).
std::size_t spread_documents(std::span<const std::uint32_t> documents, std::span<const double> spread,
                             std::span<const double> whole, double ranks);

// Clocks and shares of lanes that some steps have in common: each is made once.
class LaneShapes {
 public:
  LaneShapes(int stages, int chunks) : stages_(stages), chunks_(chunks) {}
  [[nodiscard]] int stages() const { return stages_; }
  PipelineClock& clock(std::size_t micro_batches);
  // best_shares of values rounded to what matters, so that they depend on nothing but these.
  const std::vector<double>& shares(std::size_t micro_batches, double fixed, double forward, double most);

 private:
  int stages_, chunks_;
  std::map<std::size_t, PipelineClock> clocks_;
  std::map<std::array<std::int64_t, 4>, std::vector<double>> shares_;
};

// What runs in every lane after the micro-batches that are packed: slices of long documents. They fall in
// work, and so drain the pipeline.
struct Behind {
  std::size_t places = 0;
  std::vector<double> work;  // of all places, by group of lanes that wait for each other; empty: none
};

constexpr std::int64_t rounded_up(std::int64_t count, std::int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

// Whether lanes that wait for each other through a pipeline have groups of as many chunks at the same places:
// no framework runs them otherwise.
bool ordered_alike(const Step& step, const PackOptions& options);

// The options of lanes of `degree` ranks on the same GPUs: a rank holds what it held, or what memory allows
// there.
PackOptions of_degree(const PackOptions& options, int degree);

// Micro-batches of a lane: as the options have it, and more where L_max asks for them.
std::int64_t micro_batches_of_lane(const PackOptions& options, std::int64_t tokens);

// What lanes of `degree` ranks hold where those of the layout hold `tokens`.
constexpr std::int64_t tokens_at_degree(std::int64_t tokens, const PackOptions& options, int degree) {
  return tokens / std::max(1, options.context) * degree +
         tokens % std::max(1, options.context) * degree / std::max(1, options.context);
}
// Whether no micro-batch is above L_max, of its lane's degree.
bool within(const Step& step, const PackOptions& options);

// Whether the start's steps hold what gather.cpp finds.
bool is_gathered(Start start);
// The policy that the options start from. Throws UserError where it cannot place a document.
const Policy& policy_of_start(const PackingProblem& problem);
// The start as it is. Throws UserError where it cannot run.
Plan plan_start(const PackingProblem& problem);
// The plan of a start, and what each of its steps becomes by the options.
struct PackedStart {
  Plan start, plan;
};
PackedStart pack_start(const PackingProblem& problem, LaneShapes& lanes);

// wlb's queues of equal width, and one queue of the longest documents.
std::vector<std::vector<std::int64_t>> outlier_thresholds(const PackOptions& options);
// Micro-batches of a step that are worth trying: as given, else as many as the windows, or as fit, and more.
std::vector<std::int64_t> counts_of(const PackOptions& options, double tokens_of_batch);
// Widths of pack windows and of look-ahead that are worth trying, rising.
std::vector<std::int64_t> windows_of(const PackOptions& options, std::size_t batches);

// Whether the start cuts long documents.
bool cuts_documents(const PackOptions& options);

class StepPacker {
 public:
  // Takes lanes and CP ranks from the options, the pipeline from `lanes`.
  StepPacker(const PackOptions& options, const StepShape& shape, const Workload& workload, LaneShapes& lanes)
      : options_(options),
        shape_(shape),
        recompute_(recompute_at(options.of<EquipoiseOptions>(), std::max(1, options.context))),
        workload_(workload),
        lane_shapes_(lanes) {}

  // The slices in lanes of `per_lane` micro-batches each; none where they find no room.
  std::optional<std::vector<Lane>> pack(std::span<const Slice> slices, std::size_t per_lane,
                                        const Behind& behind = {});
  // The time of a token that lanes share, where they wait for each other.
  [[nodiscard]] PassTimes shared_per_token() const {
    return waiting_lanes(options_) > 1 ? workload_.shared_per_token(std::max(1, options_.context))
                                       : PassTimes{};
  }
  // The documents of a start's step packed anew; slices of long ones stay as they are, behind the others.
  // Nothing where they find no room in twice the micro-batches.
  std::optional<Step> repacked(const Step& start);
  // What a micro-batch takes beside its documents, and the forward's part of all that it takes.
  [[nodiscard]] std::pair<double, double> fixed_time() const;
  // What the step takes: its slowest group of lanes, in the units of the workload.
  double seconds(const Step& step);

 private:
  class Search;

  const PackOptions& options_;
  StepShape shape_;
  std::span<const std::int64_t> recompute_;
  const Workload& workload_;
  LaneShapes& lane_shapes_;
};

}  // namespace equipoise
