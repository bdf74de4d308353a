// Lower bounds for any plan on one rank of a layout: the local ops of a layer and the head at their cost in a
// micro-batch of the best size, and attention by visible pairs.
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <string>

#include "sim/cost/layer_costs.h"

namespace equipoise {

// Seconds per token and per visible query-key pair in one layer, and per token in the head.
struct LeastCosts {
  struct Layer {
    double forward_token = 0, backward_token = 0;
    double again_token = 0;  // for a forward that is repeated
    // Per token that arrives at experts, from any rank; 0 if the experts are the rank's own.
    double forward_arrived = 0, backward_arrived = 0;
  };
  std::array<Layer, kLayerKinds> layers{};  // by kind; 0 for kinds that the model lacks
  Layer layer;                              // the minimum over all kinds
  double forward_pair = 0, backward_pair = 0;
  double head_token = 0;  // forward and backward together
};

// `near` is how close to the best size of a micro-batch the search comes, as a factor of its time; a closer
// search takes longer.
LeastCosts least_costs(const LayerCosts& costs, double near);

// Keeps the least costs of the layouts of one model, framework and network. Degrees of CP, PP and DP,
// recomputed layers and the way K and V travel do not change a layer's local ops, so thousands of layouts
// share a few.
class SharedLeastCosts {
 public:
  explicit SharedLeastCosts(double near) : near_(near) {}
  // Threads that ask for the same layout at once wait for one of them.
  [[nodiscard]] const LeastCosts& of(const LayerCosts& costs);

 private:
  double near_;
  std::mutex mutex_;
  std::map<std::string, LeastCosts> known_;  // guarded by `mutex_`; the key has all on which local ops depend
};

}  // namespace equipoise
