#include "profiler/fit/sample_lists.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "policies/base/error.h"
#include "policies/base/text.h"
#include "profiler/profile/profile.h"
#include "traces/json_object.h"

namespace equipoise {
namespace {

std::string optional_text(const nlohmann::json& node, const std::string& key) {
  const auto it = node.find(key);
  return it != node.end() && it->is_string() ? it->get<std::string>() : std::string();
}

std::string pass_of(const nlohmann::json& node, const std::string& where) {
  return std::string(
      kernels::kPassNames[name_field(node, "pass", kernels::kPassNames, where, "forward or backward")]);
}

AttentionSample read_attention(const nlohmann::json& node, const std::string& where) {
  AttentionSample sample;
  sample.pass = pass_of(node, where);
  sample.labels = {{"kernel", text_field(node, "kernel", where)},
                   {"dtype", text_field(node, "dtype", where)}};
  sample.heads = {static_cast<int>(count_field(node, "head_dim", where, 1)),
                  static_cast<int>(count_field(node, "query_heads", where, 1)),
                  static_cast<int>(count_field(node, "kv_heads", where, 1))};
  const auto pieces = node.find("pieces");
  if (pieces == node.end() || !pieces->is_array() || pieces->empty())
    throw UserError(where, ".pieces: expected a list of [queries, keys]");
  std::vector<QueryKeys> documents;
  sample.shape = {static_cast<double>(sample.heads.head_dim), static_cast<double>(sample.heads.query_heads)};
  sample.least_queries = INT64_MAX;
  for (const nlohmann::json& piece : *pieces) {
    const bool pair = piece.is_array() && piece.size() == 2 && piece[0].is_number_integer() &&
                      piece[1].is_number_integer() && piece[0].get<std::int64_t>() > 0 &&
                      piece[1].get<std::int64_t>() >= piece[0].get<std::int64_t>() &&
                      piece[1].get<double>() <= kMostCount;
    if (!pair)
      throw UserError(where, ".pieces: expected [queries, keys] with 0 < queries <= keys < 2^31, found ",
                      shown_json(piece));
    const auto queries = piece[0].get<std::int64_t>();
    const auto keys = piece[1].get<std::int64_t>();
    documents.push_back({queries, keys});
    sample.blocked.add_causal(queries, keys);
    sample.least_queries = std::min(sample.least_queries, queries);
    sample.most_keys = std::max(sample.most_keys, keys);
    sample.shape.push_back(static_cast<double>(queries));
    sample.shape.push_back(static_cast<double>(keys));
  }
  sample.packings = {documents};
  sample.seconds = {positive_field(node, "seconds", where)};
  return sample;
}

GemmSample read_gemm(const nlohmann::json& node, const std::string& where) {
  GemmSample sample;
  sample.labels = {{"dtype", text_field(node, "dtype", where)}, {"kernel", optional_text(node, "kernel")}};
  if (const std::string form = optional_text(node, "form"); !form.empty()) sample.labels["form"] = form;
  sample.m = count_field(node, "m", where, 1);
  sample.n = count_field(node, "n", where, 1);
  sample.k = count_field(node, "k", where, 1);
  if (node.contains("groups")) {
    text_field(node, "kernel", where);  // required, since grouped products have a table of their own
    sample.groups = count_field(node, "groups", where, 1);
    // The shapes of one model are held out together, as in public tables.
    for (const char* key : {"hidden", "inter", "experts"})
      sample.shape.push_back(static_cast<double>(count_field(node, key, where, 1)));
  }
  sample.seconds = positive_field(node, "seconds", where);
  return sample;
}

ElementwiseSample read_elementwise(const nlohmann::json& node, const std::string& where) {
  ElementwiseSample sample;
  const std::size_t op = name_field(node, "op", kernels::kElementwiseNames, where,
                                    "one of " + joined(kernels::kElementwiseNames));
  sample.labels = {{"op", std::string(kernels::kElementwiseNames[op])},
                   {"pass", node.contains("pass") ? pass_of(node, where) : "forward"}};
  sample.bytes = positive_field(node, "bytes", where);
  sample.seconds = positive_field(node, "seconds", where);
  return sample;
}

CollectiveSample read_collective(const nlohmann::json& node, const std::string& where) {
  CollectiveSample sample;
  sample.kind = static_cast<Collective>(
      name_field(node, "kind", kCollectiveNames, where, "one of " + joined(kCollectiveNames)));
  sample.labels = {{"op", std::string(name_of(sample.kind))},
                   {"inter_node_network", optional_text(node, "network")}};
  sample.bytes = positive_field(node, "bytes", where);
  sample.group = {static_cast<int>(count_field(node, "ranks", where, 1)),
                  static_cast<int>(count_field(node, "ranks_per_node", where, 1))};
  sample.seconds = positive_field(node, "seconds", where);
  return sample;
}

template <class Sample, class Read>
void add_list(const nlohmann::json& lists, const std::string& name, const std::string& path, Read read,
              std::vector<Sample>& into) {
  const auto it = lists.find(name);
  if (it == lists.end()) return;
  if (!it->is_array()) throw UserError(path, ": samples.", name, ": expected a list");
  for (std::size_t i = 0; i < it->size(); ++i)
    into.push_back(read(it->at(i), path + ": samples." + name + "[" + std::to_string(i) + "]"));
}

}  // namespace

void add_json(const nlohmann::json& file, const std::string& path, SampleSet& set) {
  const nlohmann::json& lists = object_field(file, "samples", path + ": file");
  refuse_unknown_keys(lists, {kTableNames.begin(), kTableNames.end()}, path + ": samples");
  add_list(lists, "attention", path, read_attention, set.attention);
  add_list(lists, "gemm", path, read_gemm, set.gemm);
  add_list(lists, "elementwise", path, read_elementwise, set.elementwise);
  add_list(lists, "collective", path, read_collective, set.collective);
}

}  // namespace equipoise
