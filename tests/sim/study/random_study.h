// Random studies over all keys of layout, training and framework: the keys and their values come from the
// schema, so that a key that is added is drawn, too. Also the smallest study that still breaks a law.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/random.h"
#include "sim/study/read/study_keys.h"
#include "tests/sim/study/study_case.h"

namespace equipoise::testing {

class RandomStudy {
 public:
  using json = nlohmann::json;

  explicit RandomStudy(std::uint64_t seed) : random_(seed), schema_(study_schema()) {}

  // A study that the reader accepts, with one row.
  json next() {
    json file = base();
    std::vector<std::string> keys = keys_of_layout_training_and_framework();
    for (std::size_t i = keys.size(); i > 1; --i) std::swap(keys[i - 1], keys[below(i)]);
    keys.resize(std::min(keys.size(), 4 + below(14)));
    for (const std::string& key : keys) {
      json changed = file;
      const json value = value_of(key, file);
      if (value.is_null()) continue;
      changed[json::json_pointer(key)] = value;
      if (is_accepted(changed)) file = std::move(changed);
    }
    return file;
  }

  static bool is_accepted(const json& file) {
    try {
      (void)parse(file);
      return true;
    } catch (const UserError&) {
      return false;
    }
  }

 private:
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(random_.next() % count); }
  template <class List>
  auto of(const List& list) {
    return std::begin(list)[static_cast<std::ptrdiff_t>(below(std::size(list)))];
  }

  // A small model of one of four kinds, a small layout, short documents and a policy.
  json base() {
    json file = small_study();
    file["trace"] = {{"distribution", of(std::array{"wlb-128k", "lmsys-chat-1m", "chatqa2-long-sft"})},
                     {"seed", below(1000)}};
    file["model"] = model();
    file["framework"] = {{"preset", of(std::array{"none", "megatron", "fsdp", "torchtitan", "deepspeed"})}};
    file["parallel"] = {
        {"tensor", degree()}, {"context", degree()}, {"pipeline", degree()}, {"data", degree()}};
    file["cluster"] = {{"profile", "h100-sxm"}, {"memory_GB", 100000}};
    file["batch"] = {{"context_window", of(std::array{"4K", "8K", "16K"})},
                     {"sequences_per_step", 4 * file["parallel"]["data"].get<int>()},
                     {"steps", 2}};
    file["policies"] = json::array({policy()});
    file.erase("baseline");
    return file;
  }
  int degree() { return of(std::array{1, 1, 2, 4}); }

  json model() {
    json shape = {
        {"layers", 4 + below(5)}, {"hidden", 1024}, {"heads", 8},    {"kv_heads", of(std::array{2, 4, 8})},
        {"head_dim", 128},        {"ffn", 2816},    {"vocab", 32000}};
    const std::size_t kind = below(4);
    if (kind == 1) shape["sliding_window"] = 1024;
    if (kind == 1 && below(2) == 1) shape["sliding_window_pattern"] = 2;
    if (kind == 2) shape["experts"] = {{"count", 8}, {"active", 2}, {"ffn", 512}, {"dense_layers", below(3)}};
    if (kind == 2 && below(2) == 1) shape["experts"]["shared_ffn"] = 512;
    if (kind == 3) shape["mla"] = {{"kv_lora", 128}, {"nope_dim", 64}, {"rope_dim", 64}, {"v_dim", 128}};
    return shape;
  }

  json policy() {
    json entry = {{"name", of(std::array{"plain", "fixed-greedy", "wlb", "chunkflow", "skrull", "lpt",
                                         "padded", "hybrid-cp"})}};
    entry["shard"] = of(std::array{"per-sequence", "per-document", "adaptive", "optimal"});
    entry["pad"] = "tail";
    entry["order"] = of(std::array{"as-packed", "descending", "bell"});
    if (entry["name"] == "chunkflow") entry.update({{"chunk_size", 2048}, {"schedule", "state-aware-1f1b"}});
    if (entry["name"] == "skrull") entry.update({{"shard", "dacp"}, {"bucket_size", 20000}});
    return is_accepted(small_study_of(entry)) ? entry : json{{"name", "plain"}, {"pad", "tail"}};
  }

  std::vector<std::string> keys_of_layout_training_and_framework() {
    std::vector<std::string> keys = {"/precision",
                                     "/mtp_layers",
                                     "/lora",
                                     "/frozen",
                                     "/schedule",
                                     "/schedule",
                                     "/model/tied_embeddings",
                                     "/model/gated_ffn",
                                     "/batch/micro_batch_size",
                                     "/batch/documents_per_step",
                                     "/cluster/gpus_per_node",
                                     "/cluster/network"};
    for (const char* part : {"parallel", "framework"})
      for (const auto& [key, value] : object_of(schema_["properties"][part])["properties"].items())
        if (key != "preset") keys.push_back(std::string("/") + part + "/" + key);
    return keys;
  }

  // The form of a value that is an object with keys.
  static const nlohmann::ordered_json& object_of(const nlohmann::ordered_json& schema) {
    if (!schema.contains("anyOf")) return schema;
    for (const auto& form : schema["anyOf"])
      if (form.contains("properties")) return form;
    return schema["anyOf"].back();
  }

