// What no plan can beat on one rank of a layout: the local ops of a layer and the head at their cost in a
// micro-batch of the best size, attention by visible pairs.
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <string>

#include "sim/cost/layer_costs.h"

namespace equipoise {

// Seconds per token and per visible pair of a query and a key in one layer, and per token in the head.
struct LeastCosts {
  struct Layer {
    double forward_token = 0, backward_token = 0;
    double again_token = 0;  // in a forward that is run again
    // Per token that arrives at experts, whichever rank sent it; 0 where the experts are the rank's own.
    double forward_arrived = 0, backward_arrived = 0;
  };
  std::array<Layer, kLayerKinds> layers{};  // by kind; kinds that the model lacks stay 0
  Layer layer;                              // the least of all kinds
  double forward_pair = 0, backward_pair = 0;
  double head_token = 0;  // forward and backward
};

// `near`: how close to the best size of a micro-batch, as a factor of its time; the closer, the longer the
// search takes.
LeastCosts least_costs(const LayerCosts& costs, double near);

// Of the layouts of one model, framework and network: their degrees of CP, PP and DP, the layers that they
// recompute and how K and V travel say nothing of a layer's local ops, so that thousands share a few.
class SharedLeastCosts {
 public:
  explicit SharedLeastCosts(double near) : near_(near) {}
  // Threads that ask at once wait for one of them.
  [[nodiscard]] const LeastCosts& of(const LayerCosts& costs);

 private:
  double near_;
  std::mutex mutex_;
  std::map<std::string, LeastCosts> known_;  // guarded by `mutex_`, by all that local ops follow from
};

}  // namespace equipoise
