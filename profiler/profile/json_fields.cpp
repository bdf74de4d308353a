#include "profiler/profile/json_fields.h"

#include <algorithm>
#include <cmath>

#include "policies/base/text.h"

namespace equipoise {

static std::string shown(const nlohmann::json& node, const std::string& key) {
  const auto it = node.find(key);
  if (it == node.end()) return "nothing";
  return shown_json(*it);
}

[[noreturn]] static void refuse(const nlohmann::json& node, const std::string& key, const std::string& where,
                                const std::string& expected) {
  throw UserError(where, ".", key, ": expected ", expected, ", found ", shown(node, key));
}

const nlohmann::json& object_field(const nlohmann::json& node, const std::string& key,
                                   const std::string& where) {
  const auto it = node.find(key);
  if (it == node.end() || !it->is_object()) refuse(node, key, where, "an object");
  return *it;
}

double number_field(const nlohmann::json& node, const std::string& key, const std::string& where) {
  const auto it = node.find(key);
  if (it == node.end() || !it->is_number() || !std::isfinite(it->get<double>()))
    refuse(node, key, where, "a number");
  return it->get<double>();
}

double positive_field(const nlohmann::json& node, const std::string& key, const std::string& where) {
  const double value = number_field(node, key, where);
  if (!(value > 0)) refuse(node, key, where, "a number > 0");
  return value;
}

double non_negative_field(const nlohmann::json& node, const std::string& key, const std::string& where) {
  const double value = number_field(node, key, where);
  if (!(value >= 0)) refuse(node, key, where, "a number >= 0");
  return value;
}

std::int64_t count_field(const nlohmann::json& node, const std::string& key, const std::string& where,
                         int least) {
  constexpr double kMost = 2147483647;
  const double value = least > 0 ? positive_field(node, key, where) : non_negative_field(node, key, where);
  if (value > kMost || value != std::floor(value))
    throw UserError(where, ".", key, ": expected a whole number from ", least, " to 2^31 - 1, found ",
                    short_number(value));
  return static_cast<std::int64_t>(value);
}

const nlohmann::json& list_field(const nlohmann::json& node, const std::string& key,
                                 const std::string& where) {
  const auto it = node.find(key);
  if (it == node.end() || !it->is_array()) refuse(node, key, where, "a list");
  return *it;
}

std::string text_field(const nlohmann::json& node, const std::string& key, const std::string& where) {
  const auto it = node.find(key);
  if (it == node.end() || !it->is_string() || it->get<std::string>().empty())
    refuse(node, key, where, "a text");
  return it->get<std::string>();
}

std::size_t name_field(const nlohmann::json& node, const std::string& key,
                       std::span<const std::string_view> names, const std::string& where,
                       const std::string& expected) {
  const std::string found = text_field(node, key, where);
  const auto it = std::find(names.begin(), names.end(), found);
  if (it == names.end()) throw UserError(where, ".", key, ": expected ", expected, ", found '", found, "'");
  return static_cast<std::size_t>(it - names.begin());
}

std::vector<std::string> keys_of(const nlohmann::json& node) {
  std::vector<std::string> keys;
  for (const auto& item : node.items()) keys.push_back(item.key());
  return keys;
}

void refuse_unknown_keys(const nlohmann::json& node, const std::vector<std::string_view>& known,
                         const std::string& where) {
  for (const auto& item : node.items()) {
    if (std::find(known.begin(), known.end(), item.key()) != known.end()) continue;
    const std::vector<std::string> names(known.begin(), known.end());
    const std::string near = did_you_mean(item.key(), names);
    throw UserError(where, ": unknown key \"", item.key(), "\"",
                    (near.empty() ? ", allowed: " + joined(names) : near));
  }
}

std::string short_number(double value) {
  return formatted("%.6g", value);
}

}  // namespace equipoise
