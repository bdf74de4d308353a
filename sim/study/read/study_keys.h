// The keys of a study file: a table an object of the file, a row a key. From these rows come the reader
// (read_study.cpp), the JSON Schema (`equipoise list schema`), the keys that an error lists, and the notes
// about keys that have no effect. A policy's keys are rows of the same kind beside the policy
// (policies/parameter.h).
//
// To add a key: a field in the struct that it belongs to, and its row,
//
//   integer<&Layout::tensor>("tensor", 1, kMostGpus, "TP; sequence parallelism is always on with it"),
//
// where the struct's own initial value is what counts without the key. A key that is no plain value (an
// object, a list) has a row with its schema, and code that reads it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/study/read/key.h"

namespace equipoise {

inline constexpr std::int64_t kMostGpus = 1 << 22;

// What a layout or a row may say of recompute in a word; layers and modules are an object (recompute_keys).
inline constexpr Recompute kRecomputeModes[] = {Recompute::none, Recompute::selective, Recompute::full,
                                                Recompute::automatic};
inline constexpr std::string_view kRecomputeModeNames[] = {
    name_of(kRecomputeModes[0]), name_of(kRecomputeModes[1]), name_of(kRecomputeModes[2]),
    name_of(kRecomputeModes[3])};
inline constexpr std::string_view kPublishedStatus[] = {"ok", "oom"};

// A model's config.json, and what a study says beside it.
struct HfSource {
  std::string path;
  HfOptions options;
};

// What a study or a row recomputes by name: layers or modules.
struct RecomputeKeys {
  int layers = 0;
  RecomputeModules modules = 0;
};

std::span<const Key<Study>> study_keys();  // of the file itself
std::span<const Key<TraceSource>> trace_keys();
std::span<const Key<TraceSource::Component>> mixture_keys();
std::span<const Key<HfSource>> hf_keys();
std::span<const Key<ModelShape>> shape_keys();
std::span<const Key<MoeShape>> expert_keys();
std::span<const Key<MlaShape>> mla_keys();
std::span<const Key<Cluster>> cluster_keys();
std::span<const Key<Cluster>> network_keys();
std::span<const Key<Framework>> framework_keys();
std::span<const Key<Layout>> parallel_keys();
std::span<const Key<RecomputeKeys>> recompute_keys();
std::span<const Key<Study>> batch_keys();
std::span<const Key<PolicyRun>> policy_keys();  // of every row, beside those of its policy and sharding rule
std::span<const Key<Published>> published_keys();

// Metrics that a source may have printed: the keys of summary.json's metrics that hold one number, and
// bucket_size.
std::vector<std::string> published_metrics();

// The JSON Schema of a study, from all rows and those of the policies.
nlohmann::ordered_json study_schema();

// Its properties of a policy's entry that are keys of some policy or sharding rule.
nlohmann::ordered_json policy_schema_properties();

}  // namespace equipoise
