// A layout for a job that names none: the fastest that fits, by a short search (search.h) whose work is
// counted, so that it is the same on every machine.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "sim/study/run_options.h"
#include "sim/workload/layout.h"

namespace equipoise {

struct ProposedLayout {
  nlohmann::json parallel;       // of a study
  Layout layout;                 // the same
  double seconds_per_token = 0;  // with plain packing, on few steps
  double free_bytes = 0;         // on the fullest GPU
  std::int64_t simulated = 0;    // layouts
};

// `file`: a study's, with absolute paths and `batch.sequences_per_step`; its rows and its `parallel` do not
// count. TP, CP, PP, interleaving, expert parallelism and recompute are searched, K and V travel by
// all-gather. A layout for which the framework has no flags is not tried, if `export` knows its flags.
// Empty where no layout fits. Throws UserError, and Interrupted.
std::optional<ProposedLayout> proposed_layout(nlohmann::json file, std::int64_t gpus,
                                              const RunStudyOptions& options);

}  // namespace equipoise
