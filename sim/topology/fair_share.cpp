#include "sim/topology/fair_share.h"

#include <algorithm>
#include <limits>

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
  stopped_.assign(flows.size(), 0);

  std::size_t growing = flows.size();
  while (growing > 0) {
    // The level at which the next links fill or the next flows reach their cap.
    double level = std::numeric_limits<double>::infinity();
    for (const LinkId link : used_)
      if (claims_[link] > 0) level = std::min(level, left_[link] / static_cast<double>(claims_[link]));
    for (std::size_t f = 0; f < flows.size(); ++f)
      if (stopped_[f] == 0) level = std::min(level, flows[f]->cap);
    for (const LinkId link : used_)
      tight_[link] = claims_[link] > 0 && left_[link] / static_cast<double>(claims_[link]) == level;
    // Flows stop at the level; what they use together is taken from each link at once.
    for (std::size_t f = 0; f < flows.size(); ++f) {
      const auto is_tight = [&](const LinkUse& use) { return tight_[use.link] != 0; };
      if (stopped_[f] != 0 ||
          (flows[f]->cap > level && std::none_of(flows[f]->links.begin(), flows[f]->links.end(), is_tight)))
        continue;
      flows[f]->rate = level;
      stopped_[f] = 1;
      --growing;
      for (const LinkUse& use : flows[f]->links) given_[use.link] += use.times;
    }
    for (const LinkId link : used_) {
      if (given_[link] == 0) continue;
      left_[link] = std::max(0.0, left_[link] - level * static_cast<double>(given_[link]));
      claims_[link] -= given_[link];
      given_[link] = 0;
    }
  }
}

}  // namespace equipoise
