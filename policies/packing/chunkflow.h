// ChunkFlow's Algorithm 1 makes chunks of one size. Sequence slices use its units, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "policies/parameter.h"
#include "policies/plan.h"
#include "policies/policy.h"

namespace equipoise {

struct ChunkflowOptions {
  std::int64_t chunk_size = 8192;
};
inline constexpr PackParameter kChunkflow[] = {or_auto(parameter::integer<&ChunkflowOptions::chunk_size>(
                                                   "chunk_size", 1, kLongestSize,
                                                   "tokens of a chunk; auto: the fastest that fits of 1/16, "
                                                   "1/8 .. 1 window; 8K by default, auto in a study "
                                                   "whose row has no keep either")),
                                               kKeep, kStrictKeep};

std::int64_t chunk_tokens(const PackOptions& options);  // chunk_size

// What is tried where they are auto: windows cut into 16, 8 .. 1 chunks, and up to all chunks of the longest
// document kept. What is not kept is computed again, so that more is never slower.
std::vector<std::int64_t> tried_chunk_sizes(const PackOptions& options, std::int64_t longest);
std::vector<std::int64_t> tried_keeps(const PackOptions& options, std::int64_t longest);
inline constexpr TriedSize kTriedOfChunkflow[] = {{"chunk_size", tried_chunk_sizes},
                                                  {"keep", tried_keeps, true}};

Plan plan_chunkflow(const PackingProblem& problem);

// A unit that goes to one lane: a standalone micro-batch, or the dependent chunks of one document.
struct Unit {
  std::vector<MicroBatch> chunks;
  double weight = 0;  // tokens or work
};

// Packs documents of at most `capacity` tokens into the fewest micro-batches of `capacity` tokens into which
// LPT fits (Algorithm 1), ordered by their lowest slice. Weights are tokens.
std::vector<Unit> standalone_units(std::span<const Slice> slices, std::int64_t capacity);

// Cuts a document into chunks, each of which attends to all chunks before it. Chunk i ends at token ends[i]
// of the slice.
Unit dependent_unit(const Slice& slice, std::span<const std::int64_t> ends);

// Distributes units over lanes, heaviest first to the least loaded; inside a lane they keep their order.
// Where lanes wait for each other, the first `in_rows` units go to them in rows, with one unit of equally
// many chunks for each lane.
Step step_of_units(std::vector<Unit>&& units, const PackOptions& options, std::size_t in_rows = 0);

}  // namespace equipoise
