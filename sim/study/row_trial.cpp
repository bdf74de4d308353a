#include "sim/study/row_trial.h"

#include "policies/base/error.h"
#include "sim/study/fit_search.h"
#include "sim/study/load_trace.h"
#include "sim/study/plan_file.h"
#include "sim/study/planner.h"
#include "sim/study/recompute_choice.h"
#include "sim/study/simulate_plan.h"

namespace equipoise {
namespace {

// How a row ends, without what only a row that is shown needs.
RowStatus try_row(const Study& study, const DocumentSet& documents, const Profile& profile, PolicyRun row,
                  const RunStudyOptions& options) {
  if (recompute_is_automatic(study, row)) {  // if not with all layers, then with none
    row.has_recompute = true;
    row.recompute = Recompute::full;
  }
  const RunModels models(study, layout_of(study, row), profile);
  std::vector<std::string> unused;
  if (!derive_options(study, models, row, unused).empty()) return RowStatus::oom;
  const std::unique_ptr<Workload> workload = workload_of(study, models, row);
  const RunStudyOptions trial = trial_options(options);
  const Run run{study, models, documents, row, *workload, trial};
  const PlannedRow planned = plan_row(run, row);
  const SimulatedPlan simulated = simulate_plan(run, planned.plan, Until::first_that_does_not_fit);
  return all_fit(simulated.steps, models.memory.capacity_bytes()) ? RowStatus::ok : RowStatus::oom;
}

}  // namespace

void resolve_recompute(const Study& study, const StudyInputs& inputs, PolicyRun& row,
                       const RunStudyOptions& options, std::vector<std::string>& notes) {
  if (!recompute_is_automatic(study, row)) return;
  const RunModels models(study, layout_of(study, row), inputs.profile);
  const auto runs = [&](const PolicyRun& tried) {
    end_if_stopped(options);
    try {
      return try_row(study, inputs.documents, inputs.profile, tried, options) == RowStatus::ok;
    } catch (const UserError&) {
      return false;  // L_max and BucketSize come from memory, too
    }
  };
  choose_recompute(study, models, row, runs, notes);
}

std::string what_would_run(const Study& study, const StudyInputs& inputs, const PolicyRun& row,
                           RowStatus status, const RunStudyOptions& options) {
  const auto ends = [&](const Study& changed, const PolicyRun& tried) {
    end_if_stopped(options);
    if (changed.batch.sequences_per_step == study.batch.sequences_per_step)
      return try_row(changed, inputs.documents, inputs.profile, tried, options);
    return try_row(changed, documents_of(changed, load_trace(changed)), inputs.profile, tried, options);
  };
  std::vector<std::string> told;  // by the row itself
  const PolicyRun entry = with_plan(row, inputs.plans, told);
  return smallest_change({study, entry, status, longest_of(inputs.documents)}, ends);
}

}  // namespace equipoise
