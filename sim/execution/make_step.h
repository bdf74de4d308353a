// From a plan's step to one that ranks can run.
#pragma once

#include "sim/step/expansion.h"
#include "sim/execution/executable_step.h"

namespace equipoise::execution {

// The step with the simulator's op program for it. `fold_tp` as in StepExpander: ranks run either form, op by
// op the same. Throws UserError where the sharding rule or the schedule refuses the step, or where the layout
// has what no rank can run (check_layout_runs).
ExecutableStep make_step(const LayerCosts& costs, const ShardRule& rule, const StepOptions& options,
                         const Step& step, const DocumentLengths& documents, LossNormalizer normalizer,
                         bool fold_tp = true);

// Throws UserError for what real execution does not do: experts, ZeRO-2 and ZeRO-3, more TP ranks than tokens
// of the vocabulary.
void check_layout_runs(const ModelShape& model, const Layout& layout);

// The longest slice or group of dependent chunks, padding included: positions go so far.
std::int64_t longest_attended(const ExecutableStep& step);

}  // namespace equipoise::execution
