#include "policies/policy_keys.h"

#include <algorithm>

#include "policies/base/names.h"
#include "policies/shared_parameters.h"

namespace equipoise {
namespace {

template <class Rows>
bool holds(const Rows& rows, std::string_view key) {
  return std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row.key == key; });
}

template <class Parameter, class Rows>
void append_new(const Rows& rows, std::vector<Parameter>& all) {
  for (const Parameter& row : rows)
    if (!holds(all, row.key)) all.push_back(row);
}

}  // namespace

std::span<const PackParameter> pack_parameters() {
  static const std::vector<PackParameter> kAll = [] {
    std::vector<PackParameter> all;
    for (const Policy& policy : packing_policies()) append_new(policy.parameters, all);
    append_new(kOfEveryPolicy, all);
    return all;
  }();
  return kAll;
}

std::span<const ShardParameter> shard_parameters() {
  static const std::vector<ShardParameter> kAll = [] {
    std::vector<ShardParameter> all;
    for (const ShardPolicy& rule : sharding_policies()) append_new(rule.parameters, all);
    return all;
  }();
  return kAll;
}

const PackParameter* pack_parameter(std::string_view key) {
  for (const PackParameter& parameter : pack_parameters())
    if (parameter.key == key) return &parameter;
  return nullptr;
}

bool has_key(const Policy& policy, std::string_view key) {
  return holds(policy.parameters, key) ||
         std::find(policy.study_keys.begin(), policy.study_keys.end(), key) != policy.study_keys.end();
}

bool has_key(const ShardPolicy& rule, std::string_view key) {
  return holds(rule.parameters, key) || (rule.places_documents && key == "cost");
}

bool is_policy_key(std::string_view key) {
  return !users_of_key(key).empty();
}

bool uses_key(const Policy& policy, std::string_view key) {
  return has_key(policy, key) || !is_policy_key(key);
}

bool uses_key(const ShardPolicy& rule, std::string_view key) {
  return has_key(rule, key) || !is_policy_key(key);
}

bool is_shard_key(std::string_view key) {
  return holds(shard_parameters(), key) && !holds(pack_parameters(), key);
}

std::vector<std::string_view> users_of_key(std::string_view key) {
  std::vector<std::string_view> names;
  for (const Policy& policy : packing_policies())
    if (has_key(policy, key)) names.push_back(policy.name);
  for (const ShardPolicy& rule : sharding_policies())
    if (has_key(rule, key)) names.push_back(rule.name);
  return names;
}

std::string help_of_key(std::string_view key, std::string_view help) {
  constexpr std::size_t kMostNamed = 7;
  const std::vector<std::string_view> users = users_of_key(key);
  if (users.empty() || users.size() > kMostNamed) return std::string(help);
  return joined(users) + ": " + std::string(help);
}

}  // namespace equipoise
