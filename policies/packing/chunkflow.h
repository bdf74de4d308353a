// ChunkFlow Algorithm 1: chunks of one size.
#pragma once

#include "policies/parameter.h"
#include "policies/policy.h"
#include "policies/shared_parameters.h"

namespace equipoise {

struct ChunkflowOptions {
  std::int64_t chunk_size = 8192;
};
inline constexpr PackParameter kChunkflow[] = {
    parameter::integer<&ChunkflowOptions::chunk_size>("chunk_size", 1, kLongestSize, "tokens of a chunk"),
    kKeep, kStrictKeep};

std::int64_t chunk_tokens(const PackOptions& options);  // chunk_size

Plan plan_chunkflow(const PackingProblem& problem);

}  // namespace equipoise
