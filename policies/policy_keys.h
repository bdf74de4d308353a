// Questions to the rows of all policies and rules: which keys there are, and who uses one.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policies/policy.h"
#include "policies/sharding/sharding.h"

namespace equipoise {

// Every key that a study's entry can say to some packing policy, each once, in the order of the registry;
// those of every policy last.
std::span<const PackParameter> pack_parameters();
// The same of sharding rules.
std::span<const ShardParameter> shard_parameters();

// The row of a key; null if no policy has it.
const PackParameter* pack_parameter(std::string_view key);

// Whether `key` stands in some policy's or rule's row. Keys in none (order, verify, schedule ...) concern
// all.
bool is_policy_key(std::string_view key);

// Whether `key` means something to this policy, or to this sharding rule. True for keys that concern all.
bool uses_key(const Policy& policy, std::string_view key);
bool uses_key(const ShardPolicy& rule, std::string_view key);
// Whether it stands in the own row.
bool has_key(const Policy& policy, std::string_view key);
bool has_key(const ShardPolicy& rule, std::string_view key);

// Keys of rules only (remainder, pad, block ...).
bool is_shard_key(std::string_view key);

// The help of a key as users see it: who uses it, where few do, and what it says.
std::string help_of_key(std::string_view key, std::string_view help);

// Names of the packing policies and sharding rules whose rows have the key, in the registry's order.
std::vector<std::string_view> users_of_key(std::string_view key);

}  // namespace equipoise
