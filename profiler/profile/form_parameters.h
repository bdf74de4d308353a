// The parameters of a cost model's form, read from a profile and written to it by one table for each form.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "traces/json_object.h"

namespace equipoise {

// One parameter of a cost model's form: its key in a profile, and where the form keeps it.
// An optional one that is missing is 0, and 0 is not written. 0 is a value of the others, too.
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

}  // namespace equipoise
