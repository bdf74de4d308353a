// Iterative sampling and filtering (HBP's default packer, after Llama-3's and others' data pipelines):
// `rounds` times, shuffle the pool, next-fit it in pool order, keep the packs that reach the threshold (pack
// length - 128) and return the others to the pool in order. The last round keeps all. O(rounds * n), in
// place: the pool is one array that shrinks.
#include "policies/packing/isf.h"

#include <cstddef>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/packing/pack_length.h"
#include "policies/step_shape.h"

namespace equipoise {
namespace {

struct Pooled {
  std::uint32_t document;
  std::uint32_t tokens;
};

}  // namespace

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
  const IsfOptions& isf = problem.options.of<IsfOptions>();
  const auto pack = [&](const std::vector<std::int64_t>& lengths, std::int64_t capacity, Shuffler random) {
    return pack_isf(lengths, capacity, isf.rounds, isf_threshold(isf.threshold, capacity), random);
  };
  return plan_mixed(problem, pack);
}

}  // namespace equipoise
