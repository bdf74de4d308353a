#include "sim/study/read/policy_schema.h"

#include <nlohmann/json.hpp>
#include <string>

#include "policies/policy_keys.h"

namespace equipoise {

using nlohmann::ordered_json;

namespace {

ordered_json size_schema(std::int64_t least, std::int64_t most) {
  return {
      {"type", {"integer", "string"}}, {"minimum", least}, {"maximum", most}, {"pattern", "^[0-9]+[KkMm]?$"}};
}

template <class Options>
ordered_json value_schema(const Parameter<Options>& row) {
  switch (row.kind) {
    case ParameterKind::integer:
      return size_schema(row.least, row.most);
    case ParameterKind::number:
      return {{"type", "number"}, {"minimum", row.lowest}, {"maximum", row.highest}};
    case ParameterKind::flag:
      return {{"type", "boolean"}};
    case ParameterKind::choice:
      return {{"enum", row.choices}};
    case ParameterKind::integers:
      return {{"type", "array"}, {"items", size_schema(row.least, row.most)}};
    case ParameterKind::text:
      break;
  }
  return {{"type", "string"}, {"pattern", row.pattern}};
}

template <class Rows>
void add_rows(const Rows& rows, ordered_json& properties) {
  for (const auto& row : rows) {
    const std::string key(row.key);
    if (properties.contains(key)) continue;
    properties[key] = {{"description", help_of_key(row.key, row.help)}};
    properties[key].update(value_schema(row));
  }
}

}  // namespace

ordered_json policy_schema_properties() {
  ordered_json properties = ordered_json::object();
  add_rows(pack_parameters(), properties);
  add_rows(shard_parameters(), properties);
  return properties;
}

ordered_json study_schema(const ordered_json& shipped) {
  ordered_json schema = shipped;
  ordered_json& properties = schema["definitions"]["policy"]["properties"];
  const ordered_json of_rows = policy_schema_properties();
  for (const auto& [key, value] : of_rows.items()) properties[key] = value;
  return schema;
}

}  // namespace equipoise
