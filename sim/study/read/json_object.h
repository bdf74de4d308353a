// Reads one JSON object of a user's file key by key, and refuses what nobody asked for.
//
// Every error is one line: where (file and path of the object), the key, what was found, what is allowed.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "policies/loader.h"

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
  // One of `words` instead of a number is 0, -1, ...
  std::int64_t integer(std::string_view key, std::int64_t fallback, std::int64_t least, std::int64_t most,
                       std::span<const std::string_view> words = {});
  double number(std::string_view key, double fallback, double least, double most);
  // One of `allowed`; the index into it.
  std::size_t choice(std::string_view key, std::size_t fallback, std::span<const std::string_view> allowed);
  std::vector<std::int64_t> integers(std::string_view key, std::int64_t least, std::int64_t most);

  // Throws for a key that nobody asked for, naming where it belongs as `place_of` knows it (empty: nowhere),
  // or the nearest known one.
  void finish(std::string (*place_of)(std::string_view key) = nullptr) const;

  [[noreturn]] void fail(std::string_view key, const std::string& expected) const;
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& node_;
  std::string where_;
  std::vector<std::string> known_;
};

// What `look_up` returns; a UserError of it gets `where` in front, for look-ups that do not know the file.
template <class LookUp>
auto naming(const std::string& where, const LookUp& look_up) {
  try {
    return look_up();
  } catch (const UnplaceableDocument& e) {
    throw e.in(where);
  } catch (const UserError& e) {
    throw UserError(where, ": ", e.what());
  }
}

// Sizes such as 8192, "8K" or "1M" (1024, 1024^2); nothing if it is not one.
bool parse_size(const nlohmann::json& node, std::int64_t& value);

}  // namespace equipoise
