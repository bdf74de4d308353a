// A row of a study made ready for ranks to run: the same plan, sharding and op program on every rank. Rank 0
// plans and tells the others, since a policy with a solver may plan otherwise a second time.
#pragma once

#include <string>
#include <vector>

#include "kernels/collectives.h"
#include "sim/execution/executable_step.h"
#include "sim/study/row/pipeline.h"
#include "sim/study/study_inputs.h"

namespace equipoise {

struct RealRow {
  std::string label;
  StudyRow ready;
  Plan plan;
  std::string shard;   // the rule that runs
  std::string reason;  // why it cannot run; else empty
  std::vector<execution::ExecutableStep> steps;

  [[nodiscard]] bool runs() const { return reason.empty(); }
};

struct RealRowOptions {
  std::string policy;  // label; empty: all rows
  int steps = 1;       // full steps of each plan, at most
  execution::LossNormalizer normalizer = execution::LossNormalizer::token;
};

// The study as real ranks run it: the preset of our own ranks instead of a framework's.
void use_own_ranks(Study& study);

// All ranks of `world` call it. Throws UserError for a study that ranks cannot run at all, or no such label.
std::vector<RealRow> real_rows(const Study& study, const StudyInputs& inputs, const RealRowOptions& options,
                               kernels::Communicator& world);

// Text from rank 0 to all.
std::string broadcast(kernels::Communicator& world, const std::string& text);

}  // namespace equipoise
