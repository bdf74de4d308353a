// What would make a row run that does not: the smallest change of the study, found by trying changes on the
// models and not from a list of advice.
//
// Each change that is tried asks more of the user than the ones before. The first costs time only: the fewest
// checkpointed layers that help. Next come the policy's own sizes (the closest that help), how states are
// sharded, CP ranks instead of replicas, and the optimizer's states on the host. All of these keep the number
// of GPUs. More GPUs for context parallelism follow, and at last what changes the data. A change counts only
// if the whole row runs with it: same documents, new plan, every step within memory. Its cost in time is
// stated with it. Cost: some tens of runs of the row at stage fidelity at most, and of a row that runs none.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "sim/study/read/study.h"
#include "sim/study/study_result.h"

namespace equipoise {

// The end of the row after these changes.
struct RowEnd {
  RowStatus status = RowStatus::ok;
  double seconds_per_token = 0;  // 0: unknown
};
using TryRow = std::function<RowEnd(const Study& study, const PolicyRun& run)>;

struct FailedRow {
  const Study& study;
  const PolicyRun& run;  // as the study states it, without derived values
  RowStatus status = RowStatus::oom;
  std::int64_t longest_document = 0;  // tokens of the study's longest slice
  // For a row that lacks memory: seconds per token if there were enough; 0 if unknown.
  std::function<double()> with_enough_memory = {};
};

// The changes and their cost in time, or what was tried in vain; empty if nothing is known.
std::optional<Note> smallest_change(const FailedRow& row, const TryRow& try_row);

}  // namespace equipoise
