#include "sim/study/read/json_object.h"

#include <algorithm>

#include "traces/json_text.h"

namespace equipoise {

using nlohmann::json;

static std::string shown(double value) {
  const json node = value;
  return node.dump();
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
  const auto it = node_.find(std::string(key));
  const std::string found = it == node_.end() ? "nothing" : shown_json(*it);
  throw UserError(where_, ".", key, ": expected ", expected, ", found ", found);
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

void JsonObject::finish(std::string (*place_of)(std::string_view key)) const {
  std::vector<std::string_view> names;  // a key may have been asked for twice
  for (const std::string& name : known_)
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  for (const auto& [key, value] : node_.items()) {
    if (std::find(names.begin(), names.end(), key) != names.end()) continue;
    if (const std::string place = place_of != nullptr ? place_of(key) : ""; !place.empty())
      throw UserError(where_, ": unknown key \"", key, "\" here, expected in ", place);
    const std::string near = did_you_mean(key, names);
    throw UserError(where_, ": unknown key \"", key, "\"",
                    (near.empty() ? ", allowed: " + joined(names) : near));
  }
}

}  // namespace equipoise
