// A Hugging Face config.json at hand: values by key, and which keys have been asked for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policies/base/error.h"
#include "traces/json_text.h"

namespace equipoise {

inline constexpr std::int64_t kLargest = INT32_MAX;
inline constexpr std::int64_t kMostLayers = 100000;

class HfConfig {
 public:
  HfConfig(nlohmann::json file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const nlohmann::json& file() const { return file_; }
  // Treats the key as missing; false if it is missing.
  bool pass_over(const std::string& key) {
    const bool had = file_.contains(key);
    file_[key] = nullptr;
    return had;
  }
  // Null for null, and for an absent key unless the model's class has a value.
  const nlohmann::json* find(const std::string& key) {
    asked_.push_back(key);
    if (const auto it = file_.find(key); it != file_.end()) return it->is_null() ? nullptr : &*it;
    const auto it = of_class_.find(key);
    return it == of_class_.end() ? nullptr : &*it;
  }
  // Whether the file itself has a value.
  [[nodiscard]] bool says(const std::string& key) const {
    const auto it = file_.find(key);
    return it != file_.end() && !it->is_null();
  }
  // The end of every refusal, which says what the model is: "bamba may have other mixers than attention".
  void set_kind(std::string kind) { kind_ = std::move(kind); }
  // Sets the values of the model's class, for keys that the file lacks.
  void set_class_values(nlohmann::json values) { of_class_ = std::move(values); }
  // Llama 4 has keys of its own for features that are refused in other models.
  [[nodiscard]] static bool llama4_reads(std::string_view key) {
    constexpr std::string_view kOwn[] = {"attention_chunk_size", "interleave_moe_layer_step", "moe_layers",
                                         "intermediate_size_mlp"};
    return std::ranges::find(kOwn, key) != std::end(kOwn);
  }
  // Marks a key that is known not to matter here.
  void take(const std::string& key) { asked_.push_back(key); }
  [[nodiscard]] bool asked(const std::string& key) const {
    return std::find(asked_.begin(), asked_.end(), key) != asked_.end();
  }
  [[noreturn]] void fail(const std::string& key, const std::string& expected) const {
    const auto it = file_.find(key);
    throw UserError(path_, ": ", key, ": expected ", expected, ", found ",
                    it == file_.end() ? "nothing" : shown_json(*it), kind_.empty() ? "" : " (" + kind_ + ")");
  }

  std::int64_t integer(const std::string& key, std::int64_t least, std::int64_t most) {
    const nlohmann::json* node = find(key);
    if (node != nullptr && node->is_array() && !node->empty() &&
        std::ranges::count(*node, node->front()) == std::ssize(*node))
      node = &node->front();  // a list of layers that are all alike
    if (node != nullptr && node->is_number_integer()) {
      const auto value = node->get<std::int64_t>();
      const bool wraps = node->is_number_unsigned() && value < 0;
      if (!wraps && value >= least && value <= most) return value;
    }
    fail(key, "an integer in " + std::to_string(least) + ".." + std::to_string(most));
  }
  std::int64_t positive(const std::string& key, std::int64_t most = kLargest) {
    return integer(key, 1, most);
  }
  std::int64_t positive_or(const std::string& key, std::int64_t fallback) {
    return find(key) == nullptr ? fallback : positive(key);
  }
  // A count, where 0 means that there is none.
  std::int64_t count_or(const std::string& key, std::int64_t fallback, std::int64_t most = kLargest) {
    return find(key) == nullptr ? fallback : integer(key, 0, most);
  }
  bool flag_or(const std::string& key, bool fallback) {
    const nlohmann::json* node = find(key);
    if (node == nullptr) return fallback;
    if (!node->is_boolean()) fail(key, "true or false");
    return node->get<bool>();
  }
  std::string text_or(const std::string& key, const std::string& fallback) {
    const nlohmann::json* node = find(key);
    if (node == nullptr) return fallback;
    if (!node->is_string()) fail(key, "a string");
    return node->get<std::string>();
  }
  // The first of these names that the config has, else the first name.
  std::string one_of(std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (find(name) != nullptr) return name;
    return *names.begin();
  }

 private:
  nlohmann::json file_;
  nlohmann::json of_class_ = nlohmann::json::object();
  std::string path_, kind_;
  std::vector<std::string> asked_;
};

}  // namespace equipoise
