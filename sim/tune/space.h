// What a search may try: keys of a study with their values, and the policies with theirs.
//
// SPACE.json is an object of a study's keys, dotted as --sweep takes them, each with one value or a list of
// values to try; `policies` is a list of a study's entries in which any value may be a list, too (an option
// that is a list itself is a list of lists):
//   {"parallel.tensor": [4, 8], "parallel.context": [1, 2],
//    "policies": ["plain-4d", {"name": "wlb", "queues": [1, 2, 3]}]}
// Where it names no `policies`, they are the study's. `parallel.data` follows from the number of GPUs where
// it is not listed. Keys that all candidates must share (trace, model, cluster, the global batch) are
// refused.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace equipoise {

struct TriedKey {
  std::string key;
  std::vector<nlohmann::json> values;
};

struct Space {
  std::vector<TriedKey> shared;                 // of the study, dotted
  std::vector<std::vector<TriedKey>> policies;  // keys of each entry; `name` among them
};

// Reads and checks every key and value, each beside the first values of the others. `study` is a study file
// whose paths are absolute. Throws UserError naming the space's file and the key.
Space read_space(const std::string& path, const nlohmann::json& study);
Space parse_space(const nlohmann::json& file, const std::string& path, const nlohmann::json& study);

// The study's own rows, one value a key; those that cannot move to another layout (a plan from a file) are
// left out.
std::vector<std::vector<TriedKey>> rows_of_study(const nlohmann::json& study);

nlohmann::json space_json(const Space& space);

}  // namespace equipoise
