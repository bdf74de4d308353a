// The keys of a study file, with a table for each of its objects, and the JSON Schema of all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/study/read/key_rows.h"
#include "sim/workload/model_hf.h"

namespace equipoise {

inline constexpr std::string_view kPublishedStatus[] = {"ok", "oom"};

// A model's config.json, and what a study adds to it.
struct HfSource {
  std::string path;
  HfOptions options;
};

std::span<const Key<Study>> study_keys();  // of the file's top level
std::span<const Key<TraceSource>> trace_keys();
std::span<const Key<TraceSource::Component>> mixture_keys();
std::span<const Key<HfSource>> hf_keys();
std::span<const Key<ModelShape>> shape_keys();
std::span<const Key<MoeShape>> expert_keys();
std::span<const Key<MlaShape>> mla_keys();
std::span<const Key<Training>> lora_keys();
std::span<const Key<Training>> frozen_keys();  // of an entry of that list, if it is no word
std::span<const Key<Cluster>> cluster_keys();
std::span<const Key<Cluster>> network_keys();
std::span<const Key<Cluster>> watts_keys();
std::span<const Key<Study>> batch_keys();
std::span<const Key<PolicyRun>> policy_keys();  // of every row; its policy and sharding rule have more
std::span<const Key<Published>> published_keys();

// Metrics that a source may have printed: keys of summary.json's metrics with a single number, and
// bucket_size.
std::vector<std::string> published_metrics();

// "parallel" or "the study itself, for all rows, or in an entry of policies": all objects of a study with
// such a key; empty if there is none.
std::string place_of_key(std::string_view key);

// The JSON Schema of a study, from all rows and the policies' rows.
nlohmann::ordered_json study_schema();

// The values that a schema allows: "1 .. 4194304", "rail, fat-tree", "number".
std::string values_text(const nlohmann::ordered_json& schema);
// Visits every key that has a description, by its path in a study ("policies[].queues"), with its schema.
void for_each_key(const std::function<void(const std::string&, const nlohmann::ordered_json&)>& visit);

// Properties of a policy's entry that are keys of some policy or sharding rule.
nlohmann::ordered_json policy_schema_properties();

}  // namespace equipoise
