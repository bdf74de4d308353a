// Reading checked values out of a profile's JSON: every error names the file, the key and what would do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
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
// A whole number from `least` to 2^31 - 1: of ranks, rows, tokens, which fit an int.
std::int64_t count_field(const nlohmann::json& node, const std::string& key, const std::string& where,
                         int least);
const nlohmann::json& list_field(const nlohmann::json& node, const std::string& key,
                                 const std::string& where);
std::string text_field(const nlohmann::json& node, const std::string& key, const std::string& where);
// The place among `names` of the text under a key, e.g. of an enum's value. Throws UserError that asks for
// `expected`.
std::size_t name_field(const nlohmann::json& node, const std::string& key,
                       std::span<const std::string_view> names, const std::string& where,
                       const std::string& expected);
std::vector<std::string> keys_of(const nlohmann::json& node);
void refuse_unknown_keys(const nlohmann::json& node, const std::vector<std::string_view>& known,
                         const std::string& where);

// One parameter of a cost model's form: its key in a profile, and where the form keeps it.
// An optional one is 0 where it is missing, and left out where it is 0; of the others 0 is a value, too.
enum ParameterNeeds { kNotNegative, kPositive, kOptional };
template <class Parameters>
struct FormParameter {
  const char* key;
  double Parameters::*value;
  ParameterNeeds needs = kNotNegative;
};

// The parameters of a form, from the object that holds them and back. Throws UserError.
template <class Parameters, std::size_t count>
void read_parameters(const FormParameter<Parameters> (&list)[count], const nlohmann::json& node,
                     const std::string& where, Parameters& into) {
  for (const FormParameter<Parameters>& one : list)
    if (one.needs != kOptional || node.contains(one.key))
      into.*one.value = one.needs == kPositive ? positive_field(node, one.key, where)
                                               : non_negative_field(node, one.key, where);
}
// The same of a profile's table, which holds them under "parameters".
template <class Parameters, std::size_t count>
Parameters parameters_of(const FormParameter<Parameters> (&list)[count], const nlohmann::json& table,
                         const std::string& where) {
  Parameters made;
  read_parameters(list, object_field(table, "parameters", where), where + ".parameters", made);
  return made;
}
template <class Parameters, std::size_t count>
nlohmann::json parameters_json(const FormParameter<Parameters> (&list)[count], const Parameters& from) {
  nlohmann::json node;
  for (const FormParameter<Parameters>& one : list)
    if (one.needs != kOptional || from.*one.value > 0) node[one.key] = from.*one.value;
  return node;
}

// Runs `read` over parts of a file that are not checked field by field: what has another type than it must
// have is the file's fault, not ours.
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
