// Lower bounds of a step's time, from sums that no schedule and no sharding can beat.
//
// Stage s of a lane on C CP ranks works at least, mean over the ranks,
//   W_s = layers_s * sum over micro-batches of (forward + backward of its tokens and pairs / C + exposed CP
//         communication of its tokens) + the logits on the last stage
// at the rates of LeastCosts; a layer that is recomputed adds a forward. Its first op waits for a forward
// through the virtual stages before it, and after its last op that micro-batch's backward goes back through
// them:
//   step >= max over s of (W_s + least forward of any micro-batch before s + least backward before s)
// All CP ranks of a stage take their ops in one order, so means over ranks may be added up this way. Experts
// that lanes share work for what arrives from all of them: that counts in the mean over all replicas, which
// no step is below either, and not in a lane's own sum. Lanes run side by side, groups of lanes
// (Lane::barrier_group) one after another. Not counted, since it only adds: attention's waves, transfers,
// gradients, the optimizer, waiting inside the pipeline.
//
// That a bound is never above the simulated time is tested over random candidates
// (tests/sim/tune/test_bound.cpp).
#pragma once

#include <vector>

#include "policies/loader.h"
#include "policies/plan.h"
#include "sim/cost/least_costs.h"
#include "sim/study/models.h"
#include "sim/study/read/study.h"

namespace equipoise {

class StepBound {
 public:
  // `near` is how close the costs of tokens come to the best micro-batch's. The default is for searches,
  // which need thousands of bounds.
  StepBound(const RunModels& models, const PolicyRun& row, bool splits_backward, double near = kNear)
      : StepBound(models, row, splits_backward, least_costs(models.costs, near)) {}
  // `least` depends only on the layout, so that many rows share it.
  StepBound(const RunModels& models, const PolicyRun& row, bool splits_backward, const LeastCosts& least);
  static constexpr double kNear = 0.85;

  [[nodiscard]] double seconds(const Step& step) const;
  // The least time of any plan of so many tokens with so many visible pairs, spread evenly over all GPUs.
  // `recomputes`: as the layout does, in every micro-batch. `exchanges`: K and V of all documents, on the
  // layout's CP ranks.
  [[nodiscard]] double even_seconds(double tokens, double pairs, bool recomputes, bool exchanges) const;
  // The least time of any plan of these documents on this layout that leaves them whole, however it delays,
  // places or orders them. It is the larger of two times: the work spread evenly over all GPUs, and the
  // longest document alone on the CP ranks of all lanes, forward through all stages and back.
  [[nodiscard]] double run_seconds(const DocumentSet& documents) const;
  // No bound: what even plans of whole micro-batches come near to, with the exchanges that most rows make and
  // a pipeline that `micro_batches` of a lane fill in each of `steps` steps. Of models with experts, whose
  // exchanges and small products are most of what bounds exclude, all but attention is priced as it runs.
  [[nodiscard]] double even_estimate(double tokens, double pairs, double micro_batches, double steps) const;

 private:
  struct Work {
    double tokens = 0, pairs = 0;  // of a rank
    double arrived = 0;            // tokens at experts that lanes share
    double exchange = 0;           // seconds per layer
  };
  [[nodiscard]] Work work_of(const MicroBatch& micro_batch, int context) const;
  [[nodiscard]] double lane_seconds(const Lane& lane) const;
  [[nodiscard]] double mean_seconds(const Step& step, int barrier_group) const;
  // What of a layer is not attention, forward and backward, for a rank's share of one micro-batch, beyond its
  // bound. It is a mean over the model's layers.
  struct Beyond {
    double forward = 0, backward = 0;
  };
  [[nodiscard]] Beyond beyond_least(double rank_tokens) const;
  [[nodiscard]] double stage_seconds(std::size_t stage, const Work& sum, double fill_forward,
                                     double fill_backward, bool recomputes) const;

  LeastCosts least_;
  std::vector<LeastCosts::Layer> of_stage_;  // by stage, summed over its layers
  const LayerCosts& costs_;
  bool exchanges_ = false, splits_backward_ = false;
  bool recomputes_ = true;                      // whether every layer recomputes as the layout says
  int replicas_ = 1;                            // data x context
  std::vector<double> layers_;                  // by stage
  std::vector<double> attending_;               // of those, layers with attention in place of a recurrence
  std::vector<double> recomputed_;              // of those, recomputed ones by the layout
  std::vector<double> layers_before_;           // layers of the virtual stages before its first op
  double all_attend_ = 1;  // 0 if some layer is a recurrence, so that pairs do not bound every layer
  std::vector<double> frozen_, frozen_before_;  // layers of the two lists above that no backward reaches
};

// Visible pairs of a query and a key if slices are documents of their own. A model's sliding window bounds
// what a query sees.
double visible_pairs(const Slice& slice, const Chunk& chunk, Reach reach);
double visible_pairs(const DocumentSet& documents, Reach reach);

}  // namespace equipoise
