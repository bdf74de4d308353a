// One row of a study on its way: what planning, simulating and reporting it are given.
#pragma once

#include <memory>
#include <string_view>

#include "policies/loader.h"
#include "policies/workload.h"
#include "sim/cost/micro_batch_cost.h"
#include "sim/step/step_result.h"
#include "sim/study/derive.h"
#include "sim/study/run_options.h"
#include "sim/study/study.h"

namespace equipoise {

struct Run {
  const Study& study;
  const RunModels& models;  // of the row's layout
  const DocumentSet& documents;
  const PolicyRun& row;
  const Workload& workload;  // prices documents for packing and placement
  const RunStudyOptions& options;

  // The row's micro-batches under a sharding rule. Refers to the workload.
  [[nodiscard]] ShardRule rule(std::string_view shard) const;
  // The row's own rule, where its plan is only tried: static-best decides a micro-batch at a time.
  [[nodiscard]] ShardRule trial_rule() const;
  [[nodiscard]] StepOptions step_options() const;
};

// What prices the row's documents: gds, dacp and skrull balance by Skrull's FLOPs formula, everything else by
// the profile, unless the study says so.
std::unique_ptr<Workload> workload_of(const Study& study, const RunModels& models, const PolicyRun& row);

// The FLOPs of a document on the study's model (Skrull Eq. 13).
FlopsWorkload flops_workload(const ModelShape& model);

}  // namespace equipoise
