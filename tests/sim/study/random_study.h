// Random studies over all keys of parallel, framework, cluster and training, drawn from the rows that read
// them: a key that is added later is drawn, too. And the smallest study that still breaks a law.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "policies/base/error.h"
#include "policies/base/random.h"
#include "sim/study/read/framework_keys.h"
#include "sim/study/read/parallel_keys.h"
#include "sim/study/read/study_keys.h"
#include "sim/study/run_study.h"
#include "tests/sim/study/study_case.h"

namespace equipoise::testing {

class StudyMaker {
 public:
  explicit StudyMaker(std::uint64_t seed) : random_(seed) {}

  // A study that runs: keys are added one after the other, and those that do not go with the others left
  // away.
  nlohmann::json make() {
    nlohmann::json file = base();
    constexpr int kKeys = 14;
    for (int i = 0; i < kKeys; ++i) {
      nlohmann::json more = file;
      more.merge_patch(any_key());
      if (runs(more)) file = std::move(more);
    }
    return file;
  }
  static bool runs(const nlohmann::json& file) {
    try {
      RunStudyOptions options;
      options.find_fits = false;
      return run_study(parse(file), options).policies[0].simulated();
    } catch (const UserError&) {
      return false;
    }
  }

 private:
  std::uint64_t below(std::uint64_t n) { return random_.next() % n; }
  template <class List>
  auto of(const List& list) {
    return *(std::begin(list) + static_cast<std::ptrdiff_t>(below(std::size(list))));
  }

  nlohmann::json base() {
    for (;;) {
      nlohmann::json file = {{"name", "random"},
                             {"trace", {{"distribution", "wlb-128k"}, {"seed", below(1000)}}}};
      const bool experts = below(4) == 0;
      file["model"] = {{"name", "hand"}, {"layers", of(std::vector{4, 6, 8})}, {"hidden", 1024},
                       {"heads", 8},     {"kv_heads", of(std::vector{4, 8})},  {"ffn", 2048},
                       {"vocab", 8192}};
      if (experts) file["model"]["experts"] = {{"count", 8}, {"active", 2}, {"ffn", 512}};
      const std::vector<int> degrees = {1, 2, 4};
      file["parallel"] = {{"tensor", of(degrees)},
                          {"context", of(degrees)},
                          {"pipeline", of(degrees)},
                          {"data", of(std::vector{1, 2})}};
      if (below(3) == 0) file["parallel"]["virtual_pipeline"] = 2;
      if (experts) file["parallel"]["expert"] = of(std::vector{1, 2});
      file["cluster"] = {
          {"profile", "h100-sxm"}, {"memory_GB", 400}, {"gpus_per_node", of(std::vector{2, 8})}};
      file["framework"] = {{"preset", of(std::vector{"none", "megatron", "fsdp", "torchtitan"})}};
      const int lanes = file["parallel"]["pipeline"].get<int>() * file["parallel"]["data"].get<int>();
      file["batch"] = {{"context_window", "16K"}, {"sequences_per_step", 2 * lanes}, {"steps", 1}};
      // Limits are typed in: those that memory gives would make other plans.
      file["policies"] = {
          of(std::vector<nlohmann::json>{"plain",
                                         {{"name", "fixed-greedy"}, {"shard", "per-document"}},
                                         {{"name", "wlb"}, {"shard", "optimal"}, {"max_tokens", "20K"}},
                                         {{"name", "plain"}, {"shard", "contiguous"}},
                                         {{"name", "skrull"}, {"shard", "dacp"}, {"bucket_size", 20000}}})};
      if (runs(file)) return file;
    }
  }

  nlohmann::json any_key() {
    switch (below(8)) {
      case 0:
        return {{"frozen", frozen()}};
      case 1:
        return {{"parallel", {{"recompute", recompute()}}}};
      case 2:
        if (below(4) == 0) return {{"lora", {{"dim", 16}}}};
        if (below(3) == 0) return {{"precision", "fp8"}};
        return value_in("cluster", network_keys(), "network");
      case 3:
        return {{"mtp_layers", below(3)}};
      case 4:
      case 5:
        return value_in("parallel", parallel_keys());
      default:
        return value_in("framework", framework_keys());
    }
  }
  nlohmann::json frozen() {
    nlohmann::json list = nlohmann::json::array({"embedding", {{"layers", below(9)}}});
    for (const char* weights : {"linear_qkv", "linear_fc1", "norms", "head"})
      if (below(3) == 0) list.push_back(weights);
    return list;
  }
  nlohmann::json recompute() {
    switch (below(4)) {
      case 0:
        return {{"layers", below(9)}};
      case 1:
        return {{"modules", nlohmann::json::array({of(kRecomputeModuleNames)})}};
      default:
        return of(std::vector{"none", "selective", "full"});
    }
  }
  // One key of an object; one that is no plain value is drawn elsewhere, or is a name.
  template <class Target>
  nlohmann::json value_in(const char* object, std::span<const Key<Target>> rows,
                          const char* inner = nullptr) {
    for (;;) {
      const Key<Target>& row = rows[below(rows.size())];
      const std::optional<nlohmann::json> value = value_of(row);
      if (!value) continue;
      const nlohmann::json keys = {{std::string(row.key), *value}};
      return {{object, inner == nullptr ? keys : nlohmann::json{{inner, keys}}}};
    }
  }
  template <class Target>
  std::optional<nlohmann::json> value_of(const Key<Target>& row) {
    switch (row.kind) {
      case ParameterKind::flag:
        return row.set == nullptr ? std::nullopt : std::optional<nlohmann::json>(below(2) == 0);
      case ParameterKind::choice:
        return std::string(of(row.choices));
      case ParameterKind::integer:
        return std::clamp<std::int64_t>(std::int64_t{1} << below(6), row.least, row.most);
      case ParameterKind::number:
        // Seconds and shares from a millionth on, counts of bytes and slowdowns around one.
        return std::clamp(
            std::exp2(row.highest <= 1 ? -static_cast<double>(below(20)) : as_double(below(8)) - 3),
            row.lowest, row.highest);
      default:
        return std::nullopt;
    }
  }

  SplitMix64 random_;
};

// Takes away what a study can do without and still `fails`, key by key, until all that is left is needed.
inline nlohmann::json smallest_that(nlohmann::json file,
                                    const std::function<bool(const nlohmann::json&)>& fails) {
  const auto without_one = [&](const nlohmann::json& flat) -> bool {
    for (const auto& [pointer, value] : flat.items()) {
      nlohmann::json less = file;
      const nlohmann::json::json_pointer place(pointer);
      less.at(place.parent_pointer()).erase(place.back());
      bool still = false;
      try {
        still = fails(less);
      } catch (const std::exception&) {  // a study that is none
      }
      if (!still) continue;
      file = std::move(less);
      return true;
    }
    return false;
  };
  const auto keys_of = [&] {  // of objects only: what is left of a list is another list
    nlohmann::json keys = nlohmann::json::object();
    for (const auto& [pointer, value] : file.flatten().items()) {
      const std::string last = pointer.substr(pointer.rfind('/') + 1);
      if (last.find_first_not_of("0123456789") != std::string::npos) keys[pointer] = value;
    }
    return keys;
  };
  while (without_one(keys_of())) {
  }
  return file;
}

}  // namespace equipoise::testing
