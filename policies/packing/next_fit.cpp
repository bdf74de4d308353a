// Packers that fill one pack after the other: next-fit in shuffled or in data order, and what papers make of
// it.
#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/packing/pack_length.h"
#include "policies/packing/packing.h"
#include "policies/steps.h"

namespace equipoise {
namespace {

struct Pooled {
  std::uint32_t document;
  std::uint32_t tokens;
};

}  // namespace

std::vector<std::uint32_t> shuffled_order(std::size_t count, Shuffler random) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  if (random != nullptr) shuffle(order, *random);
  return order;
}

// Random packing (the "random" row of HBP's tables): shuffle, then next-fit to the pack length. O(n).
Packs pack_random(std::span<const std::int64_t> lengths, std::int64_t capacity, Shuffler random) {
  Packs packs;
  packs.item = shuffled_order(lengths.size(), random);
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

// LongAlign's packing: next-fit in data order. LongAlign also weights the loss of each packed sequence, which
// does not change what a step computes. O(n).
Packs pack_next_fit(std::span<const std::int64_t> lengths, std::int64_t capacity) {
  return pack_random(lengths, capacity, nullptr);
}

// Iterative sampling and filtering (HBP's default packer, after Llama-3's and others' data pipelines):
// `rounds` times, shuffle the pool, next-fit it in pool order, keep the packs that reach the threshold (pack
// length - 128) and return the others to the pool in order. The last round keeps all. O(rounds * n), in
// place: the pool is one array that shrinks.
std::int64_t isf_threshold(std::int64_t given, std::int64_t capacity) {
  return given >= 0 ? given : capacity - 128;
}

Packs pack_isf(std::span<const std::int64_t> lengths, std::int64_t capacity, int rounds,
               std::int64_t threshold, Shuffler random) {
  if (rounds < 1) throw UserError("rounds: expected a number >= 1, found " + std::to_string(rounds));
  std::vector<Pooled> pool(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    pool[i] = {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(lengths[i])};
  }
  Packs packs;
  packs.item.reserve(lengths.size());
  for (int round = 1; !pool.empty(); ++round) {
    const bool last = round >= rounds;
    if (random != nullptr) shuffle(pool, *random);
    std::size_t returned = 0;
    for (std::size_t begin = 0; begin < pool.size();) {
      std::int64_t tokens = 0;
      std::size_t end = begin;
      while (end < pool.size() && tokens + pool[end].tokens <= capacity) tokens += pool[end++].tokens;
      if (last || tokens >= threshold) {
        for (std::size_t i = begin; i < end; ++i) packs.item.push_back(pool[i].document);
        packs.close();
      } else {
        for (std::size_t i = begin; i < end; ++i) pool[returned++] = pool[i];
      }
      begin = end;
    }
    pool.resize(returned);
  }
  return packs;
}

Plan plan_isf(const PackingProblem& problem) {
  const SliceList set = whole_set(problem);
  SplitMix64 random(problem.options.seed);
  const std::int64_t capacity = pack_length(problem.options);
  const IsfOptions& isf = problem.options.of<IsfOptions>();
  const Packs packs = pack_isf(set.lengths, capacity, isf.rounds, isf_threshold(isf.threshold, capacity),
                               problem.options.shuffle ? &random : nullptr);
  return plan_of_mixed_packs(set.slices, packs, problem.options, random);
}

// DP-balanced packing (Megatron-Core's sequence-packing scheduler): next-fit in arrival order, then the
// number of packs is raised to a multiple of the lanes, so that every data-parallel rank gets as many. The
// last pack gives up its last document, again and again while it has more than one, then the pack before it;
// each becomes a pack of its own at the end. O(n).
//
// Megatron packs one global batch at a time and fails when there is nothing left to move; here the set is
// packed at once, as by the other packers of one length, and the last step is left uneven then.
Packs pack_dp_balanced(std::span<const std::int64_t> lengths, std::int64_t capacity, std::size_t lanes) {
  const Packs packed = pack_next_fit(lengths, capacity);
  std::size_t wanted = (lanes - packed.size() % lanes) % lanes;
  std::vector<std::size_t> kept(packed.size());
  for (std::size_t p = 0; p < packed.size(); ++p) kept[p] = packed.of(p).size();
  std::vector<std::uint32_t> moved;
  for (std::size_t p = packed.size(); p-- > 0 && wanted > 0;) {
    for (; wanted > 0 && kept[p] > 1; --wanted) moved.push_back(packed.of(p)[--kept[p]]);
  }
  Packs packs;
  packs.item.reserve(lengths.size());
  for (std::size_t p = 0; p < packed.size(); ++p) {
    const std::span<const std::uint32_t> items = packed.of(p).first(kept[p]);
    packs.item.insert(packs.item.end(), items.begin(), items.end());
    packs.close();
  }
  for (const std::uint32_t item : moved) {
    packs.item.push_back(item);
    packs.close();
  }
  return packs;
}

}  // namespace equipoise
