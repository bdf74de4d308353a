// Which keys a policy uses: what a study's entry or an option can say without any effect is told to the user.
// The keys stand in the policies' own rows (Policy::keys, ShardPolicy::keys).
#pragma once

#include <string_view>

#include "policies/policy.h"
#include "policies/sharding/sharding.h"

namespace equipoise {

// Whether `key` stands in some policy's or rule's row. Keys in none (order, verify, schedule ...) concern
// all.
bool is_policy_key(std::string_view key);

// Whether `key` means something to this policy, or to this sharding rule. True for keys that concern all.
bool uses_key(const Policy& policy, std::string_view key);
bool uses_key(const ShardPolicy& rule, std::string_view key);

// Keys of rules only (remainder, pad, block ...).
bool is_shard_key(std::string_view key);

}  // namespace equipoise