  // Null where the draw gives none.
  json value_of(const std::string& key, const json& file) {
    const auto at = [&](const char* other) { return key == other; };
    if (at("/schedule"))
      return of(std::array{"gpipe", "1f1b", "interleaved-1f1b", "state-aware-1f1b", "zb-h1", "zb-v",
                           "dualpipe", "seq1f1b"});
    if (at("/model/tied_embeddings") || at("/model/gated_ffn")) return below(2) == 1;
    if (at("/cluster/network")) return {{"nic_GBps", of(std::array{5.0, 25.0, 100.0})}};
    if (at("/cluster/gpus_per_node")) return of(std::array{1, 2, 4, 8});
    if (at("/batch/micro_batch_size")) return 2;
    if (at("/batch/documents_per_step")) return 32;
    if (at("/parallel/stage_layers")) return stage_layers(file);
    if (at("/parallel/order")) return of(std::array{"tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "cp-tp-ep-dp-pp"});
    if (at("/framework/attention_kernel"))
      return of(std::array{"flash-attention-2", "flash-attention-3", "cudnn"});
    if (at("/framework/expert_kernel")) return of(std::array{"", "cutlass-grouped", "torch-grouped"});
    nlohmann::ordered_json schema = schema_;
    std::string rest = key.substr(1);
    for (std::size_t slash; !rest.empty(); rest = slash == std::string::npos ? "" : rest.substr(slash + 1)) {
      slash = rest.find('/');
      schema = nlohmann::ordered_json(object_of(schema)["properties"][rest.substr(0, slash)]);
    }
    return value_by(schema, key.find("seconds") != std::string::npos);
  }

  json value_by(const nlohmann::ordered_json& schema, bool seconds) {
    if (schema.contains("$ref")) {
      const std::string name = schema["$ref"].get<std::string>();
      return value_by(schema_["definitions"][name.substr(name.rfind('/') + 1)], seconds);
    }
    if (schema.contains("anyOf")) return value_by(of(schema["anyOf"]), seconds);
    if (schema.contains("enum")) return json(of(schema["enum"]));
    if (schema.contains("properties")) {
      json object = json::object();
      for (const auto& [key, value] : schema["properties"].items())
        if (object.empty() || below(2) == 1) object[key] = value_by(value, seconds);
      return object;
    }
    if (schema.contains("items")) {
      json list = json::array();
      for (std::size_t i = 0, count = 1 + below(3); i < count; ++i) {
        const json item = value_by(schema["items"], seconds);
        if (std::ranges::find(list, item) == list.end()) list.push_back(item);
      }
      return list;
    }
    if (schema.contains("minimum")) return number_by(schema, seconds);
    if (schema.value("type", nlohmann::ordered_json()) == "boolean") return below(2) == 1;
    return {};
  }

  // From the default's half to its double, else a few above the least.
  json number_by(const nlohmann::ordered_json& schema, bool seconds) {
    const double least = schema["minimum"], most = schema["maximum"];
    const double usual = schema.contains("default") ? schema["default"].get<double>() : least;
    const bool whole = schema["type"] != "number";
    if (seconds) return of(std::array{0.0, 1e-6, 5e-6, 2e-5});
    double value =
        usual > 4 ? usual * of(std::array{0.5, 1.0, 2.0}) : least + of(std::array{0.0, 1.0, 1.0, 3.0});
    if (!whole && most <= 1) value = of(std::array{0.0, 0.25, 0.5, 1.0});
    if (!whole && least >= 0.1 && usual <= 4) value = of(std::array{0.75, 1.0, 1.25, 2.0});
    if (!whole && usual <= 4 && most > 100) value = of(std::array{1.0, 5.0, 50.0});
    value = std::clamp(value, least, most);
    if (whole) return static_cast<std::int64_t>(value);
    return value;
  }

  json stage_layers(const json& file) {
    const std::size_t stages =
        file["parallel"].value("pipeline", 1) * file["parallel"].value("virtual_pipeline", 1);
    json layers = std::vector<int>(stages, 0);
    for (int l = 0; l < file["model"]["layers"].get<int>(); ++l) {
      json& stage = layers[below(stages)];
      stage = stage.get<int>() + 1;
    }
    return layers;
  }

  SplitMix64 random_;
  nlohmann::ordered_json schema_;
};

// The study without every key that may go while it is still `broken`.
inline nlohmann::json shrunk(nlohmann::json file, const std::function<bool(const nlohmann::json&)>& broken) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    const nlohmann::json leaves = file.flatten();
    for (const auto& [pointer, value] : leaves.items()) {
      nlohmann::json without = file;
      const nlohmann::json::json_pointer at(pointer);
      if (pointer.starts_with("/trace") || !file.contains(at) || !file[at.parent_pointer()].is_object())
        continue;
      without[at.parent_pointer()].erase(at.back());
      if (!RandomStudy::is_accepted(without) || !broken(without)) continue;
      file = std::move(without);
      smaller = true;
    }
  }
  return file;
}

}  // namespace equipoise::testing
