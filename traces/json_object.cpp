#include "traces/json_object.h"

#include <algorithm>
#include <cmath>

namespace equipoise {

using nlohmann::json;

static std::string shown(double value) {
  return json(value).dump();
}

void refuse_field(const json& node, std::string_view key, const std::string& where,
                  const std::string& expected) {
  const auto it = node.find(std::string(key));
  throw UserError(where, ".", key, ": expected ", expected, ", found ",
                  it == node.end() ? "nothing" : shown_json(*it));
}

bool parse_size(const json& node, std::int64_t& value) {
  if (node.is_string()) return parse_size(std::string_view(node.get_ref<const std::string&>()), value);
  if (node.is_number_unsigned() && node.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
    return false;
  if (!node.is_number_integer()) return false;
  value = node.get<std::int64_t>();
  return true;
}

JsonObject::JsonObject(const json& node, std::string where) : node_(node), where_(std::move(where)) {
  if (!node.is_object()) throw UserError(where_, ": expected an object, found ", shown_json(node));
}

const json* JsonObject::find(std::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.emplace_back(key);
  const auto it = node_.find(std::string(key));
  return it == node_.end() ? nullptr : &*it;
}

void JsonObject::fail(std::string_view key, const std::string& expected) const {
  refuse_field(node_, key, where_, expected);
}

std::string JsonObject::text(std::string_view key, std::string_view fallback) {
  const json* node = find(key);
  if (node == nullptr) return std::string(fallback);
  if (!node->is_string()) fail(key, "a string");
  return node->get<std::string>();
}

bool JsonObject::flag(std::string_view key, bool fallback) {
  const json* node = find(key);
  if (node == nullptr) return fallback;
  if (!node->is_boolean()) fail(key, "true or false");
  return node->get<bool>();
}

std::int64_t JsonObject::integer(std::string_view key, std::int64_t fallback, std::int64_t least,
                                 std::int64_t most, std::span<const std::string_view> words) {
  const json* node = find(key);
  if (node == nullptr) return fallback;
  if (node->is_string())
    for (std::size_t i = 0; i < words.size(); ++i)
      if (node->get_ref<const std::string&>() == words[i]) return -static_cast<std::int64_t>(i);
  std::int64_t value = 0;
  const bool read = parse_size(*node, value);
  if (!read || value < least || value > most)
    fail(key, "an integer in " + std::to_string(least) + ".." + std::to_string(most) +
                  (!read && node->is_string() ? ", as a number or with K or M (\"32K\")" : "") +
                  (words.empty() ? "" : ", or " + joined(words)));
  return value;
}

double JsonObject::number(std::string_view key, double fallback, double least, double most) {
  const json* node = find(key);
  if (node == nullptr) return fallback;
  if (!node->is_number()) fail(key, "a number");
  const double value = node->get<double>();
  if (!(value >= least && value <= most)) fail(key, "a number in " + shown(least) + ".." + shown(most));
  return value;
}

std::size_t JsonObject::choice(std::string_view key, std::size_t fallback,
                               std::span<const std::string_view> allowed) {
  const json* node = find(key);
  if (node == nullptr) return fallback;
  if (node->is_string())
    for (std::size_t i = 0; i < allowed.size(); ++i)
      if (node->get_ref<const std::string&>() == allowed[i]) return i;
  fail(key, "one of " + joined(allowed));
}

std::vector<std::int64_t> JsonObject::integers(std::string_view key, std::int64_t least, std::int64_t most) {
  const json* node = find(key);
  std::vector<std::int64_t> values;
  if (node == nullptr) return values;
  const std::string expected = concatenated("a list of integers in ", least, "..", most);
  if (!node->is_array()) fail(key, expected);
  for (const json& item : *node) {
    std::int64_t value = 0;
    if (!parse_size(item, value) || value < least || value > most) fail(key, expected);
    values.push_back(value);
  }
  return values;
}

static void refuse_unknown(const json& node, const std::vector<std::string_view>& known,
                           const std::string& where, std::string (*place_of)(std::string_view key)) {
  for (const auto& [key, value] : node.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    if (const std::string place = place_of != nullptr ? place_of(key) : ""; !place.empty())
      throw UserError(where, ": unknown key \"", key, "\" here, expected in ", place);
    const std::string near = did_you_mean(key, known);
    throw UserError(where, ": unknown key \"", key, "\"",
                    (near.empty() ? ", allowed: " + joined(known) : near));
  }
}

void JsonObject::finish(std::string (*place_of)(std::string_view key)) const {
  refuse_unknown(node_, {known_.begin(), known_.end()}, where_, place_of);
}

std::string short_number(double value) {
  return formatted("%.6g", value);
}

const json& object_field(const json& node, const std::string& key, const std::string& where) {
  const auto it = node.find(key);
  if (it == node.end() || !it->is_object()) refuse_field(node, key, where, "an object");
  return *it;
}

double number_field(const json& node, const std::string& key, const std::string& where) {
  const auto it = node.find(key);
  if (it == node.end() || !it->is_number() || !std::isfinite(it->get<double>()))
    refuse_field(node, key, where, "a number");
  return it->get<double>();
}

bool flag_field(const json& node, const std::string& key, const std::string& where) {
  const auto it = node.find(key);
  if (it == node.end() || !it->is_boolean()) refuse_field(node, key, where, "true or false");
  return it->get<bool>();
}

double positive_field(const json& node, const std::string& key, const std::string& where) {
  const double value = number_field(node, key, where);
  if (!(value > 0)) refuse_field(node, key, where, "a number > 0");
  return value;
}

double non_negative_field(const json& node, const std::string& key, const std::string& where) {
  const double value = number_field(node, key, where);
  if (!(value >= 0)) refuse_field(node, key, where, "a number >= 0");
  return value;
}

std::int64_t count_field(const json& node, const std::string& key, const std::string& where, int least) {
  constexpr double kMost = 2147483647;
  const double value = least > 0 ? positive_field(node, key, where) : non_negative_field(node, key, where);
  if (value > kMost || value != std::floor(value))
    refuse_field(node, key, where, concatenated("a whole number from ", least, " to 2^31 - 1"));
  return static_cast<std::int64_t>(value);
}

const json& list_field(const json& node, const std::string& key, const std::string& where) {
  const auto it = node.find(key);
  if (it == node.end() || !it->is_array()) refuse_field(node, key, where, "a list");
  return *it;
}

std::string text_field(const json& node, const std::string& key, const std::string& where) {
  const auto it = node.find(key);
  if (it == node.end() || !it->is_string() || it->get<std::string>().empty())
    refuse_field(node, key, where, "a text");
  return it->get<std::string>();
}

std::size_t name_field(const json& node, const std::string& key, std::span<const std::string_view> names,
                       const std::string& where, const std::string& expected) {
  const std::string found = text_field(node, key, where);
  const auto it = std::find(names.begin(), names.end(), found);
  if (it == names.end()) throw UserError(where, ".", key, ": expected ", expected, ", found '", found, "'");
  return static_cast<std::size_t>(it - names.begin());
}

std::vector<std::string> keys_of(const json& node) {
  std::vector<std::string> keys;
  for (const auto& item : node.items()) keys.push_back(item.key());
  return keys;
}

void refuse_unknown_keys(const json& node, const std::vector<std::string_view>& known,
                         const std::string& where) {
  refuse_unknown(node, known, where, nullptr);
}

}  // namespace equipoise
