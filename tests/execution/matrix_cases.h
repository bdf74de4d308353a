// The equivalence matrix: which plans are run for real, and as which study.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace equipoise::testing {

struct MatrixCase {
  std::string_view group;
  std::string policy = "plain";
  std::string shard = "per-sequence";
  std::string schedule;             // empty: the policy's, else 1f1b
  std::string form = "all-gather";  // of CP
  std::string recompute = "none";   // or "layers": three of them
  std::string normalizer = "token";
  std::string order = "tp-cp-ep-dp-pp";
  int tensor = 1, context = 1, pipeline = 1, data = 1;
  int inner = 0;  // ranks of an all-to-all, of a nested form
  int block = 0;  // of group-cast
  int node_ranks = 0;  // of a CP group, which casts once to a node; 0: it casts to each rank
  int zero = 1;
  std::int64_t window = 128;
  int keep = 1;
  int slices = 3;
  bool interleave = false;  // seq1f1b with two model chunks a rank
  bool strict_keep = false;
  bool exchange = false;  // stages even out their attention
  bool tied = false;
  bool count_ends = false;  // embedding and head count as layers where stages get theirs
  int kv_heads = 2;
  std::uint64_t seed = 0;  // of the documents, and of what no axis fixes

  // What a sample has seen once it has run this: "policy plain at CP 2" ...
  [[nodiscard]] std::vector<std::string> covers() const;
  // {"study": {...}, "step": n, "normalizer": name, "fold_tp": false}: all that repeats it.
  [[nodiscard]] nlohmann::json to_json() const;
};

// Every case, group by group. The same cases with other documents for every seed.
std::vector<MatrixCase> equivalence_matrix(std::uint64_t seed = 0);

inline constexpr int kContexts[] = {1, 2, 4};

}  // namespace equipoise::testing
