// First-fit shuffled: documents in shuffled order, each into the oldest pack that has room. O(n log packs).
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "policies/first_fit_tree.h"
#include "policies/packing/pack_length.h"
#include "policies/packing/packing.h"
#include "policies/step_shape.h"

namespace equipoise {

Packs pack_ffs(std::span<const std::int64_t> lengths, std::int64_t capacity, Shuffler random) {
  std::vector<std::uint32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0U);
  if (random != nullptr) shuffle(order, *random);
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  FirstFitTree tree(capacity, tokens, lengths.size());
  std::vector<std::uint32_t> pack_of(order.size());
  std::size_t packs = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t length = lengths[order[i]];
    const std::size_t pack = tree.first(length);
    tree.take(pack, length);
    pack_of[i] = static_cast<std::uint32_t>(pack);
    packs = std::max(packs, pack + 1);
  }
  return gather_packs(order, pack_of, packs);
}

Plan plan_ffs(const PackingProblem& problem) {
  return plan_mixed(problem, pack_ffs);
}

}  // namespace equipoise
