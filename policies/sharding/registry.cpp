#include <algorithm>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/names.h"
#include "policies/sharding/rules.h"

namespace equipoise {
namespace {

using Key = std::string_view;
constexpr Key kPerSequenceKeys[] = {"pad"};
constexpr Key kPerDocumentKeys[] = {"remainder"};
constexpr Key kAdaptiveKeys[] = {"remainder", "tile"};
constexpr Key kSimulatedKeys[] = {"pad", "remainder"};
constexpr Key kDacpKeys[] = {"bucket_size", "rollback", "cost", "remainder"};
constexpr Key kBlockKeys[] = {"block"};

constexpr ShardPolicy kPolicies[] = {
    {"per-sequence", "Megatron-LM, Llama 3", "2c equal chunks of the packed sequence, paired zig-zag", false,
     shard_per_sequence, kPerSequenceKeys},
    {"per-document", "WLB-LLM 5.2", "Every document cut into 2c chunks, paired zig-zag", false,
     shard_per_document, kPerDocumentKeys},
    {"contiguous", "before zig-zag", "One run of the packed sequence a rank", false, shard_contiguous, {}},
    {"striped", "Striped Attention", "Token t to rank t mod c", false, shard_striped, {}},
    {"adaptive", "WLB-LLM 5.3", "Per micro-batch the predicted faster of per-sequence and per-document",
     false, shard_adaptive, kAdaptiveKeys},
    {"static-best", "WLB-LLM 6 (Fixed-4D)", "The faster of per-sequence and per-document for the whole run",
     true, shard_adaptive, kSimulatedKeys},
    {"optimal", "WLB-LLM 5.3", "Both simulated, the faster taken: the bound for adaptive", true,
     shard_adaptive, kSimulatedKeys},
    {"dacp", "Skrull Algorithm 1", "Short documents whole on one rank, long ones distributed", false,
     shard_dacp, kDacpKeys},
    {"heap-dispatch", "MagiAttention",
     "Query blocks, largest area first, to the least loaded rank with a slot", false, shard_heap_dispatch,
     kBlockKeys},
    {"snake", "PTRR", "Query blocks sorted by area, dealt in snake order", false, shard_snake, kBlockKeys},
};

}  // namespace

std::span<const ShardPolicy> sharding_policies() {
  return kPolicies;
}

const ShardPolicy& sharding_policy(std::string_view name) {
  return find_named(kPolicies, name, "sharding");
}

}  // namespace equipoise
