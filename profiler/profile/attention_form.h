// How long one fused attention kernel takes, as a function of tiles, blocks and bytes.
//
// A fused attention kernel cuts every document's queries into tiles of 128 rows; one SM walks a tile over the
// blocks of 64 keys that some row of it can see. Its time is that of the work spread over all SMs, but never
// less than that of its longest tile (beside the share of it that is in the mean anyway); the two are joined
// by a p-norm, which also stands for the last, partly filled wave. Loads and stores of one tile run under the
// products of others, so the time of the bytes joins that of the work by a 2-norm: neither their sum (a call
// over short sequences would pay both in full) nor the larger (near the ridge both are felt):
//   compute = ((sum of tile times / SMs)^p + (longest tile * (1 - 1 / SMs))^p)^(1/p)
//   time = launch + (compute^2 + (bytes / bandwidth)^2)^(1/2)
//   tile time = tile + (blocks + diagonal, if the tile is cut by the mask) * block
//   a tile with missing rows saves `row_share` of their part of its blocks (none on a GPU, most on a CPU)
//   tile = tile_us + tile_us_per_128 * d/128;   block likewise (per 128 keys): softmax does not grow with the
//   head dim d; above d = 128 kernels use smaller tiles, which block_us_per_128_above makes up for
// What follows from it without more ado: a step that is flat below 128 queries, the inefficiency of short
// queries over long keys (a whole tile for few rows), the causal half with its diagonal of whole blocks,
// documents that share a call, heads that fill or do not fill the SMs.
// Cost: O(1) a document.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "profiler/profile/attention_work.h"
#include "profiler/profile/cost_models.h"

namespace equipoise {

struct AttentionParameters {
  double launch_us = 0;
  double tile_us = 0;
  double tile_us_per_128 = 0;
  double block_us = 0;
  double block_us_per_128 = 0;
  double block_us_per_128_above = 0;  // per 128 of head dim beyond 128
  double row_share = 0;  // of a block's time that follows the rows really there; 0: whole tiles are computed
  double diagonal_blocks = 0;  // extra work of a masked tile, in blocks
  double imbalance_power = 2;  // p
  double memory_GBps = 1;
  // Bytes of a key-value row beside those of a query row: 1 forward; less backward, where every query row is
  // also accumulated in fp32 (dQ) and read again by the passes before and after the main one.
  double key_share = 1;
  // The least that the published benchmark could show of a call, because its host took so long to issue one.
  // No part of the kernel: attention_seconds leaves it out, observed_attention_seconds has it.
  double host_us = 0;
};

double attention_seconds(const AttentionParameters& fit, const AttentionHeads& heads, double sms,
                         const AttentionWork& work);
// The work spread over all SMs is in every call's time, and every visible pair lies in a block: seconds of a
// query (its share of a tile, masked) and of a visible pair (its share of a block) that no call can beat.
struct LeastAttention {
  double per_query = 0, per_pair = 0;
};
LeastAttention least_attention_seconds(const AttentionParameters& fit, const AttentionHeads& heads,
                                       double sms);
double observed_attention_seconds(const AttentionParameters& fit, const AttentionHeads& heads, double sms,
                                  const AttentionWork& work);

// The table of one of a profile's attention kernels. Throws UserError with those that it has.
const nlohmann::json& attention_kernel(const Profile& profile, const std::string& name);
AttentionParameters attention_parameters(const nlohmann::json& table, const std::string& where);
// The table's "document_mask"; varlen where it has none.
DocumentMask document_mask(const nlohmann::json& table, const std::string& where);
nlohmann::json to_json(const AttentionParameters& fit);

}  // namespace equipoise
