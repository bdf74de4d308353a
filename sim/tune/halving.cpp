#include "sim/tune/halving.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "policies/base/index.h"

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

void Halving::ran(std::size_t candidate, std::size_t rung, double seconds, Kind kind) {
  if (known_.size() <= candidate) known_.resize(candidate + 1);
  Known& known = known_[candidate];
  known.rung = rung;
  known.kind = kind;
  known.seconds.resize(batches_.size(), 0);
  known.seconds[rung] = seconds;
}

Halving::Reached Halving::reached_by(std::size_t candidate) const {
  const Known& known = known_[candidate];
  for (std::size_t rung = known.rung + 1; rung-- > 0;)
    if (known.seconds[rung] > 0) return {rung, known.seconds[rung]};
  return {};
}

std::vector<std::size_t> Halving::moving_on_of(const std::vector<std::size_t>& here, std::size_t rung) const {
  const auto slow = at(std::ranges::count_if(here, [&](std::size_t c) { return known_[c].kind.is_slow; }));
  std::size_t room = std::max(keep_, here.size() / kShare), slow_room = std::max(kSlowKept, slow / kShare);
  std::vector<std::size_t> found;
  for (const std::size_t c : here) {
    const Known& known = known_[c];
    if (room == 0) break;
    if (known.rung > rung && known.seconds[rung + 1] <= 0) continue;
    if (known.kind.is_slow && slow_room == 0) continue;
    --room;
    if (known.kind.is_slow) --slow_room;
    if (known.rung == rung) found.push_back(c);
  }
  return found;
}

std::vector<std::size_t> Halving::moving_on(std::size_t rung) const {
  const auto key = [&](std::size_t c) { return std::tuple(known_[c].seconds[rung], c); };
  std::vector<std::size_t> here, found;
  for (std::size_t c = 0; c < known_.size(); ++c)
    if (!known_[c].seconds.empty() && known_[c].seconds[rung] > 0) here.push_back(c);
  std::ranges::sort(here, {}, key);
  for (const Claim weakest : {Claim::fastest_elsewhere, Claim::fastest_any_delay, Claim::fastest}) {
    std::erase_if(here, [&](std::size_t c) { return known_[c].kind.claim > weakest; });
    std::ranges::move(moving_on_of(here, rung), std::back_inserter(found));
  }
  std::ranges::sort(found, {}, key);
  const auto twice = std::ranges::unique(found);
  found.erase(twice.begin(), twice.end());
  return found;
}

}  // namespace equipoise
