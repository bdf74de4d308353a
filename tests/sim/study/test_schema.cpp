// The JSON Schema and the reader know the same keys.
#include <algorithm>
#include <set>
#include <sstream>

#include "policies/policy.h"
#include "sim/study/read/study_keys.h"
#include "tests/sim/study/study_case.h"

using namespace equipoise;
using namespace equipoise::testing;
using nlohmann::json;

namespace {

using Keys = std::set<std::string>;

struct ReadKeys {
  Keys named;
  std::size_t more = 0;  // that a message of one line leaves out
};

// The keys that the reader allows in the object at `pointer`: it lists them when asked for one it has never
// heard of.
ReadKeys read_keys(json file, const std::string& pointer) {
  file[json::json_pointer(pointer + "/qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq")] = 1;
  const std::string message = refusal(file);
  const std::string marker = ", allowed: ";
  const std::size_t at = message.find(marker);
  CAPTURE(message);
  REQUIRE(at != std::string::npos);
  std::istringstream list(message.substr(at + marker.size()));
  ReadKeys read;
  for (std::string key; std::getline(list, key, ',');) {
    key = key.substr(key.find_first_not_of(' '));
    if (const std::size_t end = key.find(" and "); end != std::string::npos) {
      read.more = std::stoul(key.substr(end + 5));
      key.resize(end);
    }
    read.named.insert(key);
  }
  return read;
}

// Whether a schema has the keys that the reader names, and as many more as it leaves out of a long list.
bool operator==(const Keys& schema, const ReadKeys& read) {
  return std::includes(schema.begin(), schema.end(), read.named.begin(), read.named.end()) &&
         schema.size() == read.named.size() + read.more;
}

json schema() {
  return study_schema();
}

Keys schema_keys(const json& object) {
  CHECK(object["additionalProperties"] == false);
  Keys keys;
  for (const auto& [key, value] : object["properties"].items()) {
    keys.insert(key);
    CHECK((value.contains("description") || value.contains("$ref")));
  }
  return keys;
}

}  // namespace

TEST_CASE("Every key that the reader knows is in the schema, and no other") {
  const json all = schema();
  CHECK(all["$schema"] == "http://json-schema.org/draft-07/schema#");
  const json& top = all["properties"];
  json file = small_study();
  file["parallel"]["recompute"] = {{"layers", 1}};
  file["cluster"]["network"] = json::object();
  file["framework"] = json::object();
  CHECK(schema_keys(all) == read_keys(file, ""));
  for (const std::string part : {"trace", "cluster", "parallel", "batch"}) {
    CAPTURE(part);
    CHECK(schema_keys(top[part]) == read_keys(file, "/" + part));
  }
  CHECK(schema_keys(top["framework"]["anyOf"][1]) == read_keys(file, "/framework"));
  CHECK(schema_keys(top["cluster"]["properties"]["network"]) == read_keys(file, "/cluster/network"));
  CHECK(schema_keys(all["definitions"]["policy"]) == read_keys(file, "/policies/1"));
  file["policies"][1]["published"] = {{"source", "x"}, {"metrics", {{"abr", 1}}}};
  const json& published = all["definitions"]["published"];
  CHECK(schema_keys(published) == read_keys(file, "/policies/1/published"));
  CHECK(schema_keys(published["properties"]["metrics"]) == read_keys(file, "/policies/1/published/metrics"));
  file["policies"][1].erase("published");
  // Layers or modules: one reader, an object each in the schema.
  Keys recompute = schema_keys(all["definitions"]["recompute"]["anyOf"][1]);
  recompute.merge(schema_keys(all["definitions"]["recompute"]["anyOf"][2]));
  CHECK(recompute == read_keys(file, "/parallel/recompute"));
  file["trace"] = {{"mixture", {{{"file", "x"}}}}};
  CHECK(schema_keys(top["trace"]["properties"]["mixture"]["items"]) == read_keys(file, "/trace/mixture/0"));
  file["model"] = {{"hf_config", "x"}};
  CHECK(schema_keys(top["model"]["anyOf"][1]) == read_keys(file, "/model"));
  file["model"] = {{"layers", 1}, {"hidden", 64}, {"heads", 1}, {"ffn", 64}, {"vocab", 64}};
  CHECK(schema_keys(top["model"]["anyOf"][2]) == read_keys(file, "/model"));
}

TEST_CASE("Keys of a row are those of every row, and those of some policy or sharding rule") {
  const std::set<std::string> of_all = {"name",
                                        "label",
                                        "shard",
                                        "schedule",
                                        "recompute",
                                        "published",
                                        "order",
                                        "verify",
                                        "file",
                                        "policy",
                                        "recompute_by_stage",
                                        "context_comm",
                                        "stage_attention_exchange",
                                        "virtual_pipeline"};
  const json all = schema();
  for (const auto& [key, value] : all["definitions"]["policy"]["properties"].items()) {
    const std::string& name = key;
    CAPTURE(name);
    CHECK(is_policy_key(key) != of_all.contains(key));
  }
}

TEST_CASE("A key of two rows is the same key, and the study keys of rows are keys of its batch") {
  const json all = schema();
  const json& batch = all["properties"]["batch"]["properties"];
  const PackOptions none;
  for (const Policy& policy : packing_policies()) {
    CAPTURE(policy.name);
    for (const PackParameter& row : policy.parameters) {
      CAPTURE(row.key);
      const PackParameter& first = *pack_parameter(row.key);
      CHECK((row.set == first.set));
      CHECK(row.help == first.help);
      CHECK((row.kind == first.kind));
      CHECK((row.get(none) == first.get(none)));
    }
    for (const std::string_view key : policy.study_keys)
      CHECK((key == "cost" || batch.contains(std::string(key))));
    for (const std::string_view size : policy.sizes) CHECK(has_key(policy, size));
  }
}

TEST_CASE("What a row's setter writes its getter reads, and options apart do not touch each other") {
  for (const PackParameter& row : pack_parameters()) {
    CAPTURE(row.key);
    PackOptions options;
    ParameterValue value = row.get(options);
    if (std::int64_t* number = std::get_if<std::int64_t>(&value))
      *number = row.kind == ParameterKind::choice ? 1 : row.most;
    else if (double* fraction = std::get_if<double>(&value))
      *fraction = row.highest;
    else if (bool* flag = std::get_if<bool>(&value))
      *flag = !*flag;
    else if (auto* list = std::get_if<std::vector<std::int64_t>>(&value))
      *list = {row.least, row.most};
    else
      value = std::string("16K:1,128K:8");
    const PackOptions before = options;
    row.set(options, value);
    CHECK((row.get(options) == value));
    CHECK((row.get(before) != value));
    for (const PackParameter& other : pack_parameters())
      if (other.key != row.key) CHECK((other.get(options) == other.get(before)));
  }
}
