// The packers of one pack length as functions on lengths (each <= capacity). They run alone, inside hbp, and
// in data loaders that link this library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "policies/base/random.h"
#include "policies/parameter.h"
#include "policies/policy.h"
#include "policies/steps.h"

namespace equipoise {

// The stream for shuffles; none under --no-shuffle, which keeps data order.
using Shuffler = SplitMix64*;

// The indices 0 .. count - 1, shuffled where there is a stream.
std::vector<std::uint32_t> shuffled_order(std::size_t count, Shuffler random);

Packs pack_random(std::span<const std::int64_t> lengths, std::int64_t capacity, Shuffler random);
Packs pack_next_fit(std::span<const std::int64_t> lengths, std::int64_t capacity);
Packs pack_ffd(std::span<const std::int64_t> lengths, std::int64_t capacity);
Packs pack_ffs(std::span<const std::int64_t> lengths, std::int64_t capacity, Shuffler random);
Packs pack_bfd(std::span<const std::int64_t> lengths, std::int64_t capacity);
Packs pack_bfs(std::span<const std::int64_t> lengths, std::int64_t capacity, Shuffler random);
Packs pack_spfhp(std::span<const std::int64_t> lengths, std::int64_t capacity);
Packs pack_isf(std::span<const std::int64_t> lengths, std::int64_t capacity, int rounds,
               std::int64_t threshold, Shuffler random);
Packs pack_multipack(std::span<const std::int64_t> lengths, std::int64_t capacity, std::size_t lanes);
Packs pack_dp_balanced(std::span<const std::int64_t> lengths, std::int64_t capacity, std::size_t lanes);

// The threshold of isf: as given, or pack length - 128 for -1.
std::int64_t isf_threshold(std::int64_t given, std::int64_t capacity);

// The packers as policies that pack the whole set. The third argument of a packer, if it has one, is the
// stream of its draws or the number of lanes.
template <auto kPacker>
Packs packs_of_set(const SliceList& set, const PackOptions& options, SplitMix64& random) {
  const std::span<const std::int64_t> lengths = set.lengths;
  const std::int64_t capacity = pack_length(options);
  if constexpr (std::is_invocable_v<decltype(kPacker), decltype(lengths), std::int64_t>)
    return kPacker(lengths, capacity);
  else if constexpr (std::is_invocable_v<decltype(kPacker), decltype(lengths), std::int64_t, Shuffler>)
    return kPacker(lengths, capacity, options.shuffle ? &random : nullptr);
  else
    return kPacker(lengths, capacity, empty_step(options).lanes.size());
}

// Packs run in the order of their creation.
template <auto kPacker>
Plan plan_in_order(const PackingProblem& problem) {
  const SliceList set = whole_set(problem);
  SplitMix64 random(problem.options.seed);
  return plan_of_packs(set.slices, packs_of_set<kPacker>(set, problem.options, random), problem.options);
}

// Packs are shuffled first (plan_of_mixed_packs).
template <auto kPacker>
Plan plan_mixed(const PackingProblem& problem) {
  const SliceList set = whole_set(problem);
  SplitMix64 random(problem.options.seed);
  const Packs packs = packs_of_set<kPacker>(set, problem.options, random);
  return plan_of_mixed_packs(set.slices, packs, problem.options, random);
}

struct IsfOptions {
  int rounds = 10;
  std::int64_t threshold = -1;  // fewest tokens of a pack that is kept; -1: pack length - 128
};
inline constexpr PackParameter kIsf[] = {
    parameter::integer<&IsfOptions::rounds>("rounds", 1, 1000, "rounds"),
    parameter::integer<&IsfOptions::threshold>(
        "threshold", 0, kLongestSize, "least tokens of a pack that is kept; pack length - 128 by default")};

Plan plan_isf(const PackingProblem& problem);

}  // namespace equipoise
