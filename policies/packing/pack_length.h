// The packers that fill packs of one length, as bare functions on lengths (each <= capacity), for use alone,
// inside hbp, and by whoever links this library from a data loader.
#pragma once

#include <cstdint>
#include <span>

#include "policies/base/random.h"
#include "policies/packs.h"

namespace equipoise {

// A stream to shuffle from, or none: --no-shuffle keeps data order.
using Shuffler = SplitMix64*;

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

// isf's threshold: as given, or (-1) pack length - 128.
std::int64_t isf_threshold(std::int64_t given, std::int64_t capacity);

}  // namespace equipoise
