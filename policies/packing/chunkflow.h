// ChunkFlow Algorithm 1: chunks of one size.
#pragma once

#include "policies/parameter.h"
#include "policies/policy.h"

namespace equipoise {

struct ChunkflowOptions {
  std::int64_t chunk_size = 8192;
  int keep = 1;              // K; the schedule's, as is the next
  bool strict_keep = false;  // never hold K + 1 chunks of a group
};
inline constexpr PackParameter kChunkflow[] = {
    parameter::integer<&ChunkflowOptions::chunk_size>("chunk_size", 1, kLongestSize, "tokens of a chunk"),
    parameter::integer<&ChunkflowOptions::keep>("keep", 1, 1 << 20,
                                                "K, chunks of a dependent group that keep activations"),
    parameter::flag<&ChunkflowOptions::strict_keep>("strict_keep",
                                                    "state-aware-1f1b never holds K + 1 chunks of a group")};

std::int64_t chunk_tokens(const PackOptions& options);  // chunk_size

Plan plan_chunkflow(const PackingProblem& problem);

}  // namespace equipoise
