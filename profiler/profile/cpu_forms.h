// Forms for a CPU core. One thread does all work in sequence, so times add up, without waves of tiles and
// with hardly any launch.
//
// "blocked-loops" is attention: tiles of 64 queries take the keys they see in blocks of 64, the last block
// cut to whole vectors of 16. Per head, a computed query-key pair costs a part that grows with the head dim
// (the products) and one that does not (the softmax). Each row of each block costs a constant (reductions),
// and each query and key a time per element (load, rescale, transpose; memory). "packed-panels" is GEMM:
// multiply-adds, and a time per element of each matrix (packing, memory). Each GemmRole has its own rates,
// since its operands have another layout. What an element costs depends on where it lies. While all tensors
// of a call fit in the core's cache, they stay there from call to call; a larger call fetches them again.
// With w = the bytes of all its tensors, it pays the `_far` rates for the share (w / cache)^4 / (1 + (w /
// cache)^4), a smooth step at `cache_MB`. Cost: O(1) per document and per product.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "profiler/profile/cost_models.h"

namespace equipoise {

inline constexpr const char* kBlockedLoops = "blocked-loops";
inline constexpr const char* kPackedPanels = "packed-panels";

// Sums over the documents of one call, for one head.
struct BlockedAttentionWork {
  std::int64_t pairs = 0;       // computed, masked ones included
  std::int64_t row_blocks = 0;  // rows of all tiles times the blocks they take
  std::int64_t queries = 0;
  std::int64_t keys = 0;

  // With prefix = keys - queries, tile i of 64 rows ends at key prefix + 64 (i + 1), and the last one at
  // `keys`.
  void add_causal(std::int64_t document_queries, std::int64_t document_keys) {
    constexpr std::int64_t kTile = 64;
    constexpr std::int64_t kLanes = 16;
    const std::int64_t prefix = document_keys - document_queries;
    const std::int64_t whole = document_queries / kTile;
    const std::int64_t rest = document_queries % kTile;
    const std::int64_t steps = whole * (whole + 1) / 2;
    pairs += kTile * (whole * ((prefix + kLanes - 1) / kLanes * kLanes) + kTile * steps);
    pairs += rest * ((document_keys + kLanes - 1) / kLanes * kLanes);
    row_blocks += kTile * (whole * ((prefix + kTile - 1) / kTile) + steps);
    row_blocks += rest * ((document_keys + kTile - 1) / kTile);
    queries += document_queries;
    keys += document_keys;
  }
};

struct BlockedAttentionParameters {
  double call_us = 0;
  double pair_ns_per_128 = 0;  // per 128 of head dim
  double pair_ns = 0;
  double row_block_ns = 0;
  double query_ns_per_128 = 0;
  double key_ns_per_128 = 0;
  double cache_MB = 1;  // for Q, K, V and the output, and for their gradients in the backward pass
  double query_far_ns_per_128 = 0;
  double key_far_ns_per_128 = 0;
};

double attention_seconds(const BlockedAttentionParameters& fit, const AttentionHeads& heads,
                         const BlockedAttentionWork& work);
BlockedAttentionParameters blocked_attention_parameters(const nlohmann::json& table,
                                                        const std::string& where);
nlohmann::json to_json(const BlockedAttentionParameters& fit);

struct PanelGemmParameters {
  double call_us = 0;
  double gflops = 1;
  double left_ns = 0;     // per element of A
  double right_ns = 0;    // of B
  double product_ns = 0;  // of C
  double left_far_ns = 0;
  double right_far_ns = 0;
  double product_far_ns = 0;
  double cache_MB = 1;  // of A, B and C; one for all roles
};

double gemm_seconds(const PanelGemmParameters& fit, std::int64_t m, std::int64_t n, std::int64_t k);
// One set of rates for each GemmRole, in its order. A profile stores them under the roles' names.
using PanelGemmRates = std::array<PanelGemmParameters, kGemmRoleNames.size()>;
PanelGemmRates panel_gemm_rates(const nlohmann::json& table, const std::string& where);
nlohmann::json to_json(const PanelGemmRates& fit);

// Whether the table states this form.
bool has_form(const nlohmann::json& table, const char* form);

}  // namespace equipoise
