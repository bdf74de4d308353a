// What the table of policies' keys says, as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace equipoise {

// The properties of a policy's entry in the JSON Schema of a study (study.schema.json) that are keys of some
// policy or sharding rule.
nlohmann::ordered_json policy_schema_properties();

// study.schema.json with these properties put in: what the shipped file must be.
nlohmann::ordered_json study_schema(const nlohmann::ordered_json& shipped);

}  // namespace equipoise
