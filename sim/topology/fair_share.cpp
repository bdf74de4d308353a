#include "sim/topology/fair_share.h"

#include <algorithm>

namespace equipoise {

void FairShare::share(std::span<Flow* const> flows) {
  used_.clear();
  for (const Flow* flow : flows)
    for (const LinkUse& use : flow->links) claims_[use.link] = 0;
  for (const Flow* flow : flows)
    for (const LinkUse& use : flow->links) {
      if (claims_[use.link] == 0) {
        used_.push_back(use.link);
        left_[use.link] = capacity_[use.link];
      }
      claims_[use.link] += use.times;
    }
  std::sort(used_.begin(), used_.end());
  stopped_.assign(flows.size(), 0);

  std::size_t growing = flows.size();
  while (growing > 0) {
    // The level at which the next link fills or the next flow reaches its cap.
    double level = -1;
    LinkId tightest = 0;
    bool by_link = false;
    for (const LinkId link : used_) {
      if (claims_[link] == 0) continue;
      const double here = left_[link] / static_cast<double>(claims_[link]);
      if (level < 0 || here < level) {
        level = here;
        tightest = link;
        by_link = true;
      }
    }
    for (std::size_t f = 0; f < flows.size(); ++f)
      if (stopped_[f] == 0 && (level < 0 || flows[f]->cap <= level)) {
        level = flows[f]->cap;
        by_link = false;
      }
    // Flows stop at the level; what they use is taken from their links.
    for (std::size_t f = 0; f < flows.size(); ++f) {
      if (stopped_[f] != 0) continue;
      const auto crosses = [&](const LinkUse& use) { return use.link == tightest; };
      const bool stops = by_link ? std::any_of(flows[f]->links.begin(), flows[f]->links.end(), crosses)
                                 : flows[f]->cap <= level;
      if (!stops) continue;
      flows[f]->rate = level;
      stopped_[f] = 1;
      --growing;
      for (const LinkUse& use : flows[f]->links) {
        left_[use.link] = std::max(0.0, left_[use.link] - level * use.times);
        claims_[use.link] -= use.times;
      }
    }
  }
}

}  // namespace equipoise
