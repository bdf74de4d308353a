// The way of every row: prepare -> plan -> simulate -> judge.
//
// A study runs each of its rows so (run_row). `recompute: auto` and the search for what would make a row run
// send trials the same way and ask only whether they fit. `tune` ends its candidates early and shares their
// plans, and ranks that really run a row take its plan, so they call the stages themselves:
//   prepare   ready_row                   its plan's file, the models of its layout   (study_row.h)
//   plan      derive_sizes, pack_row      what memory decides, then the policy        (plan_row.h)
//   simulate  PlanSimulator               all steps, under the row's sharding rule    (simulate.h)
//   judge     describe_row                metrics, memory, and why it did not run     (judge.h)
//   advise    smallest_change             what would make it run                      (fit.h)
//   details   add_details                 its timelines and what the page shows       (details.h)
#pragma once

#include "sim/study/row/plan_row.h"
#include "sim/study/row/simulate.h"
#include "sim/study/row/study_row.h"
#include "sim/study/run_options.h"
#include "sim/study/study_result.h"

namespace equipoise {

// Both below try the row with `trial`, which is trial_options() of the run's options.
//
// `recompute: auto` becomes the fewest checkpointed layers with which the row runs: bisection, so some log2
// of the layers runs. What runs with no number of layers is left with all. hbp's groups take their own
// (Algorithm 4).
void resolve_recompute(StudyRow& row, const RunStudyOptions& trial);

// The row of an entry, all of that resolved. A key that is `auto` has the value with which the row is the
// fastest that fits, the first of equals: schedule (the study's, seq1f1b, state-aware-1f1b),
// virtual_pipeline (the layout's, 1), chunk_size (1/16 to 1 window) and keep (the most that fits). One is
// decided inside the other, so that each schedule has its own sizes. Where none fits, what the row has
// without the key.
StudyRow ready_row(const Study& study, const StudyInputs& inputs, const PolicyRun& entry,
                   const RunStudyOptions& trial);

// Plans and simulates: a block of steps is simulated as soon as it is planned, and then only its figures are
// kept, unless options.keeps_steps(). Both are empty where nothing fits (row.no_room). Throws
// UnplaceableDocument where the policy cannot place a document, UserError where it refuses its options.
struct SimulatedRow {
  PlannedRow planned;
  SimulatedPlan ran;
};
SimulatedRow simulate_row(StudyRow& row, const RunStudyOptions& options, Until until);

// All of it. What the row's own options do not allow is its reason, with options.find_fits followed by what
// would make it run; a file that cannot be written is an error of the whole study.
PolicyResult run_row(const Study& study, const StudyInputs& inputs, const PolicyRun& entry,
                     const RunStudyOptions& options);

}  // namespace equipoise
