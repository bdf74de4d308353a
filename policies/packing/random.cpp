// Random packing (the "random" row of HBP's tables): shuffle, then next-fit to the pack length. O(n).
#include <cstddef>
#include <numeric>
#include <vector>

#include "policies/packing/pack_length.h"
#include "policies/packing/packing.h"
#include "policies/step_shape.h"

namespace equipoise {

Packs pack_random(std::span<const std::int64_t> lengths, std::int64_t capacity, Shuffler random) {
  Packs packs;
  packs.item.resize(lengths.size());
  std::iota(packs.item.begin(), packs.item.end(), 0U);
  if (random != nullptr) shuffle(packs.item, *random);
  std::int64_t room = capacity;
  for (std::size_t i = 0; i < packs.item.size(); ++i) {
    const std::int64_t tokens = lengths[packs.item[i]];
    if (tokens > room) {
      packs.begin.push_back(static_cast<std::uint32_t>(i));
      room = capacity;
    }
    room -= tokens;
  }
  if (!packs.item.empty()) packs.close();
  return packs;
}

Plan plan_random(const PackingProblem& problem) {
  const SliceList set = whole_set(problem);
  SplitMix64 random(problem.options.seed);
  const Packs packs =
      pack_random(set.lengths, pack_length(problem.options), problem.options.shuffle ? &random : nullptr);
  return plan_of_packs(set.slices, packs, problem.options);
}

}  // namespace equipoise
