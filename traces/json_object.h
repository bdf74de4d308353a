// Reads the JSON of a user's file: an object key by key (JsonObject), or single fields of it.
//
// Every error is one line: where (file and path of the object), the key, what was found, what is allowed. A
// key that no reader knows is refused with the nearest one.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "traces/json_text.h"

namespace equipoise {

class JsonObject {
 public:
  // `where` is the file and the path of the object, e.g. "study.json: batch". Throws unless it is an object.
  JsonObject(const nlohmann::json& node, std::string where);

  // The node of a key, null if absent. Marks the key as known.
  const nlohmann::json* find(std::string_view key);
  bool has(std::string_view key) const { return node_.contains(std::string(key)); }

  std::string text(std::string_view key, std::string_view fallback);
  bool flag(std::string_view key, bool fallback);
  // An integer, or one of `words`, which stand for 0, -1, ...
  std::int64_t integer(std::string_view key, std::int64_t fallback, std::int64_t least, std::int64_t most,
                       std::span<const std::string_view> words = {});
  double number(std::string_view key, double fallback, double least, double most);
  // One of `allowed`, as its index.
  std::size_t choice(std::string_view key, std::size_t fallback, std::span<const std::string_view> allowed);
  std::vector<std::int64_t> integers(std::string_view key, std::int64_t least, std::int64_t most);

  // Throws for a key that nobody read. The error names the place to which the key belongs, if `place_of`
  // knows it (empty: it does not), or the nearest known key.
  void finish(std::string (*place_of)(std::string_view key) = nullptr) const;

  [[noreturn]] void fail(std::string_view key, const std::string& expected) const;
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& node_;
  std::string where_;
  std::vector<std::string> known_;
};

// Reads sizes such as 8192, "8K" or "1M" (1024, 1024^2); false if it is none.
bool parse_size(const nlohmann::json& node, std::int64_t& value);

// --- Single required fields

// `where` is what the user sees before the key, e.g. "h100.json: device".
// Throws UserError: "<where>.<key>: expected <expected>, found <the key's value, or nothing>".
[[noreturn]] void refuse_field(const nlohmann::json& node, std::string_view key, const std::string& where,
                               const std::string& expected);
const nlohmann::json& object_field(const nlohmann::json& node, const std::string& key,
                                   const std::string& where);
double number_field(const nlohmann::json& node, const std::string& key, const std::string& where);
bool flag_field(const nlohmann::json& node, const std::string& key, const std::string& where);
double positive_field(const nlohmann::json& node, const std::string& key, const std::string& where);
double non_negative_field(const nlohmann::json& node, const std::string& key, const std::string& where);
// An integer from `least` to 2^31 - 1, for ranks, rows or tokens, which fit into an int.
std::int64_t count_field(const nlohmann::json& node, const std::string& key, const std::string& where,
                         int least);
const nlohmann::json& list_field(const nlohmann::json& node, const std::string& key,
                                 const std::string& where);
std::string text_field(const nlohmann::json& node, const std::string& key, const std::string& where);
// The index in `names` of the text under a key, e.g. an enum's value. The error asks for `expected`.
std::size_t name_field(const nlohmann::json& node, const std::string& key,
                       std::span<const std::string_view> names, const std::string& where,
                       const std::string& expected);
std::vector<std::string> keys_of(const nlohmann::json& node);
// Names the nearest known key.
void refuse_unknown_keys(const nlohmann::json& node, const std::vector<std::string_view>& known,
                         const std::string& where);

// Runs `read` over parts of a file that are not checked field by field. A value of the wrong type is then the
// file's fault, not ours.
template <class Read>
auto refusing_other_types(const std::string& where, const Read& read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& e) {
    throw UserError(where, ": something has another type than expected: ", e.what());
  }
}

// A number as a person writes it: no trailing zeros, at most 6 significant digits.
std::string short_number(double value);

}  // namespace equipoise
