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

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/study/read/study.h"

namespace equipoise {

struct TriedKey {
  std::string key;
  std::vector<nlohmann::json> values;
};

struct Space {
  std::vector<TriedKey> shared;                 // dotted keys of the study
  std::vector<std::vector<TriedKey>> policies;  // keys of each entry, including `name`
};

// Reads and checks every key and value, each with the first values of the others. `study` is a study file
// whose paths are absolute. Throws UserError naming the space's file and the key.
Space read_space(const std::string& path, const nlohmann::json& study);
Space parse_space(const nlohmann::json& file, const std::string& path, const nlohmann::json& study);

nlohmann::json space_json(const Space& space);

// The space that is searched where the user names none: every layout of the GPUs that the model's sizes
// allow, and the policies that keep the order of data up to a bounded delay. `gpus`: of the candidates;
// `gpus_per_node`: bounds the TP degree.
Space default_space(const Study& study, const nlohmann::json& file, std::int64_t gpus, int gpus_per_node);

// The file with `set` applied. Every path in it is absolute, and batch.sequences_per_step, which would
// otherwise follow from the layout, is a number in it. Throws UserError as read_study does.
nlohmann::json absolute_study(const std::string& path, const std::vector<std::string>& set);

// The same for the file of a study that was read, in place.
void make_absolute(nlohmann::json& file, const Study& study);

}  // namespace equipoise
