// Reading checked values out of a profile's JSON: every error names the file, the key and what would do.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

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

// The known name with the fewest edits from `found`, or "" when nothing is near.
std::string nearest_name(std::string_view found, const std::vector<std::string>& known);

// "a, b, c"
std::string joined(const std::vector<std::string>& names);

// A number as a person writes it: no trailing zeros, at most 6 significant digits.
std::string short_number(double value);

}  // namespace equipoise
