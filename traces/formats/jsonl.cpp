// One JSON object a line. The field is an integer (the length) or a flat array of token ids (its size is the
// length, so that such files need no conversion). A line may also be the bare integer or array. Without a
// name only fields that mean nothing else are taken: an "id" is a number, too.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "traces/formats/formats.h"
#include "traces/json_text.h"

namespace equipoise::formats {
namespace {

using nlohmann::json;

std::string keys_of(const json& object) {
  std::string out;
  for (const auto& [key, value] : object.items()) out += (out.empty() ? "" : ", ") + key;
  return out.size() > 200 ? out.substr(0, 200) + "..." : out;
}

// Follows "a.b.c"; a key that itself holds dots is found first.
const json* descend(const json& object, std::string_view field) {
  if (!object.is_object()) return nullptr;
  if (const auto whole = object.find(field); whole != object.end()) return &*whole;
  const std::size_t dot = field.find('.');
  if (dot == std::string_view::npos) return nullptr;
  const auto outer = object.find(field.substr(0, dot));
  return outer == object.end() ? nullptr : descend(*outer, field.substr(dot + 1));
}

constexpr std::array<std::string_view, 5> kLengthFields = {"length", "num_tokens", "n_tokens", "token_count",
                                                           "input_ids"};

std::string choose_field(const json& first, const std::string& where) {
  for (const std::string_view name : kLengthFields)
    if (first.contains(name)) return std::string(name);
  throw UserError(where +
                  ": cannot tell which field holds the length: expected length, num_tokens, n_tokens, "
                  "token_count or input_ids, or its name by --column; found " +
                  keys_of(first));
}

std::int64_t length_of(const json& value, const std::string& where) {
  std::int64_t length = -1;
  if (value.is_array() &&
      !std::all_of(value.begin(), value.end(), [](const json& id) { return id.is_number_integer(); }))
    throw UserError(where + ": found " + shown_json(value) +
                    "; expected a length, or one flat array of token ids");
  if (value.is_array())
    length = static_cast<std::int64_t>(value.size());
  else if (value.is_number_unsigned())
    length = static_cast<std::int64_t>(std::min<std::uint64_t>(
        value.get<std::uint64_t>(), static_cast<std::uint64_t>(kLongestDocument) + 1));
  if (!is_length(length)) refuse_length(where, value.is_array() ? "an empty array" : shown_json(value));
  return length;
}

}  // namespace

Lengths read_jsonl(std::string_view bytes, const std::string& name, const std::string& field) {
  Lengths lengths;
  std::string key = field;
  for (std::int64_t line = 1; !bytes.empty(); ++line) {
    const std::size_t size = std::min(bytes.find('\n'), bytes.size());
    const std::string_view text = trimmed(bytes.substr(0, size));
    bytes.remove_prefix(std::min(size + 1, bytes.size()));
    if (text.empty()) continue;
    const std::string where = name + ":" + std::to_string(line);
    const json value = parse_json_line(text, where);
    if (!value.is_object()) {
      lengths.push_back(length_of(value, where));
      continue;
    }
    if (key.empty()) key = choose_field(value, where);
    const json* found = descend(value, key);
    if (found == nullptr)
      throw UserError(where + ": no field '" + key + "'; the object has " + keys_of(value));
    lengths.push_back(length_of(*found, where));
  }
  return lengths;
}

}  // namespace equipoise::formats
