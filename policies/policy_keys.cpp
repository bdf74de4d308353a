#include "policies/policy_keys.h"

#include <algorithm>
#include <span>

namespace equipoise {
namespace {

bool holds(std::span<const std::string_view> keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

template <class Rows>
bool in_a_row(const Rows& rows, std::string_view key) {
  return std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return holds(row.keys, key); });
}

}  // namespace

bool is_policy_key(std::string_view key) {
  return in_a_row(packing_policies(), key) || in_a_row(sharding_policies(), key);
}

bool uses_key(const Policy& policy, std::string_view key) {
  return holds(policy.keys, key) || !is_policy_key(key);
}

bool uses_key(const ShardPolicy& rule, std::string_view key) {
  return holds(rule.keys, key) || !is_policy_key(key);
}

bool is_shard_key(std::string_view key) {
  return in_a_row(sharding_policies(), key) && !in_a_row(packing_policies(), key);
}

}  // namespace equipoise
