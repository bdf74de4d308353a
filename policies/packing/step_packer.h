// Packs one step for its makespan: which documents share a micro-batch, the place of each micro-batch in a
// lane, and the CP ranks of each document. It is the core of `equipoise` (equipoise.cpp), which decides what
// documents a step holds.
//
// 1. Micro-batches get target sizes that are equal over lanes and tapered along a lane (best_shares).
// 2. Documents go, largest first, to the micro-batch with room that is furthest below its target. Where lanes
// wait for each other,
//    documents of similar size, as many as lanes, go to one place of all of them.
// 3. Inside a micro-batch the longest documents are distributed over the CP ranks, which costs their
// exchange. The others stay whole,
//    largest first, each on the rank with the least. Prefix sums give the number of distributed documents: it
//    minimises (distributed so far + the larger of the next document and the others' even share).
// 4. Workload::of_micro_batch prices the micro-batches. The ratio to the sums scales their documents'
// weights, and 1 to 3 run once
//    more with these.
// 5. Moves send a document to another micro-batch or rank, or exchange two documents of similar size or two
// micro-batches. If a lower
//    bound does not exclude a move, PipelineClock times the lanes that it changes. A move is kept if it
//    lowers the step's objective, and in the first rounds also if it raises it a little (threshold
//    accepting).
//
// The objective is the time of the slowest group of lanes that wait for each other, plus small parts of the
// mean over groups and of all work, so that moves that pay later are taken too. Moves are drawn from a
// separate stream and limited by number, not by time, so the result is deterministic.
//
// Cost: O(n log n) for n documents and O(P m V + C) per move.
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
#include "policies/packing/pipeline_clock.h"
#include "policies/plan.h"
#include "policies/steps.h"
#include "policies/workload.h"

namespace equipoise {

// Micro-batches at one place of lanes that wait for each other. They take the maximum of their own parts plus
// the mean of the shared part (Workload::shared_per_token).
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

// Recompute that memory decides for each micro-batch, as for each of hbp's groups: the most tokens of a
// micro-batch that recomputes 0, 1, ... layers, up to the layers that L_max needs. Empty where L_max needs
// none.
std::vector<std::int64_t> tokens_by_recompute(const PackOptions& options, const PlanPrices& prices);
// The same for every degree that lanes may have, in the form of EquipoiseOptions::recompute.
void set_recompute(PackOptions& options, const PlanPrices& prices);
// The fewest layers with which a micro-batch on so many ranks fits in memory; kStudyRecompute where
// `most_tokens` is empty.
int least_recompute(const MicroBatch& micro_batch, int ranks, std::span<const std::int64_t> most_tokens);
// Sets the layers of all micro-batches except chunks, which keep each other's K and V.
void recompute_least(Plan& plan, const EquipoiseOptions& options);
// The entry of EquipoiseOptions::recompute for a degree.
std::span<const std::int64_t> recompute_at(const EquipoiseOptions& options, int degree);

struct StepShape {
  std::int64_t max_tokens = 0;  // L_max of a micro-batch; a CP rank holds at most its share of it
  std::int64_t moves = 0;
  bool place = true;  // whether documents may stay whole on one CP rank
  bool taper = true;  // whether micro-batches may differ in target size
};

// The number of a micro-batch's documents, longest first, that all its ranks share. It minimises the work
// that these add to every rank plus the larger of the next document, whole, and the others' even share.
// `spread`, `whole`: the work of each document on every rank and on one rank. O(documents).
std::size_t spread_documents(std::span<const std::uint32_t> documents, std::span<const double> spread,
                             std::span<const double> whole, double ranks);

// Clocks and shares of lanes that several steps have in common, each computed once.
class LaneShapes {
 public:
  LaneShapes(int stages, int chunks) : stages_(stages), chunks_(chunks) {}
  [[nodiscard]] int stages() const { return stages_; }
  PipelineClock& clock(std::size_t micro_batches);
  // best_shares of rounded values, so that results depend only on the rounded values.
  const std::vector<double>& shares(std::size_t micro_batches, double fixed, double forward, double most);

 private:
  int stages_, chunks_;
  std::map<std::size_t, PipelineClock> clocks_;
  std::map<std::array<std::int64_t, 4>, std::vector<double>> shares_;
};

// The slices of long documents that run in every lane after the packed micro-batches. Their work falls, so
// they drain the pipeline.
struct Behind {
  std::size_t places = 0;
  std::vector<double> work;  // work of all places, by group of lanes that wait for each other; empty: none
};

// The capacity of lanes of `degree` ranks where those of the layout hold `tokens`.
constexpr std::int64_t tokens_at_degree(std::int64_t tokens, const PackOptions& options, int degree) {
  return tokens / std::max(1, options.context) * degree +
         tokens % std::max(1, options.context) * degree / std::max(1, options.context);
}
// The options for lanes of `degree` ranks on the same GPUs. A rank holds as much as before, or as memory
// allows at this degree.
PackOptions of_degree(const PackOptions& options, int degree);

// Whether lanes that wait for each other through a pipeline have groups of equally many chunks at the same
// places, as every framework requires.
bool ordered_alike(const Step& step, const PackOptions& options);

// The micro-batches of a lane: as the options state, or more where L_max requires them.
std::int64_t micro_batches_of_lane(const PackOptions& options, std::int64_t tokens);

class StepPacker {
 public:
  // Uses lanes and CP ranks of the options and the pipeline of `lanes`.
  StepPacker(const PackOptions& options, const StepShape& shape, const Workload& workload, LaneShapes& lanes)
      : options_(options),
        shape_(shape),
        recompute_(recompute_at(options.of<EquipoiseOptions>(), std::max(1, options.context))),
        workload_(workload),
        lane_shapes_(lanes) {}

  // Packs the slices into lanes of `per_lane` micro-batches each. Returns nothing where they find no room.
  std::optional<std::vector<Lane>> pack(std::span<const Slice> slices, std::size_t per_lane,
                                        const Behind& behind = {});
  // The time per token that lanes share where they wait for each other.
  [[nodiscard]] PassTimes shared_per_token() const {
    return waiting_lanes(options_) > 1 ? workload_.shared_per_token(std::max(1, options_.context))
                                       : PassTimes{};
  }
  // Packs the documents of a start's step anew. Slices of long documents keep their micro-batches, after the
  // others. Returns nothing where twice the micro-batches have no room.
  std::optional<Step> repacked(const Step& start);
  // The time of a micro-batch besides its documents, and the forward's part of its whole time.
  [[nodiscard]] std::pair<double, double> fixed_time() const;
  // The time of the step's slowest group of lanes, in the units of the workload.
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
