// Small searches as JSON values.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "sim/study/study_inputs.h"
#include "sim/tune/search.h"
#include "sim/tune/space.h"
#include "tests/sim/study/study_case.h"

namespace equipoise::testing {

struct TuneCase {
  nlohmann::json file;
  Study study;
  StudyInputs inputs;
  Space space;
  Candidates candidates;

  TuneCase(const nlohmann::json& study_file, const nlohmann::json& space_file, std::int64_t gpus)
      : file(absolute(study_file)),
        study(parse(file)),
        inputs(load_inputs(study)),
        space(parse_space(space_file, "space.json", file)),
        candidates(candidates_of(space, file, gpus, "space.json", 1)) {}

  static nlohmann::json absolute(nlohmann::json file) {
    make_absolute(file, parse(file));
    return file;
  }

  [[nodiscard]] SearchResult find(SearchOptions options = {}, Journal* journal = nullptr) const {
    options.name = "study.json";
    return search(candidates, inputs, options, journal);
  }
};

// The small study's 8 GPUs and three policies: some hundred candidates, of which many do not fit or go
// together.
inline nlohmann::json small_space() {
  return nlohmann::json::parse(R"({
    "parallel.tensor": [1, 2, 4],
    "parallel.context": [1, 2, 4],
    "parallel.pipeline": [1, 2, 4],
    "parallel.virtual_pipeline": [1, 2],
    "parallel.context_comm": ["all-gather", "ring", "ulysses"],
    "parallel.recompute": ["none", "full"],
    "policies": ["plain-4d", {"name": "wlb", "queues": [1, 2], "shard": "adaptive"},
                 {"name": "chunkflow", "chunk_size": ["4K", "8K"], "keep": 1}]
  })");
}

}  // namespace equipoise::testing
