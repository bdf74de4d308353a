#include "sim/tune/halving.h"

#include <algorithm>
#include <tuple>

namespace equipoise {

namespace {

constexpr std::size_t kShare = 4;          // one in this many moves on
constexpr std::size_t kFewestBatches = 4;  // fewer would say nothing
constexpr std::size_t kMostRungs = 3;
constexpr std::size_t kSlowKept = 2;

}  // namespace

Halving::Halving(std::size_t batches, std::size_t keep) : keep_(keep), batches_{0} {
  for (std::size_t few = batches / kShare; few >= kFewestBatches && batches_.size() < kMostRungs;
       few /= kShare)
    batches_.insert(batches_.begin(), static_cast<int>(few));
}

void Halving::ran(std::size_t candidate, std::size_t rung, double seconds, bool is_slow) {
  if (known_.size() <= candidate) known_.resize(candidate + 1);
  Known& known = known_[candidate];
  known.rung = rung;
  known.is_slow = is_slow;
  known.seconds.resize(batches_.size(), 0);
  known.seconds[rung] = seconds;
}

Halving::Reached Halving::reached_by(std::size_t candidate) const {
  const Known& known = known_[candidate];
  for (std::size_t rung = known.rung + 1; rung-- > 0;)
    if (known.seconds[rung] > 0) return {rung, known.seconds[rung]};
  return {};
}

std::vector<std::size_t> Halving::moving_on(std::size_t rung) const {
  std::vector<std::size_t> here;
  std::size_t slow = 0;
  for (std::size_t c = 0; c < known_.size(); ++c) {
    if (known_[c].seconds.empty() || known_[c].seconds[rung] <= 0) continue;
    here.push_back(c);
    if (known_[c].is_slow) ++slow;
  }
  std::ranges::sort(here, {}, [&](std::size_t c) { return std::tuple(known_[c].seconds[rung], c); });
  std::size_t room = std::max(keep_, here.size() / kShare), slow_room = std::max(kSlowKept, slow / kShare);
  std::vector<std::size_t> found;
  for (const std::size_t c : here) {
    const Known& known = known_[c];
    if (room == 0) break;
    if (known.rung > rung && known.seconds[rung + 1] <= 0) continue;
    if (known.is_slow && slow_room == 0) continue;
    --room;
    if (known.is_slow) --slow_room;
    if (known.rung == rung) found.push_back(c);
  }
  return found;
}

}  // namespace equipoise
