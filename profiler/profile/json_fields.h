// Reading checked values out of a profile's JSON: every error names the file, the key and what would do.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "policies/base/error.h"
#include "traces/json_text.h"  // read_json_file, for those who read fields

namespace equipoise {

// `where` is what the user sees before the key, e.g. "h100.json: device".
const nlohmann::json& object_field(const nlohmann::json& node, const std::string& key,
                                   const std::string& where);
double number_field(const nlohmann::json& node, const std::string& key, const std::string& where);
double positive_field(const nlohmann::json& node, const std::string& key, const std::string& where);
double non_negative_field(const nlohmann::json& node, const std::string& key, const std::string& where);
std::string text_field(const nlohmann::json& node, const std::string& key, const std::string& where);
void refuse_unknown_keys(const nlohmann::json& node, const std::vector<std::string_view>& known,
                         const std::string& where);

// Runs `read` over parts of a file that are not checked field by field: what has another type than it must
// have is the file's fault, not ours.
template <class Read>
auto refusing_other_types(const std::string& where, const Read& read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& e) {
    throw UserError(where + ": something has another type than expected: " + e.what());
  }
}

// A number as a person writes it: no trailing zeros, at most 6 significant digits.
std::string short_number(double value);

}  // namespace equipoise
